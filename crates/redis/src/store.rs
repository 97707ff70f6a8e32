//! The store: picks the way an operation is done, by scripts or by single commands, and where it is sent. Owns
//! the supervisor's life.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Capabilities, EventSink, Finding, Inspection,
    Listing, Polling, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest, Store, StoreFuture, SwapReply,
    SwapRequest,
};
use leasehold_core::{COMMAND_TIMEOUT, Error, Guarantees, Label, Name, Namespace};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::config::RedisConfig;
use crate::doctor;
use crate::handshake::establish;
use crate::inspect;
use crate::questions::Questions;
use crate::rights::Rights;
use crate::shared::Shared;
use crate::{acks, records, scripted, supervisor, unscripted};

/// Waiters that nobody can tell. The claim of a grant is at least twice these intervals.
pub(crate) const POLLING: Polling = Polling {
    first: Duration::from_millis(20),
    most: Duration::from_millis(100),
    behind: Duration::from_secs(1),
};

/// Leases in one Redis or Valkey server.
///
/// What it guarantees: two owners never hold a name at the same time as long as the server keeps what it was
/// told, and fencing tokens grow with every grant as long as its clock is not set back behind the last one. What
/// it does not guarantee: exclusion across a failover to a replica that had not received a lease yet; the fencing
/// token tells the stale holder then.
pub struct RedisStore {
    shared: Arc<Shared>,
    questions: Questions,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl RedisStore {
    /// Connects, subscribes to a wake channel of its own and tries out the user's rights.
    ///
    /// Call it inside a Tokio runtime with I/O and time: that runtime reads and writes the connection as long as
    /// the store lives. The store's operations can be awaited anywhere.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached within 5 s or is a replica, `Denied` for wrong credentials
    /// and missing rights, `Config` for a cluster node, a Sentinel, a server older than Redis 6.2 or one that
    /// forbids scripts.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(config: RedisConfig) -> Result<Self, Error> {
        let handle = Handle::try_current()
            .map_err(|_| Error::config("a Redis store must be connected inside a Tokio runtime"))?;
        let shared = Arc::new(Shared::new(config, handle.clone()));
        let established =
            establish(&shared).await.map_err(|error| error.context(shared.config.describe()))?;
        shared.went_live(Arc::clone(&established.connection), established.rights);
        let supervisor = handle.spawn(supervisor::run(Arc::clone(&shared), established));
        Ok(Self {
            questions: Questions::new(Arc::clone(&shared)),
            shared,
            supervisor: Mutex::new(Some(supervisor)),
        })
    }

    fn take_supervisor(&self) -> Option<JoinHandle<()>> {
        self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn do_acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireReply, Error> {
        let (connection, rights) = self.shared.live()?;
        match rights {
            Rights::Scripts { .. } => scripted::acquire(&self.shared, &connection, request).await,
            Rights::Commands(_) => unscripted::acquire(&self.shared, &connection, request).await,
        }
    }

    async fn do_acquire_acked(&self, request: AcquireRequest<'_>, acks: u32) -> Result<AcquireReply, Error> {
        let (connection, rights) = self.shared.live()?;
        match rights {
            Rights::Scripts { .. } => acks::acquire(&self.shared, &connection, request, acks).await,
            Rights::Commands(_) => {
                Err(Error::config("acks need scripts: remove acks, or scripting=off from the URL"))
            }
        }
    }

    async fn do_release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseReply, Error> {
        let (connection, rights) = self.shared.live()?;
        match rights {
            Rights::Scripts { .. } => {
                let reply = scripted::release(&self.shared, &connection, request).await?;
                if request.keep_for.is_none() && matches!(reply, ReleaseReply::Freed { .. }) {
                    self.shared.note_release(request.name, request.owner);
                }
                Ok(reply)
            }
            Rights::Commands(dialect) => {
                unscripted::release(&self.shared, &connection, dialect, request).await
            }
        }
    }

    async fn do_renew(&self, requests: &[RenewRequest]) -> Vec<Result<RenewReply, Error>> {
        let (connection, rights) = match self.shared.live() {
            Ok(live) => live,
            Err(error) => return scripted::fail_all(requests, crate::failure::Failure::NotSent(error)),
        };
        match rights {
            Rights::Scripts { .. } => scripted::renew(&self.shared, &connection, requests).await,
            Rights::Commands(_) => unscripted::renew(&self.shared, &connection, requests).await,
        }
    }

    async fn do_break(&self, name: &Name, mode: BreakMode, by: &Label) -> Result<BreakReply, Error> {
        let (connection, rights) = self.shared.live()?;
        match rights {
            Rights::Scripts { .. } => scripted::break_lease(&self.shared, &connection, name, mode, by).await,
            Rights::Commands(dialect) => {
                let key = self.shared.config.namespace().key(name);
                unscripted::break_lease(&connection, dialect, &key, mode, by).await
            }
        }
    }

    async fn do_read_record(&self, name: &Name) -> Result<Option<Vec<u8>>, Error> {
        let (connection, rights) = self.shared.live()?;
        match rights {
            Rights::Scripts { .. } => records::read(&self.shared, &connection, name).await,
            Rights::Commands(_) => Err(records::without_scripts()),
        }
    }

    async fn do_swap_record(&self, request: SwapRequest<'_>) -> Result<SwapReply, Error> {
        let (connection, rights) = self.shared.live()?;
        match rights {
            Rights::Scripts { .. } => records::swap(&self.shared, &connection, request).await,
            Rights::Commands(_) => Err(records::without_scripts()),
        }
    }

    /// Waits for what is under way, as long as one command may take, then closes.
    async fn do_close(&self) {
        let connection = self.shared.live().ok().map(|(connection, _)| connection);
        self.shared.close();
        if let Some(connection) = connection {
            let mut left = COMMAND_TIMEOUT;
            while connection.has_pending() && !connection.health().is_dead() && !left.is_zero() {
                self.sleep(CLOSE_CHECK).await;
                left = left.saturating_sub(CLOSE_CHECK);
            }
        }
        self.questions.close().await;
        if let Some(supervisor) = self.take_supervisor() {
            // It ends by itself at once, and closes the connection.
            self.shared.closing.notify_one();
            if let Err(error) = supervisor.await
                && error.is_panic()
            {
                tracing::error!("the supervisor of a Redis connection panicked");
            }
        }
    }

    /// Sleeps on the runtime of the connections, so that no other is needed.
    async fn sleep(&self, duration: Duration) {
        let sleep = {
            let _inside = self.shared.handle.enter();
            tokio::time::sleep(duration)
        };
        sleep.await;
    }
}

/// How often closing looks whether everything was answered.
const CLOSE_CHECK: Duration = Duration::from_millis(2);

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::all(POLLING);
        can.push = self.shared.can_push();
        can.acks = self.shared.config.scripting;
        if !self.shared.config.scripting {
            (can.fencing, can.queue, can.records) = (false, false, false);
        }
        can
    }

    fn guarantees(&self) -> Guarantees {
        self.shared.config.guarantees()
    }

    fn describe(&self) -> String {
        self.shared.config.describe()
    }

    fn namespace(&self) -> Namespace {
        self.shared.config.namespace().clone()
    }

    fn attach(&self, sink: Weak<dyn EventSink>) {
        self.shared.events.attach(sink);
    }

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> StoreFuture<'a, Result<AcquireReply, Error>> {
        Box::pin(self.do_acquire(request))
    }

    fn acquire_acked<'a>(
        &'a self,
        request: AcquireRequest<'a>,
        acks: u32,
    ) -> StoreFuture<'a, Result<AcquireReply, Error>> {
        Box::pin(self.do_acquire_acked(request, acks))
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> StoreFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(self.do_release(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Result<RenewReply, Error>>> {
        Box::pin(self.do_renew(requests))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Inspection>, Error>> {
        Box::pin(inspect::inspect(&self.shared, &self.questions, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> StoreFuture<'a, Result<Listing, Error>> {
        Box::pin(inspect::list(&self.shared, &self.questions, prefix, limit))
    }

    fn break_lease<'a>(
        &'a self,
        name: &'a Name,
        mode: BreakMode,
        by: &'a Label,
    ) -> StoreFuture<'a, Result<BreakReply, Error>> {
        Box::pin(self.do_break(name, mode, by))
    }

    fn read_record<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(self.do_read_record(name))
    }

    fn swap_record<'a>(&'a self, request: SwapRequest<'a>) -> StoreFuture<'a, Result<SwapReply, Error>> {
        Box::pin(self.do_swap_record(request))
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, Error>> {
        Box::pin(doctor::diagnose(&self.shared, &self.questions))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.do_close())
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(supervisor) = self.take_supervisor() {
            supervisor.abort();
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.describe()).finish_non_exhaustive()
    }
}
