//! The schedule that a check on write does not catch: one holder reads, its lease ends, another reads, the first
//! writes (its token is still the newest seen), the other writes, and one update is lost. Played twice, on real
//! leases of the demo's store and a database of its own: only the pauses are arranged.

use std::path::Path;
use std::time::Duration;

use leasehold::seal::{Seal, SealError, sqlite};
use leasehold::{Attempt, Guard, Lease};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use serde_json::{Value, json};

use super::conduct::{Stage, TTL};
use crate::failure::{BUSY, Failure};

/// Boxes in stock at the beginning; each holder takes one.
pub(super) const IN_STOCK: i64 = 10;
const NAME: &str = "stock:boxes";
/// Much longer than a lease.
const WAIT_MOST: Duration = Duration::from_secs(60);

const TABLE: &str = "CREATE TABLE stock(boxes INTEGER NOT NULL, lock_token INTEGER NOT NULL) STRICT;
    INSERT INTO stock VALUES(10, 0);";

/// What one way of guarding the write came to.
pub(super) struct Scene {
    sealed: bool,
    /// The token of the holder that was paused.
    pub(super) stale: u64,
    /// The token of the one that came after it.
    pub(super) newer: u64,
    /// Writes that were accepted, each for one box.
    pub(super) accepted: i64,
    /// Boxes left, as the database has it.
    pub(super) left: i64,
}

impl Scene {
    /// What `--json` calls it.
    pub(super) fn key(&self) -> &'static str {
        if self.sealed { "seal" } else { "check-on-write" }
    }

    /// What people read.
    pub(super) fn title(&self) -> &'static str {
        if self.sealed { "seal before the read" } else { "check on write only" }
    }

    /// Writes that were refused.
    pub(super) fn refused(&self) -> i64 {
        2 - self.accepted
    }

    /// Accepted writes that are not in the database in the end.
    pub(super) fn lost(&self) -> i64 {
        self.left - (IN_STOCK - self.accepted)
    }

    /// The outcome for programs.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "way": self.key(),
            "title": self.title(),
            "stale_token": self.stale,
            "newer_token": self.newer,
            "in_stock": IN_STOCK,
            "writes_accepted": self.accepted,
            "writes_refused": self.refused(),
            "left": self.left,
            "updates_lost": self.lost(),
        })
    }
}

/// Plays the schedule with each way of guarding the write.
pub(super) async fn play_both(stage: &Stage<'_>) -> Result<Vec<Scene>, Failure> {
    let mut scenes = Vec::new();
    for sealed in [false, true] {
        let database = stage.scratch.join(if sealed { "stock-sealed.db" } else { "stock-checked.db" });
        scenes.push(tokio::select! {
            scene = play(stage, &database, sealed) => scene?,
            failure = stage.interrupt.happens() => return Err(failure),
        });
    }
    Ok(scenes)
}

async fn play(stage: &Stage<'_>, database: &Path, sealed: bool) -> Result<Scene, Failure> {
    let stock = Stock::create(database, sealed).map_err(|error| failed(&error))?;
    let paused = acquire(stage).await?;
    let paused_read = stock.read(&paused).map_err(|error| failed(&error))?;
    // It is paused here for longer than its lease, which is not renewed meanwhile.
    paused.lost().await;
    let newer = acquire(stage).await?;
    let newer_read = stock.read(&newer).map_err(|error| failed(&error))?;
    let mut accepted = 0;
    for (holder, read) in [(&paused, paused_read), (&newer, newer_read)] {
        accepted += i64::from(stock.write(holder, read - 1).map_err(|error| failed(&error))?);
    }
    let scene = Scene {
        sealed,
        stale: paused.fencing_token().get(),
        newer: newer.fencing_token().get(),
        accepted,
        left: stock.left().map_err(|error| failed(&error))?,
    };
    // The first lease is over, and on a slow machine the other one may be as well: it changes nothing.
    for holder in [paused, newer] {
        let _ = holder.release().await?;
    }
    Ok(scene)
}

/// A lease that ends as that of a paused holder does.
async fn acquire(stage: &Stage<'_>) -> Result<Guard, Failure> {
    let lock = stage.client.lock(NAME)?.ttl(TTL).fixed_lease().wait(WAIT_MOST);
    match lock.acquire().await? {
        Attempt::Acquired(guard) => Ok(guard),
        Attempt::Busy(busy) => {
            Err(Failure::new(BUSY, format!("{NAME} was not free for {WAIT_MOST:?}: {busy}")))
        }
    }
}

struct Stock {
    database: Connection,
    sealed: bool,
}

impl Stock {
    fn create(path: &Path, sealed: bool) -> Result<Self, SealError> {
        let database = Connection::open(path).map_err(unsealed)?;
        database.execute_batch(TABLE).map_err(unsealed)?;
        database.execute_batch(sqlite::SCHEMA).map_err(unsealed)?;
        Ok(Self { database, sealed })
    }

    /// Seals, if that is the way, and reads.
    fn read(&self, holder: &Lease) -> Result<i64, SealError> {
        let transaction = self.begin()?;
        if self.sealed {
            holder.seal(&transaction, NAME)?;
        }
        let boxes = self.left()?;
        transaction.commit().map_err(unsealed)?;
        Ok(boxes)
    }

    /// Seals again and writes, or writes if no newer token has written; whether it was accepted.
    fn write(&self, holder: &Lease, boxes: i64) -> Result<bool, SealError> {
        let transaction = self.begin()?;
        if self.sealed {
            match holder.seal(&transaction, NAME) {
                Err(refused) if refused.is_fenced() => return Ok(false),
                sealed => sealed?,
            }
        }
        let token = holder.fencing_token().get().cast_signed();
        let changed = transaction
            .execute("UPDATE stock SET boxes = ?1, lock_token = ?2 WHERE lock_token < ?2", [boxes, token])
            .map_err(unsealed)?;
        transaction.commit().map_err(unsealed)?;
        Ok(changed == 1)
    }

    fn left(&self) -> Result<i64, SealError> {
        self.database.query_row("SELECT boxes FROM stock", [], |row| row.get(0)).map_err(unsealed)
    }

    fn begin(&self) -> Result<Transaction<'_>, SealError> {
        Transaction::new_unchecked(&self.database, TransactionBehavior::Immediate).map_err(unsealed)
    }
}

fn unsealed(error: rusqlite::Error) -> SealError {
    SealError::Database { source: error.into() }
}

fn failed(error: &SealError) -> Failure {
    Failure::other(format!("the database of the stock failed: {error}"))
}
