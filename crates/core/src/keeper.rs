//! The keeper: the task on the engine's own thread that renews leases in order of their deadlines, many per
//! round trip, tells holders of a loss, and runs clean-ups.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::cleanup::CleanUps;
use crate::clock::Moment;
use crate::engine::{LeaseCell, Shared};
use crate::error::Error;
use crate::lease::Step;
use crate::mutation::{Rule, on};
use crate::observe;
use crate::options::COMMAND_TIMEOUT;
use crate::store::{RenewReply, RenewRequest};

/// Leases in one round trip: large enough to spread its cost, small enough not to hold up the server.
const BATCH: usize = 256;
/// Round trips under way at once, so that a slow one does not hold up the others.
const BATCHES_UNDER_WAY: usize = 16;
/// Servers whose round trips are counted apart; when there were more, the count begins anew.
const MOST_GROUPS: usize = 1_024;
/// Leases looked at before the keeper lets other tasks run.
const TURN: usize = 4096;
/// A renewal without a reply is tried again after this part of the lease at the latest.
const TIMEOUT_DIVISOR: u32 = 4;
/// The shortest time in which a reply is expected.
const TIMEOUT_LEAST: Duration = Duration::from_millis(5);
/// How long an abandoned client's clean-ups may go on.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Runs until the client is abandoned and its clean-ups are done.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let mut slots = HashMap::new();
    let mut ends_at = Moment::NEVER;
    loop {
        CleanUps::start(&shared);
        let now = shared.now();
        let due = shared.schedule().take_due(now, TURN);
        let more = due.len() == TURN;
        renew(&shared, &mut slots, step_all(&shared, due, now));
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        if shared.abandoned.load(Ordering::Acquire) {
            ends_at = ends_at.min(now.after(LAST_WORK));
            if shared.cleanups.unfinished() == 0 || now >= ends_at {
                break;
            }
        }
        let woken = shared.wake.notified();
        let next = shared.schedule().sleep().min(ends_at);
        shared.timers.before(next, woken).await;
    }
    shared.store.close().await;
}

/// Asks each machine what it wants now; returns the leases to renew, earliest deadline first.
fn step_all(shared: &Shared, due: Vec<Arc<LeaseCell>>, now: Moment) -> Vec<Arc<LeaseCell>> {
    let mut renewals = Vec::new();
    for cell in due {
        let step = cell.machine().step(now);
        match step {
            Step::Wait => {}
            Step::Lost(cause) => cell.tell_lost(cause),
            Step::Renew(_) => renewals.push(Arc::clone(&cell)),
        }
        shared.reschedule(&cell);
    }
    renewals
}

/// Round trips under way to each server of the store.
type Slots = HashMap<u64, Arc<Semaphore>>;

/// Sends renewals in batches; short leases apart from long ones and those of one server apart from those of others,
/// so that none waits for the other's timeout.
fn renew(shared: &Arc<Shared>, slots: &mut Slots, cells: Vec<Arc<LeaseCell>>) {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for cell in cells {
        let server = if on(Rule::IsolateServers) { shared.store.renewal_group(&cell.name) } else { 0 };
        groups.entry((timeout(&cell) >= COMMAND_TIMEOUT, server)).or_default().push(cell);
    }
    if slots.len() > MOST_GROUPS {
        slots.clear();
    }
    for ((_, server), cells) in groups {
        let slots = slots.entry(server).or_insert_with(|| Arc::new(Semaphore::new(BATCHES_UNDER_WAY)));
        for batch in cells.chunks(BATCH) {
            let (shared, slots, batch) = (Arc::clone(shared), Arc::clone(slots), batch.to_vec());
            shared.renewals_under_way.fetch_add(1, Ordering::AcqRel);
            tokio::spawn(async move {
                // The semaphore is never closed, so a slot is always given.
                let _slot = slots.acquire().await;
                renew_batch(&shared, &batch).await;
                shared.renewals_under_way.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }
}

fn timeout(cell: &LeaseCell) -> Duration {
    (cell.machine().period() / TIMEOUT_DIVISOR).clamp(TIMEOUT_LEAST, COMMAND_TIMEOUT)
}

async fn renew_batch(shared: &Shared, batch: &[Arc<LeaseCell>]) {
    let mut sent = Vec::with_capacity(batch.len());
    let mut requests = Vec::with_capacity(batch.len());
    let mut patience = COMMAND_TIMEOUT;
    let begins = shared.now();
    for cell in batch {
        let due = cell.machine().renewal_due();
        let sending = cell.machine().sending();
        let Some(ttl) = sending else {
            cell.changed.notify_waiters();
            continue;
        };
        observe::renewal_lag(begins.since(due));
        patience = patience.min(timeout(cell));
        requests.push(RenewRequest { name: cell.name.clone(), owner: cell.owner.clone(), ttl });
        sent.push(cell);
    }
    if requests.is_empty() {
        return;
    }
    let sent_at = shared.now();
    let replies = shared.timers.before(sent_at.after(patience), shared.store.renew(&requests)).await;
    let now = shared.now();
    let mut replies = replies.unwrap_or_default().into_iter();
    let mut failed = false;
    for (cell, request) in sent.into_iter().zip(&requests) {
        let reply = replies.next();
        failed |= !matches!(reply, Some(Ok(_)));
        let reply = if failed && !on(Rule::IsolateRenewals) { None } else { reply };
        take_verdict(shared, cell, reply, request, sent_at, now);
    }
}

fn take_verdict(
    shared: &Shared,
    cell: &LeaseCell,
    reply: Option<Result<RenewReply, Error>>,
    request: &RenewRequest,
    sent_at: Moment,
    now: Moment,
) {
    match reply {
        Some(Ok(RenewReply::Renewed)) => {
            observe::renewal("renewed");
            cell.machine().renewed(sent_at, request.ttl, now);
        }
        Some(Ok(RenewReply::NotHeld(cause))) => {
            observe::renewal("refused");
            let news = cell.machine().refused(cause);
            if news {
                cell.tell_lost(cause);
            }
        }
        Some(Err(error)) => {
            observe::renewal("failed");
            tracing::debug!(name = %cell.name, %error, "renewal failed");
            cell.machine().renewal_failed(now);
        }
        None => {
            observe::renewal("failed");
            cell.machine().renewal_failed(now);
        }
    }
    cell.changed.notify_waiters();
    shared.reschedule(cell);
}
