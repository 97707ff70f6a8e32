//! The contract between the engine and a store. The engine decides when to renew, when a lease is lost and
//! who waits; a store does one atomic operation at a time and reports what it saw.
//!
//! A store must pass the conformance suite of `leasehold-testkit`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::fencing::FencingToken;
use crate::guarantees::Guarantees;
use crate::name::{Name, Namespace};
use crate::owner::{Label, OwnerToken};

/// What a store's operation returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where leases live.
///
/// The futures may be polled on any thread and any executor. A future that is dropped may or may not have
/// taken effect: the engine cleans up by owner token, so a store needs no rollback of its own.
///
/// Errors mean: `Unavailable`, certainly not executed; `Unknown`, perhaps executed; `Denied`, `Foreign` and
/// `Config`, refused and not executed. A store retries nothing by itself, except what the protocol of its
/// server asks for within one operation.
pub trait Store: Send + Sync + 'static {
    /// What this store can do with its present settings.
    fn capabilities(&self) -> Capabilities;

    /// What it guarantees with its present settings. By default nothing.
    fn guarantees(&self) -> Guarantees {
        Guarantees::NONE
    }

    /// The store as messages name it: its URL without secrets.
    fn describe(&self) -> String;

    /// The namespace whose names this store keeps: fencing tokens of different namespaces cannot be compared.
    fn namespace(&self) -> Namespace {
        Namespace::default()
    }

    /// Tells the store where to deliver what happens without being asked. Called once, before any operation.
    fn attach(&self, sink: Weak<dyn EventSink>);

    /// Takes the name if it is free and nobody is queued for it, else reports who holds it, and queues the
    /// owner when asked to.
    ///
    /// A name already held by the same owner is prolonged to at least the TTL and granted again with a newly
    /// minted fencing token. With a ticket the owner takes its old place in the queue again if its entry is
    /// gone. If the name is free and others are queued, the first live one of them is granted.
    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> StoreFuture<'a, Result<AcquireReply, Error>>;

    /// As [`Store::acquire`], but a grant counts only once so many replicas have confirmed it. Where fewer do in
    /// time, the lease is given back and the error is `NotReplicated`.
    ///
    /// By default, what a store says that has no replicas.
    fn acquire_acked<'a>(
        &'a self,
        _request: AcquireRequest<'a>,
        _acks: u32,
    ) -> StoreFuture<'a, Result<AcquireReply, Error>> {
        Box::pin(std::future::ready(Err(Error::config(
            "this store has no replicas that could confirm a grant",
        ))))
    }

    /// Gives the name back if this owner holds it, handing it to the first live waiter, and removes this
    /// owner's queue entry in any case. Never touches another owner's lease.
    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> StoreFuture<'a, Result<ReleaseReply, Error>>;

    /// Prolongs leases that are still held by the given owners to exactly the TTL, never below what is left;
    /// never re-creates one. One reply per request, in order: an error of one never touches another.
    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Result<RenewReply, Error>>>;

    /// Leases whose renewals go to the same server have the same number: those of others go out apart, and none
    /// waits for the others' server.
    fn renewal_group(&self, _name: &Name) -> u64 {
        0
    }

    /// Looks at one name without changing anything; `None` when it is free and nobody waits.
    fn inspect<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Inspection>, Error>>;

    /// The taken names that start with the prefix, at most `limit` of them, in name order where the store can.
    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> StoreFuture<'a, Result<Listing, Error>>;

    /// Takes the lease away from whoever holds it.
    fn break_lease<'a>(
        &'a self,
        name: &'a Name,
        mode: BreakMode,
        by: &'a Label,
    ) -> StoreFuture<'a, Result<BreakReply, Error>>;

    /// Reads the record of a name (see [`crate::Once`]); `None` when there is none or its time is over.
    ///
    /// A store whose [`Capabilities::records`] is false reports `Config`.
    fn read_record<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Vec<u8>>, Error>>;

    /// Replaces the record of a name, if this owner holds the name and the record is the expected one; in the
    /// same step it gives the name back when asked to. If the record cannot be written, nothing is changed.
    ///
    /// It needs no `not_after`: a late request finds another owner or another record.
    fn swap_record<'a>(&'a self, request: SwapRequest<'a>) -> StoreFuture<'a, Result<SwapReply, Error>>;

    /// Looks for settings and conditions of the store that endanger locks.
    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, Error>>;

    /// Finishes what is under way and closes connections. Operations after it return `Unavailable`.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent ability")]
pub struct Capabilities {
    /// Grants carry fencing tokens.
    pub fencing: bool,
    /// Waiters keep an order across processes.
    pub queue: bool,
    /// Waiters are told of a grant; otherwise they find it by polling.
    pub push: bool,
    /// `acks` can be asked for.
    pub acks: bool,
    /// Records are kept, which [`crate::Once`] needs.
    pub records: bool,
    /// How a waiter polls while no push reaches it.
    pub polling: Polling,
}

impl Capabilities {
    /// A store with everything but replicas to confirm, and waiters that poll in this way.
    pub const fn all(polling: Polling) -> Self {
        Self { fencing: true, queue: true, push: true, acks: false, records: true, polling }
    }
}

/// Intervals of polling, each drawn with jitter: the first waiter of a name begins at `first` and backs off to
/// `most`; waiters behind it poll at up to `behind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// The first interval of a waiter.
    pub first: Duration,
    /// The longest interval of the first waiter in the queue.
    pub most: Duration,
    /// The longest interval of waiters behind it.
    pub behind: Duration,
}

/// Asks for a name.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest<'a> {
    /// The name.
    pub name: &'a Name,
    /// Who asks. The same for every retry of one acquisition.
    pub owner: &'a OwnerToken,
    /// How long the lease shall last, in whole milliseconds.
    pub ttl: Duration,
    /// Whether to queue when the name is taken.
    pub queue: Option<QueueRequest>,
    /// The store must do nothing if it executes the request after this moment of the caller's clock, as far as
    /// it can tell.
    pub not_after: Moment,
}

/// How to queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueRequest {
    /// The ticket of an earlier reply, to keep the place.
    pub ticket: Option<Ticket>,
    /// The longest time until this waiter asks again by itself.
    pub poll_interval: Duration,
}

/// A place in a name's queue: the store's time of arrival in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What became of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// The owner holds the name for the whole TTL.
    Granted {
        /// The token minted for this grant.
        fencing_token: FencingToken,
    },
    /// Somebody else holds it.
    Held(Held),
}

/// A name that is taken, as an acquire found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who holds it.
    pub holder: Holder,
    /// How long the present lease lasts if it is not renewed; `None` when it has no end.
    pub remaining: Option<Duration>,
    /// The caller's place, if it is queued now.
    pub place: Option<Place>,
}

/// Who holds a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A Leasehold client with this label.
    Lease {
        /// The label of its owner token.
        label: String,
    },
    /// A client that follows the documented pattern but is not Leasehold. It tells nobody when it releases.
    Foreign,
    /// Nobody works under it: it was released before its `min_hold` had passed.
    Kept {
        /// The label of the last holder.
        by: String,
    },
    /// Nobody may work under it: an operator broke the lease.
    Broken {
        /// Who broke it.
        by: String,
    },
    /// Nobody: the name was free, and the first waiter was given it in this same step.
    HandedOver,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease { label } => write!(f, "{label}"),
            Self::Foreign => f.write_str("a client that is not Leasehold"),
            Self::Kept { by } => write!(f, "min_hold of {by}"),
            Self::Broken { by } => write!(f, "a lease broken by {by}"),
            Self::HandedOver => f.write_str("a waiter that came first"),
        }
    }
}

/// A place in the queue of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The ticket to present when asking again.
    pub ticket: Ticket,
    /// Whether nobody waits before this one.
    pub first: bool,
    /// How many queue entries are before this one, as far as the store can say at no cost; some may be dead.
    pub ahead: u32,
    /// Whether a grant will be pushed; otherwise it must be polled for.
    pub pushed: bool,
}

/// Gives a name back.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseRequest<'a> {
    /// The name.
    pub name: &'a Name,
    /// Whose lease and queue entry.
    pub owner: &'a OwnerToken,
    /// Keep the name taken, by nobody, for this long (`min_hold`).
    pub keep_for: Option<Duration>,
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The lease was this owner's and is given back.
    Freed {
        /// Whether a waiter holds it now.
        handed_over: bool,
    },
    /// This owner held no lease of that name.
    NotHeld,
}

/// Replaces the record of a name under its lease.
#[derive(Clone, Copy, Debug)]
pub struct SwapRequest<'a> {
    /// The name.
    pub name: &'a Name,
    /// Who must hold it.
    pub owner: &'a OwnerToken,
    /// What the record must be now; `None`: there must be none.
    pub expected: Option<&'a [u8]>,
    /// What it becomes; never empty.
    pub record: &'a [u8],
    /// How long it is kept from now on, in whole milliseconds.
    pub retain: Duration,
    /// What becomes of the lease.
    pub then: Then,
}

/// What becomes of the lease once a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    Hold,
    /// It is given back, as by [`Store::release`].
    Release {
        /// Keep the name taken, by nobody, for this long (`min_hold`).
        keep_for: Option<Duration>,
    },
}

/// What became of a swap. Unless it was done, nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapReply {
    /// The record is written.
    Swapped {
        /// Whether the name was given back and a waiter holds it now.
        handed_over: bool,
    },
    /// This owner does not hold the name.
    NotHeld {
        /// The record as it is.
        current: Option<Vec<u8>>,
    },
    /// The record is not the expected one.
    Differs {
        /// The record as it is.
        current: Option<Vec<u8>>,
    },
}

/// Prolongs one lease.
#[derive(Clone, Debug)]
pub struct RenewRequest {
    /// The name.
    pub name: Name,
    /// Whose lease.
    pub owner: OwnerToken,
    /// The time it shall last from now on, in whole milliseconds.
    pub ttl: Duration,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// It lasts for at least the TTL again.
    Renewed,
    /// It is not this owner's any more: `Missing`, `Taken` or `Broken`.
    NotHeld(LostCause),
}

/// One name, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The name.
    pub name: Name,
    /// Who holds it; `None` when it is free but somebody is queued.
    pub holder: Option<Holder>,
    /// How long the present lease lasts if it is not renewed; `None` when it has no end.
    pub remaining: Option<Duration>,
    /// Labels of the waiting processes, first to last; at most 1,000.
    pub waiters: Vec<String>,
    /// The fencing token of the present lease, where the store keeps it.
    pub fencing_token: Option<FencingToken>,
}

/// Taken names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// What was found.
    pub entries: Vec<Inspection>,
    /// Whether there are more.
    pub more: bool,
}

/// How to break a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakMode {
    /// The holder is told at its next renewal; the name stays taken until its present lease would have ended.
    Notice,
    /// The name is free at once. The holder may go on working until its next renewal tells it, as the loss `Missing`
    /// or `Taken`: nothing is left that would tell it of the break.
    Now,
}

/// What became of a break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakReply {
    /// The lease of this holder is broken.
    Broken {
        /// Who held it.
        holder: Holder,
        /// How long the name stays taken.
        remaining: Duration,
    },
    /// Nobody held it.
    Free,
}

/// Something `doctor` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, in a word or two (`eviction policy`).
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to change; empty when nothing is wrong.
    pub advice: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Locks work, but less is guaranteed than could be.
    Warning,
    /// Locks do not work, or can be lost in ordinary operation.
    Problem,
}

/// What a store tells without being asked.
#[derive(Clone, Debug)]
pub enum StoreEvent {
    /// A queued owner was granted the name by the holder's release.
    Granted {
        /// The name.
        name: Name,
        /// The waiter's owner token.
        owner: OwnerToken,
        /// The token minted for this grant.
        fencing_token: FencingToken,
        /// How long the grant lasts unless it is confirmed.
        claim: Duration,
        /// A moment certainly before the grant; `None` when there is no such bound.
        granted_after: Option<Moment>,
    },
    /// A queued owner is the first of its queue now.
    First {
        /// The name.
        name: Name,
        /// The waiter's owner token.
        owner: OwnerToken,
        /// How long the present lease lasts if it is not renewed.
        remaining: Option<Duration>,
    },
    /// The connection was made anew: messages may have been missed, so every waiter must ask again.
    Reconnected,
    /// Messages to one owner may have been missed: it must ask again.
    AskAgain {
        /// The waiter's owner token.
        owner: OwnerToken,
    },
    /// An operation was done step by step, since the store cannot do it in one at present. The name is granted and
    /// given back safely, but waiters of other processes are served when they ask, in no order.
    StepByStep {
        /// Which one: `acquire` or `release`.
        operation: &'static str,
    },
}

/// Takes what a store tells without being asked. Called from the store's own threads: it must not block.
pub trait EventSink: Send + Sync + 'static {
    /// Takes one event.
    fn event(&self, event: StoreEvent);
}
