//! The local queue: of all waiters of this process for one name only the first asks the store; the others wait
//! here, in order of arrival, without network traffic.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::mutation::{Rule, on};
use crate::name::Name;

/// Who waits for which name in this process. A name without waiters has no entry.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    names: Mutex<HashMap<Name, Waiting>>,
    next_id: AtomicU64,
}

/// The waiters of a name; ids grow, so their order is the order of arrival.
type Waiting = BTreeMap<u64, Option<Waker>>;

impl LocalQueue {
    /// Takes a place at the end. The future is ready when nobody is before it; the place is given up when it
    /// is dropped.
    pub(crate) fn enter(self: &Arc<Self>, name: &Name) -> Turn {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.lock().entry(name.clone()).or_default().insert(id, None);
        Turn { queue: Arc::clone(self), name: name.clone(), id }
    }

    /// How many names have waiters.
    pub(crate) fn names(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Waiting>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the local queue; as a future, ready when it is this one's turn.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<LocalQueue>,
    name: Name,
    id: u64,
}

impl Future for &Turn {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut names = self.queue.lock();
        let Some(waiting) = names.get_mut(&self.name) else { return Poll::Ready(()) };
        let is_first = waiting.first_key_value().is_some_and(|(first, _)| *first == self.id);
        match waiting.get_mut(&self.id) {
            Some(waker) if !is_first => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut names = self.queue.lock();
        let Some(waiting) = names.get_mut(&self.name) else { return };
        waiting.remove(&self.id);
        let next = waiting.first_entry().and_then(|mut first| first.get_mut().take());
        if waiting.is_empty() && on(Rule::ForgetNames) {
            names.remove(&self.name);
        }
        drop(names);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(turn: &Turn) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let mut turn = turn;
        Pin::new(&mut turn).poll(&mut context).is_ready()
    }

    #[test]
    fn turns_come_in_order_of_arrival_and_a_leaver_is_skipped() {
        let queue = Arc::new(LocalQueue::default());
        let name = Name::new("a").unwrap();
        let (first, second, third) = (queue.enter(&name), queue.enter(&name), queue.enter(&name));
        assert!(is_ready(&first) && !is_ready(&second) && !is_ready(&third));
        drop(second);
        assert!(!is_ready(&third));
        drop(first);
        assert!(is_ready(&third));
    }

    #[test]
    fn trap_59_names_without_waiters_are_forgotten() {
        let queue = Arc::new(LocalQueue::default());
        for number in 0..1_000 {
            drop(queue.enter(&Name::new(format!("name:{number}")).unwrap()));
        }
        assert_eq!(queue.names(), 0);
    }
}
