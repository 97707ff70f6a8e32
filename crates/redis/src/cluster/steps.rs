//! Acquire and release while the slot of a name migrates: its keys are at two nodes, and scripts on several of them
//! are refused (TRYAGAIN) for as long as that takes. Each step touches one key, wherever it is.
//!
//! An acquire takes the lock key, mints a fencing token, and renews: only if the key is still this owner's then, and
//! its first TTL has not passed, the lease was held without a gap from the first step to the third. So every later
//! holder took the key, and minted, after this token was minted: tokens grow. The model in
//! `models/tests/protocol/steps.rs` goes through every order of the steps of several clients.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::{
    AcquireReply, AcquireRequest, Held, Place, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest,
    StoreEvent, Ticket,
};
use leasehold_core::{Clock, Error, ErrorKind, FencingToken, KeyValue, LostCause, Moment, SystemClock};

use super::route::{call_command, call_single};
use super::router::Router;
use crate::failure::Failure;
use crate::handshake::command;
use crate::keys::NameKeys;
use crate::reply;
use crate::scripted::{came_too_late, holder_of, millis, read_renewal, renew_call, whole_millis_above};
use crate::wire::remaining_time;

/// A node's time is learned from its first answer; the second tells it right.
const MOST_ROUNDS: usize = 3;

/// Clocks run apart by a hundredth of the TTL and this, as for every lease.
const DRIFT_BASE: Duration = Duration::from_millis(2);

/// What became of the first step.
enum Taken {
    /// At that moment, just before it was sent.
    At(Moment),
    Held(Held),
}

pub(super) async fn acquire(
    router: &Arc<Router>,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<AcquireReply, Failure> {
    router.events.deliver(StoreEvent::StepByStep { operation: "acquire" });
    let taken_at = match take(router, request, keys).await? {
        Taken::At(moment) => moment,
        Taken::Held(held) => return Ok(AcquireReply::Held(held)),
    };
    // From here on a key may be left: whatever fails is told as unknown, so that it is cleaned up.
    let minted = mint(router, keys).await.map_err(|failure| unfinished(failure, request))?;
    if !on(Rule::VerifySteps) {
        return Ok(AcquireReply::Granted { fencing_token: minted });
    }
    let verified = verify(router, request, keys).await.map_err(|failure| unfinished(failure, request))?;
    let gone_at = taken_at.after(request.ttl.saturating_sub(request.ttl / 100 + DRIFT_BASE));
    match verified {
        RenewReply::Renewed if SystemClock.now() < gone_at => {
            Ok(AcquireReply::Granted { fencing_token: minted })
        }
        RenewReply::Renewed => {
            let error = Error::new(ErrorKind::Unavailable, "the steps took longer than the TTL");
            Err(unfinished(Failure::NotSent(error), request))
        }
        RenewReply::NotHeld(cause) => {
            let why = if cause == LostCause::Missing { "ended" } else { "was taken" };
            let message =
                format!("{:?}: the name {why} again between the steps of acquiring it", request.name);
            Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, message)))
        }
    }
}

async fn take(
    router: &Arc<Router>,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<Taken, Failure> {
    for _ in 0..MOST_ROUNDS {
        let sent_at = SystemClock.now();
        let (answered, node) = call_single(
            router,
            keys.slot,
            |scripts| &scripts.step_take,
            |node| {
                let not_after = node.shared.server_clock.at(request.not_after).unwrap_or(u64::MAX);
                let mut call = node.shared.scripts.step_take.by_hash(1);
                call.arg(&keys.lock).arg(request.owner.expose()).arg(millis(request.ttl)).arg(not_after);
                call
            },
        )
        .await?;
        let answered_at = answered.sent_at;
        let value = answered.accepted()?;
        let fields = reply::array(&value)?;
        let [kind, now, held @ ..] = fields else { return Err(Failure::BadReply) };
        let now = reply::number(now)?;
        node.shared.server_clock.learn(now, answered_at, SystemClock.now());
        match (reply::text(kind)?, held) {
            ("taken", []) => return Ok(Taken::At(sent_at)),
            ("late", []) if SystemClock.now() > request.not_after => break,
            ("late", []) => {}
            ("busy", [holder, remaining]) => {
                // It polls, and comes back to its place in the queue when the slot has moved.
                let place = request.queue.map(|queue| Place {
                    ticket: queue.ticket.unwrap_or(Ticket(now)),
                    first: true,
                    ahead: 0,
                    pushed: false,
                });
                let remaining = remaining_time(reply::integer(remaining)?);
                return Ok(Taken::Held(Held { holder: holder_of(reply::bytes(holder)?), remaining, place }));
            }
            _ => return Err(Failure::BadReply),
        }
    }
    Err(Failure::NotSent(came_too_late(request)))
}

async fn mint(router: &Arc<Router>, keys: &NameKeys<'_>) -> Result<FencingToken, Failure> {
    let called = call_single(
        router,
        keys.slot,
        |scripts| &scripts.step_mint,
        |node| {
            let mut call = node.shared.scripts.step_mint.by_hash(1);
            call.arg(&*keys.fence);
            call
        },
    );
    let minted = reply::number(&called.await?.0.accepted()?)?;
    FencingToken::new(minted).ok_or(Failure::BadReply)
}

async fn verify(
    router: &Arc<Router>,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<RenewReply, Failure> {
    let renewal = RenewRequest { name: request.name.clone(), owner: request.owner.clone(), ttl: request.ttl };
    let called =
        call_single(router, keys.slot, |scripts| &scripts.renew, |node| renew_call(&node.shared, &renewal));
    let (answered, node) = called.await?;
    let connection = node.connection().await?;
    read_renewal(&connection, &answered.value).map_err(Failure::NotSent)
}

/// The error for steps that were begun and not ended.
fn unfinished(failure: Failure, request: &AcquireRequest<'_>) -> Failure {
    let error = failure.into_error();
    let message = format!(
        "{:?}: acquiring it step by step, while its slot migrates, was not finished: {error}",
        request.name
    );
    Failure::NotSent(Error::new(ErrorKind::Unknown, message).with_source(error))
}

pub(super) async fn release(
    router: &Arc<Router>,
    request: &ReleaseRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<ReleaseReply, Failure> {
    router.events.deliver(StoreEvent::StepByStep { operation: "release" });
    // First, so that a release that is repeated finds the lease as it was.
    withdraw(router, request, keys).await?;
    let called = call_single(
        router,
        keys.slot,
        |scripts| &scripts.step_release,
        |node| {
            let mut call = node.shared.scripts.step_release.by_hash(1);
            call.arg(&keys.lock).arg(request.owner.expose());
            match request.keep_for {
                Some(keep_for) => call.arg(whole_millis_above(keep_for)).arg(KeyValue::kept(request.owner)),
                None => call.arg(0).arg(""),
            };
            call
        },
    );
    let released = match called.await?.0.accepted() {
        Ok(value) => reply::integer(&value)? == 1,
        // The lock key is no string: it is not this owner's lease.
        Err(failure) if failure.code() == Some("WRONGTYPE") => false,
        Err(failure) => return Err(failure),
    };
    router.waiters.released(request.owner, SystemClock.now());
    Ok(if released { ReleaseReply::Freed { handed_over: false } } else { ReleaseReply::NotHeld })
}

/// Takes what this owner may have in the queue out of it.
async fn withdraw(
    router: &Arc<Router>,
    request: &ReleaseRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<(), Failure> {
    let entries = router.waiters.entries_of(request.owner);
    if entries.is_empty() {
        return Ok(());
    }
    let mut remove = command(&["ZREM", &keys.queue]);
    remove.arg(entries);
    call_command(router, keys.slot, &remove).await?.accepted().map(|_| ())
}
