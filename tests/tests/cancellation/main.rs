//! Every public future dropped at each of its suspension points, on each store: memory, a SQLite file, real Redis
//! and Valkey servers. Whatever it was doing, nothing is left: no key, no queue entry, no renewal, no task.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(missing_docs, unreachable_pub, reason = "a test binary has no readers")]

mod acquiring;
mod clients;
mod harness;
mod holding;
mod panics;
mod places;
mod questions;
