//! Delivers what is read without being asked for: grants and notices of the wake channel, and reconnections.
//! Runs inside the task that reads the connection, so nothing here waits.

use std::sync::{Arc, OnceLock, Weak};

use leasehold_core::Moment;
use leasehold_core::store::{EventSink, StoreEvent};
use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind};

use crate::connection::Health;
use crate::reply;
use crate::waiters::Waiters;
use crate::wire::Message;

/// Where events go, once the engine has said so.
#[derive(Default)]
pub(crate) struct Events {
    sink: OnceLock<Weak<dyn EventSink>>,
}

impl Events {
    pub(crate) fn attach(&self, sink: Weak<dyn EventSink>) {
        if self.sink.set(sink).is_err() {
            tracing::error!("a Redis store was attached a second time; the first engine keeps it");
        }
    }

    pub(crate) fn deliver(&self, event: StoreEvent) {
        if let Some(sink) = self.sink.get().and_then(Weak::upgrade) {
            sink.event(event);
        }
    }
}

/// Takes the pushes of one connection, at the moment they are read.
pub(crate) struct PushReader {
    pub(crate) channel: String,
    pub(crate) health: Arc<Health>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) events: Arc<Events>,
}

impl AsyncPushSender for PushReader {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Message => self.message(&push),
            PushKind::Disconnection => self.health.died(),
            _ => {}
        }
        Ok(())
    }
}

impl PushReader {
    fn message(&self, push: &PushInfo) {
        // Taken first: every reply a caller has handled by now was read before this push.
        let granted_after = self.health.bound();
        let [channel, payload] = push.data.as_slice() else { return };
        if reply::bytes(channel).ok() != Some(self.channel.as_bytes()) {
            return;
        }
        if let Ok(payload) = reply::bytes(payload) {
            deliver_message(payload, granted_after, &self.waiters, &self.events);
        }
    }
}

/// Delivers a message of a wake channel that was sent after that moment.
pub(crate) fn deliver_message(
    payload: &[u8],
    granted_after: Option<Moment>,
    waiters: &Waiters,
    events: &Events,
) {
    match Message::read(payload) {
        Some(Message::Grant { owner, fencing_token, claim }) => match waiters.granted(&owner) {
            Some(name) => {
                events.deliver(StoreEvent::Granted { name, owner, fencing_token, claim, granted_after });
            }
            // Nobody can give it back without knowing its name; it ends with its claim.
            None => {
                tracing::warn!(owner = owner.label(), "a grant arrived for an owner nobody here knows");
            }
        },
        Some(Message::Next { owner, remaining }) => {
            if let Some(name) = waiters.name_of(&owner) {
                events.deliver(StoreEvent::First { name, owner, remaining });
            }
        }
        None => {}
    }
}
