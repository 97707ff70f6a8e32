//! The lease state machine: pure, without a clock, a thread or a network. Time and replies come in as values;
//! what to do next comes out. Nothing else in the engine decides when to renew or when a lease is lost.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::LostCause;
use crate::mutation::{Rule, on};

/// Clocks of client and server may run apart by this part of the lease (1 %) …
const DRIFT_DIVISOR: u32 = 100;
/// … and expiry on the server may be this much early, because it counts in whole milliseconds.
const DRIFT_FLOOR: Duration = Duration::from_millis(2);
/// A lease is renewed after a third of its time, so two attempts may fail.
const RENEWAL_DIVISOR: u32 = 3;
/// The work is told to stop this part of the lease before its end …
const MARGIN_DIVISOR: u32 = 10;
/// … but never earlier than this.
const MARGIN_MOST: Duration = Duration::from_secs(1);
/// The first retry of a failed renewal comes after this part of the lease, later ones double it …
const RETRY_DIVISOR: u32 = 30;
/// … up to this part.
const RETRY_DIVISOR_MOST: u32 = 6;
/// Retries are never closer than this.
const RETRY_LEAST: Duration = Duration::from_millis(2);

/// What a holder knows of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// It is held: nobody else can be granted the name before the deadline.
    Held,
    /// It is held until its deadline, but the last renewal brought no verdict.
    Uncertain,
    /// It is lost, for this reason. A lost lease never comes back.
    Lost(LostCause),
    /// Its guard has given it back: only views that outlive the guard see this.
    Released,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until [`Machine::next_event`].
    Wait,
    /// Send a renewal with this TTL.
    Renew(Duration),
    /// The lease has just been lost: tell its holder. Given once.
    Lost(LostCause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Active,
    Lost(LostCause),
    /// Being given back: later verdicts change nothing.
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Idle,
    /// Its holder asks for one now; the keeper has not seen it yet.
    Wanted,
    /// Handed to a batch, not sent yet.
    Queued,
    /// Sent; its verdict is awaited.
    Sent,
}

/// One lease, from its grant to its end.
#[derive(Debug)]
pub(crate) struct Machine {
    ttl: Duration,
    renewed: bool,
    /// The time given by the latest grant or renewal: the claim time of a hand-over, the TTL afterwards.
    period: Duration,
    ends: Moment,
    hold_limit: Moment,
    next_renewal: Moment,
    failures: u32,
    renewal: Renewal,
    phase: Phase,
}

/// What a lease is granted with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Just before the request that was granted was sent, or a moment certainly before the grant.
    pub(crate) granted_after: Moment,
    /// How long the grant lasts.
    pub(crate) period: Duration,
    /// How long each renewal lasts.
    pub(crate) ttl: Duration,
    /// Renew it while its holder lives; a hand-over is confirmed to the full TTL once in any case.
    pub(crate) renewed: bool,
    /// Lose it after this long.
    pub(crate) max_hold: Option<Duration>,
}

impl Machine {
    pub(crate) fn granted(terms: Terms) -> Self {
        let hold_limit = match terms.max_hold {
            Some(max_hold) if on(Rule::MaxHold) => terms.granted_after.after(max_hold),
            _ => Moment::NEVER,
        };
        let mut machine = Self {
            ttl: terms.ttl,
            renewed: terms.renewed,
            period: terms.period,
            ends: Moment::default(),
            hold_limit,
            next_renewal: Moment::NEVER,
            failures: 0,
            renewal: Renewal::Idle,
            phase: Phase::Active,
        };
        machine.lasts_from(terms.granted_after, terms.period);
        machine
    }

    /// The moment from which the lease may have ended on the store.
    pub(crate) fn ends(&self) -> Moment {
        self.ends
    }

    /// The time given by the latest grant or renewal.
    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// The moment at which the holder is told that it lost the lease, if nothing prolongs it.
    pub(crate) fn lost_at(&self) -> Moment {
        if !on(Rule::LostAtDeadline) {
            return self.hold_limit;
        }
        let margin = if on(Rule::SafetyMargin) { margin(self.period) } else { Duration::ZERO };
        self.ends.before(margin).min(self.hold_limit)
    }

    pub(crate) fn state(&self) -> LeaseState {
        match self.phase {
            Phase::Lost(cause) => LeaseState::Lost(cause),
            Phase::Released => LeaseState::Released,
            Phase::Active if self.failures > 0 => LeaseState::Uncertain,
            Phase::Active => LeaseState::Held,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// When the next renewal is or was due.
    pub(crate) fn renewal_due(&self) -> Moment {
        self.next_renewal
    }

    /// Whether a renewal was sent and has not been answered.
    pub(crate) fn awaits_verdict(&self) -> bool {
        self.renewal == Renewal::Sent
    }

    /// Whether a renewal was asked for and has no verdict yet.
    pub(crate) fn is_renewing(&self) -> bool {
        self.renewal != Renewal::Idle
    }

    /// When [`Machine::step`] wants to be called next; `NEVER` once the lease is over.
    pub(crate) fn next_event(&self) -> Moment {
        if self.phase != Phase::Active {
            return Moment::NEVER;
        }
        let renewal = if self.may_begin_renewal() { self.next_renewal } else { Moment::NEVER };
        self.lost_at().min(renewal)
    }

    fn may_begin_renewal(&self) -> bool {
        matches!(self.renewal, Renewal::Idle | Renewal::Wanted)
    }

    /// Decides what is to be done now.
    pub(crate) fn step(&mut self, now: Moment) -> Step {
        if self.phase != Phase::Active {
            return Step::Wait;
        }
        if now >= self.lost_at() {
            let cause = self.cause_at(now);
            self.phase = Phase::Lost(cause);
            return Step::Lost(cause);
        }
        if now >= self.next_renewal && self.may_begin_renewal() {
            self.renewal = Renewal::Queued;
            return Step::Renew(self.ttl);
        }
        Step::Wait
    }

    /// Asks for a renewal now, with a new TTL if one is given. False if one is under way or the lease is over.
    pub(crate) fn renew_now(&mut self, now: Moment, ttl: Option<Duration>) -> bool {
        if let Some(ttl) = ttl {
            self.ttl = ttl;
        }
        if self.phase != Phase::Active || self.renewal != Renewal::Idle {
            return false;
        }
        self.next_renewal = now;
        self.renewal = Renewal::Wanted;
        true
    }

    /// Makes the next renewal due now, if the lease is renewed at all and none is under way. True if it was not.
    pub(crate) fn hurry(&mut self, now: Moment) -> bool {
        let hurries = self.phase == Phase::Active
            && self.renewal == Renewal::Idle
            && now < self.next_renewal
            && self.next_renewal != Moment::NEVER;
        if hurries {
            self.next_renewal = now;
        }
        hurries
    }

    /// Call just before a queued renewal is sent: its TTL, or `None` if it is no longer wanted.
    pub(crate) fn sending(&mut self) -> Option<Duration> {
        if self.renewal != Renewal::Queued {
            return None;
        }
        if self.phase != Phase::Active {
            self.renewal = Renewal::Idle;
            return None;
        }
        self.renewal = Renewal::Sent;
        Some(self.ttl)
    }

    /// The store renewed the lease with a request sent at `sent_at`.
    pub(crate) fn renewed(&mut self, sent_at: Moment, ttl: Duration, now: Moment) {
        self.renewal = Renewal::Idle;
        if self.phase != Phase::Active || now >= self.lost_at() {
            // Too late to count: `step` reports the loss.
            return;
        }
        self.failures = 0;
        self.lasts_from(sent_at, ttl);
        if !self.renewed {
            self.next_renewal = Moment::NEVER;
        }
    }

    /// A renewal brought no verdict: the reply was lost, or the store could not be reached.
    pub(crate) fn renewal_failed(&mut self, now: Moment) {
        self.renewal = Renewal::Idle;
        if self.phase != Phase::Active {
            return;
        }
        let doubled = (self.period / RETRY_DIVISOR).saturating_mul(1 << self.failures.min(8));
        let pause = doubled.min(self.period / RETRY_DIVISOR_MOST).max(RETRY_LEAST);
        self.failures += 1;
        self.next_renewal = if on(Rule::RetryRenewal) { now.after(pause) } else { Moment::NEVER };
    }

    /// The store says that the lease is not this owner's. True if that is news.
    pub(crate) fn refused(&mut self, cause: LostCause) -> bool {
        self.renewal = Renewal::Idle;
        let counts = self.phase == Phase::Active || !on(Rule::IgnoreLateVerdict);
        if counts {
            self.phase = Phase::Lost(cause);
        }
        counts
    }

    /// Its holder gives it back: no renewal is started any more. What it was until now.
    pub(crate) fn release(&mut self, now: Moment) -> LeaseState {
        if self.phase == Phase::Active && now >= self.lost_at() {
            self.phase = Phase::Lost(self.cause_at(now));
        }
        let state = self.state();
        if self.phase == Phase::Active && on(Rule::NoRenewalAfterRelease) {
            self.phase = Phase::Released;
        }
        state
    }

    fn cause_at(&self, now: Moment) -> LostCause {
        if now >= self.hold_limit {
            LostCause::MaxHold
        } else if self.failures > 0 || self.renewal == Renewal::Sent {
            LostCause::Unreachable
        } else {
            LostCause::Expired
        }
    }

    fn lasts_from(&mut self, from: Moment, period: Duration) {
        let drift = if on(Rule::DriftAllowance) { drift(period) } else { Duration::ZERO };
        let ends = from.after(period).before(drift);
        // A shorter renewal never takes away what an earlier one gave. From now on renewals give no more than this
        // one, so the margin must be that of its period: a longer one could never be reached again.
        self.ends = self.ends.max(ends);
        self.period = period;
        self.next_renewal = if self.renewed || period < self.ttl {
            from.after(period / RENEWAL_DIVISOR)
        } else {
            Moment::NEVER
        };
    }
}

/// What is taken off a lease for clocks that run apart.
pub(crate) fn drift(period: Duration) -> Duration {
    period / DRIFT_DIVISOR + DRIFT_FLOOR
}

/// How long before its deadline a lease counts as lost, so that its work can be stopped.
pub(crate) fn margin(period: Duration) -> Duration {
    (period / MARGIN_DIVISOR).min(MARGIN_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(100_000 + millis))
    }

    fn machine() -> Machine {
        Machine::granted(Terms { granted_after: at(0), period: TTL, ttl: TTL, renewed: true, max_hold: None })
    }

    fn renewal_sent(machine: &mut Machine, now: Moment) {
        assert_eq!(machine.step(now), Step::Renew(TTL));
        assert_eq!(machine.sending(), Some(TTL));
    }

    #[test]
    fn trap_5_a_lease_counts_from_just_before_the_send_minus_drift() {
        assert_eq!(machine().ends(), at(3_000 - 30 - 2));
    }

    #[test]
    fn it_is_renewed_after_a_third_and_counts_from_that_send() {
        let mut machine = machine();
        assert_eq!(machine.step(at(999)), Step::Wait);
        renewal_sent(&mut machine, at(1_000));
        machine.renewed(at(1_000), TTL, at(1_500));
        assert_eq!(machine.ends(), at(3_968));
        assert_eq!(machine.next_event(), at(2_000));
    }

    #[test]
    fn trap_21_it_is_lost_a_margin_before_its_deadline_once_and_for_good() {
        let mut machine = machine();
        renewal_sent(&mut machine, at(1_000));
        assert_eq!(machine.step(at(2_667)), Step::Wait);
        assert_eq!(machine.step(at(2_668)), Step::Lost(LostCause::Unreachable));
        assert_eq!(machine.step(at(2_700)), Step::Wait);
        machine.renewed(at(1_000), TTL, at(2_701));
        assert_eq!(machine.state(), LeaseState::Lost(LostCause::Unreachable));
        assert_eq!(machine.next_event(), Moment::NEVER);
    }

    #[test]
    fn unknown_never_prolongs_and_is_retried_with_back_off() {
        let mut machine = machine();
        renewal_sent(&mut machine, at(1_000));
        machine.renewal_failed(at(1_100));
        assert_eq!(machine.state(), LeaseState::Uncertain);
        assert_eq!(machine.ends(), at(2_968));
        assert_eq!(machine.next_event(), at(1_200));
        renewal_sent(&mut machine, at(1_200));
        machine.renewal_failed(at(1_200));
        assert_eq!(machine.next_event(), at(1_400));
        renewal_sent(&mut machine, at(1_400));
        machine.renewed(at(1_400), TTL, at(1_401));
        assert_eq!(machine.state(), LeaseState::Held);
    }

    #[test]
    fn a_refusal_loses_it_at_once() {
        let mut machine = machine();
        renewal_sent(&mut machine, at(1_000));
        assert!(machine.refused(LostCause::Taken));
        assert_eq!(machine.state(), LeaseState::Lost(LostCause::Taken));
    }

    #[test]
    fn trap_14_a_verdict_after_the_release_changes_nothing() {
        let mut machine = machine();
        renewal_sent(&mut machine, at(1_000));
        assert_eq!(machine.release(at(1_001)), LeaseState::Held);
        assert!(!machine.refused(LostCause::Missing));
        assert_eq!(machine.state(), LeaseState::Released);
    }

    #[test]
    fn trap_13_no_renewal_starts_after_the_release() {
        let mut machine = machine();
        assert_eq!(machine.step(at(1_000)), Step::Renew(TTL));
        machine.release(at(1_001));
        assert_eq!(machine.sending(), None, "a queued renewal is not sent any more");
        assert_eq!(machine.step(at(2_000)), Step::Wait);
        assert_eq!(machine.next_event(), Moment::NEVER);
    }

    #[test]
    fn trap_18_max_hold_loses_a_lease_however_often_it_is_renewed() {
        let mut machine = Machine::granted(Terms {
            granted_after: at(0),
            period: TTL,
            ttl: TTL,
            renewed: true,
            max_hold: Some(Duration::from_millis(1_500)),
        });
        renewal_sent(&mut machine, at(1_000));
        machine.renewed(at(1_000), TTL, at(1_001));
        assert_eq!(machine.step(at(1_499)), Step::Wait);
        assert_eq!(machine.step(at(1_500)), Step::Lost(LostCause::MaxHold));
    }

    #[test]
    fn a_fixed_lease_is_never_renewed() {
        let mut machine = Machine::granted(Terms {
            granted_after: at(0),
            period: TTL,
            ttl: TTL,
            renewed: false,
            max_hold: None,
        });
        assert_eq!(machine.next_event(), machine.lost_at());
        assert_eq!(machine.step(at(2_900)), Step::Lost(LostCause::Expired));
    }

    #[test]
    fn a_lease_that_is_hurried_is_renewed_at_once_unless_it_is_fixed_or_over() {
        let mut machine = machine();
        assert!(machine.hurry(at(10)) && !machine.hurry(at(10)));
        renewal_sent(&mut machine, at(10));
        assert!(!machine.hurry(at(11)), "one is under way");
        machine.renewed(at(10), TTL, at(12));
        assert_eq!(machine.next_event(), at(10 + 1_000));
        machine.refused(LostCause::Missing);
        assert!(!machine.hurry(at(20)));
        let mut fixed = Machine::granted(Terms {
            granted_after: at(0),
            period: TTL,
            ttl: TTL,
            renewed: false,
            max_hold: None,
        });
        assert!(!fixed.hurry(at(10)));
    }

    #[test]
    fn a_claim_is_confirmed_to_the_full_ttl_after_a_third_of_its_time() {
        for renewed in [true, false] {
            let claim = Duration::from_millis(900);
            let mut machine = Machine::granted(Terms {
                granted_after: at(0),
                period: claim,
                ttl: TTL,
                renewed,
                max_hold: None,
            });
            assert_eq!(machine.ends(), at(900 - 9 - 2));
            renewal_sent(&mut machine, at(300));
            machine.renewed(at(300), TTL, at(301));
            assert_eq!(machine.ends(), at(3_268));
            assert_eq!(machine.next_event(), if renewed { at(1_300) } else { machine.lost_at() });
        }
    }

    #[test]
    fn extending_to_less_takes_nothing_away() {
        let mut machine = machine();
        let short = Duration::from_millis(100);
        assert!(machine.renew_now(at(10), Some(short)));
        assert_eq!(machine.step(at(10)), Step::Renew(short));
        machine.sending();
        machine.renewed(at(10), short, at(11));
        assert_eq!(machine.ends(), at(2_968));
        assert_eq!(machine.lost_at(), at(2_958), "the margin is that of the renewals to come");
    }

    #[test]
    fn a_wanted_renewal_is_under_way_until_its_own_verdict() {
        let mut machine = machine();
        assert!(machine.renew_now(at(10), None));
        assert!(machine.is_renewing(), "before the keeper sees it");
        assert!(!machine.renew_now(at(10), None), "one at a time");
        renewal_sent(&mut machine, at(11));
        assert!(machine.is_renewing());
        machine.renewed(at(11), TTL, at(12));
        assert!(!machine.is_renewing());
    }

    #[test]
    fn trap_6_and_20_a_process_that_was_stopped_finds_its_lease_lost() {
        let mut machine = machine();
        assert_eq!(machine.release(at(60_000)), LeaseState::Lost(LostCause::Expired));
    }
}
