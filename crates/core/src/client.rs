//! The client: one connection to a store, one keeper thread, any number of locks.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::clock::{Clock, SystemClock};
use crate::engine::{Engine, Shared};
use crate::entropy::{Entropy, SystemEntropy};
use crate::error::{Error, ErrorKind};
use crate::guarantees::Guarantees;
use crate::keeper;
use crate::lock::Lock;
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::options::{DEFAULT_STORE_TIMEOUT, LockOptions, rounded};
use crate::owner::Label;
use crate::store::{
    BreakMode, BreakReply, Capabilities, EventSink, Finding, Inspection, Listing, Store, StoreFuture,
};
use crate::timers::Timers;

/// The first pause between two attempts to connect; later ones double it.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// A store that comes at the last moment is still connected if that takes no longer than this.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// How a client behaves, apart from its store.
#[derive(Clone)]
pub struct ClientSettings {
    /// What operators see as the holder; `host:pid` by default.
    pub label: Option<Label>,
    /// How long the store may give no usable answer before `Unavailable`: 10 s by default.
    pub store_timeout: Duration,
    /// What locks ask for unless they say otherwise.
    pub defaults: LockOptions,
    /// The clock; only tests need another one.
    pub clock: Arc<dyn Clock>,
    /// The random bits; only tests need others.
    pub entropy: Arc<dyn Entropy>,
    /// Where the keeper runs.
    pub keeper: KeeperRuntime,
}

/// Where the keeper and the store's connections run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperRuntime {
    /// On a thread of their own, so that a program that blocks its runtime keeps its leases.
    OwnThread,
    /// On the Tokio runtime of the caller: for tests with virtual time.
    Current,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            label: None,
            store_timeout: DEFAULT_STORE_TIMEOUT,
            defaults: LockOptions::default(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            keeper: KeeperRuntime::OwnThread,
        }
    }
}

impl fmt::Debug for ClientSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSettings")
            .field("label", &self.label)
            .field("store_timeout", &self.store_timeout)
            .field("defaults", &self.defaults)
            .field("keeper", &self.keeper)
            .finish_non_exhaustive()
    }
}

/// Makes locks on one store. Clones are cheap and share everything.
///
/// The client's thread ends when the last clone, lock and guard is gone and their releases are confirmed.
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
    defaults: LockOptions,
}

impl Client {
    /// Starts a client on the store that `connect` makes. `connect` runs on the engine's runtime and is tried
    /// again while it reports `Unavailable`, until `store_timeout` has passed.
    ///
    /// # Errors
    /// What `connect` reported last; `Config` for defaults outside their limits and for a `store_timeout` of zero.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn start<C, F>(settings: ClientSettings, connect: C) -> Result<Self, Error>
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Arc<dyn Store>, Error>> + Send + 'static,
    {
        settings.defaults.check(true)?;
        if settings.store_timeout.is_zero() {
            return Err(Error::config(
                "store_timeout is 0: a store has to be given some time to answer, for instance 10 s",
            ));
        }
        let (send, receive) = oneshot::channel();
        let defaults = settings.defaults.clone();
        let work = |settings: ClientSettings, handle: Handle| async move {
            match open(settings, handle, connect).await {
                Err(error) => drop(send.send(Err(error))),
                Ok(engine) => {
                    let shared = Arc::clone(&engine.0);
                    // If nobody waits for the client any more, the engine is dropped here and the keeper ends.
                    drop(send.send(Ok(engine)));
                    keeper::keep(shared).await;
                }
            }
        };
        match settings.keeper {
            KeeperRuntime::OwnThread if on(Rule::OwnThread) => {
                spawn_thread(move |handle| work(settings, handle))?;
            }
            _ => {
                let handle = Handle::current();
                tokio::spawn(work(settings, handle));
            }
        }
        let engine = receive.await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the engine's thread ended before the store was connected")
        })??;
        Ok(Self { engine: Arc::new(engine), defaults })
    }

    /// A lock on this name, with the client's defaults.
    ///
    /// # Errors
    /// `Config` when the name is outside its limits.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock, Error> {
        Ok(Lock::new(Arc::clone(&self.engine), Name::new(name)?, self.defaults.clone()))
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.store.capabilities()
    }

    /// What the store guarantees with its settings, fault by fault.
    pub fn guarantees(&self) -> Guarantees {
        self.engine.store.guarantees()
    }

    /// The store as messages name it: its URL without secrets.
    pub fn store(&self) -> String {
        self.engine.store.describe()
    }

    /// What operators see as the holder.
    pub fn label(&self) -> &Label {
        &self.engine.label
    }

    /// Who holds a name and who waits for it; `None` when it is free and nobody waits.
    ///
    /// # Errors
    /// `Config` for a bad name; otherwise what the store reports.
    ///
    /// # Cancel safety
    /// Changes nothing, so it can be dropped at any time.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Option<Inspection>, Error> {
        let name = Name::new(name)?;
        self.ask(Repeat::Always, || self.engine.store.inspect(&name))
            .await
            .map_err(|error| error.context(&name))
    }

    /// The taken names that start with the prefix, at most `limit` of them. Names that are released while they are
    /// being listed are left out, so there can be fewer than `limit` although there are more.
    ///
    /// # Errors
    /// What the store reports.
    ///
    /// # Cancel safety
    /// Changes nothing, so it can be dropped at any time.
    pub async fn list(&self, prefix: &str, limit: usize) -> Result<Listing, Error> {
        self.ask(Repeat::Always, || self.engine.store.list(prefix, limit)).await
    }

    /// Takes the lease of a name away from whoever holds it.
    ///
    /// # Errors
    /// `Config` for a bad name; `Unknown` when the reply was lost: look who holds the name before breaking it
    /// again, it may be the next holder by now; otherwise what the store reports.
    ///
    /// # Cancel safety
    /// When the future is dropped, the lease may or may not be broken.
    pub async fn break_lease(&self, name: impl AsRef<str>, mode: BreakMode) -> Result<BreakReply, Error> {
        let name = Name::new(name)?;
        self.ask(Repeat::IfNotExecuted, || self.engine.store.break_lease(&name, mode, &self.engine.label))
            .await
            .map_err(|error| error.context(&name))
    }

    /// Looks for settings and conditions of the store that endanger locks.
    ///
    /// # Errors
    /// What the store reports.
    ///
    /// # Cancel safety
    /// Changes nothing, so it can be dropped at any time.
    pub async fn diagnose(&self) -> Result<Vec<Finding>, Error> {
        self.ask(Repeat::Always, || self.engine.store.diagnose()).await
    }

    /// Ends the client: no acquisition is begun any more, and releases and clean-ups that run in the background
    /// are waited for. Guards that are still held go on until they are released, and acquisitions that wait already
    /// go on to their end.
    ///
    /// Call it before the process ends: a release that was not sent by then leaves the name taken for its TTL.
    ///
    /// # Errors
    /// `Unknown` when some were not confirmed in time; they go on in the background while the process lives.
    /// `Config` in a forked child, where nothing runs in the background.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the client closed.
    pub async fn close(&self, timeout: Duration) -> Result<(), Error> {
        self.engine.check_process()?;
        self.engine.closed.store(true, Ordering::Release);
        let until = self.engine.now().after(timeout);
        match self.engine.timers.before(until, self.engine.cleanups.finished()).await {
            Some(()) => Ok(()),
            None => Err(Error::new(
                ErrorKind::Unknown,
                format!(
                    "{} releases were not confirmed within {timeout:?}; those leases end by themselves",
                    self.engine.cleanups.unfinished()
                ),
            )),
        }
    }

    /// How many leases, waiters, names in the local queue and unfinished clean-ups this client has.
    #[doc(hidden)]
    pub fn load(&self) -> Load {
        Load {
            leases: self.engine.schedule().len(),
            waiters: self.engine.waiters.len(),
            names: self.engine.local_queue.names(),
            cleanups: self.engine.cleanups.unfinished(),
        }
    }

    /// Asks the store, again while it is unavailable, until `store_timeout`.
    async fn ask<'a, T>(
        &'a self,
        repeat: Repeat,
        question: impl Fn() -> StoreFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        self.engine.check_process()?;
        let timers = &self.engine.timers;
        let ends = timers.now().after(self.engine.store_timeout);
        let mut pause = FIRST_PAUSE;
        loop {
            let reply = timers.before(ends, question()).await.unwrap_or_else(|| {
                let message = format!(
                    "{} gave no answer within {:?}",
                    self.store(),
                    rounded(self.engine.store_timeout)
                );
                Err(Error::new(repeat.no_answer(), message))
            });
            match reply {
                Err(error) if repeat.makes_sense(&error) && timers.now().after(pause) < ends => {
                    timers.sleep(pause).await;
                    pause = (pause * 2).min(MOST_PAUSE);
                }
                reply => return reply,
            }
        }
    }
}

/// When a question may be asked again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// It changes nothing.
    Always,
    /// It changes something: executed twice, it could hit somebody else the second time.
    IfNotExecuted,
}

impl Repeat {
    fn makes_sense(self, error: &Error) -> bool {
        match self {
            Self::IfNotExecuted if on(Rule::BreakOnce) => error.kind() == ErrorKind::Unavailable,
            Self::Always | Self::IfNotExecuted => error.is_retryable(),
        }
    }

    fn no_answer(self) -> ErrorKind {
        match self {
            Self::Always => ErrorKind::Unavailable,
            Self::IfNotExecuted => ErrorKind::Unknown,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("store", &self.store())
            .field("label", self.label())
            .finish_non_exhaustive()
    }
}

/// See [`Client::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct Load {
    /// Leases under the keeper's care.
    pub leases: usize,
    /// Acquisitions with a mailbox.
    pub waiters: usize,
    /// Names in the local queue.
    pub names: usize,
    /// Clean-ups that are not finished.
    pub cleanups: usize,
}

async fn open<C, F>(settings: ClientSettings, handle: Handle, connect: C) -> Result<Engine, Error>
where
    C: Fn() -> F,
    F: Future<Output = Result<Arc<dyn Store>, Error>>,
{
    let timers = Timers::new(settings.clock, handle);
    let store = connect_in_time(&timers, settings.store_timeout, connect).await?;
    let label = settings.label.unwrap_or_else(Label::of_this_process);
    let shared = Arc::new(Shared::new(store, timers, settings.entropy, label, settings.store_timeout)?);
    let sink: Arc<dyn EventSink> = shared.clone();
    shared.store.attach(Arc::downgrade(&sink));
    Ok(Engine(shared))
}

/// Tries to connect until the store's time is over, the last time shortly before.
async fn connect_in_time<C, F>(timers: &Timers, limit: Duration, connect: C) -> Result<Arc<dyn Store>, Error>
where
    C: Fn() -> F,
    F: Future<Output = Result<Arc<dyn Store>, Error>>,
{
    let ends = timers.now().after(limit);
    let mut pause = FIRST_PAUSE;
    let mut last: Option<Error> = None;
    loop {
        match timers.before(ends, connect()).await {
            Some(Ok(store)) => return Ok(store),
            Some(Err(error)) if !error.is_retryable() => return Err(error),
            Some(Err(error)) => {
                tracing::info!(%error, "the store cannot be connected yet");
                last = Some(error);
            }
            None => {}
        }
        let now = timers.now();
        if now >= ends {
            let silent = || Error::new(ErrorKind::Unavailable, "it gives no answer");
            let words =
                format_args!("the store could not be connected within {:?}", rounded(limit)).to_string();
            return Err(last.unwrap_or_else(silent).context(words));
        }
        let last_look = ends.before(LAST_LOOK);
        let again_at = if now < last_look { now.after(pause).min(last_look) } else { ends };
        timers.sleep_until(again_at).await;
        pause = (pause * 2).min(MOST_PAUSE);
    }
}

/// Runs the work on a thread of its own, with a runtime of its own.
fn spawn_thread<F, Fut>(work: F) -> Result<(), Error>
where
    F: FnOnce(Handle) -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let failed = |source: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "the engine's thread could not be started").with_source(source)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    std::thread::Builder::new()
        .name("leasehold".to_owned())
        .spawn(move || {
            let handle = runtime.handle().clone();
            runtime.block_on(work(handle));
            // Connections that do not close in time must not keep the process from ending.
            runtime.shutdown_timeout(Duration::from_millis(100));
        })
        .map_err(failed)?;
    Ok(())
}
