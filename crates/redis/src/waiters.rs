//! The waiters of this process: which name an owner waits for, and every queue entry it may have left on the
//! server, so that each can be withdrawn. Forgets an owner once it is released and nothing of it can still
//! arrive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// What it may have in the queue: one entry for every connection it asked on, or for every poll.
    entries: Vec<Entry>,
    claim: Duration,
    /// It waits for a push.
    expects_push: bool,
    released: bool,
}

/// An entry that may be in the queue.
#[derive(Debug)]
struct Entry {
    text: String,
    /// How many acquires that queue it were sent and not answered.
    unanswered: u32,
    /// After this moment none of them takes effect any more.
    last_not_after: Moment,
    /// A reply has said that it is in the queue.
    is_queued: bool,
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
            released: false,
        });
        let text = wire::entry(told, claim, owner);
        let earlier =
            waiter.entries.iter().map(|entry| entry.text.clone()).filter(|earlier| *earlier != text);
        let entries = Entries { earlier: earlier.collect(), present: text };
        waiter.ask(&entries.present, not_after);
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
        entries
    }

    /// Notes that an acquire was answered: this entry is in the queue, and every other was removed from it.
    pub(crate) fn queued(&self, owner: &OwnerToken, present: &str, now: Moment) {
        if let Some(waiter) = self.lock().owners.get_mut(owner) {
            waiter.answered(present, true);
            waiter.entries.retain(|entry| entry.text == present || !entry.is_over(now));
        }
    }

    /// Notes that an acquire was certainly not executed.
    pub(crate) fn refused(&self, owner: &OwnerToken, present: &str) {
        let mut table = self.lock();
        let Some(waiter) = table.owners.get_mut(owner) else { return };
        waiter.answered(present, false);
        waiter.entries.retain(|entry| entry.text != present || entry.unanswered > 0 || entry.is_queued);
        if waiter.entries.is_empty() {
            table.stop_expecting(owner);
            table.owners.remove(owner);
        }
    }

    /// Notes that an acquire was granted, which leaves no entry in the queue.
    pub(crate) fn left(&self, owner: &OwnerToken, present: &str, now: Moment) {
        let mut table = self.lock();
        table.stop_expecting(owner);
        let Some(waiter) = table.owners.get_mut(owner) else { return };
        waiter.answered(present, false);
        table.forget_if_over(owner, now);
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
        let entries = table.owners.get(owner).map(|waiter| waiter.entries.as_slice()).unwrap_or_default();
        entries.iter().map(|entry| entry.text.clone()).collect()
    }

    /// Notes that a release was answered.
    pub(crate) fn released(&self, owner: &OwnerToken, now: Moment) {
        let mut table = self.lock();
        if table.owners.is_empty() {
            return;
        }
        let Some(waiter) = table.owners.get_mut(owner) else { return };
        waiter.released = true;
        table.forget_if_over(owner, now);
    }

    /// Forgets the released owners of whom nothing can arrive any more.
    pub(crate) fn sweep(&self, now: Moment) {
        if on(Rule::ForgetNames) {
            self.lock()
                .owners
                .retain(|_, waiter| !waiter.released || waiter.entries.iter().any(|e| !e.is_over(now)));
        }
    }

    /// How often the bound of grants must be refreshed; `None` while nobody expects a push.
    pub(crate) fn bound_interval(&self) -> Option<Duration> {
        let table = self.lock();
        table.claims.keys().next().map(|claim| (*claim / BOUNDS_PER_CLAIM).max(LEAST_BOUND_INTERVAL))
    }

    /// Everybody who waits for a push about one of these names.
    pub(crate) fn expecting(&self, is_one: impl Fn(&Name) -> bool) -> Vec<OwnerToken> {
        let table = self.lock();
        let expecting = table.owners.iter().filter(|(_, waiter)| waiter.expects_push && is_one(&waiter.name));
        expecting.map(|(owner, _)| owner.clone()).collect()
    }

    /// The slots of the names about which anybody waits for a push.
    pub(crate) fn slots_expected(&self, slot_of: impl Fn(&Name) -> u16) -> BTreeSet<u16> {
        let table = self.lock();
        let expecting = table.owners.values().filter(|waiter| waiter.expects_push);
        expecting.map(|waiter| slot_of(&waiter.name)).collect()
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
    /// Notes an acquire that queues this entry.
    fn ask(&mut self, text: &str, not_after: Moment) {
        match self.entries.iter_mut().find(|entry| entry.text == text) {
            Some(entry) => {
                entry.unanswered += 1;
                entry.last_not_after = entry.last_not_after.max(not_after);
            }
            None => self.entries.push(Entry {
                text: text.to_owned(),
                unanswered: 1,
                last_not_after: not_after,
                is_queued: false,
            }),
        }
    }

    fn answered(&mut self, text: &str, is_queued: bool) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.text == text) {
            entry.unanswered = entry.unanswered.saturating_sub(1);
            entry.is_queued |= is_queued;
        }
    }
}

impl Entry {
    /// Whether no acquire under way can queue it any more.
    fn is_over(&self, now: Moment) -> bool {
        self.unanswered == 0 || now > self.last_not_after
    }
}

impl Table {
    /// Forgets an owner who has nothing in the queue and of whom nothing can arrive.
    fn forget_if_over(&mut self, owner: &OwnerToken, now: Moment) {
        let is_over = |waiter: &Waiter| waiter.entries.iter().all(|entry| entry.is_over(now));
        if self.owners.get(owner).is_some_and(is_over) && on(Rule::ForgetNames) {
            self.owners.remove(owner);
        }
    }

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
        let first = enter(&waiters, &owner, "a", 10);
        assert!(first.earlier.is_empty());
        waiters.queued(&owner, &first.present, at(1));
        let second = enter(&waiters, &owner, "b", 20);
        assert_eq!(second.earlier, [wire::entry(Told::ByPush("a"), CLAIM, &owner)]);
        assert_eq!(waiters.entries_of(&owner).len(), 2);
        waiters.queued(&owner, &second.present, at(1));
        assert_eq!(waiters.entries_of(&owner), [second.present]);
    }

    #[test]
    fn trap_59_owners_are_forgotten_once_nothing_of_them_can_arrive() {
        let waiters = Waiters::default();
        let granted = owner();
        let entries = enter(&waiters, &granted, "a", 10);
        waiters.left(&granted, &entries.present, at(1));
        assert_eq!(waiters.len(), 0, "a granted one whose acquires were all answered");

        let refused = owner();
        let entries = enter(&waiters, &refused, "a", 10);
        waiters.refused(&refused, &entries.present);
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
    fn a_poller_withdraws_every_entry_it_may_have_left_and_they_do_not_pile_up() {
        let (waiters, owner) = (Waiters::default(), owner());
        let name = Name::new("order:1").unwrap();
        let poll = |alive_until_micros, not_after| {
            let told = Told::ByPolling { alive_until_micros };
            waiters.enter(&owner, &name, told, CLAIM, at(not_after))
        };
        // Its reply is lost.
        let first = poll(1, 10).present;
        for now in 2..10 {
            let entries = poll(now, now + 10);
            assert!(entries.earlier.contains(&first));
            waiters.queued(&owner, &entries.present, at(now));
            assert_eq!(waiters.entries_of(&owner).len(), 2, "the lost one may still arrive");
        }
        let entries = poll(20, 30);
        waiters.queued(&owner, &entries.present, at(20));
        assert_eq!(waiters.entries_of(&owner), [entries.present]);
        assert_eq!(waiters.bound_interval(), None);
    }
}
