//! The embedded store of Leasehold: one SQLite file shared by the processes of one machine.
//!
//! It owns the file: its schema, its transactions, who waits in it, and how processes take turns at it. When
//! to renew, when a lease is lost and who waits inside a process is decided in `leasehold-core`.
//!
//! What it guarantees: at most one owner of a name at a time among the processes of one running kernel,
//! containers included, for as long as they use the same file. Leases end by the clock that counts from boot
//! and by the boot's id, so a step of the wall clock changes nothing and a reboot ends every lease. Fencing
//! tokens grow through crashes, power loss and steps of the wall clock.
//!
//! What it does not guarantee: anything between machines. A file on a network file system is refused.
//!
//! ```no_run
//! use leasehold_sqlite::{SqliteOptions, SqliteStore};
//!
//! # fn main() -> Result<(), leasehold_core::Error> {
//! let store = SqliteStore::open("/var/lib/reports/locks.db", SqliteOptions::default())?;
//! # Ok(())
//! # }
//! ```

mod busy;
mod database;
mod doctor;
mod environment;
mod failure;
mod fence;
mod file;
mod inspect;
mod lease;
mod operations;
mod options;
mod records;
mod schema;
mod store;
mod sweep;
mod waiters;
mod worker;

pub use environment::{BootId, Environment, WallClock};
pub use options::{SqliteOptions, default_path};
pub use store::SqliteStore;
