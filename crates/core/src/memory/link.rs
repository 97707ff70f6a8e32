//! One process' connection as the server sees it: where pushes go, in order, and what may befall them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::faults::{Faults, GrantBound};
use super::lock;
use crate::clock::{Clock, Moment};
use crate::store::{EventSink, StoreEvent};

/// A connection; a reconnect makes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

pub(super) struct Link {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) faults: Mutex<Faults>,
    sink: OnceLock<Weak<dyn EventSink>>,
    outbox: Mutex<Outbox>,
}

#[derive(Default)]
struct Outbox {
    events: VecDeque<StoreEvent>,
    delivering: bool,
}

impl Link {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            faults: Mutex::new(Faults::none()),
            sink: OnceLock::new(),
            outbox: Mutex::default(),
        })
    }

    /// Sets where events go; whether it was the first time.
    pub(super) fn attach(&self, sink: Weak<dyn EventSink>) -> bool {
        self.sink.set(sink).is_ok()
    }

    /// A moment of this process' clock that is before now.
    pub(super) fn grant_bound(&self) -> Option<Moment> {
        match lock(&self.faults).grant_bound {
            GrantBound::Age(age) => Some(self.clock.now().before(age)),
            GrantBound::Unknown => None,
        }
    }

    /// Puts an event where [`Link::deliver`] finds it. Called while the server is locked, so that events keep
    /// the order of what happened.
    pub(super) fn push(&self, event: StoreEvent) {
        if !lock(&self.faults).lose_pushes {
            lock(&self.outbox).events.push_back(event);
        }
    }

    /// Delivers what was pushed. Called while nothing is locked: a sink may use the store.
    pub(super) fn deliver(self: &Arc<Self>) {
        let delay = lock(&self.faults).push_delay;
        if delay.is_zero() {
            return self.deliver_now();
        }
        let link = Arc::clone(self);
        tokio::spawn(async move {
            #[allow(clippy::disallowed_methods, reason = "the delay is the fault a test asked for")]
            tokio::time::sleep(delay).await;
            link.deliver_now();
        });
    }

    fn deliver_now(&self) {
        let mut outbox = lock(&self.outbox);
        if outbox.delivering {
            return;
        }
        outbox.delivering = true;
        while let Some(event) = outbox.events.pop_front() {
            drop(outbox);
            if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
                sink.event(event);
            }
            outbox = lock(&self.outbox);
        }
        outbox.delivering = false;
    }
}
