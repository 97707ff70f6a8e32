//! What the tests share: a world with processes in it, moments of virtual time, a clock that can be moved, and
//! a future that is dropped at a chosen point.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use leasehold_core::memory::{MemoryStore, MemoryWorld, Operation};
use leasehold_core::store::{Holder, Inspection};
use leasehold_core::{
    Attempt, Busy, Client, ClientSettings, Clock, Entropy, Error, Guard, KeeperRuntime, Label, Load, Lock,
    Moment, Name, Released, Store, VirtualClock,
};

/// Virtual time has a resolution of one millisecond, and some steps round up twice.
pub(crate) const TICK: Duration = Duration::from_millis(3);

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// Lets virtual time pass.
pub(crate) async fn pass(duration: Duration) {
    #[allow(clippy::disallowed_methods, reason = "tests own the time")]
    tokio::time::sleep(duration).await;
}

/// Moves virtual time in one leap, as if nothing had run meanwhile.
pub(crate) async fn advance(duration: Duration) {
    tokio::time::advance(duration).await;
}

/// The future's output, or `None` if it takes longer.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    #[allow(clippy::disallowed_methods, reason = "tests own the time")]
    tokio::time::timeout(limit, future).await.ok()
}

/// Polls a future at most this many times and then drops it: its output if it was ready by then.
pub(crate) async fn polled<F: Future>(most: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = most;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A server and its clock. Dereferences to the server.
pub(crate) struct World {
    memory: Arc<MemoryWorld>,
    pub(crate) clock: Arc<MovableClock>,
    observer: MemoryStore,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = MovableClock::start();
        let memory = MemoryWorld::new(clock.clone());
        let observer = MemoryStore::connect(&memory);
        Self { memory, clock, observer }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A process with this label.
    pub(crate) async fn process(&self, label: &str) -> Process {
        self.process_with(label, |_| ()).await
    }

    /// A process with settings of its own.
    pub(crate) async fn process_with(
        &self,
        label: &str,
        change: impl FnOnce(&mut ClientSettings),
    ) -> Process {
        self.process_on(MemoryStore::connect(&self.memory), label, change).await
    }

    /// A process whose clock is not the server's.
    pub(crate) async fn process_with_clock(&self, label: &str, clock: Arc<dyn Clock>) -> Process {
        let store = MemoryStore::connect_with_clock(&self.memory, Arc::clone(&clock));
        self.process_on(store, label, |settings| settings.clock = clock).await
    }

    /// A process to which nothing can be pushed.
    pub(crate) async fn process_without_push(&self, label: &str) -> Process {
        self.process_on(MemoryStore::connect_without_push(&self.memory), label, |_| ()).await
    }

    pub(crate) async fn process_on(
        &self,
        store: MemoryStore,
        label: &str,
        change: impl FnOnce(&mut ClientSettings),
    ) -> Process {
        let store = Arc::new(store);
        let mut settings = ClientSettings {
            label: Some(Label::new(label).unwrap()),
            clock: self.clock.clone(),
            keeper: KeeperRuntime::Current,
            ..ClientSettings::default()
        };
        change(&mut settings);
        let connection = Arc::clone(&store);
        let connect = move || {
            let store: Arc<dyn Store> = connection.clone();
            async move { Ok(store) }
        };
        Process { client: Client::start(settings, connect).await.unwrap(), store }
    }

    pub(crate) async fn inspect(&self, name: &str) -> Option<Inspection> {
        self.observer.inspect(&self::name(name)).await.unwrap()
    }

    /// How long the lease of the name lasts on the server if it is not renewed; zero if there is none.
    pub(crate) async fn lease_left(&self, name: &str) -> Duration {
        self.inspect(name).await.and_then(|seen| seen.remaining).unwrap_or_default()
    }

    /// The label of the holder.
    pub(crate) async fn holder(&self, name: &str) -> Option<String> {
        match self.inspect(name).await?.holder? {
            Holder::Lease { label } => Some(label),
            _ => None,
        }
    }

    /// Panics unless the server keeps nothing at all.
    pub(crate) fn assert_empty(&self, context: impl std::fmt::Display) {
        assert_eq!(self.memory.stored_names(), 0, "left on the server: {context}");
    }
}

impl Deref for World {
    type Target = Arc<MemoryWorld>;

    fn deref(&self) -> &Arc<MemoryWorld> {
        &self.memory
    }
}

/// A client and its connection, whose faults are asked for by methods of the store.
pub(crate) struct Process {
    pub(crate) client: Client,
    pub(crate) store: Arc<MemoryStore>,
}

impl Process {
    pub(crate) fn lock(&self, name: &str) -> Lock {
        self.client.lock(name).unwrap()
    }

    /// Takes a name that must be free.
    pub(crate) async fn take(&self, name: &str, ttl: Duration) -> Guard {
        acquired(self.lock(name).ttl(ttl).try_acquire().await)
    }

    pub(crate) fn acquires(&self) -> u64 {
        self.store.requests(Operation::Acquire)
    }

    pub(crate) fn releases(&self) -> u64 {
        self.store.requests(Operation::Release)
    }

    pub(crate) fn renewals(&self) -> u64 {
        self.store.requests(Operation::Renew)
    }

    /// Panics unless the client remembers nothing.
    pub(crate) fn assert_idle(&self, context: impl std::fmt::Display) {
        assert_eq!(self.client.load(), Load::default(), "left in the client: {context}");
    }
}

/// Acquires in a task of its own.
pub(crate) fn waiting(lock: Lock) -> tokio::task::JoinHandle<Result<Attempt, Error>> {
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) fn acquired(attempt: Result<Attempt, Error>) -> Guard {
    match attempt {
        Ok(Attempt::Acquired(guard)) => guard,
        other => panic!("not acquired: {other:?}"),
    }
}

/// Gives a name back that is held until now.
pub(crate) async fn free(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

pub(crate) fn busy(attempt: Result<Attempt, Error>) -> Busy {
    match attempt {
        Ok(Attempt::Busy(busy)) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

/// Panics unless a moment lies this long after another, give or take the resolution of virtual time.
#[track_caller]
pub(crate) fn assert_about(actual: Duration, expected: Duration) {
    assert!(
        actual + TICK >= expected && actual <= expected + TICK,
        "it was {actual:?}, not about {expected:?}"
    );
}

/// The clock of virtual time, which a test can also put forward in the middle of a poll, as it appears to a
/// process that was stopped, and stop, as a paused virtual machine does.
pub(crate) struct MovableClock {
    inner: VirtualClock,
    ahead_nanos: AtomicU64,
    stopped_at: AtomicU64,
}

impl MovableClock {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self {
            inner: VirtualClock::start(),
            ahead_nanos: AtomicU64::new(0),
            stopped_at: AtomicU64::new(u64::MAX),
        })
    }

    pub(crate) fn put_forward(&self, by: Duration) {
        self.ahead_nanos.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        let now = self.now().since_origin().as_nanos();
        self.stopped_at.store(u64::try_from(now).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for MovableClock {
    fn now(&self) -> Moment {
        let now = self.inner.now().after(Duration::from_nanos(self.ahead_nanos.load(Ordering::Relaxed)));
        now.min(Moment::from_origin(Duration::from_nanos(self.stopped_at.load(Ordering::Relaxed))))
    }
}

/// A clock that runs at another speed than virtual time: `per_mille` of it.
pub(crate) struct SkewedClock {
    inner: VirtualClock,
    started: Moment,
    per_mille: u32,
}

impl SkewedClock {
    pub(crate) fn start(per_mille: u32) -> Arc<Self> {
        let inner = VirtualClock::start();
        Arc::new(Self { started: inner.now(), inner, per_mille })
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Moment {
        self.started.after(self.inner.now().since(self.started) * self.per_mille / 1000)
    }
}

/// Random numbers that a seed determines (SplitMix64; Steele, Lea and Flood, 2014).
pub(crate) struct Random(AtomicU64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        let step = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Up to this many milliseconds.
    pub(crate) fn millis(&self, most: u64) -> Duration {
        millis(self.below(most + 1))
    }

    pub(crate) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

impl Entropy for Random {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error> {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Ok(())
    }
}
