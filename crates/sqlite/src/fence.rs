//! Fencing tokens: minted in the transaction that grants, and reserved on disk in blocks.
//!
//! Commits do not wait for the disk, so a power loss can take the last ones back, and the last token with
//! them. A commit that does wait has reserved all tokens up to some number before the first of them is used;
//! after a reboot, minting goes on behind the reserved ones.

use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::mutation::{Rule, on};
use rusqlite::{Row, params};

use crate::database::Transaction;
use crate::failure::Failure;

/// Tokens follow the wall clock in microseconds, so this is ten minutes of them: one wait for the disk in that
/// time, and tokens at most that far ahead of the clock after a reboot.
const BLOCK: u64 = 10 * 60 * 1_000_000;

/// The row that tokens are minted from, as this transaction sees it.
pub(crate) struct Fence {
    last: u64,
    reserved: u64,
    same_boot: bool,
}

impl Fence {
    fn from_row(tx: &Transaction<'_>, row: &Row<'_>) -> rusqlite::Result<Self> {
        let same_boot = row.get_ref(2)?.as_blob()? == tx.boot();
        let (last, reserved): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Self { last: last.unsigned_abs(), reserved: reserved.unsigned_abs(), same_boot })
    }

    /// Mints the next fencing token.
    pub(crate) fn mint(&self, tx: &Transaction<'_>) -> Result<FencingToken, Failure> {
        let after_reboot = !self.same_boot && on(Rule::ReserveFencingTokens);
        let last = if after_reboot { self.last.max(self.reserved) } else { self.last };
        let wall = if on(Rule::ClockFloor) { (tx.database.environment.wall_clock)() } else { Duration::ZERO };
        let token = FencingToken::mint(last, wall).ok_or(Failure::FencingUsedUp)?;
        let reserved = if self.same_boot && token.get() <= self.reserved {
            self.reserved
        } else if tx.durable {
            token.get().saturating_add(BLOCK).min(FencingToken::MAX.get())
        } else {
            return Err(Failure::ReserveFirst);
        };
        tx.connection()
            .prepare_cached("UPDATE fence SET last = ?1, reserved = ?2, boot = ?3")?
            .execute(params![token.get().cast_signed(), reserved.cast_signed(), tx.boot()])?;
        Ok(token)
    }
}

/// Mints the next fencing token.
pub(crate) fn mint(tx: &Transaction<'_>) -> Result<FencingToken, Failure> {
    let mut statement = tx.connection().prepare_cached("SELECT last, reserved, boot FROM fence")?;
    statement.query_row([], |row| Fence::from_row(tx, row))?.mint(tx)
}

/// The row that tokens are minted from, and whether the queue of a name has any entry, dead or alive.
///
/// One statement for what every acquire needs. The lease is not joined in: SQLite compiles a statement with an
/// outer join anew each time that it has other parameters.
pub(crate) fn read_with_queue(tx: &Transaction<'_>, name: &str) -> Result<(Fence, bool), Failure> {
    let mut statement = tx.connection().prepare_cached(
        "SELECT last, reserved, boot, EXISTS(SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2) FROM fence",
    )?;
    Ok(statement.query_row((tx.namespace(), name), |row| Ok((Fence::from_row(tx, row)?, row.get(3)?)))?)
}
