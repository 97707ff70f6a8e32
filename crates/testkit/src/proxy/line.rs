//! One direction of one connection: a queue of frames with the time each is due, and the thread that writes them
//! then. Owns the delay. Whether anything passes at all is decided by the link.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::faults::Progress;
use crate::lock;

/// What is to be done when an item is due.
#[derive(Debug)]
pub(super) enum Action {
    /// Write these bytes.
    Write(Vec<u8>),
    /// Hold until released, then write, and report whether that went well.
    HoldThenWrite(Arc<Progress>, Vec<u8>),
    /// Nothing passes from here on, in either direction.
    Silence,
    /// The other side ended the connection.
    End,
}

#[derive(Debug)]
struct Item {
    due: Instant,
    action: Action,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    is_closed: bool,
}

/// A queue between the thread that reads one socket and the thread that writes the other.
#[derive(Debug, Default)]
pub(super) struct Line {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Line {
    /// Adds something that is due then, but in any case after what was added before: TCP keeps the order, also when
    /// the delay was made shorter in between.
    pub(super) fn push(&self, due: Instant, action: Action) {
        lock(&self.queue).items.push_back(Item { due, action });
        self.changed.notify_one();
    }

    /// The next action, when it is due and the line is not stalled; `None` when the line was closed.
    pub(super) fn next(&self, is_stalled: impl Fn() -> bool) -> Option<Action> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.is_closed {
                return None;
            }
            let now = Instant::now();
            queue = match queue.items.front() {
                Some(item) if item.due <= now && !is_stalled() => {
                    return Some(take_due(&mut queue.items, now));
                }
                Some(item) if item.due > now => {
                    let wait = item.due - now;
                    self.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Looks again whether the line is stalled.
    pub(super) fn wake(&self) {
        // Under the lock, so that it cannot fall between the look and the wait of the writing thread.
        let _queue = lock(&self.queue);
        self.changed.notify_one();
    }

    /// Ends the writing thread.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }
}

/// Takes the first item, and all writes directly after it that are due too, as one: pipelined frames keep their
/// throughput.
fn take_due(items: &mut VecDeque<Item>, now: Instant) -> Action {
    let mut first = items.pop_front().map_or(Action::End, |item| item.action);
    if let Action::Write(bytes) = &mut first {
        while let Some(Item { action: Action::Write(more), .. }) =
            items.pop_front_if(|item| is_due_write(item, now))
        {
            bytes.extend_from_slice(&more);
        }
    }
    first
}

fn is_due_write(item: &Item, now: Instant) -> bool {
    item.due <= now && matches!(item.action, Action::Write(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn bytes(action: Option<Action>) -> Vec<u8> {
        match action {
            Some(Action::Write(bytes)) => bytes,
            other => format!("{other:?}").into_bytes(),
        }
    }

    #[test]
    fn writes_that_are_due_are_joined_but_not_over_anything_else() {
        let (line, now) = (Line::default(), Instant::now());
        line.push(now, Action::Write(b"a".to_vec()));
        line.push(now, Action::Write(b"b".to_vec()));
        line.push(now, Action::End);
        line.push(now, Action::Write(b"c".to_vec()));
        assert_eq!(bytes(line.next(|| false)), b"ab");
        assert!(matches!(line.next(|| false), Some(Action::End)));
        assert_eq!(bytes(line.next(|| false)), b"c");
    }

    #[test]
    fn nothing_comes_before_it_is_due_and_the_order_stays_when_the_delay_shrinks() {
        let (line, now) = (Line::default(), Instant::now());
        let due = now + Duration::from_millis(50);
        line.push(due, Action::Write(b"a".to_vec()));
        line.push(now, Action::Write(b"b".to_vec()));
        assert_eq!(bytes(line.next(|| false)), b"ab");
        assert!(Instant::now() >= due);
    }

    #[test]
    fn a_closed_line_has_no_next_action() {
        let line = Line::default();
        line.push(Instant::now(), Action::End);
        line.close();
        assert!(line.next(|| false).is_none());
    }
}
