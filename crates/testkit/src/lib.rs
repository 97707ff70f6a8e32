//! Real servers, a fault-injecting proxy and the conformance suite every store passes.
//!
//! Owns: starting, stopping and questioning Redis and Valkey servers ([`servers`]), and PostgreSQL and MariaDB
//! ([`databases`]), network faults between a client and a server ([`proxy`]), and the wire format both need ([`resp`]), independent of any client library,
//! so that a fault in the code under test cannot hide itself. Nothing here uses an async runtime: a test that
//! blocks or pauses its runtime's clock does not disturb it.
//!
//! Does not own: lock rules.

pub mod conformance;
pub mod databases;
pub mod ports;
pub mod proxy;
pub mod resp;
pub mod servers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if a thread panicked while it held it: the panic is reported where it happened.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
