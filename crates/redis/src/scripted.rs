//! The operations on a name by scripts: what is sent, and what the replies mean. What the scripts do is written
//! in `scripts/*.lua`.

use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Held, Holder, Place, ReleaseReply, ReleaseRequest,
    RenewReply, RenewRequest, Ticket,
};
use leasehold_core::{Clock, Error, ErrorKind, FencingToken, KeyValue, Label, LostCause, Name, SystemClock};
use redis::{Cmd, Value};

use crate::connection::{Answered, Connection};
use crate::failure::{Failure, Refusal};
use crate::foreign;
use crate::keys::NameKeys;
use crate::reply;
use crate::rights;
use crate::shared::Shared;
use crate::waiters::Entries;
use crate::wire::{Told, remaining_time};

/// A grant that is not confirmed ends after this long, or after the TTL if that is shorter; for a waiter that
/// polls after twice its interval, if that is longer.
const LONGEST_CLAIM: Duration = Duration::from_secs(3);
/// A waiter that polls counts as dead this long after it missed two polls; it comes back to its place by its
/// next one.
const POLLING_GRACE: Duration = Duration::from_secs(1);
/// One acquire asks again at most so often: when its request came later than it may, or when only dead waiters
/// were removed, a hundred each time.
const MOST_ROUNDS: usize = 20;
/// So many renewals go out together; the replies of more would make other requests wait.
const RENEWALS_PER_BATCH: usize = 500;
/// A lease without an end that is broken stays taken for this long.
const BROKEN_ENDLESS: Duration = Duration::from_secs(30);

/// How one round of an acquire ended.
enum Round {
    Done(AcquireReply),
    /// Nothing was done, or only dead waiters were removed; the ticket to go on with.
    Again(Option<Ticket>),
}

pub(crate) async fn acquire(
    shared: &Shared,
    connection: &Connection,
    request: AcquireRequest<'_>,
) -> Result<AcquireReply, Error> {
    let keys = shared.config.keys.of(request.name);
    let told_at = connection.subscribed.then_some(connection.id.as_str());
    match acquire_at(shared, connection, &request, &keys, told_at).await {
        Ok(reply) => Ok(reply),
        Err(failure) => Err(explain(shared, connection, &keys, failure).await),
    }
}

/// Acquires; whoever queues is told at that connection, or polls.
pub(crate) async fn acquire_at(
    shared: &Shared,
    connection: &Connection,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
    told_at: Option<&str>,
) -> Result<AcquireReply, Failure> {
    let mut ticket = request.queue.and_then(|queue| queue.ticket);
    for _ in 0..MOST_ROUNDS {
        match acquire_once(shared, connection, request, keys, ticket, told_at).await? {
            Round::Done(reply) => return Ok(reply),
            Round::Again(_) if SystemClock.now() > request.not_after => break,
            Round::Again(kept) => ticket = kept,
        }
    }
    Err(Failure::NotSent(came_too_late(request)))
}

/// The server comes to requests only after they have become void.
pub(crate) fn came_too_late(request: &AcquireRequest<'_>) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{:?}: the server came to the request only after it had become void", request.name),
    )
}

async fn acquire_once(
    shared: &Shared,
    connection: &Connection,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
    ticket: Option<Ticket>,
    told_at: Option<&str>,
) -> Result<Round, Failure> {
    let script = &shared.scripts.acquire;
    let entries = request.queue.map(|queue| {
        let claim = request.ttl.min(LONGEST_CLAIM);
        let (told, claim) = if let Some(connection_id) = told_at {
            (Told::ByPush(connection_id), claim)
        } else {
            let twice = queue.poll_interval.saturating_mul(2);
            let alive_until = SystemClock.now().after(twice.saturating_add(POLLING_GRACE));
            let alive_until_micros = shared.server_clock.at(alive_until).unwrap_or(u64::MAX);
            (Told::ByPolling { alive_until_micros }, claim.max(twice))
        };
        shared.waiters.enter(request.owner, request.name, told, claim, request.not_after)
    });
    let call = acquire_call(shared, request, keys, ticket, entries.as_ref());
    let result = connection.call_script(script, &call).await;
    let result = match result {
        Ok(answered) => read_acquire(shared, answered, told_at.is_some()),
        Err(failure) => Err(failure),
    };
    if let Some(Entries { present, .. }) = &entries {
        let now = SystemClock.now();
        match &result {
            Ok(Round::Done(AcquireReply::Granted { .. })) => shared.waiters.left(request.owner, present, now),
            Ok(Round::Done(AcquireReply::Held(_)) | Round::Again(Some(_))) => {
                shared.waiters.queued(request.owner, present, now);
            }
            Ok(Round::Again(None)) | Err(Failure::NotSent(_) | Failure::Refused(_)) => {
                shared.waiters.refused(request.owner, present);
            }
            // It may have been queued: its entry is remembered until it is released.
            Err(Failure::ReplyLost(_) | Failure::BadReply) => {}
        }
    }
    result
}

fn acquire_call(
    shared: &Shared,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
    ticket: Option<Ticket>,
    entries: Option<&Entries>,
) -> Cmd {
    let not_after = shared.server_clock.at(request.not_after).unwrap_or(u64::MAX);
    let mut call = shared.scripts.acquire.by_hash(3);
    call.arg(&keys.lock).arg(&keys.queue).arg(&*keys.fence);
    call.arg(request.owner.expose()).arg(millis(request.ttl)).arg(not_after);
    call.arg(&*keys.channel_prefix);
    match entries {
        None => call.arg("").arg(""),
        Some(entries) => {
            call.arg(&entries.present);
            match ticket {
                Some(Ticket(ticket)) => call.arg(ticket),
                None => call.arg(""),
            };
            call.arg(&entries.earlier)
        }
    };
    call
}

fn read_acquire(shared: &Shared, answered: Answered, pushed: bool) -> Result<Round, Failure> {
    let (sent_at, received_at) = (answered.sent_at, SystemClock.now());
    let value = answered.accepted()?;
    let learn = |now: u64| shared.server_clock.learn(now, sent_at, received_at);
    let fields = match &value {
        Value::Array(fields) => fields.as_slice(),
        granted => {
            let (fence, now) = reply::text(granted)?.split_once(' ').ok_or(Failure::BadReply)?;
            let number = |text: &str| text.parse::<u64>().map_err(|_| Failure::BadReply);
            learn(number(now)?);
            let fencing_token = FencingToken::new(number(fence)?).ok_or(Failure::BadReply)?;
            return Ok(Round::Done(AcquireReply::Granted { fencing_token }));
        }
    };
    match fields {
        [kind, now] if reply::text(kind)? == "late" => {
            learn(reply::number(now)?);
            Ok(Round::Again(None))
        }
        [_busy_or_queued, holder, remaining, now, place @ ..] => {
            learn(reply::number(now)?);
            let place = match place {
                [] => None,
                [ticket, rank] => Some(Place {
                    ticket: Ticket(reply::number(ticket)?),
                    first: reply::integer(rank)? == 0,
                    ahead: u32::try_from(reply::integer(rank)?).unwrap_or(u32::MAX),
                    pushed,
                }),
                _ => return Err(Failure::BadReply),
            };
            let (holder, remaining) = (reply::bytes(holder)?, reply::integer(remaining)?);
            if holder.is_empty() && remaining == 0 {
                return Ok(Round::Again(place.map(|place| place.ticket)));
            }
            let held = Held { holder: holder_of(holder), remaining: remaining_time(remaining), place };
            Ok(Round::Done(AcquireReply::Held(held)))
        }
        _ => Err(Failure::BadReply),
    }
}

pub(crate) async fn release(
    shared: &Shared,
    connection: &Connection,
    request: ReleaseRequest<'_>,
) -> Result<ReleaseReply, Error> {
    let keys = shared.config.keys.of(request.name);
    match release_at(shared, connection, &request, &keys).await {
        Ok(reply) => Ok(reply),
        Err(failure) => Err(explain(shared, connection, &keys, failure).await),
    }
}

pub(crate) async fn release_at(
    shared: &Shared,
    connection: &Connection,
    request: &ReleaseRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<ReleaseReply, Failure> {
    let script = &shared.scripts.release;
    let mut call = script.by_hash(3);
    call.arg(&keys.lock).arg(&keys.queue).arg(&*keys.fence);
    call.arg(request.owner.expose()).arg(&*keys.channel_prefix);
    match request.keep_for {
        Some(keep_for) => call.arg(whole_millis_above(keep_for)).arg(KeyValue::kept(request.owner)),
        None => call.arg(0).arg(""),
    };
    call.arg(shared.waiters.entries_of(request.owner));
    let read = |answered: Answered| -> Result<ReleaseReply, Failure> {
        let sent_at = answered.sent_at;
        let value = answered.accepted()?;
        if let Value::Int(1) = value {
            return Ok(ReleaseReply::Freed { handed_over: false });
        }
        let (now, reply) = match reply::array(&value)? {
            [_not_mine, now] => (now, ReleaseReply::NotHeld),
            [_freed, now, handed] => (now, ReleaseReply::Freed { handed_over: reply::integer(handed)? == 1 }),
            _ => return Err(Failure::BadReply),
        };
        shared.server_clock.learn(reply::number(now)?, sent_at, SystemClock.now());
        Ok(reply)
    };
    let reply = match connection.call_script(script, &call).await.and_then(read) {
        // The lock key is no string: whatever it is, it is not this owner's lease. Its entries are withdrawn.
        Err(failure)
            if failure.code() == Some("WRONGTYPE") && foreign::is_lock_key(connection, keys).await =>
        {
            ReleaseReply::NotHeld
        }
        replied => replied?,
    };
    shared.waiters.released(request.owner, SystemClock.now());
    Ok(reply)
}

pub(crate) async fn renew(
    shared: &Shared,
    connection: &Connection,
    requests: &[RenewRequest],
) -> Vec<Result<RenewReply, Error>> {
    let mut replies = Vec::with_capacity(requests.len());
    for batch in requests.chunks(RENEWALS_PER_BATCH) {
        replies.extend(renew_batch(shared, connection, batch).await);
    }
    replies
}

async fn renew_batch(
    shared: &Shared,
    connection: &Connection,
    requests: &[RenewRequest],
) -> Vec<Result<RenewReply, Error>> {
    let chosen: Vec<_> = requests.iter().collect();
    let values = match renew_values(shared, connection, &chosen).await {
        Ok(values) => values,
        Err(failure) => return fail_all(requests, failure),
    };
    let mut replies: Vec<_> = values.iter().map(|value| read_renewal(connection, value)).collect();
    if !on(Rule::IsolateRenewals) && replies.iter().any(Result::is_err) {
        replies = requests.iter().map(|_| Err(Failure::BadReply.into_error())).collect();
    }
    replies
}

/// Renews leases together: the server's answer to each.
pub(crate) async fn renew_values(
    shared: &Shared,
    connection: &Connection,
    requests: &[&RenewRequest],
) -> Result<Vec<Value>, Failure> {
    let calls = requests.iter().map(|request| renew_call(shared, request));
    let mut values = call_together(connection, calls).await?;
    // The whole text goes out once; the rest of the batch finds it there.
    let unknown: Vec<usize> = (0..values.len())
        .filter(|&i| Refusal::in_value(&values[i]).is_some_and(|refusal| refusal.code == "NOSCRIPT"))
        .collect();
    if let Some(&first) = unknown.first() {
        let again = unknown.iter().map(|&i| {
            let call = renew_call(shared, requests[i]);
            if i == first { shared.scripts.renew.by_text(&call) } else { call }
        });
        let replies = call_together(connection, again).await?;
        for (&i, reply) in unknown.iter().zip(replies) {
            values[i] = reply;
        }
    }
    Ok(values)
}

pub(crate) fn renew_call(shared: &Shared, request: &RenewRequest) -> Cmd {
    let mut call = shared.scripts.renew.by_hash(1);
    call.arg(shared.config.namespace().key(&request.name));
    call.arg(request.owner.expose()).arg(millis(request.ttl));
    call
}

/// Sends calls together; as many replies as calls, or a failure of all.
async fn call_together(
    connection: &Connection,
    calls: impl ExactSizeIterator<Item = Cmd>,
) -> Result<Vec<Value>, Failure> {
    let mut pipeline = redis::Pipeline::with_capacity(calls.len());
    for call in calls {
        pipeline.add_command(call);
    }
    let values = connection.call_all(&pipeline).await?;
    if values.len() == pipeline.len() { Ok(values) } else { Err(Failure::BadReply) }
}

/// The batch as a whole was not answered: nothing is known of any of it.
pub(crate) fn fail_all(requests: &[RenewRequest], failure: Failure) -> Vec<Result<RenewReply, Error>> {
    fail_each(requests.len(), failure)
}

/// The same failure for so many requests.
pub(crate) fn fail_each(count: usize, failure: Failure) -> Vec<Result<RenewReply, Error>> {
    let error = failure.into_error();
    let (kind, message) = (error.kind(), error.to_string());
    (0..count).map(|_| Err(Error::new(kind, message.clone()))).collect()
}

pub(crate) fn read_renewal(connection: &Connection, value: &Value) -> Result<RenewReply, Error> {
    if let Some(refusal) = Refusal::in_value(value) {
        // The lock key is no string: somebody else has it.
        if refusal.code == "WRONGTYPE" {
            return Ok(RenewReply::NotHeld(LostCause::Taken));
        }
        leave_if_no_primary(connection, &refusal);
        return Err(Failure::Refused(refusal).into_error());
    }
    if let Value::Int(1) = value {
        return Ok(RenewReply::Renewed);
    }
    let holder = reply::bytes(value).map_err(|bad| Failure::from(bad).into_error())?;
    Ok(RenewReply::NotHeld(loss_of(holder)))
}

/// Why a lease is gone, by what its key holds now.
pub(crate) fn loss_of(holder: &[u8]) -> LostCause {
    if holder.is_empty() {
        return LostCause::Missing;
    }
    match std::str::from_utf8(holder).map(KeyValue::parse) {
        Ok(KeyValue::Broken { .. }) => LostCause::Broken,
        _ => LostCause::Taken,
    }
}

pub(crate) async fn break_lease(
    shared: &Shared,
    connection: &Connection,
    name: &Name,
    mode: BreakMode,
    by: &Label,
) -> Result<BreakReply, Error> {
    let keys = shared.config.keys.of(name);
    match break_at(shared, connection, &keys, mode, by).await {
        Ok(reply) => Ok(reply),
        Err(failure) => Err(explain(shared, connection, &keys, failure).await),
    }
}

pub(crate) async fn break_at(
    shared: &Shared,
    connection: &Connection,
    keys: &NameKeys<'_>,
    mode: BreakMode,
    by: &Label,
) -> Result<BreakReply, Failure> {
    let script = &shared.scripts.break_lease;
    let mut call = script.by_hash(3);
    call.arg(&keys.lock).arg(&keys.queue).arg(&*keys.fence);
    call.arg(if mode == BreakMode::Now { "now" } else { "notice" });
    call.arg(KeyValue::broken(by)).arg(&*keys.channel_prefix).arg(millis(BROKEN_ENDLESS));
    let read = |answered: Answered| -> Result<BreakReply, Failure> {
        match &answered.accepted()? {
            Value::Array(fields) => match fields.as_slice() {
                [holder, remaining] => Ok(BreakReply::Broken {
                    holder: holder_of(reply::bytes(holder)?),
                    remaining: Duration::from_millis(reply::number(remaining)?),
                }),
                _ => Err(Failure::BadReply),
            },
            nobody if reply::bytes(nobody)?.is_empty() => Ok(BreakReply::Free),
            _ => Err(Failure::BadReply),
        }
    };
    connection.call_script(script, &call).await.and_then(read)
}

/// Who holds a name, by the value of its lock key.
pub(crate) fn holder_of(value: &[u8]) -> Holder {
    if value.is_empty() {
        return Holder::HandedOver;
    }
    match std::str::from_utf8(value).map(KeyValue::parse) {
        Ok(KeyValue::Owner(owner)) => Holder::Lease { label: owner.label().to_owned() },
        Ok(KeyValue::Broken { by }) => Holder::Broken { by },
        Ok(KeyValue::Kept { by }) => Holder::Kept { by },
        Ok(KeyValue::Foreign) | Err(_) => Holder::Foreign,
    }
}

/// The error for users; looks at the keys where that tells more.
pub(crate) async fn explain(
    shared: &Shared,
    connection: &Connection,
    keys: &NameKeys<'_>,
    failure: Failure,
) -> Error {
    if let Failure::Refused(refusal) = &failure {
        leave_if_no_primary(connection, refusal);
        if refusal.is_denied()
            && let Some(error) = rights::name_what_is_denied(connection, shared).await
        {
            return error;
        }
        if refusal.code == "WRONGTYPE" {
            return foreign::describe(connection, keys).await.unwrap_or_else(Failure::into_error);
        }
    }
    failure.into_error()
}

/// A node that is no primary any more is left, so that the right one is found.
fn leave_if_no_primary(connection: &Connection, refusal: &Refusal) {
    if refusal.is_about_the_node() {
        connection.health().give_up("the server is no primary any more");
    }
}

/// Whole milliseconds, at least as long.
pub(crate) fn whole_millis_above(duration: Duration) -> u64 {
    millis(duration.saturating_add(Duration::from_nanos(999_999)))
}

/// Whole milliseconds, as the server counts.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
