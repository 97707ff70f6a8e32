//! What the demo and its worker processes tell each other: one JSON value per line, over the worker's standard
//! input and output. Moments are microseconds of the clock that counts from boot, which all processes share.

use std::path::PathBuf;
use std::time::Duration;

use leasehold::core::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

/// The first line a worker gets.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Job {
    /// What it calls itself, as a holder and as a writer.
    pub(super) label: String,
    /// The store to lock in; none in the way of running without a lock.
    pub(super) store: Option<StoreJob>,
    /// Whether an order is sealed before it is read and written.
    pub(super) sealed: bool,
    /// Whether requests carry an idempotency key.
    pub(super) idempotency_key: bool,
    /// Where the carrier takes requests.
    pub(super) carrier: String,
    /// The database of the shipments.
    pub(super) database: PathBuf,
    /// The directory to be removed if the demo dies.
    pub(super) scratch: PathBuf,
    /// Which order each event is about, in the order of delivery.
    pub(super) orders: Vec<String>,
    /// Where to stop and wait for [`GO`].
    pub(super) stops: Vec<Stop>,
}

/// How a worker locks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct StoreJob {
    /// The store's URL. It may hold a password, so it goes over the pipe and not into the arguments.
    pub(super) url: String,
    /// The prefix of every key.
    pub(super) namespace: String,
    /// How long the store may be unreachable.
    pub(super) timeout: Duration,
    /// How long a lease lasts unless it is renewed.
    pub(super) ttl: Duration,
}

/// Where a worker stops.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Stop {
    /// Which event, by its place in the order of delivery.
    pub(super) position: usize,
    /// Before which step.
    pub(super) step: Step,
}

/// A step of the work on one event; a worker stops before it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) enum Step {
    /// Nothing is done yet.
    Lock,
    /// The row is read, the carrier not yet asked.
    Post,
    /// The carrier was asked, the row not yet written.
    Update,
}

/// Begin with the first event.
pub(super) const START: &str = "start\n";
/// Go on after a stop.
pub(super) const GO: &str = "go\n";

/// What a worker tells.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Report {
    /// It is connected to everything it needs.
    Ready,
    /// It is at one of its stops and waits.
    Stopped {
        /// Which one.
        stop: Stop,
        /// The fencing token of the lease it holds.
        token: Option<u64>,
        /// Until when it may rely on that lease, as it was told right before the stop.
        held_until: Option<u64>,
    },
    /// It has done what an event asks for.
    Done(Visit),
    /// It has done all events, and given back all leases.
    Finished,
    /// It cannot go on.
    Failed {
        /// The exit code that says so.
        code: u8,
        /// Why.
        message: String,
    },
}

/// What a worker did about one event.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Visit {
    /// Which event, by its place in the order of delivery.
    pub(super) position: usize,
    /// When it asked for the lock.
    pub(super) asked: u64,
    /// When it had it, or began without one.
    pub(super) held: u64,
    /// The fencing token.
    pub(super) token: Option<u64>,
    /// What it asked of the carrier, unless the row said that a shipment was requested already.
    pub(super) posted: Option<Posted>,
    /// What it wrote.
    pub(super) written: Option<WrittenAt>,
    /// When it was done with the order.
    pub(super) over: u64,
    /// Whether the lease was held until it was given back; none without a lock.
    pub(super) kept: Option<bool>,
}

/// A request to the carrier.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Posted {
    /// When it was sent.
    pub(super) sent: u64,
    /// When the answer was there.
    pub(super) answered: u64,
    /// The number on the parcel.
    pub(super) tracking: String,
}

/// A write to the row.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct WrittenAt {
    /// When it was done.
    pub(super) at: u64,
    /// Whether the row took it.
    pub(super) accepted: bool,
}

/// The present moment.
pub(super) fn now() -> u64 {
    micros(SystemClock.now().since_origin())
}

/// A duration in the unit of [`now`].
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
