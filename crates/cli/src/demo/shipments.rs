//! The database of the shipping department: one row per order, in SQLite. It also writes down every change of a
//! row by itself, so that what the demo reports about overwritten rows does not rest on what a worker believes.

use std::path::Path;
use std::time::Duration;

use leasehold::Lease;
use leasehold::seal::{Seal, SealError, sqlite};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, named_params};

use super::events::lock_name;

type Result<T, E = rusqlite::Error> = std::result::Result<T, E>;

/// How long a statement may wait for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

const TABLES: &str = "
    CREATE TABLE shipments(
        order_id TEXT PRIMARY KEY,
        state TEXT NOT NULL DEFAULT 'PAID',         -- then REQUESTED
        tracking TEXT,
        written_by TEXT
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE history(
        id INTEGER PRIMARY KEY,
        order_id TEXT NOT NULL,
        old_state TEXT NOT NULL,
        old_tracking TEXT,
        old_written_by TEXT,
        new_tracking TEXT NOT NULL,
        new_written_by TEXT NOT NULL
    ) STRICT;

    CREATE TRIGGER remember AFTER UPDATE ON shipments BEGIN
        INSERT INTO history(order_id, old_state, old_tracking, old_written_by, new_tracking, new_written_by)
        VALUES(old.order_id, old.state, old.tracking, old.written_by, new.tracking, new.written_by);
    END;";

/// A connection to the database.
pub(super) struct Shipments(Connection);

/// A row as a worker reads it before it decides what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Whether a shipment was requested.
    pub(super) requested: bool,
    /// The number on the parcel.
    pub(super) tracking: Option<String>,
}

/// What a worker writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    /// Which order.
    pub(super) order: &'a str,
    /// The number on the parcel.
    pub(super) tracking: &'a str,
    /// Who writes.
    pub(super) worker: &'a str,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The row has it.
    Accepted,
    /// The row has been written under a newer token; it was left as it is.
    Refused,
    /// There is no such row.
    NoSuchOrder,
}

/// A write that replaced another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overwrite {
    /// Which order.
    pub(super) order: String,
    /// The number that was lost.
    pub(super) lost_tracking: String,
    /// Who had written it.
    pub(super) lost_writer: String,
    /// The number the row has instead.
    pub(super) tracking: String,
    /// Who wrote that.
    pub(super) writer: String,
}

impl Shipments {
    /// Makes the database, with a row for each order.
    pub(super) fn create<'a>(path: &Path, orders: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        let transaction = connection.transaction()?;
        transaction.execute_batch(TABLES)?;
        transaction.execute_batch(sqlite::SCHEMA)?;
        {
            let mut insert = transaction.prepare("INSERT INTO shipments(order_id) VALUES(?1)")?;
            for order in orders {
                insert.execute([order])?;
            }
        }
        transaction.commit()
    }

    /// Opens the database.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Self(connection))
    }

    /// Reads the row of an order; `None` when there is none.
    pub(super) fn read(&self, order: &str) -> Result<Option<Row>> {
        self.0
            .prepare_cached("SELECT state, tracking FROM shipments WHERE order_id = ?1")?
            .query_row([order], |row| {
                let state: String = row.get(0)?;
                Ok(Row { requested: state == "REQUESTED", tracking: row.get(1)? })
            })
            .optional()
    }

    /// Writes without asking who wrote before.
    pub(super) fn update(&self, write: Write<'_>) -> Result<Written> {
        let changed = self
            .0
            .prepare_cached(
                "UPDATE shipments
                 SET state = 'REQUESTED', tracking = :tracking, written_by = :worker
                 WHERE order_id = :order",
            )?
            .execute(named_params! {
                ":order": write.order,
                ":tracking": write.tracking,
                ":worker": write.worker,
            })?;
        Ok(if changed == 0 { Written::NoSuchOrder } else { Written::Accepted })
    }

    /// Seals the order for this holder, then reads its row.
    pub(super) fn read_sealed(&self, order: &str, lease: &Lease) -> Result<Option<Row>, SealError> {
        let transaction = self.begin()?;
        lease.seal(&transaction, &lock_name(order))?;
        let row = self.read(order).map_err(unsealed)?;
        transaction.commit().map_err(unsealed)?;
        Ok(row)
    }

    /// Seals the order again, then writes; refused when a newer holder has sealed it.
    pub(super) fn update_sealed(&self, write: Write<'_>, lease: &Lease) -> Result<Written, SealError> {
        let transaction = self.begin()?;
        match lease.seal(&transaction, &lock_name(write.order)) {
            Err(refused) if refused.is_fenced() => return Ok(Written::Refused),
            sealed => sealed?,
        }
        let written = self.update(write).map_err(unsealed)?;
        transaction.commit().map_err(unsealed)?;
        Ok(written)
    }

    fn begin(&self) -> Result<Transaction<'_>, SealError> {
        Transaction::new_unchecked(&self.0, TransactionBehavior::Immediate).map_err(unsealed)
    }

    /// Every write that replaced another one, in the order they happened.
    pub(super) fn overwrites(&self) -> Result<Vec<Overwrite>> {
        self.0
            .prepare(
                "SELECT order_id, old_tracking, old_written_by, new_tracking, new_written_by
                 FROM history WHERE old_state = 'REQUESTED' ORDER BY id",
            )?
            .query_map([], |row| {
                Ok(Overwrite {
                    order: row.get(0)?,
                    lost_tracking: row.get(1)?,
                    lost_writer: row.get(2)?,
                    tracking: row.get(3)?,
                    writer: row.get(4)?,
                })
            })?
            .collect()
    }

    /// How many orders have a shipment requested.
    pub(super) fn requested(&self) -> Result<u32> {
        self.0.query_row("SELECT count(*) FROM shipments WHERE state = 'REQUESTED'", [], |row| row.get(0))
    }
}

fn unsealed(error: rusqlite::Error) -> SealError {
    SealError::Database { source: error.into() }
}

#[cfg(test)]
mod tests {
    use leasehold::Client;
    use leasehold::core::blocking::{Attempt, Guard, block_on};

    use super::*;

    fn write(tracking: &str) -> Write<'_> {
        Write { order: "o1", tracking, worker: "w" }
    }

    /// A stale holder and a newer one.
    fn holders() -> (Lease, Guard) {
        let client = block_on(Client::connect("memory:")).unwrap();
        let acquire = || match client.lock("order:o1").unwrap().blocking().acquire().unwrap() {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => panic!("{busy}"),
        };
        let stale = acquire();
        let lease = Lease::clone(&stale);
        assert_eq!(stale.release().unwrap(), leasehold::Released::Freed);
        (lease, acquire())
    }

    fn database() -> (tempfile::TempDir, Shipments) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shipments.db");
        Shipments::create(&path, ["o1", "o2"].into_iter()).unwrap();
        let shipments = Shipments::open(&path).unwrap();
        (directory, shipments)
    }

    #[test]
    fn a_plain_update_lets_a_stale_holder_overwrite_the_newer_tracking_number() {
        let (_directory, shipments) = database();
        assert_eq!(shipments.update(write("newer")).unwrap(), Written::Accepted);
        assert_eq!(shipments.update(write("stale")).unwrap(), Written::Accepted);
        assert_eq!(shipments.read("o1").unwrap().unwrap().tracking.as_deref(), Some("stale"));
        let overwrites = shipments.overwrites().unwrap();
        assert_eq!(overwrites.len(), 1);
        assert_eq!(
            (overwrites[0].lost_tracking.as_str(), overwrites[0].tracking.as_str()),
            ("newer", "stale")
        );
    }

    #[test]
    fn the_seal_refuses_the_stale_holder_and_knows_it_from_a_missing_row() {
        let (_directory, shipments) = database();
        let (stale, newer) = holders();
        assert!(!shipments.read_sealed("o1", &stale).unwrap().unwrap().requested);
        assert!(!shipments.read_sealed("o1", &newer).unwrap().unwrap().requested);
        assert_eq!(shipments.update_sealed(write("newer"), &newer).unwrap(), Written::Accepted);
        assert_eq!(shipments.update_sealed(write("stale"), &stale).unwrap(), Written::Refused);
        assert!(shipments.read_sealed("o1", &stale).unwrap_err().is_fenced());
        let row = shipments.read("o1").unwrap().unwrap();
        assert_eq!(row, Row { requested: true, tracking: Some("newer".into()) });
        assert!(shipments.overwrites().unwrap().is_empty());
        let elsewhere = Write { order: "o3", ..write("any") };
        assert_eq!(shipments.update_sealed(elsewhere, &newer).unwrap(), Written::NoSuchOrder);
        assert_eq!(shipments.update(elsewhere).unwrap(), Written::NoSuchOrder);
        assert_eq!(shipments.requested().unwrap(), 1);
    }
}
