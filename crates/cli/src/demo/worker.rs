//! A worker process: gets every payment event, ships each order that is not shipped yet, and reports every step.
//! It stops where it is told to, so that the demo can freeze it at that very step. Without its parent it ends.

use std::io::{self, BufRead, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use leasehold::core::blocking::{Attempt, Guard, block_on};
use leasehold::{Client, Label, Namespace, Released};
use uuid::Uuid;

use super::carrier::{self, Order, Shipment};
use super::events::lock_name;
use super::shipments::{Shipments, Write, Written};
use super::wire::{Job, Posted, Report, Step, Stop, StoreJob, Visit, WrittenAt, micros, now};
use crate::failure::{BUSY, Failure, OTHER};

/// The first argument that makes this program a worker of the demo. Not for users.
pub(crate) const ARGUMENT: &str = "__demo-worker";

/// The longest wait for an order: much longer than any worker is frozen.
const WAIT_MOST: Duration = Duration::from_secs(60);
/// How long the carrier may take to answer.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long releases may take at the end.
const CLOSE_MOST: Duration = Duration::from_secs(10);
/// How long the removal of what a dead parent has left may take.
const CLEANUP_MOST: Duration = Duration::from_secs(5);
const CLEANUP_PAUSE: Duration = Duration::from_millis(10);
/// `ship order` under this namespace makes the idempotency key of an order.
const KEYS: Uuid = Uuid::from_u128(0x6fd6_8a5c_91f4_5d0e_8a3b_0d5a_64b1_27c9);

/// The worker itself: runs until its events are done or its parent is gone.
pub(crate) fn main() -> ExitCode {
    wake_when_the_parent_dies();
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let Failure { code, message } = failure;
            if tell(&Report::Failed { code, message }).is_err() {
                // The parent is gone: the thread that listens to it cleans up, and then ends this process.
                std::thread::sleep(CLEANUP_MOST);
            }
            ExitCode::from(code)
        }
    }
}

/// A worker that is frozen while its parent is killed must wake up to find out.
fn wake_when_the_parent_dies() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Elsewhere, and if this fails, the system continues the stopped processes of an orphaned group.
        let _ = set_parent_process_death_signal(Some(Signal::CONT));
    }
}

fn work() -> Result<(), Failure> {
    let mut line = String::new();
    let unread = |error: io::Error| Failure::other(format!("its work cannot be read: {error}"));
    io::stdin().read_line(&mut line).map_err(unread)?;
    let job: Job = serde_json::from_str(&line).map_err(|error| unread(error.into()))?;
    let told = listen(job.scratch.clone());
    let worker = Worker::new(job, told)?;
    tell(&Report::Ready)?;
    worker.wait_until_told()?;
    for position in 0..worker.job.orders.len() {
        tell(&Report::Done(worker.visit(position)?))?;
    }
    if let Some(client) = &worker.client {
        block_on(client.close(CLOSE_MOST))?;
    }
    tell(&Report::Finished)
}

/// Passes on that a line came in. When the parent is gone, this process ends, and with it what it was part of.
fn listen(scratch: PathBuf) -> Receiver<()> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for _line in io::stdin().lock().lines().map_while(Result::ok) {
            // Nobody listens any more once the work is done.
            let _ = send.send(());
        }
        remove(&scratch);
        std::process::exit(i32::from(OTHER));
    });
    receive
}

/// Removes the directory that the parent cannot remove any more. Other workers do the same, and may still be
/// making files in it.
fn remove(scratch: &Path) {
    let end = Instant::now() + CLEANUP_MOST;
    while scratch.exists() && Instant::now() < end {
        // What stood in the way is gone at the next try.
        let _ = std::fs::remove_dir_all(scratch);
        std::thread::sleep(CLEANUP_PAUSE);
    }
}

fn tell(report: &Report) -> Result<(), Failure> {
    let lost = |error: io::Error| Failure::other(format!("the demo does not listen: {error}"));
    let mut line = serde_json::to_string(report).map_err(|error| lost(error.into()))?;
    line.push('\n');
    io::stdout().lock().write_all(line.as_bytes()).map_err(lost)
}

struct Worker {
    job: Job,
    told: Receiver<()>,
    client: Option<Client>,
    shipments: Shipments,
    http: ureq::Agent,
}

impl Worker {
    fn new(job: Job, told: Receiver<()>) -> Result<Self, Failure> {
        let client = match &job.store {
            None => None,
            Some(store) => Some(connect(store, &job.label)?),
        };
        let shipments = Shipments::open(&job.database).map_err(|error| database(&error))?;
        let http = ureq::Agent::config_builder().timeout_global(Some(CARRIER_TIMEOUT)).proxy(None).build();
        Ok(Self { job, told, client, shipments, http: http.into() })
    }

    /// Does what one event asks for: lock the order, read its row and, if it is not shipped, ship it.
    fn visit(&self, position: usize) -> Result<Visit, Failure> {
        let order = &self.job.orders[position];
        self.stop(Stop { position, step: Step::Lock }, None)?;
        let asked = now();
        let guard = self.lock(order)?;
        let held = now();
        let token = guard.as_ref().map(|guard| guard.fencing_token().get());
        let (mut posted, mut written) = (None, None);
        if !self.is_requested(order, guard.as_ref())? {
            self.stop(Stop { position, step: Step::Post }, guard.as_ref())?;
            let request = self.post(order)?;
            self.stop(Stop { position, step: Step::Update }, guard.as_ref())?;
            written = Some(self.update(order, &request.tracking, guard.as_ref())?);
            posted = Some(request);
        }
        let kept =
            guard.map(|guard| guard.release().map(|released| released == Released::Freed)).transpose()?;
        Ok(Visit { position, asked, held, token, posted, written, over: now(), kept })
    }

    fn lock(&self, order: &str) -> Result<Option<Guard>, Failure> {
        let (Some(client), Some(store)) = (&self.client, &self.job.store) else { return Ok(None) };
        let lock = client.lock(lock_name(order))?.ttl(store.ttl).wait(WAIT_MOST);
        match lock.blocking().acquire()? {
            Attempt::Acquired(guard) => Ok(Some(guard)),
            Attempt::Busy(busy) => {
                Err(Failure::new(BUSY, format!("{order} was not free for {WAIT_MOST:?}: {busy}")))
            }
        }
    }

    /// Asks the carrier for a shipment.
    fn post(&self, order: &str) -> Result<Posted, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::other(format!("the carrier failed: {error}"));
        let sent = now();
        let mut request = self.http.post(&self.job.carrier).content_type("application/json");
        if self.job.idempotency_key {
            // Made from the operation, so that it stays the same whoever tries again, and whenever.
            let key = Uuid::new_v5(&KEYS, order.as_bytes());
            request = request.header(carrier::KEY_HEADER, key.to_string());
        }
        let body =
            serde_json::to_vec(&Order { order_id: order.to_owned() }).map_err(|error| failed(&error))?;
        let mut response = request.send(&body[..]).map_err(|error| failed(&error))?;
        let answer = response.body_mut().read_to_vec().map_err(|error| failed(&error))?;
        let shipment: Shipment = serde_json::from_slice(&answer).map_err(|error| failed(&error))?;
        Ok(Posted { sent, answered: now(), tracking: shipment.tracking })
    }

    /// Whether a shipment of the order was requested. A newer holder that came before the first look does it.
    fn is_requested(&self, order: &str, guard: Option<&Guard>) -> Result<bool, Failure> {
        let row = match guard.filter(|_| self.job.sealed) {
            Some(guard) => match self.shipments.read_sealed(order, guard) {
                Err(refused) if refused.is_fenced() => return Ok(true),
                read => read.map_err(|error| database(&error))?,
            },
            None => self.shipments.read(order).map_err(|error| database(&error))?,
        };
        row.map(|row| row.requested).ok_or_else(|| no_row(order))
    }

    fn update(&self, order: &str, tracking: &str, guard: Option<&Guard>) -> Result<WrittenAt, Failure> {
        let write = Write { order, tracking, worker: &self.job.label };
        let written = match guard.filter(|_| self.job.sealed) {
            Some(guard) => self.shipments.update_sealed(write, guard).map_err(|error| database(&error))?,
            None => self.shipments.update(write).map_err(|error| database(&error))?,
        };
        match written {
            Written::Accepted => Ok(WrittenAt { at: now(), accepted: true }),
            Written::Refused => Ok(WrittenAt { at: now(), accepted: false }),
            Written::NoSuchOrder => Err(no_row(order)),
        }
    }

    /// Stops here if that was asked for, until it is told to go on.
    fn stop(&self, stop: Stop, guard: Option<&Guard>) -> Result<(), Failure> {
        if !self.job.stops.contains(&stop) {
            return Ok(());
        }
        let token = guard.map(|guard| guard.fencing_token().get());
        let held_until = guard.map(|guard| now() + micros(guard.remaining()));
        tell(&Report::Stopped { stop, token, held_until })?;
        self.wait_until_told()
    }

    fn wait_until_told(&self) -> Result<(), Failure> {
        self.told.recv().map_err(|_| Failure::other("the demo does not speak any more"))
    }
}

fn connect(store: &StoreJob, label: &str) -> Result<Client, Failure> {
    let builder = Client::builder()
        .label(Label::new(label)?)
        .namespace(Namespace::new(&store.namespace)?)
        .store_timeout(store.timeout);
    Ok(block_on(builder.connect(&store.url))?)
}

fn database(error: &dyn std::fmt::Display) -> Failure {
    Failure::other(format!("the database of the shipments failed: {error}"))
}

fn no_row(order: &str) -> Failure {
    Failure::other(format!("the database of the shipments has no row for {order}"))
}
