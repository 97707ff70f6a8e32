//! What the store, its supervisor and the tasks of its connections share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use leasehold_core::{Clock, Error, ErrorKind, Name, OwnerToken, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::acks::AckConnections;
use crate::config::{RedisConfig, Target};
use crate::connection::Connection;
use crate::events::Events;
use crate::failure::Refusal;
use crate::primary::Primary;
use crate::releases::Releases;
use crate::rights::Rights;
use crate::script::Scripts;
use crate::server_clock::ServerClock;
use crate::waiters::Waiters;

/// Shared by everything that belongs to one store.
pub(crate) struct Shared {
    pub(crate) config: RedisConfig,
    pub(crate) scripts: Scripts,
    /// The runtime that reads and writes the connections.
    pub(crate) handle: Handle,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) events: Arc<Events>,
    pub(crate) server_clock: ServerClock,
    pub(crate) primary: Primary,
    pub(crate) releases: Releases,
    pub(crate) acks: AckConnections,
    /// Told when the store closes.
    pub(crate) closing: Notify,
    /// Told when the connection is lost or cannot be made: in a cluster another node may have taken over.
    pub(crate) lost: Arc<Notify>,
    state: RwLock<State>,
    was_live: AtomicBool,
    warned_about_polling: AtomicBool,
}

/// The connection in use, or why there is none.
enum State {
    Live { connection: Arc<Connection>, rights: Rights },
    Down { kind: ErrorKind, reason: String },
    Closed,
}

impl Shared {
    pub(crate) fn new(config: RedisConfig, handle: Handle) -> Self {
        Self::with(config, handle, Arc::default(), Arc::default(), Arc::default())
    }

    /// For one of several servers whose waiters and events are those of one store.
    pub(crate) fn with(
        config: RedisConfig,
        handle: Handle,
        waiters: Arc<Waiters>,
        events: Arc<Events>,
        lost: Arc<Notify>,
    ) -> Self {
        Self {
            scripts: Scripts::load(config.keys.is_sharded()),
            config,
            handle,
            waiters,
            events,
            server_clock: ServerClock::default(),
            primary: Primary::default(),
            releases: Releases::default(),
            acks: AckConnections::default(),
            closing: Notify::new(),
            lost,
            state: RwLock::new(State::Down {
                kind: ErrorKind::Unavailable,
                reason: "the store is not connected yet".to_owned(),
            }),
            was_live: AtomicBool::new(false),
            warned_about_polling: AtomicBool::new(false),
        }
    }

    /// The connection in use.
    ///
    /// # Errors
    /// Why there is none. Nothing was sent.
    pub(crate) fn live(&self) -> Result<(Arc<Connection>, Rights), Error> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::Live { connection, rights } => Ok((Arc::clone(connection), *rights)),
            State::Down { kind, reason } => Err(Error::new(*kind, self.at_server(reason))),
            State::Closed => Err(Error::new(ErrorKind::Unavailable, self.at_server("the store was closed"))),
        }
    }

    /// Whether a grant would be pushed now; unknown while there is no connection, so no.
    pub(crate) fn can_push(&self) -> bool {
        self.live().is_ok_and(|(connection, _)| connection.subscribed)
    }

    /// Whether the connection that is being made is the first one.
    pub(crate) fn was_never_live(&self) -> bool {
        !self.was_live.load(Ordering::Acquire)
    }

    pub(crate) fn went_live(&self, connection: Arc<Connection>, rights: Rights) {
        self.was_live.store(true, Ordering::Release);
        self.change(State::Live { connection, rights });
    }

    pub(crate) fn went_down(&self, kind: ErrorKind, reason: String) {
        self.change(State::Down { kind, reason });
        self.lost.notify_one();
    }

    /// Remembers a release that the server has confirmed, where another may have to be told, too.
    pub(crate) fn note_release(&self, name: &Name, owner: &OwnerToken) {
        if matches!(self.config.target, Target::Sentinel(_)) {
            self.releases.confirmed(name, owner, SystemClock.now());
        }
    }

    pub(crate) fn close(&self) {
        self.acks.close();
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Closed;
        self.closing.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(&*self.state.read().unwrap_or_else(PoisonError::into_inner), State::Closed)
    }

    fn change(&self, to: State) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        // What is closed stays closed.
        if !matches!(*state, State::Closed) {
            *state = to;
        }
    }

    pub(crate) fn at_server(&self, message: &str) -> String {
        format!("{}: {message}", self.config.describe())
    }

    /// Says once that waiting costs more here than it could.
    pub(crate) fn warn_once_about_polling(&self, refusal: &Refusal) {
        if self.warned_about_polling.swap(true, Ordering::AcqRel) {
            return;
        }
        let namespace = self.config.namespace().as_str();
        tracing::warn!(
            store = self.config.describe(),
            refused = refusal.shown(),
            "waiters poll instead of being told, since this user may not use wake channels: allow it the channels \
             &{namespace}* and the commands SUBSCRIBE, PUBLISH and PUBSUB"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_store_stays_closed_whatever_its_supervisor_was_about_to_say() {
        let config = RedisConfig::from_url("redis://127.0.0.1/").unwrap();
        let shared = Shared::new(config, Handle::current());
        shared.close();
        shared.went_down(ErrorKind::Denied, "a late verdict".to_owned());
        assert!(shared.is_closed());
        assert!(shared.live().is_err_and(|error| error.to_string().contains("closed")));
    }
}
