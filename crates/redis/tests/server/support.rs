//! A process of a test: a store, what it was told, and short ways to ask.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::store::{
    AcquireReply, AcquireRequest, EventSink, Held, QueueRequest, ReleaseReply, ReleaseRequest, RenewReply,
    RenewRequest, Store, StoreEvent,
};
use leasehold_core::{
    COMMAND_TIMEOUT, Clock, Error, FencingToken, Label, Moment, Name, OwnerToken, SystemClock, SystemEntropy,
};
use leasehold_redis::{RedisConfig, RedisStore};

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// Longer than anything takes on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(15);

pub(crate) struct Process {
    pub(crate) store: RedisStore,
    events: Arc<Told>,
}

#[derive(Default)]
struct Told(Mutex<Vec<StoreEvent>>);

impl EventSink for Told {
    fn event(&self, event: StoreEvent) {
        self.0.lock().unwrap().push(event);
    }
}

pub(crate) async fn connect(url: &str) -> Result<RedisStore, Error> {
    RedisStore::connect(RedisConfig::from_url(url)?).await
}

/// Why a store cannot be connected.
pub(crate) async fn connect_error(url: &str) -> Error {
    match connect(url).await {
        Ok(_) => panic!("{url} is connected"),
        Err(error) => error,
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn owner(label: &str) -> OwnerToken {
    OwnerToken::generate(&SystemEntropy, &Label::new(label).unwrap()).unwrap()
}

/// Runs a test on a runtime of its own.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(100), test).await.unwrap() });
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = SystemClock.now();
    while !is_so().await {
        assert!(SystemClock.now().since(start) < SLACK, "not so after {SLACK:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Process {
    pub(crate) async fn start(url: &str) -> Self {
        let store = connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let events = Arc::new(Told::default());
        store.attach(Arc::downgrade(&events) as Weak<dyn EventSink>);
        Self { store, events }
    }

    pub(crate) async fn ask(
        &self,
        name: &Name,
        owner: &OwnerToken,
        ttl: Duration,
        queue: Option<QueueRequest>,
    ) -> Result<AcquireReply, Error> {
        let not_after = SystemClock.now().after(COMMAND_TIMEOUT);
        self.store.acquire(AcquireRequest { name, owner, ttl, queue, not_after }).await
    }

    pub(crate) async fn try_acquire(&self, name: &Name, owner: &OwnerToken) -> Result<AcquireReply, Error> {
        self.ask(name, owner, TTL, None).await
    }

    pub(crate) async fn take(&self, name: &Name, owner: &OwnerToken) -> FencingToken {
        match self.try_acquire(name, owner).await.unwrap() {
            AcquireReply::Granted { fencing_token } => fencing_token,
            AcquireReply::Held(held) => panic!("{name} is held: {held:?}"),
        }
    }

    pub(crate) async fn queue(&self, name: &Name, owner: &OwnerToken) -> Held {
        let queue = QueueRequest { ticket: None, poll_interval: Duration::from_secs(1) };
        match self.ask(name, owner, TTL, Some(queue)).await.unwrap() {
            AcquireReply::Held(held) => held,
            AcquireReply::Granted { .. } => panic!("{name} was free"),
        }
    }

    pub(crate) async fn release(&self, name: &Name, owner: &OwnerToken) -> Result<ReleaseReply, Error> {
        self.store.release(ReleaseRequest { name, owner, keep_for: None }).await
    }

    pub(crate) async fn renew(&self, name: &Name, owner: &OwnerToken) -> Result<RenewReply, Error> {
        let request = RenewRequest { name: name.clone(), owner: owner.clone(), ttl: TTL };
        self.store.renew(&[request]).await.pop().unwrap()
    }

    /// The grants that were pushed to an owner: fencing token, and the moment they came after.
    pub(crate) fn grants(&self, to: &OwnerToken) -> Vec<(FencingToken, Option<Moment>)> {
        let events = self.events.0.lock().unwrap();
        let grants = events.iter().filter_map(|event| match event {
            StoreEvent::Granted { owner, fencing_token, granted_after, .. } if owner == to => {
                Some((*fencing_token, *granted_after))
            }
            _ => None,
        });
        grants.collect()
    }

    /// Whether an owner was told that it is first.
    pub(crate) fn is_first(&self, told: &OwnerToken) -> bool {
        let events = self.events.0.lock().unwrap();
        events.iter().any(|event| matches!(event, StoreEvent::First { owner, .. } if owner == told))
    }

    pub(crate) fn reconnections(&self) -> usize {
        let events = self.events.0.lock().unwrap();
        events.iter().filter(|event| matches!(event, StoreEvent::Reconnected)).count()
    }

    pub(crate) async fn until_reconnected(&self, times: usize) {
        until("reconnected", async || self.reconnections() >= times).await;
    }
}
