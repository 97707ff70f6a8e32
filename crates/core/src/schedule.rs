//! Which lease wants attention when: every held lease of a client, in order of time. It knows nothing of what
//! is to be done.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::clock::Moment;
use crate::mutation::{Rule, on};

/// Entries in order of time. Adding, moving and removing one costs O(log n).
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    by_time: BTreeSet<(Moment, u64)>,
    entries: HashMap<u64, Entry<T>>,
    /// When the keeper wakes by itself.
    wakes_at: Moment,
}

#[derive(Debug)]
struct Entry<T> {
    at: Moment,
    item: Arc<T>,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), entries: HashMap::new(), wakes_at: Moment::NEVER }
    }
}

impl<T> Schedule<T> {
    /// Adds an entry. True if the keeper must be woken for it.
    pub(crate) fn insert(&mut self, id: u64, at: Moment, item: Arc<T>) -> bool {
        if let Some(old) = self.entries.insert(id, Entry { at, item }) {
            self.by_time.remove(&(old.at, id));
        }
        self.by_time.insert((at, id));
        at < self.wakes_at
    }

    /// Moves an entry, if it is still there. True if the keeper must be woken for it.
    pub(crate) fn reschedule(&mut self, id: u64, at: Moment) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        self.by_time.remove(&(entry.at, id));
        entry.at = at;
        self.by_time.insert((at, id));
        at < self.wakes_at
    }

    /// All entries, in no order.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Arc<T>> {
        self.entries.values().map(|entry| &entry.item)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, id: u64) {
        if let Some(entry) = self.entries.remove(&id) {
            self.by_time.remove(&(entry.at, id));
        }
    }

    /// The entries that are due, earliest first, at most `limit`. Each stays, without a time, until it is
    /// moved or removed.
    pub(crate) fn take_due(&mut self, now: Moment, limit: usize) -> Vec<Arc<T>> {
        let mut due = Vec::new();
        while due.len() < limit {
            let next = if on(Rule::DeadlineOrder) {
                self.by_time.first().copied()
            } else {
                self.by_time.iter().copied().rfind(|(at, _)| *at <= now)
            };
            let Some((at, id)) = next.filter(|(at, _)| *at <= now) else { break };
            self.by_time.remove(&(at, id));
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.at = Moment::NEVER;
                self.by_time.insert((Moment::NEVER, id));
                due.push(Arc::clone(&entry.item));
            }
        }
        due
    }

    /// Notes that the keeper goes to sleep, and says until when.
    pub(crate) fn sleep(&mut self) -> Moment {
        self.wakes_at = self.by_time.first().map_or(Moment::NEVER, |(at, _)| *at);
        self.wakes_at
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn trap_17_what_is_due_comes_in_order_of_time() {
        let mut schedule = Schedule::default();
        for (id, millis) in [(1, 30), (2, 10), (3, 20), (4, 99)] {
            schedule.insert(id, at(millis), Arc::new(id));
        }
        let due: Vec<u64> = schedule.take_due(at(50), 10).iter().map(|id| **id).collect();
        assert_eq!(due, [2, 3, 1]);
        assert!(schedule.take_due(at(50), 10).is_empty(), "what was taken is not due again by itself");
        assert!(schedule.reschedule(1, at(60)));
        assert_eq!(schedule.sleep(), at(60));
    }

    #[test]
    fn only_an_earlier_time_wakes_the_keeper() {
        let mut schedule = Schedule::default();
        assert!(schedule.insert(1, at(10), Arc::new(())));
        assert_eq!(schedule.sleep(), at(10));
        assert!(!schedule.insert(2, at(20), Arc::new(())));
        assert!(schedule.insert(3, at(5), Arc::new(())));
    }

    #[test]
    fn trap_59_removed_entries_leave_nothing() {
        let mut schedule = Schedule::default();
        for id in 0..1_000 {
            schedule.insert(id, at(id), Arc::new(()));
            schedule.remove(id);
        }
        schedule.remove(7);
        assert_eq!((schedule.len(), schedule.by_time.len()), (0, 0));
        assert!(!schedule.reschedule(7, at(1)), "a removed entry does not come back");
    }
}
