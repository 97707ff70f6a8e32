//! Leases in memory: the reference every store is compared with, and a store for tests.
//!
//! A [`MemoryWorld`] is the server: what it holds is seen by everybody connected to it. A [`MemoryStore`] is one
//! process' connection, so several of them in one test stand for several processes. Time comes from a
//! [`Clock`], the faults of a network and of a server from methods. Nothing survives the end of the process.

mod entry;
mod faults;
mod link;
mod records;
mod server;
mod store;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::name::Name;
use entry::{Content, Now};
use server::Server;

pub use faults::{GrantBound, Operation, Recorded};
pub use store::MemoryStore;

/// What the server's own clock shows at the origin of its [`Clock`], until [`MemoryWorld::set_wall_time`] says
/// otherwise: a time in 2023, since fencing tokens are expected to look like microseconds since 1970.
const DEFAULT_EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// A server whose leases are in memory, shared by all who [connect](MemoryStore::connect) to it.
pub struct MemoryWorld {
    clock: Arc<dyn Clock>,
    server: Mutex<Server>,
    frozen: watch::Sender<bool>,
}

impl MemoryWorld {
    /// An empty server with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            server: Mutex::new(Server::new(DEFAULT_EPOCH)),
            frozen: watch::Sender::new(false),
        })
    }

    /// Sets the time of day that fencing tokens and tickets are made from, as a stepped clock or a failover to
    /// another machine does. Leases go by the [`Clock`] and do not notice.
    pub fn set_wall_time(&self, since_epoch: Duration) {
        self.with_server(|server, now| server.set_wall_time(since_epoch, now));
    }

    /// Loses all data, the last fencing token included, as an empty restart does.
    pub fn flush(&self) {
        self.with_server(|server, _| server.flush());
    }

    /// Loses the lease of one name, as an eviction or a deletion by hand does. Waiters stay queued.
    pub fn evict(&self, name: &Name) {
        self.with_server(|server, now| server.set_content(name, None, now));
    }

    /// Loses the queue of one name.
    pub fn lose_queue(&self, name: &Name) {
        self.with_server(|server, now| server.lose_queue(name, now));
    }

    /// Writes what a client of another kind would: any text, for a time or for ever.
    pub fn raw_set(&self, name: &Name, value: &str, ttl: Option<Duration>) {
        let content = Content::Text(value.to_owned());
        self.with_server(|server, now| server.set_content(name, Some((content, ttl)), now));
    }

    /// Reads what a client of another kind would: the text kept for the name.
    pub fn raw_get(&self, name: &Name) -> Option<String> {
        self.with_server(|server, now| server.text(name, now))
    }

    /// Replaces what is kept for the name by data that no lock client wrote, such as a hash.
    pub fn corrupt(&self, name: &Name) {
        self.with_server(|server, now| server.set_content(name, Some((Content::NotALock, None)), now));
    }

    /// Whether [`MemoryWorld::corrupt`]'s data is still there.
    pub fn is_corrupt(&self, name: &Name) -> bool {
        self.with_server(|server, now| server.is_corrupt(name, now))
    }

    /// Stops the server, or lets it go on. Requests that reach a stopped server are executed when it goes on,
    /// also those whose futures are dropped meanwhile; leases end meanwhile.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// How many names take up memory, whether they are held, waited for, or just not swept yet.
    pub fn stored_names(&self) -> usize {
        self.with_server(|server, _| server.stored_names())
    }

    /// Writes a record as another program would, for ever; `None` loses it, as an eviction does.
    pub fn raw_record(&self, name: &Name, record: Option<&[u8]>) {
        self.with_server(|server, _| server.records.set_raw(name, record));
    }

    /// Replaces the record of a name by data that is no record, such as a hash.
    pub fn corrupt_record(&self, name: &Name) {
        self.with_server(|server, _| server.records.corrupt(name));
    }

    /// How many records take up memory, whether their time is over or not.
    pub fn stored_records(&self) -> usize {
        self.with_server(|server, _| server.records.len())
    }

    /// Does something to the server in one step, and afterwards delivers what it pushed.
    fn with_server<T>(&self, step: impl FnOnce(&mut Server, Now) -> T) -> T {
        let mut server = lock(&self.server);
        // Read once, under the lock: every step happens at one time, and no step before an earlier one.
        let now = server.now(self.clock.now());
        let result = step(&mut server, now);
        let receivers = server.take_receivers();
        drop(server);
        for receiver in receivers {
            receiver.deliver();
        }
        result
    }
}

/// Locks a mutex even if a thread panicked while it held it: the panic is reported where it happened.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
