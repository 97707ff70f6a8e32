//! The queue of a name: waiting processes in the order in which they first asked. They all poll, and one that
//! has not been seen for longer than its polls allow counts as dead.

use std::time::Duration;

use leasehold_core::OwnerToken;
use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::{Place, QueueRequest, Ticket};
use rusqlite::{OptionalExtension, params};

use crate::database::{Database, Transaction};
use crate::environment::micros;
use crate::failure::Failure;
use crate::lease::{self, Lease};

/// A grant waits at most this long for its waiter, unless that polls more slowly: long enough for a process
/// that a busy machine keeps from running, short enough for one that died a moment ago.
const CLAIM: Duration = Duration::from_secs(1);
/// What a waiter may be late with its polls before it counts as dead.
const LATE: Duration = Duration::from_secs(1);
/// Dead entries removed in one transaction, so that it stays short; the rest falls to later ones.
const MOST_REMOVED: i64 = 100;

/// A waiter that a name can be given to.
pub(crate) struct Waiter {
    pub(crate) owner: String,
    pub(crate) claim: Duration,
}

/// Who asks, for what, as one entry of the queue.
#[derive(Clone, Copy)]
pub(crate) struct Asking<'a> {
    pub(crate) name: &'a str,
    pub(crate) owner: &'a OwnerToken,
    pub(crate) ttl: Duration,
    pub(crate) request: QueueRequest,
}

impl Asking<'_> {
    fn claim(self) -> Duration {
        self.request.poll_interval.saturating_mul(2).max(self.ttl.min(CLAIM))
    }

    /// Three polls: one that is missed and one that is late leave it alive.
    fn seen_for(self) -> Duration {
        self.request.poll_interval.saturating_mul(3).saturating_add(LATE)
    }

    /// A poll writes only when less than this is left, so most of them just read.
    fn refreshed_below(self) -> Duration {
        self.request.poll_interval.saturating_mul(2).saturating_add(LATE / 2)
    }
}

/// A poll that finds nothing to change: somebody else holds the name, and the entry is there and fresh.
pub(crate) fn look(database: &Database, asking: Asking<'_>) -> Result<Option<(Lease, Place)>, Failure> {
    let Some(ticket) = asking.request.ticket else { return Ok(None) };
    let tx = Transaction { database, now: database.environment.now(), durable: false };
    let mut statement = tx.connection().prepare_cached(
        "SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2 AND ticket = ?3 AND owner = ?4 \
         AND seen_until > ?5 AND boot = ?6",
    )?;
    let fresh = tx.now.after(asking.refreshed_below());
    let owner = asking.owner.expose();
    if !statement.exists(params![tx.namespace(), asking.name, signed(ticket), owner, fresh.0, tx.boot()])? {
        return Ok(None);
    }
    // Read after the entry and without a transaction: a hand-over in between shows here, as its own lease.
    match lease::read(&tx, asking.name)? {
        Some(lease) if lease.value != owner => {
            let first = is_first(&tx, asking.name, ticket)?;
            Ok(Some((lease, Place { ticket, first, ahead: u32::from(!first), pushed: false })))
        }
        _ => Ok(None),
    }
}

/// Puts the owner in the queue, or shows that it is alive if it is there. It keeps the place of its entry, or
/// else of its ticket.
pub(crate) fn enqueue(tx: &Transaction<'_>, asking: Asking<'_>) -> Result<Ticket, Failure> {
    let ticket = match ticket_of(tx, asking)? {
        Some(ticket) => ticket,
        None => match asking.request.ticket {
            // A ticket from the future would put everybody who comes later before it.
            Some(ticket) => signed(ticket).min(tx.now.0),
            None => next_ticket(tx, asking.name)?,
        },
    };
    tx.connection()
        .prepare_cached("INSERT OR REPLACE INTO waiter VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
        .execute(params![
            tx.namespace(),
            asking.name,
            ticket,
            asking.owner.expose(),
            micros(asking.claim()),
            tx.now.after(asking.seen_for()).0,
            tx.boot()
        ])?;
    Ok(Ticket(ticket.unsigned_abs()))
}

/// The ticket of the owner's entry, looked for under the ticket it presents before anywhere else.
fn ticket_of(tx: &Transaction<'_>, asking: Asking<'_>) -> Result<Option<i64>, Failure> {
    if let Some(ticket) = asking.request.ticket {
        let mut statement = tx.connection().prepare_cached(
            "SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2 AND ticket = ?3 AND owner = ?4",
        )?;
        if statement.exists(params![tx.namespace(), asking.name, signed(ticket), asking.owner.expose()])? {
            return Ok(Some(signed(ticket)));
        }
    }
    let mut statement = tx
        .connection()
        .prepare_cached("SELECT ticket FROM waiter WHERE namespace = ?1 AND name = ?2 AND owner = ?3")?;
    Ok(statement
        .query_row((tx.namespace(), asking.name, asking.owner.expose()), |row| row.get(0))
        .optional()?)
}

/// The time of arrival, or just behind the last one if that is of the same microsecond.
fn next_ticket(tx: &Transaction<'_>, name: &str) -> Result<i64, Failure> {
    let mut statement = tx.connection().prepare_cached(
        "SELECT ticket FROM waiter WHERE namespace = ?1 AND name = ?2 AND boot = ?3 ORDER BY ticket DESC LIMIT 1",
    )?;
    let last: Option<i64> =
        statement.query_row((tx.namespace(), name, tx.boot()), |row| row.get(0)).optional()?;
    Ok(last.map_or(tx.now.0, |last| tx.now.0.max(last.saturating_add(1))))
}

/// Whether nobody alive waits before this ticket.
pub(crate) fn is_first(tx: &Transaction<'_>, name: &str, ticket: Ticket) -> Result<bool, Failure> {
    let mut statement = tx.connection().prepare_cached(
        "SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2 AND ticket < ?3 AND seen_until > ?4 AND boot = ?5",
    )?;
    Ok(!statement.exists(params![tx.namespace(), name, signed(ticket), tx.now.0, tx.boot()])?)
}

/// Takes the owner out of the queue.
pub(crate) fn withdraw(tx: &Transaction<'_>, name: &str, owner: &str) -> Result<(), Failure> {
    tx.connection()
        .prepare_cached("DELETE FROM waiter WHERE namespace = ?1 AND name = ?2 AND owner = ?3")?
        .execute((tx.namespace(), name, owner))?;
    Ok(())
}

/// The first live waiter. Dead ones before it are removed.
pub(crate) fn first(tx: &Transaction<'_>, name: &str) -> Result<Option<Waiter>, Failure> {
    if !any(tx, name)? {
        return Ok(None);
    }
    let skip_dead = on(Rule::SkipDeadWaiters);
    if skip_dead {
        tx.connection()
            .prepare_cached(
                "DELETE FROM waiter WHERE namespace = ?1 AND name = ?2 AND (ticket, owner) IN ( \
                     SELECT ticket, owner FROM waiter WHERE namespace = ?1 AND name = ?2 \
                     AND (seen_until <= ?3 OR boot <> ?4) LIMIT ?5)",
            )?
            .execute(params![tx.namespace(), name, tx.now.0, tx.boot(), MOST_REMOVED])?;
    }
    let mut statement = tx.connection().prepare_cached(if on(Rule::QueueOrder) {
        "SELECT owner, claim FROM waiter WHERE namespace = ?1 AND name = ?2 \
         AND ((seen_until > ?3 AND boot = ?4) OR NOT ?5) ORDER BY ticket, owner LIMIT 1"
    } else {
        "SELECT owner, claim FROM waiter WHERE namespace = ?1 AND name = ?2 \
         AND ((seen_until > ?3 AND boot = ?4) OR NOT ?5) ORDER BY ticket DESC LIMIT 1"
    })?;
    let found = statement
        .query_row(params![tx.namespace(), name, tx.now.0, tx.boot(), skip_dead], |row| {
            let claim = u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
            Ok(Waiter { owner: row.get(0)?, claim: Duration::from_micros(claim) })
        })
        .optional()?;
    Ok(found)
}

/// Whether the queue has any entry, dead or alive.
pub(crate) fn any(tx: &Transaction<'_>, name: &str) -> Result<bool, Failure> {
    let mut statement =
        tx.connection().prepare_cached("SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2 LIMIT 1")?;
    Ok(statement.exists((tx.namespace(), name))?)
}

/// Labels of the live waiters, first to last, at most `limit`.
pub(crate) fn labels(tx: &Transaction<'_>, name: &str, limit: u32) -> Result<Vec<String>, Failure> {
    let mut statement = tx.connection().prepare_cached(
        "SELECT owner FROM waiter WHERE namespace = ?1 AND name = ?2 AND seen_until > ?3 AND boot = ?4 \
         ORDER BY ticket, owner LIMIT ?5",
    )?;
    let labels = statement
        .query_map(params![tx.namespace(), name, tx.now.0, tx.boot(), limit], |row| row.get::<_, String>(0))?
        .map(|owner| owner.map(|owner| OwnerToken::parse(&owner).map_or_else(|_| String::new(), label)))
        .collect::<Result<_, _>>()?;
    Ok(labels)
}

#[allow(clippy::needless_pass_by_value, reason = "fits where a token is given away")]
fn label(owner: OwnerToken) -> String {
    owner.label().to_owned()
}

fn signed(ticket: Ticket) -> i64 {
    i64::try_from(ticket.0).unwrap_or(i64::MAX)
}
