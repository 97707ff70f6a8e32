//! The database of the shipping department: one row per order, in SQLite. It also writes down every change of a
//! row by itself, so that what the demo reports about overwritten rows does not rest on what a worker believes.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Result, named_params};

/// How long a statement may wait for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

const TABLES: &str = "
    CREATE TABLE shipments(
        order_id TEXT PRIMARY KEY,
        state TEXT NOT NULL DEFAULT 'PAID',         -- then REQUESTED
        tracking TEXT,
        lock_token INTEGER NOT NULL DEFAULT 0,      -- the fencing token of the last accepted write
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
    /// The fencing token of the last write.
    pub(super) lock_token: i64,
}

/// What a worker writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write<'a> {
    /// Which order.
    pub(super) order: &'a str,
    /// The number on the parcel.
    pub(super) tracking: &'a str,
    /// The fencing token it was done under, 0 without a lock.
    pub(super) token: i64,
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
            .prepare_cached("SELECT state, tracking, lock_token FROM shipments WHERE order_id = ?1")?
            .query_row([order], |row| {
                let state: String = row.get(0)?;
                Ok(Row { requested: state == "REQUESTED", tracking: row.get(1)?, lock_token: row.get(2)? })
            })
            .optional()
    }

    /// Writes without asking who wrote before.
    pub(super) fn update(&self, write: Write<'_>) -> Result<Written> {
        let changed = self
            .0
            .prepare_cached(
                "UPDATE shipments
                 SET state = 'REQUESTED', tracking = :tracking, lock_token = :token, written_by = :worker
                 WHERE order_id = :order",
            )?
            .execute(named_params! {
                ":order": write.order,
                ":tracking": write.tracking,
                ":token": write.token,
                ":worker": write.worker,
            })?;
        Ok(if changed == 0 { Written::NoSuchOrder } else { Written::Accepted })
    }

    /// Writes only if the fencing token is newer than the one the row was last written under.
    pub(super) fn update_fenced(&self, write: Write<'_>) -> Result<Written> {
        let changed = self
            .0
            .prepare_cached(
                "UPDATE shipments
                 SET state = 'REQUESTED', tracking = :tracking, lock_token = :token, written_by = :worker
                 WHERE order_id = :order AND lock_token < :token",
            )?
            .execute(named_params! {
                ":order": write.order,
                ":tracking": write.tracking,
                ":token": write.token,
                ":worker": write.worker,
            })?;
        if changed > 0 {
            return Ok(Written::Accepted);
        }
        // Nothing was changed: rows are never deleted, so the one that exists now has refused the write.
        Ok(if self.read(write.order)?.is_some() { Written::Refused } else { Written::NoSuchOrder })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn write(tracking: &str, token: i64) -> Write<'_> {
        Write { order: "o1", tracking, token, worker: "w" }
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
        assert_eq!(shipments.update(write("newer", 34)).unwrap(), Written::Accepted);
        assert_eq!(shipments.update(write("stale", 33)).unwrap(), Written::Accepted);
        assert_eq!(shipments.read("o1").unwrap().unwrap().tracking.as_deref(), Some("stale"));
        let overwrites = shipments.overwrites().unwrap();
        assert_eq!(overwrites.len(), 1);
        assert_eq!(
            (overwrites[0].lost_tracking.as_str(), overwrites[0].tracking.as_str()),
            ("newer", "stale")
        );
    }

    #[test]
    fn the_fencing_check_refuses_the_stale_holder_and_knows_it_from_a_missing_row() {
        let (_directory, shipments) = database();
        assert_eq!(shipments.update_fenced(write("newer", 34)).unwrap(), Written::Accepted);
        assert_eq!(shipments.update_fenced(write("stale", 33)).unwrap(), Written::Refused);
        let row = shipments.read("o1").unwrap().unwrap();
        assert_eq!(row, Row { requested: true, tracking: Some("newer".into()), lock_token: 34 });
        assert!(shipments.overwrites().unwrap().is_empty());
        let elsewhere = Write { order: "o3", ..write("any", 35) };
        assert_eq!(shipments.update_fenced(elsewhere).unwrap(), Written::NoSuchOrder);
        assert_eq!(shipments.update(elsewhere).unwrap(), Written::NoSuchOrder);
        assert_eq!(shipments.requested().unwrap(), 1);
    }
}
