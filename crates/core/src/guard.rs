//! Held leases as their users see them: [`Guard`] owns one and gives it back, [`Lease`] is a view of it that
//! can be passed around.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cleanup::{CleanUp, Settlement};
use crate::clock::Moment;
use crate::engine::{Engine, LeaseCell};
use crate::error::{Error, ErrorKind, LostCause};
use crate::fencing::FencingToken;
use crate::lease::LeaseState;
use crate::mutation::{Rule, on};
use crate::name::{Name, Namespace};
use crate::observe;
use crate::options::{COMMAND_TIMEOUT, MAX_TTL, MIN_TTL};
use crate::owner::OwnerToken;
use crate::store::{ReleaseReply, ReleaseRequest, SwapReply, SwapRequest, Then};

/// The first pause after a release without an answer; later ones double it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(500);

/// A view of a held lease. Clones are cheap and may go anywhere; none of them keeps the lease alive.
#[derive(Clone)]
pub struct Lease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cell: Arc<LeaseCell>,
}

impl Lease {
    /// The name that is held.
    pub fn name(&self) -> &Name {
        &self.cell.name
    }

    /// The namespace of the store that granted it. Fencing tokens of one namespace only can be compared.
    pub fn namespace(&self) -> Namespace {
        self.engine.store.namespace()
    }

    /// The fencing token of this grant. It stays the same while the lease is renewed.
    pub fn fencing_token(&self) -> FencingToken {
        self.cell.fencing_token
    }

    /// The owner token of this grant: a secret that lets another process resume or release the lease.
    pub fn owner_token(&self) -> &OwnerToken {
        &self.cell.owner
    }

    /// The state at this moment, computed from the clock and not remembered.
    ///
    /// `Held` is a statement about this moment only: the process may be stopped right after it.
    pub fn state(&self) -> LeaseState {
        self.cell.state_at(self.engine.now())
    }

    /// How long the lease certainly lasts in the store from now on if it is not renewed; zero once it is lost.
    /// The holder is told of a loss a margin before (see [`Lease::lost`]), and with `max_hold` perhaps long
    /// before. The clock counts time in suspend, which [`std::time::Instant`] does not on Linux.
    pub fn remaining(&self) -> Duration {
        let now = self.engine.now();
        match self.cell.state_at(now) {
            LeaseState::Lost(_) | LeaseState::Released => Duration::ZERO,
            LeaseState::Held | LeaseState::Uncertain => self.cell.machine().ends().since(now),
        }
    }

    /// Waits until the lease is lost.
    ///
    /// It is told a margin (a tenth of the TTL, at most 1 s) before the lease can have ended in the store, so
    /// that there is time to stop, and at once when the store reports the loss. Once lost, a lease stays lost.
    /// After a release it waits for ever.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LostCause {
        loop {
            if let LeaseState::Lost(cause) = self.over().await {
                return cause;
            }
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the work under this lease must stop: it is lost (see [`Lease::lost`]), or its guard has given
    /// it back.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn cancelled(&self) {
        self.over().await;
    }

    async fn over(&self) -> LeaseState {
        loop {
            let changed = self.cell.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.state() {
                LeaseState::Held | LeaseState::Uncertain => changed.await,
                over => return over,
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("fencing_token", &self.fencing_token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "AlreadyLost means that somebody else may have held the name while the work went on"]
pub enum Released {
    /// The lease was held until now and is given back.
    Freed,
    /// The lease was lost before. Nothing of anybody else was touched.
    AlreadyLost,
}

/// What became of writing a record and giving the name back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Both are done.
    Kept,
    /// The lease was lost before. Nothing was changed.
    NotHeld(LostCause),
}

/// Owns a held lease: renews it in the background and gives it back when it is released or dropped.
///
/// A guard belongs to no thread and no task. Dropping it releases in the background, never blocks and never
/// panics; [`Guard::release`] also tells whether the lease was held to the end. A program that ends right after
/// a drop should call [`crate::Client::close`], which waits for the release.
///
/// # What it does not guarantee
/// A lease ends by itself. If this process stops for longer than the TTL, another holder follows while this one
/// does not know yet. In a virtual machine that is frozen, moved or restored from a snapshot every clock may have
/// stood still, so not even the deadline is noticed. A guard that is leaked ([`std::mem::forget`]) is renewed while
/// the process lives, or until `max_hold`. Pass [`Lease::fencing_token`] to the place you write to, and let it
/// refuse older tokens.
#[must_use = "dropping the guard releases the name"]
pub struct Guard {
    lease: Lease,
    min_hold_until: Option<Moment>,
    finished: bool,
    reported: bool,
}

impl Guard {
    pub(crate) fn new(engine: Arc<Engine>, cell: Arc<LeaseCell>, min_hold: Option<Duration>) -> Self {
        let min_hold_until =
            min_hold.filter(|_| on(Rule::MinHold)).map(|min_hold| engine.now().after(min_hold));
        Self { lease: Lease { engine, cell }, min_hold_until, finished: false, reported: false }
    }

    /// A view of the lease that can be cloned and passed on.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Renews the lease now, to its TTL.
    ///
    /// # Errors
    /// `Lost` when it is not held any more; `Unknown` when the store gave no verdict (the lease goes on until
    /// its deadline, and renewal is retried in the background).
    ///
    /// # Cancel safety
    /// The renewal goes on when the future is dropped.
    pub async fn renew(&self) -> Result<(), Error> {
        self.renew_to(None).await
    }

    /// Renews the lease now and from now on with this TTL (10 ms to 24 h). Time left over is never taken away.
    ///
    /// # Errors
    /// `Config` for a TTL outside the limits; otherwise as [`Guard::renew`].
    ///
    /// # Cancel safety
    /// The renewal goes on when the future is dropped.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(Error::config(format!("ttl is {ttl:?}: {MIN_TTL:?} to 24 h are allowed")));
        }
        self.renew_to(Some(Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))).await
    }

    async fn renew_to(&self, ttl: Option<Duration>) -> Result<(), Error> {
        let (engine, cell) = (&self.lease.engine, &self.lease.cell);
        let mut asked = false;
        loop {
            let changed = cell.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.lease.state() {
                LeaseState::Lost(cause) => return Err(lost(self.name(), cause)),
                LeaseState::Released => return Err(Error::config("the lease was released")),
                state if asked && !cell.machine().is_renewing() => {
                    return match state {
                        LeaseState::Uncertain => Err(Error::new(
                            ErrorKind::Unknown,
                            format!("{}: the store gave no verdict on the renewal", self.name()),
                        )),
                        _ => Ok(()),
                    };
                }
                _ => {}
            }
            if !asked {
                asked = cell.machine().renew_now(engine.now(), ttl);
                engine.reschedule(cell);
            }
            changed.await;
        }
    }

    /// Gives the name back and says whether it was held to the end.
    ///
    /// With `min_hold`, a lease released early is reported as `Freed` and the name stays taken until then.
    ///
    /// # Errors
    /// `Unknown` when the store did not answer within its timeout, or when the reply was lost and a retry found
    /// nothing: the lease may have been given back by the first try or lost before it. `Denied` and others as
    /// the store reports them. In each case it is cleaned up in the background.
    ///
    /// # Cancel safety
    /// A cancelled release still completes, in the background.
    pub async fn release(mut self) -> Result<Released, Error> {
        let (engine, cell) = (Arc::clone(&self.lease.engine), Arc::clone(&self.lease.cell));
        if !cell.is_ours() {
            self.finished = true;
            return Ok(Released::AlreadyLost);
        }
        let state = self.stop_renewal();
        let ends = engine.now().after(engine.store_timeout);
        self.verdict_of_last_renewal(ends).await;
        let mut unanswered = false;
        let mut pause = FIRST_PAUSE;
        loop {
            let now = engine.now();
            let keep_for = self.min_hold_until.map(|until| until.since(now)).filter(|keep| !keep.is_zero());
            let request = ReleaseRequest { name: &cell.name, owner: &cell.owner, keep_for };
            let until = now.after(COMMAND_TIMEOUT).min(ends);
            let reply = engine.timers.before(until, engine.store.release(request)).await;
            match reply {
                Some(Ok(reply)) => {
                    self.finish();
                    return match reply {
                        ReleaseReply::NotHeld if unanswered => Err(unknown(&cell.name)),
                        ReleaseReply::NotHeld => {
                            if !matches!(state, LeaseState::Lost(_)) {
                                cell.tell_lost(LostCause::Missing);
                            }
                            Ok(Released::AlreadyLost)
                        }
                        ReleaseReply::Freed { .. } if matches!(state, LeaseState::Lost(_)) => {
                            Ok(Released::AlreadyLost)
                        }
                        ReleaseReply::Freed { handed_over } => {
                            if handed_over {
                                observe::hand_over("given");
                            }
                            Ok(Released::Freed)
                        }
                    };
                }
                Some(Err(error)) if !error.is_retryable() => return Err(error.context(&cell.name)),
                reply => {
                    let error = reply.and_then(Result::err);
                    unanswered |= error.as_ref().is_none_or(|error| error.kind() != ErrorKind::Unavailable);
                    let again_at = engine.now().after(engine.jitter(pause / 2, pause)).min(ends);
                    engine.timers.sleep_until(again_at).await;
                    pause = (pause * 2).min(MOST_PAUSE);
                    if again_at >= ends {
                        return Err(if unanswered {
                            unknown(&cell.name)
                        } else {
                            unavailable(&cell.name, error)
                        });
                    }
                }
            }
        }
    }

    /// Writes a record in the place of the one that was written before under this lease, and gives the name back in
    /// the same step.
    ///
    /// Cancel safety: when the future is dropped, the record may or may not be written; the name is given back in
    /// the background.
    pub(crate) async fn settle(
        mut self,
        expected: &[u8],
        record: &[u8],
        retain: Duration,
    ) -> Result<Settled, Error> {
        let (engine, cell) = (Arc::clone(&self.lease.engine), Arc::clone(&self.lease.cell));
        if !cell.is_ours() {
            self.finished = true;
            return Ok(Settled::NotHeld(LostCause::Forked));
        }
        let cause = self.lost_or_missing();
        self.stop_renewal();
        let ends = engine.now().after(engine.store_timeout);
        self.verdict_of_last_renewal(ends).await;
        let mut expected = Some(expected);
        let mut pause = FIRST_PAUSE;
        loop {
            let now = engine.now();
            let keep_for = self.min_hold_until.map(|until| until.since(now)).filter(|keep| !keep.is_zero());
            let (name, owner, then) = (&cell.name, &cell.owner, Then::Release { keep_for });
            let request = SwapRequest { name, owner, expected, record, retain, then };
            let until = now.after(COMMAND_TIMEOUT).min(ends);
            match engine.timers.before(until, engine.store.swap_record(request)).await {
                Some(Ok(SwapReply::Swapped { handed_over })) => {
                    self.finish();
                    if handed_over {
                        observe::hand_over("given");
                    }
                    return Ok(Settled::Kept);
                }
                Some(Ok(SwapReply::NotHeld { current })) => {
                    self.finish();
                    // An earlier try whose reply was lost has done it.
                    let done = current.as_deref() == Some(record);
                    return Ok(if done { Settled::Kept } else { Settled::NotHeld(cause) });
                }
                // Its time is over, or it was evicted. Nobody else can have run under this lease.
                Some(Ok(SwapReply::Differs { current: None })) if expected.is_some() => expected = None,
                Some(Ok(SwapReply::Differs { .. })) => return Err(changed_by_others(name)),
                Some(Err(error)) if !error.is_retryable() => return Err(error.context(name)),
                reply => {
                    let again_at = engine.now().after(engine.jitter(pause / 2, pause)).min(ends);
                    engine.timers.sleep_until(again_at).await;
                    pause = (pause * 2).min(MOST_PAUSE);
                    if again_at >= ends {
                        let expected = expected.map(<[u8]>::to_vec);
                        self.settle_later(Settlement { expected, record: record.to_vec(), retain });
                        return Err(not_settled(name, reply.and_then(Result::err)));
                    }
                }
            }
        }
    }

    /// How the lease was lost; `Missing` if only the store knows.
    pub(crate) fn lost_or_missing(&self) -> LostCause {
        match self.state() {
            LeaseState::Lost(cause) => cause,
            _ => LostCause::Missing,
        }
    }

    fn stop_renewal(&mut self) -> LeaseState {
        let (engine, cell) = (&self.lease.engine, &self.lease.cell);
        let state = cell.machine().release(engine.now());
        if !std::mem::replace(&mut self.reported, true) {
            let held = engine.now().since(cell.begins);
            observe::lease_ends(held, !matches!(state, LeaseState::Lost(_)));
            if cell.fixed {
                observe::fixed_lease_was_short(&cell.name, held, cell.ttl);
            }
        }
        if on(Rule::NoRenewalAfterRelease) {
            engine.forget(cell);
        }
        cell.changed.notify_waiters();
        state
    }

    /// A renewal that was sent reaches the store before the release: its verdict is awaited, since it would hold
    /// up the release on the way there anyway.
    async fn verdict_of_last_renewal(&self, ends: Moment) {
        let (engine, cell) = (&self.lease.engine, &self.lease.cell);
        let verdict = async {
            loop {
                let changed = cell.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if !cell.machine().awaits_verdict() {
                    return;
                }
                changed.await;
            }
        };
        engine.timers.before(engine.now().after(COMMAND_TIMEOUT).min(ends), verdict).await;
    }

    /// The store has answered the release; only requests that may still arrive are left to be cleaned up.
    fn finish(&mut self) {
        self.finished = true;
        let (engine, cell) = (&self.lease.engine, &self.lease.cell);
        engine.forget(cell);
        let late_until = cell.late_until.filter(|until| engine.now() <= *until);
        if let Some(late_until) = late_until {
            self.clean_up(Some(late_until));
        }
    }

    fn clean_up(&self, late_until: Option<Moment>) {
        self.lease.engine.clean_up(self.left(late_until));
    }

    /// What may be left in the store.
    fn left(&self, late_until: Option<Moment>) -> CleanUp {
        let (engine, cell) = (&self.lease.engine, &self.lease.cell);
        let ends = cell.machine().ends().max(engine.now().after(engine.store_timeout));
        CleanUp {
            name: cell.name.clone(),
            owner: cell.owner.clone(),
            keep_until: self.min_hold_until,
            late_until,
            gone_at: late_until.map_or(ends, |late| ends.max(late)),
            settlement: None,
        }
    }

    /// Goes on trying to settle in the background, and gives the name back with it.
    fn settle_later(&mut self, settlement: Settlement) {
        let left = self.left(self.lease.cell.late_until);
        self.lease
            .engine
            .clean_up(CleanUp { settlement: on(Rule::SettleLater).then_some(settlement), ..left });
        self.finished = true;
        self.lease.engine.forget(&self.lease.cell);
    }
}

impl std::ops::Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.finished || !self.lease.cell.is_ours() {
            return;
        }
        let released_before = !self.lease.cell.machine().is_active();
        self.stop_renewal();
        self.lease.engine.forget(&self.lease.cell);
        if on(if released_before { Rule::DetachedRelease } else { Rule::ReleaseOnDrop }) {
            self.clean_up(self.lease.cell.late_until);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

pub(crate) fn lost(name: &Name, cause: LostCause) -> Error {
    Error::new(ErrorKind::Lost(cause), format!("{name}: the lease was lost: {cause}"))
}

fn unknown(name: &Name) -> Error {
    Error::new(
        ErrorKind::Unknown,
        format!(
            "{name}: the reply to the release was lost, so whether the lease was held to the end is not known; \
             it is cleaned up in the background"
        ),
    )
}

fn changed_by_others(name: &Name) -> Error {
    Error::new(
        ErrorKind::Foreign,
        format!(
            "{name}: the record of this operation was changed by another program while it ran; it was left untouched, \
             so the outcome is not kept"
        ),
    )
}

fn not_settled(name: &Name, source: Option<Error>) -> Error {
    let error = Error::new(
        ErrorKind::Unknown,
        format!("{name}: the store did not confirm the outcome, so whether it is kept is not known"),
    );
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}

fn unavailable(name: &Name, source: Option<Error>) -> Error {
    let error = Error::new(
        ErrorKind::Unavailable,
        format!(
            "{name}: the store could not be reached to release the lease; it is retried in the background"
        ),
    );
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}
