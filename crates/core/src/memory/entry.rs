//! What the server keeps about one name: its lease and its queue.

use std::time::Duration;

use super::link::ConnectionId;
use crate::clock::Moment;
use crate::fencing::FencingToken;
use crate::mutation::{Rule, on};
use crate::owner::{KeyValue, OwnerToken};
use crate::store::{Holder, Ticket};

/// A queue nobody refreshed for this long is forgotten: live waiters ask again every 20 s or oftener.
const QUEUE_EXPIRY: Duration = Duration::from_secs(60);

/// The time of one step.
#[derive(Clone, Copy)]
pub(super) struct Now {
    /// On the server's clock.
    pub(super) moment: Moment,
    /// Since 1970, as far as the server knows.
    pub(super) wall: Duration,
}

/// What a name's key holds.
pub(super) enum Content {
    Text(String),
    NotALock,
}

pub(super) struct Lease {
    pub(super) content: Content,
    /// [`Moment::NEVER`] for a key without a TTL.
    pub(super) ends: Moment,
    pub(super) fencing_token: Option<FencingToken>,
}

pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) owner: OwnerToken,
    /// Where grants are pushed; `None` for one that polls.
    pub(super) connection: Option<ConnectionId>,
    pub(super) claim: Duration,
    pub(super) poll_interval: Duration,
    pub(super) refreshed: Moment,
}

/// All there is about one name.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) lease: Option<Lease>,
    /// In order of tickets.
    pub(super) queue: Vec<Waiter>,
}

impl Lease {
    pub(super) fn of(owner: &OwnerToken, ends: Moment, fencing_token: FencingToken) -> Self {
        let content = Content::Text(owner.expose().to_owned());
        Self { content, ends, fencing_token: Some(fencing_token) }
    }

    pub(super) fn is_of(&self, owner: &OwnerToken) -> bool {
        matches!(&self.content, Content::Text(text) if text == owner.expose())
    }

    pub(super) fn holder(&self) -> Holder {
        let Content::Text(text) = &self.content else { return Holder::Foreign };
        match KeyValue::parse(text) {
            KeyValue::Owner(owner) => Holder::Lease { label: owner.label().to_owned() },
            KeyValue::Broken { by } => Holder::Broken { by },
            KeyValue::Kept { by } => Holder::Kept { by },
            KeyValue::Foreign => Holder::Foreign,
        }
    }

    pub(super) fn remaining(&self, now: Now) -> Option<Duration> {
        (self.ends != Moment::NEVER).then(|| self.ends.since(now.moment))
    }
}

impl Entry {
    pub(super) fn is_held_by(&self, owner: &OwnerToken) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_of(owner))
    }

    pub(super) fn live_lease(&self, now: Now) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.ends > now.moment)
    }

    pub(super) fn live_queue(&self, now: Now) -> &[Waiter] {
        let refreshed = self.queue.iter().map(|waiter| waiter.refreshed).max();
        let forgotten = refreshed.is_some_and(|last| now.moment.since(last) > QUEUE_EXPIRY);
        if forgotten { &[] } else { &self.queue }
    }

    pub(super) fn forget_ended(&mut self, now: Now) {
        if self.live_lease(now).is_none() {
            self.lease = None;
        }
        if self.live_queue(now).is_empty() {
            self.queue = Vec::new();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lease.is_none() && self.queue.is_empty()
    }

    pub(super) fn pop_first(&mut self) -> Option<Waiter> {
        if on(Rule::QueueOrder) {
            (!self.queue.is_empty()).then(|| self.queue.remove(0))
        } else {
            self.queue.pop()
        }
    }

    /// Removes the owner from the queue; whether it was the first.
    pub(super) fn withdraw(&mut self, owner: &OwnerToken) -> bool {
        let Some(at) = self.queue.iter().position(|waiter| &waiter.owner == owner) else { return false };
        self.queue.remove(at);
        at == 0
    }
}
