//! The store's own thread: operations that have to wait for other processes or for the disk, one after the
//! other, and the upkeep of the file. It starts when there is something to do for it.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use tokio::sync::oneshot;

use crate::busy::Patience;
use crate::database::{self, Database, LOG_PAGES, Pace, checkpoint};
use crate::failure::Failure;
use crate::store::{Shared, Upkeep};
use crate::sweep;

/// From this length on, writers are kept out until the log can begin anew: without a pause it never gets
/// shorter while others keep writing.
const LOG_PAGES_AT_MOST: i32 = 4 * LOG_PAGES;
/// How long writers are kept out for that at most, plus what the disk takes.
const RESTART_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the removal of dead rows waits for its turn; operations wait behind it.
const SWEEP_TIMEOUT: Duration = Duration::from_millis(20);

/// The way to the store's thread.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    thread: Mutex<Option<Sender<Task>>>,
}

enum Task {
    Operation(Box<dyn Operation>),
    Upkeep,
    Close(oneshot::Sender<()>),
}

impl Worker {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), thread: Mutex::new(None) }
    }

    /// Queues an operation for the store's thread.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        perform: impl FnMut(&Database, Pace) -> Result<T, Failure> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, Error>>, Error> {
        let (reply, receiver) = oneshot::channel();
        let pending = Pending {
            perform,
            reply: Some(reply),
            patience: Patience::lasting(self.shared.options.command_timeout),
            turn: Some(Turn::queue(&self.shared)),
        };
        self.send(Task::Operation(Box::new(pending))).map(|()| receiver)
    }

    /// Has the log moved into the file. If there is no thread for it, the log stays as it is.
    pub(crate) fn look_after_the_file(&self) {
        if self.shared.upkeep.due.swap(false, Ordering::AcqRel)
            && let Err(error) = self.send(Task::Upkeep)
        {
            tracing::warn!(store = %self.shared.file.path.display(), %error, "no upkeep of the file");
        }
    }

    /// Finishes what is queued, and closes the file.
    pub(crate) async fn close(&self, shared: &Shared) {
        let (reply, closed) = oneshot::channel();
        let started = self.sender().is_some();
        if started && self.send(Task::Close(reply)).is_ok() {
            // An error means that the thread is gone, and with it whatever was queued.
            let _ = closed.await;
        }
        shared.close();
    }

    fn send(&self, task: Task) -> Result<(), Error> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match thread.take() {
            Some(sender) => sender,
            None => start(&self.shared)?,
        };
        let sent = sender.send(task).map_err(|_| self.shared.closed_error());
        // A thread that is gone is replaced at the next task.
        *thread = sent.is_ok().then_some(sender);
        sent
    }

    fn sender(&self) -> Option<Sender<Task>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn start(shared: &Arc<Shared>) -> Result<Sender<Task>, Error> {
    let (sender, tasks) = channel();
    let shared_there = Arc::clone(shared);
    std::thread::Builder::new()
        .name("leasehold-sqlite".into())
        .spawn(move || work(&shared_there, &tasks))
        .map_err(|source| {
            Error::new(
                ErrorKind::Unavailable,
                "no thread could be started for the store: raise the limit of threads",
            )
            .with_source(source)
        })?;
    Ok(sender)
}

fn work(shared: &Shared, tasks: &Receiver<Task>) {
    for task in tasks {
        match task {
            Task::Operation(mut operation) => {
                operation.finish(shared);
                if shared.upkeep.due.swap(false, Ordering::AcqRel) {
                    look_after(shared);
                }
            }
            Task::Upkeep => look_after(shared),
            Task::Close(reply) => {
                shared.close();
                // Nobody listens if the caller has given up; the file is closed all the same.
                let _ = reply.send(());
            }
        }
    }
}

/// An operation on its way through the store's thread.
trait Operation: Send {
    /// Does it, or gives up when its time is over.
    fn finish(&mut self, shared: &Shared);
}

struct Pending<T, F> {
    perform: F,
    reply: Option<oneshot::Sender<Result<T, Error>>>,
    patience: Patience,
    turn: Option<Turn>,
}

/// Counts an operation that waits for the store's thread, until it is done or lost.
struct Turn(Arc<Shared>);

impl Turn {
    fn queue(shared: &Arc<Shared>) -> Self {
        shared.waiting.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(shared))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T, F> Operation for Pending<T, F>
where
    T: Send,
    F: FnMut(&Database, Pace) -> Result<T, Failure> + Send,
{
    fn finish(&mut self, shared: &Shared) {
        let mut made_room = false;
        // Nothing of a caller that has given up needs doing: it cleans up after itself.
        while self.reply.as_ref().is_some_and(|reply| !reply.is_closed()) {
            let outcome = shared.try_patiently(&mut self.perform);
            match outcome {
                Err(failure) if failure.is_busy() && self.patience.sleep() => {}
                Err(failure) if failure.is_full() && !made_room => {
                    made_room = true;
                    make_room(shared);
                }
                outcome => {
                    // First, so that the caller's next operation does not queue behind this one.
                    drop(self.turn.take());
                    if let Some(reply) = self.reply.take() {
                        // Nobody listens if the caller has given up meanwhile.
                        let _ = reply.send(outcome.map_err(|failure| failure.into_error(&shared.file.path)));
                    }
                }
            }
        }
    }
}

/// A full disk has no room for a longer log, but a log whose pages are in the file can begin anew in the room
/// that it has. Then leases can still be renewed and released.
fn make_room(shared: &Shared) {
    let outcome =
        shared.try_patiently(&mut |database: &Database, _| checkpoint(&database.connection, "RESTART"));
    if let Err(failure) = outcome {
        tracing::debug!(?failure, "no room could be made in the log");
    }
}

impl Upkeep {
    pub(crate) fn new() -> Self {
        Self { due: AtomicBool::new(false), from_pages: AtomicI32::new(LOG_PAGES) }
    }

    /// Takes note of the length of the log after an operation.
    pub(crate) fn note(&self, log_pages: i32) {
        let from = self.from_pages.load(Ordering::Relaxed);
        if log_pages >= from {
            // The next time only if it has grown as much again, or begun anew.
            self.from_pages.store(log_pages.saturating_add(LOG_PAGES), Ordering::Relaxed);
            self.due.store(true, Ordering::Relaxed);
        } else if log_pages < LOG_PAGES && from > LOG_PAGES {
            self.from_pages.store(LOG_PAGES, Ordering::Relaxed);
        }
    }
}

/// Moves the log into the file and removes dead rows. Whoever commits after a failure tries again.
fn look_after(shared: &Shared) {
    if let Err(failure) = move_log(shared).and_then(|()| sweep(shared)) {
        tracing::debug!(store = %shared.file.path.display(), ?failure, "the upkeep of the file failed");
    }
}

/// Works over a connection of its own, so that operations go on meanwhile; a new one each time, since the file
/// may have been replaced.
fn move_log(shared: &Shared) -> Result<(), Failure> {
    let connection = database::connect(&shared.file)?;
    if checkpoint(&connection, "PASSIVE")? > LOG_PAGES_AT_MOST {
        connection.busy_timeout(RESTART_TIMEOUT)?;
        checkpoint(&connection, "RESTART")?;
    }
    Ok(())
}

fn sweep(shared: &Shared) -> Result<(), Failure> {
    let mut patience = Patience::lasting(SWEEP_TIMEOUT);
    loop {
        match shared.try_patiently(&mut |database: &Database, pace| sweep::sweep(database, pace)) {
            Err(failure) if failure.is_busy() && patience.sleep() => {}
            outcome => return outcome,
        }
    }
}
