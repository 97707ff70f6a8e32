//! The Redis and Valkey store of Leasehold.
//!
//! It owns how leases, queues and fencing tokens are kept on one server, the scripts that change them
//! (`scripts/*.lua`), and the connection they are sent on. It never decides when to retry or renew, who waits
//! first inside a process, or when a lease counts as lost: the engine in `leasehold-core` does.
//!
//! The protocol is described in `docs/protocol.md`.

mod acks;
mod acl;
mod cluster;
mod config;
mod connection;
mod doctor;
mod events;
mod failure;
mod foreign;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod guarantees;
mod handshake;
mod health;
mod hosts;
mod inspect;
mod keys;
mod primary;
mod questions;
mod random;
mod records;
mod releases;
mod reply;
mod rights;
mod script;
mod scripted;
mod sentinel;
mod server_clock;
mod shared;
mod store;
mod supervisor;
mod tags;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod transport;
mod unscripted;
mod waiters;
mod wire;

pub use acl::{smallest_acl, smallest_cluster_acl};
pub use cluster::{ClusterConfig, ClusterStore};
pub use config::RedisConfig;
pub use store::RedisStore;
