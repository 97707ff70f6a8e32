//! The processes of a test: what they ask, what they are told, and the wait for what must come.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, EventSink, Held, Inspection, QueueRequest,
    ReleaseReply, ReleaseRequest, RenewReply, RenewRequest, Store, StoreEvent, Ticket,
};
use leasehold_core::{Clock, Error, FencingToken, Label, LostCause, Moment, Name, OwnerToken, SystemEntropy};

use super::{Fixture, SLACK, Skipped};
use crate::lock;

/// The TTL of leases that must not end during a test.
pub(super) const LONG: Duration = Duration::from_secs(30);
/// The TTL of leases whose end a test waits for.
pub(super) const SHORT: Duration = Duration::from_millis(400);
/// How often waiters of a test ask by themselves.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// How often they say that they will: a waiter that polls must not count as dead on a busy machine.
pub(super) const PROMISED_POLL: Duration = Duration::from_secs(1);
/// After this long without a sign of it a waiter that polls counts as dead.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(4);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// The longest claim of a waiter that does not poll.
pub(super) const MAX_CLAIM: Duration = Duration::from_secs(3);

/// One process: a connection, and what it was told.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    told: Arc<Told>,
}

#[derive(Default)]
struct Told(Mutex<Vec<StoreEvent>>);

impl EventSink for Told {
    fn event(&self, event: StoreEvent) {
        lock(&self.0).push(event);
    }
}

/// A lease, as the engine would know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) fencing_token: FencingToken,
    /// A moment certainly before the grant.
    pub(super) after: Moment,
    pub(super) lasts: Duration,
}

impl Grant {
    /// The moment until which the holder may rely on it.
    pub(super) fn deadline(&self) -> Moment {
        relied_on(self.after, self.lasts)
    }
}

/// The end of a lease by its holder's count: drift allowance taken off.
pub(super) fn relied_on(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl).before(ttl / 100 + Duration::from_millis(2))
}

impl Process {
    pub(super) async fn start<F: Fixture>(fixture: &F) -> Self {
        Self::of(fixture.connect().await, fixture.clock())
    }

    pub(super) async fn start_without_push<F: Fixture>(fixture: &F) -> Result<Self, Skipped> {
        Ok(Self::of(fixture.connect_without_push().await?, fixture.clock()))
    }

    fn of(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let told = Arc::new(Told::default());
        let sink: Weak<dyn EventSink> = Arc::downgrade(&told) as Weak<dyn EventSink>;
        store.attach(sink);
        Self { store, clock, told }
    }

    /// Dies, and is gone as far as the store can tell when this returns.
    pub(super) async fn die<F: Fixture>(&self, fixture: &F) {
        self.store.close().await;
        // The end of a connection is seen soon, that of a process that polls when it has missed some.
        let pushed = self.store.capabilities().push;
        fixture.pass(if pushed { Duration::from_secs(1) } else { SILENT_AFTER }).await;
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// An acquire in full.
    pub(super) async fn ask(
        &self,
        name: &Name,
        owner: &OwnerToken,
        ttl: Duration,
        queue: Option<QueueRequest>,
    ) -> Result<AcquireReply, Error> {
        let not_after = self.now().after(SLACK);
        self.store.acquire(AcquireRequest { name, owner, ttl, queue, not_after }).await
    }

    /// An acquire that does not wait.
    pub(super) async fn acquire(&self, name: &Name, owner: &OwnerToken, ttl: Duration) -> AcquireReply {
        let reply = self.ask(name, owner, ttl, None).await;
        reply.unwrap_or_else(|error| panic!("acquire of {name}: {error}"))
    }

    /// An acquire that must be granted.
    pub(super) async fn take(&self, name: &Name, owner: &OwnerToken, ttl: Duration) -> Grant {
        let after = self.now();
        match self.acquire(name, owner, ttl).await {
            AcquireReply::Granted { fencing_token } => Grant { fencing_token, after, lasts: ttl },
            AcquireReply::Held(held) => {
                panic!("{name} is held by {:?}, {} expected to get it", held, owner.label())
            }
        }
    }

    /// An acquire that must not be granted.
    pub(super) async fn refused(&self, name: &Name, owner: &OwnerToken) -> Held {
        must_be_held(self.acquire(name, owner, LONG).await)
    }

    /// An acquire that must queue.
    pub(super) async fn queue(&self, name: &Name, owner: &OwnerToken, ttl: Duration) -> Held {
        self.queue_again(name, owner, ttl, None).await
    }

    pub(super) async fn queue_again(
        &self,
        name: &Name,
        owner: &OwnerToken,
        ttl: Duration,
        ticket: Option<Ticket>,
    ) -> Held {
        let reply =
            self.ask(name, owner, ttl, Some(QueueRequest { ticket, poll_interval: PROMISED_POLL })).await;
        let held = must_be_held(reply.unwrap_or_else(|error| panic!("queueing for {name}: {error}")));
        assert!(held.place.is_some(), "{} is not queued for {name}: {held:?}", owner.label());
        held
    }

    pub(super) async fn release(&self, name: &Name, owner: &OwnerToken) -> ReleaseReply {
        let reply = self.store.release(ReleaseRequest { name, owner, keep_for: None }).await;
        reply.unwrap_or_else(|error| panic!("release of {name}: {error}"))
    }

    pub(super) async fn release_early(&self, name: &Name, owner: &OwnerToken, keep_for: Duration) {
        let reply = self.store.release(ReleaseRequest { name, owner, keep_for: Some(keep_for) }).await;
        assert!(matches!(reply, Ok(ReleaseReply::Freed { .. })), "release of {name}: {reply:?}");
    }

    /// An early release by somebody who holds nothing.
    pub(super) async fn release_stale_early(&self, name: &Name, owner: &OwnerToken) {
        let reply = self.store.release(ReleaseRequest { name, owner, keep_for: Some(LONG) }).await;
        assert!(matches!(reply, Ok(ReleaseReply::NotHeld)), "release of {name}: {reply:?}");
    }

    pub(super) async fn renew(&self, name: &Name, owner: &OwnerToken, ttl: Duration) -> RenewReply {
        let batch = [RenewRequest { name: name.clone(), owner: owner.clone(), ttl }];
        let replies = self.store.renew(&batch).await;
        match replies.as_slice() {
            [Ok(reply)] => *reply,
            other => panic!("renewal of {name}: {other:?}"),
        }
    }

    /// A renewal that must be refused.
    pub(super) async fn not_renewed(&self, name: &Name, owner: &OwnerToken) -> LostCause {
        match self.renew(name, owner, LONG).await {
            RenewReply::NotHeld(cause) => cause,
            RenewReply::Renewed => panic!("a renewal of {name} by {} succeeded", owner.label()),
        }
    }

    pub(super) async fn inspect(&self, name: &Name) -> Option<Inspection> {
        let reply = self.store.inspect(name).await;
        reply.unwrap_or_else(|error| panic!("inspection of {name}: {error}"))
    }

    /// The label of the owner token that holds the name.
    pub(super) async fn holder_label(&self, name: &Name) -> Option<String> {
        match self.inspect(name).await?.holder? {
            leasehold_core::store::Holder::Lease { label } => Some(label),
            _ => None,
        }
    }

    /// How long the present lease lasts.
    pub(super) async fn remaining(&self, name: &Name) -> Duration {
        let remaining = self.inspect(name).await.and_then(|inspection| inspection.remaining);
        remaining.unwrap_or_else(|| panic!("{name} has no lease with an end"))
    }

    pub(super) async fn break_lease(&self, name: &Name, mode: BreakMode) -> BreakReply {
        let by = Label::new("operator").unwrap_or_else(|error| panic!("{error}"));
        let reply = self.store.break_lease(name, mode, &by).await;
        reply.unwrap_or_else(|error| panic!("breaking {name}: {error}"))
    }

    /// Everything this process was told about an owner, in order.
    pub(super) fn told(&self, owner: &OwnerToken) -> Vec<StoreEvent> {
        let told = lock(&self.told.0);
        let about = |event: &&StoreEvent| match event {
            StoreEvent::Granted { owner: whom, .. }
            | StoreEvent::First { owner: whom, .. }
            | StoreEvent::AskAgain { owner: whom } => whom == owner,
            StoreEvent::Reconnected | StoreEvent::StepByStep { .. } => false,
        };
        told.iter().filter(about).cloned().collect()
    }

    /// The grant that was pushed to an owner, if any.
    pub(super) fn pushed_grant(&self, owner: &OwnerToken) -> Option<Grant> {
        self.told(owner).into_iter().find_map(|event| match event {
            StoreEvent::Granted { fencing_token, claim, granted_after, .. } => {
                // Without a bound the waiter has to confirm first; nothing is relied on until then.
                let after = granted_after.unwrap_or_default();
                Some(Grant { fencing_token, after, lasts: claim })
            }
            _ => None,
        })
    }

    /// Waits as a waiter does, until it has the name: for a push where there are pushes, asking now and then
    /// in any case.
    pub(super) async fn wait_for_grant<F: Fixture>(
        &self,
        fixture: &F,
        name: &Name,
        owner: &OwnerToken,
        ttl: Duration,
        at_most: Duration,
    ) -> Grant {
        let what = format!("{} gets {name}", owner.label());
        let mut ticket = None;
        within(fixture, at_most, &what, async || {
            if let Some(grant) = self.pushed_grant(owner) {
                return Some(grant);
            }
            let after = self.now();
            let queue = Some(QueueRequest { ticket, poll_interval: PROMISED_POLL });
            match self.ask(name, owner, ttl, queue).await {
                Ok(AcquireReply::Granted { fencing_token }) => {
                    return Some(Grant { fencing_token, after, lasts: ttl });
                }
                Ok(AcquireReply::Held(held)) => ticket = held.place.map(|place| place.ticket).or(ticket),
                Err(error) => panic!("{what}: {error}"),
            }
            fixture.pass(POLL).await;
            None
        })
        .await
    }
}

/// Asks until there is an answer.
pub(super) async fn within<F: Fixture, T>(
    fixture: &F,
    at_most: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let clock = fixture.clock();
    let until = clock.now().after(at_most + SLACK);
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(clock.now() < until, "not within {at_most:?} and {SLACK:?} more: {what}");
        fixture.pass(LOOK).await;
    }
}

/// Lets several actors go on at the same time, until all have finished.
pub(super) async fn all<T>(mut actors: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = actors.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (actor, result) in actors.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = actor.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

pub(super) fn must_be_held(reply: AcquireReply) -> Held {
    match reply {
        AcquireReply::Held(held) => held,
        AcquireReply::Granted { .. } => panic!("granted although it is taken"),
    }
}

pub(super) fn owner(label: &str) -> OwnerToken {
    let token = Label::new(label).and_then(|label| OwnerToken::generate(&SystemEntropy, &label));
    token.unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn name(name: &str) -> Name {
    Name::new(name).unwrap_or_else(|error| panic!("{error}"))
}

/// Skips a behaviour of queues where there are none.
pub(super) fn needs_queue(process: &Process) -> Result<(), Skipped> {
    process.store.capabilities().queue.then_some(()).ok_or(Skipped("a queue"))
}

/// Skips a behaviour of pushes where there are none.
pub(super) fn needs_push(process: &Process) -> Result<(), Skipped> {
    needs_queue(process)?;
    process.store.capabilities().push.then_some(()).ok_or(Skipped("pushes"))
}

/// Skips a behaviour of fencing tokens where there are none.
pub(super) fn needs_fencing(process: &Process) -> Result<(), Skipped> {
    process.store.capabilities().fencing.then_some(()).ok_or(Skipped("fencing tokens"))
}
