//! Seal and check: refuses a stale holder of a lock at the place it writes to.
//!
//! A lease ends by itself, so two holders can overlap. A check when they write is not enough: 33 reads, its lease
//! ends, 34 reads, 33 writes (still the highest token seen), 34 writes, and 33's update is lost. So a holder
//! *seals* what it protects before it reads it: the first statement of its transaction records its fencing token
//! in a guard row, and fails if a newer holder was there. The lock on that row is the seal: until the transaction
//! ends, nobody else seals the same resource.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn ship(guard: &leasehold_core::Guard, database: &mut tokio_postgres::Client)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_seal::Seal;
//!
//! let tx = database.transaction().await?;
//! guard.seal(&tx, "shipment:1001").await?; // one statement, one round trip
//! let row = tx.query_one("SELECT state FROM shipments WHERE id = 1001", &[]).await?;
//! # let _ = row;
//! tx.execute("UPDATE shipments SET state = 'REQUESTED' WHERE id = 1001", &[]).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate owns the guard table, the statements and their errors, for PostgreSQL, MySQL and MariaDB, SQLite, and
//! resources in Redis itself. The statements are plain SQL, for any language and driver; features `postgres` and
//! `sqlite` add [`Seal::seal`] for transactions of `tokio-postgres` and `rusqlite`. It does not own locks.

mod error;
pub mod mysql;
pub mod postgres;
pub mod redis;
pub mod sqlite;
mod stamp;

/// The driver whose transactions are sealed, in the version that fits.
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// The driver whose transactions are sealed, in the version that fits.
#[cfg(feature = "postgres")]
pub use tokio_postgres;

pub use error::SealError;
pub use stamp::Stamp;

use leasehold_core::Lease;

/// The Rust in the guide compiles.
#[cfg(all(doctest, feature = "postgres", feature = "sqlite"))]
#[doc = include_str!("../../../docs/fencing.md")]
struct FencingGuide;

/// Seals a resource with the fencing token of a lease; on [`Lease`], so also on both kinds of `Guard`.
pub trait Seal {
    /// Seals the resource in this transaction: its first statement, before anything is read.
    ///
    /// With `tokio-postgres` the outcome is a future, with `rusqlite` a result; both give `()` or a [`SealError`].
    /// It is one statement and one round trip. Sealing again in the same transaction, or in a later one under the
    /// same lease, succeeds as long as no newer holder has sealed the resource.
    ///
    /// # What it guarantees
    /// Of all transactions that seal this resource, one at a time is open, and a transaction under an older token
    /// than the newest that has sealed it never commits.
    ///
    /// # What it does not guarantee
    /// Nothing about writers that do not seal; in PostgreSQL a trigger can refuse them (`leasehold sql postgres`).
    /// Nothing about what was read before the seal.
    ///
    /// # Errors
    /// See [`SealError`]. The transaction has then written nothing and can only be rolled back, or is untouched.
    ///
    /// # Cancel safety
    /// A future that is dropped may or may not have sealed; roll the transaction back, as dropping it does.
    #[must_use = "a stale holder that overlooks the refusal writes"]
    fn seal<T: SealTarget>(&self, transaction: T, resource: &str) -> T::Outcome;
}

impl Seal for Lease {
    fn seal<T: SealTarget>(&self, transaction: T, resource: &str) -> T::Outcome {
        transaction.seal_with(Stamp::of(self, resource))
    }
}

/// A transaction that can be sealed. Implement it for another driver with the statements of this crate:
/// [`postgres::SEAL`], [`mysql::SEAL`] or [`sqlite::SEAL`] take [`Stamp::parameters`], and each module turns the
/// driver's error into a [`SealError`].
pub trait SealTarget {
    /// A result, or a future of one.
    type Outcome;

    /// Executes the statement. A stamp that could not be made is passed on as it is, and nothing executed.
    fn seal_with(self, stamp: Result<Stamp, SealError>) -> Self::Outcome;
}
