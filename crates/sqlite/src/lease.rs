//! The table of taken names: one row per name, gone as soon as nobody holds it.

use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::Holder;
use leasehold_core::{FencingToken, KeyValue, OwnerToken};
use rusqlite::{OptionalExtension, Row, params};

use crate::database::Transaction;
use crate::environment::Micros;
use crate::failure::Failure;

/// A row whose time has not passed.
pub(crate) struct Lease {
    pub(crate) value: String,
    pub(crate) expires: Micros,
    fencing_token: i64,
}

impl Lease {
    pub(crate) fn holder(&self) -> Holder {
        match KeyValue::parse(&self.value) {
            KeyValue::Owner(owner) => Holder::Lease { label: owner.label().to_owned() },
            KeyValue::Broken { by } => Holder::Broken { by },
            KeyValue::Kept { by } => Holder::Kept { by },
            KeyValue::Foreign => Holder::Foreign,
        }
    }

    /// How long it lasts; `None` for a row of a client of another kind that has no end.
    pub(crate) fn remaining(&self, now: Micros) -> Option<Duration> {
        (self.expires != Micros::NEVER).then(|| self.expires.since(now))
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        u64::try_from(self.fencing_token).ok().and_then(FencingToken::new)
    }

    /// Reads value, expires, boot and fencing token from four columns; `None` if the time has passed.
    pub(crate) fn from_row(
        tx: &Transaction<'_>,
        row: &Row<'_>,
        first: usize,
    ) -> rusqlite::Result<Option<Self>> {
        let value = row.get(first)?;
        let expires = Micros(row.get(first + 1)?);
        let same_boot = row.get_ref(first + 2)?.as_blob()? == tx.boot() || !on(Rule::BootId);
        let fencing_token = row.get(first + 3)?;
        Ok((same_boot && expires > tx.now).then_some(Self { value, expires, fencing_token }))
    }
}

/// The lease of this name, unless it has ended.
pub(crate) fn read(tx: &Transaction<'_>, name: &str) -> Result<Option<Lease>, Failure> {
    let mut statement = tx.connection().prepare_cached(
        "SELECT value, expires, boot, fencing_token FROM lease WHERE namespace = ?1 AND name = ?2",
    )?;
    let found = statement.query_row((tx.namespace(), name), |row| Lease::from_row(tx, row, 0)).optional()?;
    Ok(found.flatten())
}

/// Writes who has the name, until when.
pub(crate) fn put(
    tx: &Transaction<'_>,
    name: &str,
    value: &str,
    expires: Micros,
    fencing_token: FencingToken,
) -> Result<(), Failure> {
    tx.connection().prepare_cached("INSERT OR REPLACE INTO lease VALUES(?1, ?2, ?3, ?4, ?5, ?6)")?.execute(
        params![tx.namespace(), name, value, expires.0, tx.boot(), fencing_token.get().cast_signed()],
    )?;
    Ok(())
}

/// Changes who has the name and until when, and nothing else.
pub(crate) fn change(tx: &Transaction<'_>, name: &str, value: &str, expires: Micros) -> Result<(), Failure> {
    tx.connection()
        .prepare_cached("UPDATE lease SET value = ?3, expires = ?4 WHERE namespace = ?1 AND name = ?2")?
        .execute(params![tx.namespace(), name, value, expires.0])?;
    Ok(())
}

/// Replaces the lease by a tombstone under which nobody works.
pub(crate) fn keep(
    tx: &Transaction<'_>,
    name: &str,
    owner: &OwnerToken,
    until: Micros,
) -> Result<(), Failure> {
    tx.connection()
        .prepare_cached(
            "UPDATE lease SET value = ?3, expires = ?4, fencing_token = 0 WHERE namespace = ?1 AND name = ?2",
        )?
        .execute(params![tx.namespace(), name, KeyValue::kept(owner), until.0])?;
    Ok(())
}

pub(crate) fn delete(tx: &Transaction<'_>, name: &str) -> Result<(), Failure> {
    tx.connection()
        .prepare_cached("DELETE FROM lease WHERE namespace = ?1 AND name = ?2")?
        .execute((tx.namespace(), name))?;
    Ok(())
}

/// Gives the name back in one statement, if it is this owner's and nobody is in its queue. `false` changes
/// nothing and says nothing: look closer.
pub(crate) fn delete_if_simple(
    tx: &Transaction<'_>,
    name: &str,
    owner: &OwnerToken,
) -> Result<bool, Failure> {
    let deleted = tx
        .connection()
        .prepare_cached(
            "DELETE FROM lease WHERE namespace = ?1 AND name = ?2 AND value = ?3 AND expires > ?4 AND boot = ?5 \
             AND NOT EXISTS(SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2)",
        )?
        .execute(params![tx.namespace(), name, owner.expose(), tx.now.0, tx.boot()])
        .map_err(|error| Failure::from(error).of_commit())?;
    Ok(deleted == 1)
}
