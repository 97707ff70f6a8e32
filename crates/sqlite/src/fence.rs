//! Fencing tokens: minted in the transaction that grants, and reserved on disk in blocks.
//!
//! Commits do not wait for the disk, so a power loss can take the last ones back, and the last token with
//! them. A commit that does wait has reserved all tokens up to some number before the first of them is used;
//! after a reboot, minting goes on behind the reserved ones.

use leasehold_core::FencingToken;
use leasehold_core::mutation::{Rule, on};
use rusqlite::params;

use std::time::Duration;

use crate::database::Transaction;
use crate::failure::Failure;

/// Tokens follow the wall clock in microseconds, so this is ten minutes of them: one wait for the disk in that
/// time, and tokens at most that far ahead of the clock after a reboot.
const BLOCK: u64 = 10 * 60 * 1_000_000;

/// Mints the next fencing token.
pub(crate) fn mint(tx: &Transaction<'_>) -> Result<FencingToken, Failure> {
    let (last, up_to, same_boot) =
        tx.connection().prepare_cached("SELECT last, reserved, boot FROM fence")?.query_row([], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get_ref(2)?.as_blob()? == tx.boot()))
        })?;
    let (last, up_to) = (last.unsigned_abs(), up_to.unsigned_abs());
    let after_reboot = !same_boot && on(Rule::ReserveFencingTokens);
    let last = if after_reboot { last.max(up_to) } else { last };
    let wall = if on(Rule::ClockFloor) { (tx.database.environment.wall_clock)() } else { Duration::ZERO };
    let token = FencingToken::mint(last, wall).ok_or(Failure::FencingUsedUp)?;
    let up_to = if same_boot && token.get() <= up_to {
        up_to
    } else if tx.durable {
        token.get().saturating_add(BLOCK).min(FencingToken::MAX.get())
    } else {
        return Err(Failure::ReserveFirst);
    };
    tx.connection()
        .prepare_cached("UPDATE fence SET last = ?1, reserved = ?2, boot = ?3")?
        .execute(params![token.get().cast_signed(), up_to.cast_signed(), tx.boot()])?;
    Ok(token)
}
