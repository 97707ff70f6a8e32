//! The store that the engine uses: an operation runs on the caller's thread if the file is free, which takes
//! some microseconds, and on the store's own thread if it has to wait.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Capabilities, EventSink, Finding, Inspection,
    Listing, Polling, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest, Store, StoreFuture, SwapReply,
    SwapRequest,
};
use leasehold_core::{Error, ErrorKind, Fault, Guarantees, Label, Name, Namespace, Outcome, Promise};

use crate::database::{Database, Pace};
use crate::failure::Failure;
use crate::file::StoreFile;
use crate::operations::{self, Acquire, Release};
use crate::options::SqliteOptions;
use crate::records::{self, Swap};
use crate::worker::Worker;
use crate::{doctor, inspect};

/// A poll that finds nothing changed takes about ten microseconds, so polling often costs little; and a waiter
/// that moves up learns of it by its next poll only.
const POLLING: Polling = Polling {
    first: Duration::from_millis(1),
    most: Duration::from_millis(10),
    behind: Duration::from_millis(20),
};
/// Renewals in one transaction: one or two milliseconds, so that others are not kept waiting for long.
const RENEWALS_AT_ONCE: usize = 256;
/// Renewals that are done on the caller's thread; more of them would hold it up.
const RENEWALS_INLINE: usize = 16;

/// Leases in one SQLite file, for the processes of one machine.
///
/// Waiters are served in the order in which their processes came, and poll; nothing is pushed.
///
/// A process that inherits an open store by `fork` cannot use it: every operation of the child returns
/// `Unavailable`. Open another one there.
pub struct SqliteStore {
    shared: Arc<Shared>,
    worker: Worker,
}

/// What the callers' threads and the store's thread share.
pub(crate) struct Shared {
    pub(crate) file: StoreFile,
    pub(crate) options: SqliteOptions,
    /// `None` once the store is closed.
    database: Mutex<Option<Database>>,
    process: u32,
    closed: AtomicBool,
    /// Operations that wait for the store's thread. While there are any, new ones queue behind them.
    pub(crate) waiting: AtomicUsize,
    pub(crate) upkeep: Upkeep,
}

/// When the log has to be moved into the file.
pub(crate) struct Upkeep {
    /// Whether the store's thread has been told.
    pub(crate) due: AtomicBool,
    /// The length of the log at which it is to be told, in pages.
    pub(crate) from_pages: std::sync::atomic::AtomicI32,
}

impl SqliteStore {
    /// Opens the file at this path, and creates it, readable for this user only, if it is missing. Its
    /// directory must exist. Blocks for some milliseconds, at most for the command timeout while other
    /// processes create the same file.
    ///
    /// # Errors
    /// `Config` when the path leads to something that cannot be a store: a directory, another program's
    /// database, one made by a newer version, a file system that other machines may share, a damaged file.
    /// `Denied` when this user may not write it. `Unavailable` when the disk is full or fails. What is refused
    /// is left as it was.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, Error> {
        let file = StoreFile::new(path.as_ref())?;
        let database = Database::open(&file, &options)?;
        let shared = Arc::new(Shared {
            file,
            options,
            database: Mutex::new(Some(database)),
            process: std::process::id(),
            closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            upkeep: Upkeep::new(),
        });
        let worker = Worker::new(&shared);
        Ok(Self { shared, worker })
    }

    /// Runs an operation here and now if that needs no waiting, and on the store's thread otherwise.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnMut(&Database, Pace) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        self.run_as(true, operation).await
    }

    async fn run_as<T: Send + 'static>(
        &self,
        inline: bool,
        mut operation: impl FnMut(&Database, Pace) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared.check_process()?;
        if inline && self.shared.waiting.load(Ordering::Acquire) == 0 {
            let attempt = self.shared.try_now(&mut operation);
            if self.shared.upkeep.due.load(Ordering::Relaxed) {
                self.worker.look_after_the_file();
            }
            match attempt {
                Some(Err(failure)) if failure.wants_patience() => {}
                Some(outcome) => {
                    return outcome.map_err(|failure| failure.into_error(&self.shared.file.path));
                }
                None => {}
            }
        }
        self.worker.submit(operation)?.await.unwrap_or_else(|_| Err(self.shared.lost_error()))
    }
}

impl Shared {
    /// A child that inherited the store must not touch the file: SQLite's locks belong to the parent, and the
    /// store's thread is not there.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "sqlite:{}: this store was opened before a fork and belongs to the parent process: open it again \
                 in this one",
                self.file.path.display()
            ),
        ))
    }

    pub(crate) fn is_own_process(&self) -> bool {
        std::process::id() == self.process
    }

    /// The store's thread is gone without a reply, which only a panic in it can cause.
    fn lost_error(&self) -> Error {
        Error::new(
            ErrorKind::Unknown,
            format!("sqlite:{}: the store's thread ended during the operation", self.file.path.display()),
        )
    }

    pub(crate) fn closed_error(&self) -> Error {
        Failure::Closed.into_error(&self.file.path)
    }

    /// One attempt that waits for nothing; `None` if another thread is at it.
    fn try_now<T>(
        &self,
        operation: &mut impl FnMut(&Database, Pace) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let mut slot = match self.database.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.attempt(&mut slot, Pace::Quick, operation))
    }

    /// One attempt on the store's thread, which may wait for the disk.
    pub(crate) fn try_patiently<T>(
        &self,
        operation: &mut impl FnMut(&Database, Pace) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.attempt(&mut self.database(), Pace::Patient, operation)
    }

    fn attempt<T>(
        &self,
        slot: &mut Option<Database>,
        pace: Pace,
        operation: &mut impl FnMut(&Database, Pace) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let database = slot.as_mut().ok_or(Failure::Closed)?;
        if !database.is_in_place() {
            tracing::warn!(
                store = %self.file.path.display(),
                "the file was removed or replaced; the leases in it exclude nobody, so it is opened anew"
            );
            *database = Database::open(&self.file, &self.options).map_err(Failure::Refused)?;
        }
        let outcome = operation(database, pace);
        self.upkeep.note(database.log_pages());
        outcome
    }

    /// Closes the file; operations from now on fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.database().take());
    }

    /// A panic inside an operation rolls its transaction back at the next one, so the connection stays good.
    fn database(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    /// A forked child must not close the connection either: that would run SQLite's clean-up under the
    /// parent's feet. It leaks what it inherited.
    fn drop(&mut self) {
        if !self.is_own_process() {
            let inherited = std::mem::replace(&mut self.database, Mutex::new(None));
            std::mem::forget(inherited);
        }
    }
}

/// Everybody is on one machine, with one clock that no wall clock moves. What is lost is lost with the file.
const GUARANTEES: Guarantees = Guarantees::new(
    Promise::always(Outcome::CannotHappen)
        .except(Fault::HolderPause, Outcome::CanBreak)
        .except(Fault::CrashKeepingData, Outcome::Holds)
        .except(Fault::CrashLosingData, Outcome::CanBreak)
        .except(Fault::ClockStep, Outcome::Holds)
        .except(Fault::Flush, Outcome::CanBreak),
    Promise::always(Outcome::CannotHappen)
        .except(Fault::HolderPause, Outcome::Holds)
        .except(Fault::CrashKeepingData, Outcome::Holds)
        .except(Fault::CrashLosingData, Outcome::HoldsIfClocksAgree)
        .except(Fault::ClockStep, Outcome::Holds)
        .except(Fault::Flush, Outcome::HoldsIfClocksAgree),
);

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all(POLLING);
        capabilities.push = false;
        capabilities
    }

    fn namespace(&self) -> Namespace {
        self.shared.options.namespace.clone()
    }

    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn describe(&self) -> String {
        format!("sqlite:{}", self.shared.file.path.display())
    }

    /// Nothing ever happens here without being asked.
    fn attach(&self, _sink: Weak<dyn EventSink>) {}

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> StoreFuture<'a, Result<AcquireReply, Error>> {
        let acquire = Acquire::new(&request);
        Box::pin(self.run(move |database, pace| acquire.perform(database, pace)))
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> StoreFuture<'a, Result<ReleaseReply, Error>> {
        let release = Release::new(&request);
        Box::pin(self.run(move |database, pace| release.perform(database, pace)))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Result<RenewReply, Error>>> {
        Box::pin(async move {
            let mut replies = Vec::with_capacity(requests.len());
            for some in requests.chunks(RENEWALS_AT_ONCE) {
                let owned = some.to_vec();
                let renewed = self
                    .run_as(requests.len() <= RENEWALS_INLINE, move |database, pace| {
                        operations::renew(database, pace, &owned)
                    })
                    .await;
                match renewed {
                    Ok(renewed) => replies.extend(renewed.into_iter().map(Ok)),
                    Err(error) => {
                        let again = || Error::new(error.kind(), error.to_string());
                        replies.extend(some.iter().map(|_| Err(again())));
                    }
                }
            }
            replies
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Inspection>, Error>> {
        let name = name.clone();
        Box::pin(self.run(move |database, _| inspect::inspect(database, &name)))
    }

    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> StoreFuture<'a, Result<Listing, Error>> {
        let prefix = prefix.to_owned();
        Box::pin(self.run_as(false, move |database, _| inspect::list(database, &prefix, limit)))
    }

    fn break_lease<'a>(
        &'a self,
        name: &'a Name,
        mode: BreakMode,
        by: &'a Label,
    ) -> StoreFuture<'a, Result<BreakReply, Error>> {
        let (name, by) = (name.clone(), by.clone());
        Box::pin(self.run(move |database, pace| operations::break_lease(database, pace, &name, mode, &by)))
    }

    fn read_record<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Vec<u8>>, Error>> {
        let name = name.clone();
        Box::pin(self.run(move |database, _| records::look(database, &name)))
    }

    fn swap_record<'a>(&'a self, request: SwapRequest<'a>) -> StoreFuture<'a, Result<SwapReply, Error>> {
        let swap = Swap::new(&request);
        Box::pin(self.run(move |database, pace| swap.perform(database, pace)))
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, Error>> {
        let file = self.shared.file.clone();
        Box::pin(self.run_as(false, move |database, _| doctor::diagnose(database, &file)))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if self.shared.is_own_process() && !self.shared.closed.load(Ordering::Acquire) {
                self.worker.close(&self.shared).await;
            }
        })
    }
}
