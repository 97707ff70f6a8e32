//! The waiters of this process: which name an owner waits for, and every queue entry it may have left on the
//! server, so that each can be withdrawn. Forgets an owner once it is released and nothing of it can still
//! arrive.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::{Moment, Name, OwnerToken};
use tokio::sync::Notify;

use crate::wire::{self, Told};

/// Commands that keep the bound of grants fresh go out four times in the shortest claim time …
const BOUNDS_PER_CLAIM: u32 = 4;
/// … but not more often than this; a grant with an older bound is confirmed first.
const LEAST_BOUND_INTERVAL: Duration = Duration::from_millis(10);

/// Everybody in this process who waits, or has left something in a queue.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    table: Mutex<Table>,
    /// Told when the interval at which bounds are refreshed has become shorter.
    pub(crate) hurry: Notify,
}

#[derive(Debug, Default)]
struct Table {
    owners: HashMap<OwnerToken, Waiter>,
    /// How many waiters of each claim time wait for a push.
    claims: BTreeMap<Duration, usize>,
}

#[derive(Debug)]
struct Waiter {
    name: Name,
    /// The entry it has or is about to have, last, and those of connections since dropped.
    entries: Vec<String>,
    claim: Duration,
    /// It waits for a push.
    expects_push: bool,
    /// How many acquires were sent and not answered.
    unanswered: u32,
    /// A reply has said that it is queued.
    was_queued: bool,
    /// After this moment none of them takes effect any more.
    last_not_after: Moment,
    released: bool,
}

/// What an acquire that queues must send.
pub(crate) struct Entries {
    pub(crate) present: String,
    pub(crate) earlier: Vec<String>,
}

impl Waiters {
    /// Notes an acquire that queues, before it is sent.
    pub(crate) fn enter(
        &self,
        owner: &OwnerToken,
        name: &Name,
        told: Told<'_>,
        claim: Duration,
        not_after: Moment,
    ) -> Entries {
        let mut table = self.lock();
        let waiter = table.owners.entry(owner.clone()).or_insert_with(|| Waiter {
            name: name.clone(),
            entries: Vec::new(),
            claim: Duration::ZERO,
            expects_push: false,
            unanswered: 0,
            was_queued: false,
            last_not_after: Moment::default(),
            released: false,
        });
        let present = wire::entry(told, claim, owner);
        waiter.entries.retain(|entry| *entry != present);
        let earlier = waiter.entries.clone();
        waiter.entries.push(present.clone());
        waiter.unanswered += 1;
        waiter.last_not_after = waiter.last_not_after.max(not_after);
        let (before, pushed_before) = (waiter.claim, waiter.expects_push);
        waiter.claim = claim;
        waiter.expects_push = matches!(told, Told::ByPush(_));
        let pushed_now = waiter.expects_push;
        if pushed_before {
            table.forget_claim(before);
        }
        if pushed_now && table.note_claim(claim) {
            self.hurry.notify_one();
        }
        Entries { present, earlier }
    }

    /// Notes that an acquire was answered: it waits in the queue.
    pub(crate) fn queued(&self, owner: &OwnerToken) {
        let mut table = self.lock();
        if let Some(waiter) = table.owners.get_mut(owner) {
            waiter.unanswered = waiter.unanswered.saturating_sub(1);
            waiter.was_queued = true;
            if waiter.unanswered == 0 {
                // The script has removed the earlier ones.
                let last = waiter.entries.pop();
                waiter.entries = last.into_iter().collect();
            }
        }
    }

    /// Notes that an acquire was certainly not executed.
    pub(crate) fn refused(&self, owner: &OwnerToken) {
        let mut table = self.lock();
        let Some(waiter) = table.owners.get_mut(owner) else { return };
        waiter.unanswered = waiter.unanswered.saturating_sub(1);
        if waiter.unanswered == 0 && !waiter.was_queued {
            table.stop_expecting(owner);
            table.owners.remove(owner);
        }
    }

    /// Notes that an acquire was granted, which leaves no entry.
    pub(crate) fn left(&self, owner: &OwnerToken) {
        let mut table = self.lock();
        table.stop_expecting(owner);
        if let Some(waiter) = table.owners.get_mut(owner) {
            waiter.unanswered = waiter.unanswered.saturating_sub(1);
            if waiter.unanswered == 0 && on(Rule::ForgetNames) {
                table.owners.remove(owner);
            }
        }
    }

    /// Notes a pushed grant; the name it is for, if anybody knows the owner.
    pub(crate) fn granted(&self, owner: &OwnerToken) -> Option<Name> {
        let mut table = self.lock();
        table.stop_expecting(owner);
        table.owners.get(owner).map(|waiter| waiter.name.clone())
    }

    /// The name an owner waits for.
    pub(crate) fn name_of(&self, owner: &OwnerToken) -> Option<Name> {
        self.lock().owners.get(owner).map(|waiter| waiter.name.clone())
    }

    /// Every entry a release has to withdraw.
    pub(crate) fn entries_of(&self, owner: &OwnerToken) -> Vec<String> {
        let mut table = self.lock();
        if table.owners.is_empty() {
            return Vec::new();
        }
        table.stop_expecting(owner);
        table.owners.get(owner).map(|waiter| waiter.entries.clone()).unwrap_or_default()
    }

    /// Notes that a release was answered.
    pub(crate) fn released(&self, owner: &OwnerToken, now: Moment) {
        let mut table = self.lock();
        if table.owners.is_empty() {
            return;
        }
        let Some(waiter) = table.owners.get_mut(owner) else { return };
        waiter.released = true;
        if waiter.is_over(now) && on(Rule::ForgetNames) {
            table.owners.remove(owner);
        }
    }

    /// Forgets the released owners of whom nothing can arrive any more.
    pub(crate) fn sweep(&self, now: Moment) {
        if on(Rule::ForgetNames) {
            self.lock().owners.retain(|_, waiter| !(waiter.released && waiter.is_over(now)));
        }
    }

    /// How often the bound of grants must be refreshed; `None` while nobody expects a push.
    pub(crate) fn bound_interval(&self) -> Option<Duration> {
        let table = self.lock();
        table.claims.keys().next().map(|claim| (*claim / BOUNDS_PER_CLAIM).max(LEAST_BOUND_INTERVAL))
    }

    /// How many owners are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().owners.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    fn is_over(&self, now: Moment) -> bool {
        self.unanswered == 0 || now > self.last_not_after
    }
}

impl Table {
    fn stop_expecting(&mut self, owner: &OwnerToken) {
        let Some(waiter) = self.owners.get_mut(owner) else { return };
        if std::mem::take(&mut waiter.expects_push) {
            let claim = waiter.claim;
            self.forget_claim(claim);
        }
    }

    /// Whether it is the shortest now.
    fn note_claim(&mut self, claim: Duration) -> bool {
        let shortest = self.claims.keys().next().is_none_or(|shortest| claim < *shortest);
        *self.claims.entry(claim).or_insert(0) += 1;
        shortest
    }

    fn forget_claim(&mut self, claim: Duration) {
        if let Some(count) = self.claims.get_mut(&claim) {
            *count -= 1;
            if *count == 0 {
                self.claims.remove(&claim);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Label, SystemEntropy};

    use super::*;

    const CLAIM: Duration = Duration::from_secs(3);

    fn owner() -> OwnerToken {
        OwnerToken::generate(&SystemEntropy, &Label::new("test").unwrap()).unwrap()
    }

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    fn enter(waiters: &Waiters, owner: &OwnerToken, connection_id: &str, not_after: u64) -> Entries {
        let name = Name::new("order:1").unwrap();
        waiters.enter(owner, &name, Told::ByPush(connection_id), CLAIM, at(not_after))
    }

    #[test]
    fn entries_of_earlier_connections_are_kept_until_an_acquire_has_removed_them() {
        let (waiters, owner) = (Waiters::default(), owner());
        assert!(enter(&waiters, &owner, "a", 10).earlier.is_empty());
        waiters.queued(&owner);
        let second = enter(&waiters, &owner, "b", 20);
        assert_eq!(second.earlier, [wire::entry(Told::ByPush("a"), CLAIM, &owner)]);
        assert_eq!(waiters.entries_of(&owner).len(), 2);
        waiters.queued(&owner);
        assert_eq!(waiters.entries_of(&owner), [second.present]);
    }

    #[test]
    fn trap_59_owners_are_forgotten_once_nothing_of_them_can_arrive() {
        let waiters = Waiters::default();
        let granted = owner();
        enter(&waiters, &granted, "a", 10);
        waiters.left(&granted);
        assert_eq!(waiters.len(), 0, "a granted one whose acquires were all answered");

        let refused = owner();
        enter(&waiters, &refused, "a", 10);
        waiters.refused(&refused);
        assert_eq!(waiters.len(), 0, "one that was never queued");

        let lost_reply = owner();
        enter(&waiters, &lost_reply, "a", 10);
        waiters.released(&lost_reply, at(5));
        assert_eq!(waiters.len(), 1, "its acquire may still arrive");
        waiters.sweep(at(10));
        assert_eq!(waiters.len(), 1);
        waiters.sweep(at(11));
        assert_eq!(waiters.len(), 0);
    }

    #[test]
    fn bounds_are_refreshed_four_times_in_the_shortest_claim_while_a_push_is_expected() {
        let waiters = Waiters::default();
        assert_eq!(waiters.bound_interval(), None);
        let (long, short) = (owner(), owner());
        enter(&waiters, &long, "a", 10);
        assert_eq!(waiters.bound_interval(), Some(Duration::from_millis(750)));
        let name = Name::new("order:2").unwrap();
        waiters.enter(&short, &name, Told::ByPush("a"), Duration::from_millis(400), at(10));
        assert_eq!(waiters.bound_interval(), Some(Duration::from_millis(100)));
        assert_eq!(waiters.granted(&short), Some(name));
        assert_eq!(waiters.bound_interval(), Some(Duration::from_millis(750)));
        enter(&waiters, &long, "a", 20);
        waiters.entries_of(&long);
        assert_eq!(waiters.bound_interval(), None);
    }

    #[test]
    fn a_poller_withdraws_every_entry_it_may_have_left() {
        let (waiters, owner) = (Waiters::default(), owner());
        let name = Name::new("order:1").unwrap();
        let enter = |alive_until_micros| {
            waiters.enter(&owner, &name, Told::ByPolling { alive_until_micros }, CLAIM, at(10))
        };
        let first = enter(1).present;
        assert_eq!(enter(2).earlier, [first]);
        assert_eq!(waiters.entries_of(&owner).len(), 2);
        assert_eq!(waiters.bound_interval(), None);
    }
}
