//! Removes rows that nobody will ask about again: leases of holders that died and of names that are not used
//! any more, and dead waiters. A bounded part of the table at a time, going round.

use leasehold_core::mutation::{Rule, on};
use rusqlite::params;

use crate::database::{Database, Pace, Transaction};
use crate::failure::Failure;
use crate::records;

/// Rows looked at in one go. It takes a millisecond or two, and happens once per so many pages of log that
/// fewer rows can have been added since the last time.
const ROWS: i64 = 2_000;

/// Goes on where the last sweep, of whatever process, has stopped.
pub(crate) fn sweep(database: &Database, pace: Pace) -> Result<(), Failure> {
    if !on(Rule::ForgetNames) {
        return Ok(());
    }
    database.write(pace, |tx| {
        sweep_waiters(tx)?;
        records::sweep(tx)?;
        sweep_leases(tx)
    })
}

fn sweep_leases(tx: &Transaction<'_>) -> Result<(), Failure> {
    let (namespace, name): (String, String) = tx
        .connection()
        .prepare_cached("SELECT namespace, name FROM sweep")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let last: Option<(String, String)> = tx
        .connection()
        .prepare_cached(
            "SELECT namespace, name FROM lease WHERE (namespace, name) > (?1, ?2) \
             ORDER BY namespace, name LIMIT 1 OFFSET ?3",
        )?
        .query_map(params![namespace, name, ROWS - 1], |row| Ok((row.get(0)?, row.get(1)?)))?
        .next()
        .transpose()?;
    let until = last.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
    // Namespaces hold no control characters, so this is behind every row there can be.
    let (to_namespace, to_name) = until.unwrap_or(("\u{10FFFF}\u{10FFFF}", ""));
    tx.connection()
        .prepare_cached(
            "DELETE FROM lease WHERE (namespace, name) > (?1, ?2) AND (namespace, name) <= (?3, ?4) \
             AND (expires <= ?5 OR boot <> ?6)",
        )?
        .execute(params![namespace, name, to_namespace, to_name, tx.now.0, tx.boot()])?;
    let (namespace, name) = until.unwrap_or(("", ""));
    tx.connection()
        .prepare_cached("UPDATE sweep SET namespace = ?1, name = ?2 WHERE (namespace, name) <> (?1, ?2)")?
        .execute((namespace, name))?;
    Ok(())
}

/// Queues are short, so all of them are gone through.
fn sweep_waiters(tx: &Transaction<'_>) -> Result<(), Failure> {
    tx.connection()
        .prepare_cached("DELETE FROM waiter WHERE seen_until <= ?1 OR boot <> ?2")?
        .execute((tx.now.0, tx.boot()))?;
    Ok(())
}
