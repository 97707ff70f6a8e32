//! The table of what is known of operations (`leasehold_core::Once`): one row per name, until its time is over.
//!
//! Records outlive a reboot, leases do not. So their time is kept twice: within the boot they were written in it goes
//! by the clock that counts from boot, which no step of the wall clock touches; after it by the wall clock.

use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::{SwapReply, SwapRequest, Then};
use leasehold_core::{Name, OwnerToken};
use rusqlite::{OptionalExtension, params};

use crate::database::{Database, Pace, Transaction};
use crate::environment::micros;
use crate::failure::Failure;
use crate::lease;
use crate::operations::Release;

/// Ended records removed in one sweep, so that it stays short; the rest falls to later ones.
const MOST_REMOVED: i64 = 500;

/// The record of this name, unless its time is over.
pub(crate) fn read(tx: &Transaction<'_>, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let mut statement = tx.connection().prepare_cached(
        "SELECT record FROM once WHERE namespace = ?1 AND name = ?2 \
         AND CASE WHEN boot = ?3 THEN ends > ?4 ELSE ends_wall > ?5 END",
    )?;
    let found = statement
        .query_row(params![tx.namespace(), name, tx.boot(), tx.now.0, wall_micros(tx)], |row| row.get(0));
    Ok(found.optional()?)
}

/// Reads the record of a name by itself.
pub(crate) fn look(database: &Database, name: &Name) -> Result<Option<Vec<u8>>, Failure> {
    let tx = Transaction { database, now: database.environment.now(), durable: false };
    read(&tx, name.as_str())
}

fn put(tx: &Transaction<'_>, name: &str, record: &[u8], retain: Duration) -> Result<(), Failure> {
    let ends_wall = wall_micros(tx).saturating_add(micros(retain));
    tx.connection()
        .prepare_cached("INSERT OR REPLACE INTO once VALUES(?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![tx.namespace(), name, record, tx.now.after(retain).0, tx.boot(), ends_wall])?;
    Ok(())
}

/// Removes records whose time is over by both clocks.
pub(crate) fn sweep(tx: &Transaction<'_>) -> Result<(), Failure> {
    tx.connection()
        .prepare_cached(
            "DELETE FROM once WHERE (namespace, name) IN (SELECT namespace, name FROM once \
             WHERE ends_wall <= ?1 AND (boot <> ?2 OR ends <= ?3) ORDER BY ends_wall LIMIT ?4)",
        )?
        .execute(params![wall_micros(tx), tx.boot(), tx.now.0, MOST_REMOVED])?;
    Ok(())
}

fn wall_micros(tx: &Transaction<'_>) -> i64 {
    micros((tx.database.environment.wall_clock)())
}

/// A [`SwapRequest`] that can go to another thread.
#[derive(Clone)]
pub(crate) struct Swap {
    name: Name,
    owner: OwnerToken,
    expected: Option<Vec<u8>>,
    record: Vec<u8>,
    retain: Duration,
    release: Option<Release>,
}

impl Swap {
    pub(crate) fn new(request: &SwapRequest<'_>) -> Self {
        let release = match request.then {
            Then::Hold => None,
            Then::Release { keep_for } => Some(Release::of(request.name, request.owner, keep_for)),
        };
        Self {
            name: request.name.clone(),
            owner: request.owner.clone(),
            expected: request.expected.map(<[u8]>::to_vec),
            record: request.record.to_vec(),
            retain: request.retain,
            release,
        }
    }

    /// Replaces the record under the lease of its name.
    pub(crate) fn perform(&self, database: &Database, pace: Pace) -> Result<SwapReply, Failure> {
        database.write(pace, |tx| self.in_transaction(tx))
    }

    fn in_transaction(&self, tx: &Transaction<'_>) -> Result<SwapReply, Failure> {
        let name = self.name.as_str();
        let current = read(tx, name)?;
        let held = lease::read(tx, name)?.is_some_and(|lease| lease.value == self.owner.expose());
        if !held && on(Rule::RecordUnderLease) {
            return Ok(SwapReply::NotHeld { current });
        }
        if current != self.expected && on(Rule::RecordCompare) {
            return Ok(SwapReply::Differs { current });
        }
        put(tx, name, &self.record, self.retain)?;
        let handed_over = self.release.as_ref().map(|release| release.gives_to_waiter(tx)).transpose()?;
        Ok(SwapReply::Swapped { handed_over: handed_over.unwrap_or(false) })
    }
}
