//! What operators see: metrics and events with stable names. Nothing here decides anything.
//!
//! Metrics go through the `metrics` facade and cost next to nothing while no recorder is installed. No series
//! carries the name of a lock, so their number is bounded whatever the names are; `docs/observability.md` lists
//! them.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::error::LostCause;
use crate::name::Name;

/// How an acquisition ended.
#[derive(Clone, Copy)]
pub(crate) enum Acquired {
    Granted,
    Busy,
    Failed,
    Cancelled,
}

impl Acquired {
    fn label(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An acquisition ended after this long.
pub(crate) fn acquisition(outcome: Acquired, waited: Duration) {
    histogram!("leasehold_acquire_seconds", "outcome" => outcome.label()).record(waited);
}

/// A lease came under the keeper's care.
pub(crate) fn lease_begins() {
    gauge!("leasehold_leases_held").increment(1.0);
}

/// A lease left the keeper's care; `whole` says whether it was held to its end.
pub(crate) fn lease_ends(held: Duration, whole: bool) {
    gauge!("leasehold_leases_held").decrement(1.0);
    histogram!("leasehold_hold_seconds", "end" => if whole { "released" } else { "lost" }).record(held);
}

/// A lease that is not renewed was given back: late, or so late that the next one may be lost.
pub(crate) fn fixed_lease_was_short(name: &Name, held: Duration, ttl: Duration) {
    if held > ttl {
        tracing::warn!(
            %name, ?held, ?ttl,
            "the work took longer than its fixed lease, so another holder may have worked at the same time: give a \
             longer ttl, or let the lease be renewed"
        );
    } else if held > ttl * 4 / 5 {
        tracing::warn!(
            %name, ?held, ?ttl,
            "the work used more than 80 % of its fixed lease: give a longer ttl, or let the lease be renewed"
        );
    }
}

/// An acquisition has been waiting for a lease of its own client.
pub(crate) fn waits_for_own_lease(name: &Name, waited: Duration) {
    tracing::warn!(
        %name, ?waited,
        "waiting for a name that this client holds itself: if one task keeps the guard and waits, it waits for itself"
    );
}

/// A lease was lost.
pub(crate) fn lost(cause: LostCause) {
    counter!("leasehold_lost_total", "cause" => cause.label()).increment(1);
}

/// A renewal was answered (`renewed`, `refused`) or not (`failed`).
pub(crate) fn renewal(outcome: &'static str) {
    counter!("leasehold_renewals_total", "outcome" => outcome).increment(1);
}

/// A renewal was sent this long after it was due.
pub(crate) fn renewal_lag(lag: Duration) {
    histogram!("leasehold_renewal_lag_seconds").record(lag);
}

/// A release handed the name to a waiter (`given`), or a waiter was granted it by push (`received`).
pub(crate) fn hand_over(side: &'static str) {
    counter!("leasehold_handovers_total", "side" => side).increment(1);
}

/// A waiter asked the store again, for this reason: `poll`, `confirm`, `reconnect` or `trouble`.
pub(crate) fn asked_again(reason: &'static str) {
    counter!("leasehold_asked_again_total", "reason" => reason).increment(1);
}

/// A store did an operation (`acquire`, `release`) step by step, since it could not do it in one.
pub(crate) fn step_by_step(operation: &'static str) {
    counter!("leasehold_step_by_step_total", "operation" => operation).increment(1);
}

/// A waiter is queued without a channel, so it polls.
pub(crate) fn polling_fallback() {
    counter!("leasehold_polling_fallbacks_total").increment(1);
}

/// A clean-up ended: `done`, `refused` or `expired`.
pub(crate) fn clean_up(outcome: &'static str) {
    counter!("leasehold_cleanups_total", "outcome" => outcome).increment(1);
}
