//! The engine of Leasehold, a distributed lock.
//!
//! It owns the rules: names and limits, owner tokens, fencing tokens, the lease state machine, renewal, the
//! local queue, waiting, guards, and the contract of a [`Store`]. It never knows a client library, a wall
//! clock or the name of a backend.
//!
//! Most programs use the `leasehold` crate, which connects this engine to a store.

pub mod blocking;
pub mod memory;
pub mod mutation;
pub mod store;

mod acquire;
mod cleanup;
mod client;
mod clock;
mod engine;
mod entropy;
mod error;
mod fencing;
mod guarantees;
mod guard;
mod keeper;
mod lease;
mod lock;
mod name;
mod nesting;
mod observe;
mod once;
mod options;
mod owner;
mod queue;
mod schedule;
mod timers;
mod waiter;

pub use client::{Client, ClientSettings, KeeperRuntime, Load};
pub use clock::{Clock, Moment, SystemClock, VirtualClock};
pub use entropy::{Entropy, SystemEntropy};
pub use error::{Error, ErrorKind, LostCause};
pub use fencing::FencingToken;
pub use guarantees::{Fault, Guarantees, Outcome, Promise};
pub use guard::{Guard, Lease, Released};
pub use lease::LeaseState;
pub use lock::{Attempt, Busy, Completed, Lock, RunError};
pub use memory::{MemoryStore, MemoryWorld};
pub use name::{Name, Namespace};
pub use once::{
    Claim, Claimed, DEFAULT_RETAIN, Failed, Forgot, IdempotencyKey, IfUnknown, MAX_RESULT_BYTES, MAX_RETAIN,
    MIN_RETAIN, Once, OnceAttempt, OnceError, OnceOutcome, Previous, Progress, Recorded, idempotency_key,
};
pub use options::{
    COMMAND_TIMEOUT, DEFAULT_STORE_TIMEOUT, DEFAULT_TTL, LockOptions, MAX_HOLD_LIMIT, MAX_TTL, MIN_TTL, Wait,
};
pub use owner::{KeyValue, Label, OwnerToken};
pub use store::{Capabilities, Store};
