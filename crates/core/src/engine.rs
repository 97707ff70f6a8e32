//! What the parts of a client share: the store, the clock, the leases and their schedule, the local queue, the
//! waiters, and what is still to be cleaned up. It holds state; it decides nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::cleanup::{CleanUp, CleanUps};
use crate::clock::Moment;
use crate::entropy::Entropy;
use crate::error::Error;
use crate::fencing::FencingToken;
use crate::lease::{LeaseState, Machine, Step};
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::owner::{Label, OwnerToken};
use crate::queue::LocalQueue;
use crate::schedule::Schedule;
use crate::store::{EventSink, Store, StoreEvent};
use crate::timers::Timers;
use crate::waiter::Waiters;

/// Everything that the keeper and the users of a client share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) timers: Timers,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) label: Label,
    pub(crate) store_timeout: Duration,
    pub(crate) local_queue: Arc<LocalQueue>,
    pub(crate) waiters: Waiters,
    pub(crate) cleanups: CleanUps,
    /// Wakes the keeper.
    pub(crate) wake: Notify,
    /// No acquisition is begun any more.
    pub(crate) closed: AtomicBool,
    /// The last user is gone: the keeper ends when its work is done.
    pub(crate) abandoned: AtomicBool,
    /// The process that connected the store: a fork of it shares the connections but not the keeper.
    process: u32,
    schedule: Mutex<Schedule<LeaseCell>>,
    next_id: AtomicU64,
    jitter: AtomicU64,
    /// Renewals under way, for tests and for a keeper that ends.
    pub(crate) renewals_under_way: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        timers: Timers,
        entropy: Arc<dyn Entropy>,
        label: Label,
        store_timeout: Duration,
    ) -> Result<Self, Error> {
        let mut seed = [0; 8];
        entropy.fill(&mut seed)?;
        Ok(Self {
            store,
            timers,
            entropy,
            label,
            store_timeout,
            local_queue: Arc::default(),
            waiters: Waiters::default(),
            cleanups: CleanUps::default(),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            process: std::process::id(),
            schedule: Mutex::default(),
            next_id: AtomicU64::new(0),
            jitter: AtomicU64::new(u64::from_ne_bytes(seed)),
            renewals_under_way: AtomicUsize::new(0),
        })
    }

    pub(crate) fn now(&self) -> Moment {
        self.timers.now()
    }

    /// Whether acquisitions may be begun.
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::config("this client is closed: connect a new one"));
        }
        self.check_process()
    }

    /// Whether there is a thread that works for this client.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if on(Rule::LostInFork) && self.process != std::process::id() {
            return Err(Error::config(
                "this client was connected before the process forked, and its thread stayed with the parent: \
                 connect a new one in the child",
            ));
        }
        Ok(())
    }

    /// Whether a guard of this client holds the name under this owner token.
    pub(crate) fn holds(&self, name: &Name, owner: &OwnerToken) -> bool {
        let found = self.schedule().items().find(|cell| cell.name == *name && cell.owner == *owner).cloned();
        found.is_some_and(|cell| cell.machine().is_active())
    }

    /// Whether a guard of this client holds the name.
    pub(crate) fn holds_name(&self, name: &Name) -> bool {
        self.schedule().items().any(|cell| cell.name == *name)
    }

    pub(crate) fn schedule(&self) -> MutexGuard<'_, Schedule<LeaseCell>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a lease under the keeper's care.
    pub(crate) fn keep(&self, lease: Granted, machine: Machine) -> Arc<LeaseCell> {
        let id = if on(Rule::EntryPerLease) {
            self.next_id.fetch_add(1, Ordering::Relaxed)
        } else {
            hash(&lease.name)
        };
        crate::observe::lease_begins();
        let next = machine.next_event();
        let cell = Arc::new(LeaseCell {
            id,
            process: std::process::id(),
            lease,
            machine: Mutex::new(machine),
            changed: Notify::new(),
        });
        if self.schedule().insert(id, next, Arc::clone(&cell)) {
            self.wake.notify_one();
        }
        cell
    }

    /// Looks at the lease again at the moment its machine asks for.
    pub(crate) fn reschedule(&self, cell: &LeaseCell) {
        let next = cell.machine().next_event();
        if self.schedule().reschedule(cell.id, next) {
            self.wake.notify_one();
        }
    }

    /// Renews every lease as soon as can be: a server that was started again, or another one in its place, may not
    /// know it any more, and then its holder should not work on until its next renewal.
    fn hurry_renewals(&self) {
        let (now, cells) = (self.now(), self.schedule().items().cloned().collect::<Vec<_>>());
        for cell in cells {
            let hurries = cell.machine().hurry(now);
            if hurries {
                self.reschedule(&cell);
            }
        }
    }

    /// Takes a lease out of the keeper's care.
    pub(crate) fn forget(&self, cell: &LeaseCell) {
        if cell.waited {
            self.waiters.close(&cell.owner);
        }
        self.schedule().remove(cell.id);
    }

    /// Has something cleaned up in the background.
    pub(crate) fn clean_up(&self, job: CleanUp) {
        self.cleanups.push(job);
        self.wake.notify_one();
    }

    /// A duration drawn evenly from the range.
    pub(crate) fn jitter(&self, least: Duration, most: Duration) -> Duration {
        // SplitMix64 (Steele, Lea and Flood, 2014): enough to keep waiters from asking in step.
        let mut z = self
            .jitter
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)
            .wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let range = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(if range == 0 { 0 } else { z % range })
    }
}

impl EventSink for Shared {
    fn event(&self, event: StoreEvent) {
        match event {
            StoreEvent::Granted { name, owner, fencing_token, claim, granted_after } => {
                let grant = crate::waiter::PushedGrant { fencing_token, claim, granted_after };
                if !self.waiters.granted(&owner, grant) && on(Rule::ReturnUnwantedGrant) {
                    self.clean_up(CleanUp::unwanted_grant(name, owner, self.now().after(claim)));
                }
            }
            StoreEvent::First { owner, remaining, .. } => {
                let ends = remaining.map_or(Moment::NEVER, |remaining| self.now().after(remaining));
                self.waiters.first(&owner, ends);
            }
            StoreEvent::Reconnected => {
                if on(Rule::RecheckAfterReconnect) {
                    self.waiters.recheck_all();
                }
                if on(Rule::RenewAfterReconnect) {
                    self.hurry_renewals();
                }
            }
            StoreEvent::AskAgain { owner } => {
                if on(Rule::RecheckAfterReconnect) {
                    self.waiters.recheck(&owner);
                }
            }
            StoreEvent::StepByStep { operation } => crate::observe::step_by_step(operation),
        }
    }
}

/// What a lease was granted with and keeps for its life.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) name: Name,
    pub(crate) owner: OwnerToken,
    pub(crate) fencing_token: FencingToken,
    /// An unanswered request of this owner may still arrive at the store until this moment.
    pub(crate) late_until: Option<Moment>,
    /// A moment just before it was granted.
    pub(crate) begins: Moment,
    /// How long it lasts without renewal.
    pub(crate) ttl: Duration,
    /// Whether it ends after that in any case.
    pub(crate) fixed: bool,
    /// Whether it came out of a wait, so that grants for its owner may still be pushed.
    pub(crate) waited: bool,
}

/// One lease under the keeper's care.
#[derive(Debug)]
pub(crate) struct LeaseCell {
    pub(crate) id: u64,
    /// The process that acquired it: a fork of it does not own the lease.
    process: u32,
    lease: Granted,
    machine: Mutex<Machine>,
    /// Notified at every change that somebody may wait for.
    pub(crate) changed: Notify,
}

impl std::ops::Deref for LeaseCell {
    type Target = Granted;

    fn deref(&self) -> &Granted {
        &self.lease
    }
}

impl LeaseCell {
    pub(crate) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process is the one that acquired the lease.
    pub(crate) fn is_ours(&self) -> bool {
        !on(Rule::LostInFork) || self.process == std::process::id()
    }

    /// The state at this moment: a lease whose time is over is lost, whether or not the keeper has noticed.
    pub(crate) fn state_at(&self, now: Moment) -> LeaseState {
        if !self.is_ours() {
            return LeaseState::Lost(crate::error::LostCause::Forked);
        }
        let mut machine = self.machine();
        if machine.is_active()
            && now >= machine.lost_at()
            && let Step::Lost(cause) = machine.step(now)
        {
            drop(machine);
            self.tell_lost(cause);
            return LeaseState::Lost(cause);
        }
        machine.state()
    }

    /// Tells whoever waits that the lease is lost.
    pub(crate) fn tell_lost(&self, cause: crate::error::LostCause) {
        crate::observe::lost(cause);
        tracing::warn!(name = %self.name, fencing_token = self.fencing_token.get(), %cause, "lease lost");
        self.changed.notify_waiters();
    }
}

fn hash(name: &Name) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Hands out [`Shared`] and ends the keeper when its last user is gone.
pub(crate) struct Engine(pub(crate) Arc<Shared>);

impl std::ops::Deref for Engine {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }
}
