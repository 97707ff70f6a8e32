//! Looking at names without changing anything.

use leasehold_core::Name;
use leasehold_core::store::{Inspection, Listing};

use crate::database::{Database, Transaction};
use crate::failure::Failure;
use crate::lease::{self, Lease};
use crate::waiters;

/// The most waiters an inspection names.
const SHOWN_WAITERS: u32 = 1_000;

/// One name; `None` when it is free and nobody waits.
pub(crate) fn inspect(database: &Database, name: &Name) -> Result<Option<Inspection>, Failure> {
    database.read(|tx| {
        let lease = lease::read(tx, name.as_str())?;
        let waiters = waiters::labels(tx, name.as_str(), SHOWN_WAITERS)?;
        let found = lease.is_some() || !waiters.is_empty();
        Ok(found.then(|| inspection(tx, name.clone(), lease.as_ref(), waiters)))
    })
}

/// The taken names with this prefix, in the order of their bytes.
pub(crate) fn list(database: &Database, prefix: &str, limit: usize) -> Result<Listing, Failure> {
    database.read(|tx| {
        let mut statement = tx.connection().prepare_cached(
            "SELECT name, value, expires, boot, fencing_token FROM lease \
             WHERE namespace = ?1 AND name >= ?2 ORDER BY name",
        )?;
        let mut rows = statement.query((tx.namespace(), prefix))?;
        let mut listing = Listing::default();
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            if !name.starts_with(prefix) {
                break;
            }
            let (Some(lease), Ok(name)) = (Lease::from_row(tx, row, 1)?, Name::new(&name)) else { continue };
            if listing.entries.len() == limit {
                listing.more = true;
                break;
            }
            let waiters = waiters::labels(tx, name.as_str(), SHOWN_WAITERS)?;
            listing.entries.push(inspection(tx, name, Some(&lease), waiters));
        }
        Ok(listing)
    })
}

fn inspection(tx: &Transaction<'_>, name: Name, lease: Option<&Lease>, waiters: Vec<String>) -> Inspection {
    Inspection {
        name,
        holder: lease.map(Lease::holder),
        remaining: lease.and_then(|lease| lease.remaining(tx.now)),
        waiters,
        fencing_token: lease.and_then(Lease::fencing_token),
    }
}
