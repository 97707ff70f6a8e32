//! A distributed lock that its users can trust: the holder is told before its lease can have ended, its work is
//! cancelled, and every grant carries a fencing token.
//!
//! ```
//! # async fn ship(_: leasehold::FencingToken) -> Result<(), std::io::Error> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let client = leasehold::Client::connect("memory:").await?; // redis://127.0.0.1/ in production
//! let done = client
//!     .lock("order:1001")?
//!     .wait(Duration::from_secs(3))
//!     .run(|lease| async move { ship(lease.fencing_token()).await })
//!     .await?;
//! println!("shipped under fencing token {}", done.fencing_token);
//! # Ok(())
//! # }
//! ```
//!
//! This crate connects the engine (`leasehold-core`) to a store by URL and re-exports both. It holds no logic.
//!
//! # What a lock cannot promise
//! A lease ends by itself, so two holders can overlap when a process is stopped for longer than its TTL, when
//! clocks run apart by more than 1 %, or when the store loses data. Let the place you write to refuse a smaller
//! fencing token than the newest it has seen: then a stale write cannot get in.

mod connect;

pub use connect::{Client, ClientBuilder};
#[cfg(feature = "blocking")]
pub use leasehold_core::blocking;
pub use leasehold_core::store::{
    BreakMode, BreakReply, Capabilities, Finding, Holder, Inspection, Listing, Severity,
};
pub use leasehold_core::{
    Attempt, Busy, Claim, Claimed, Completed, DEFAULT_RETAIN, DEFAULT_STORE_TIMEOUT, DEFAULT_TTL, Error,
    ErrorKind, Failed, Fault, FencingToken, Forgot, Guarantees, Guard, IdempotencyKey, IfUnknown, Label,
    Lease, LeaseState, Lock, LockOptions, LostCause, MAX_HOLD_LIMIT, MAX_RESULT_BYTES, MAX_RETAIN, MAX_TTL,
    MIN_RETAIN, MIN_TTL, Name, Namespace, Once, OnceAttempt, OnceError, OnceOutcome, Outcome, OwnerToken,
    Previous, Progress, Promise, Recorded, Released, RunError, Wait, idempotency_key,
};
#[cfg(feature = "redis")]
pub use leasehold_redis::{smallest_acl, smallest_cluster_acl};
/// Refuses stale holders where they write: features `seal`, `seal-postgres`, `seal-sqlite`.
#[cfg(feature = "seal")]
pub use leasehold_seal as seal;
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite::default_path as local_path;
/// Parts that only tests and authors of stores need.
pub mod core {
    pub use leasehold_core::*;
}

/// The guide's programs are compiled.
#[cfg(all(doctest, feature = "seal-sqlite"))]
#[doc = include_str!("../../../docs/once.md")]
pub struct OnceGuide;
