//! What can be asked of a lock, its defaults and its limits. Checked here once, before anything is sent.

use std::time::Duration;

use crate::error::Error;
use crate::mutation::{Rule, on};
use crate::owner::OwnerToken;

/// The shortest TTL, 10 ms: a few round trips to a store in the same data centre.
pub const MIN_TTL: Duration = Duration::from_millis(10);
/// The longest TTL, 24 h; longer work is renewed.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// 30 s: long enough to survive a garbage collection or a short failover, short enough to wait for after a crash.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How long the store may be unreachable before `Unavailable`: 10 s.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one command may take before its reply counts as lost: 1 s.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest `max_hold`, 365 days.
pub const MAX_HOLD_LIMIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long to wait for a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wait {
    /// Not at all.
    #[default]
    No,
    /// At most this long.
    For(Duration),
    /// Until it is granted.
    Forever,
}

/// What is asked of a lock.
#[derive(Clone, Debug, Default)]
pub struct LockOptions {
    /// How long the lease lasts without renewal: 10 ms to 24 h, 30 s by default. Parts of a millisecond are
    /// cut off.
    pub ttl: Option<Duration>,
    /// Do not renew: the lease ends on time even if the work goes on.
    pub fixed_lease: bool,
    /// How long to wait for a name that is taken.
    pub wait: Wait,
    /// The lease is lost after this long, however alive its holder is: 10 ms to 365 days.
    pub max_hold: Option<Duration>,
    /// The name stays taken for at least this long, even if it is released earlier: up to 24 h.
    pub min_hold: Option<Duration>,
    /// Resume the lease of this owner.
    pub owner: Option<OwnerToken>,
    /// How many replicas must confirm the grant.
    pub acks: u32,
}

/// Options that have passed their checks.
#[derive(Clone, Debug)]
pub(crate) struct CheckedOptions {
    pub(crate) ttl: Duration,
    pub(crate) fixed_lease: bool,
    pub(crate) wait: Wait,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) owner: Option<OwnerToken>,
    pub(crate) acks: u32,
}

impl LockOptions {
    /// Checks every option against its limits.
    pub(crate) fn check(&self, acks_possible: bool) -> Result<CheckedOptions, Error> {
        let ttl = whole_millis(self.ttl.unwrap_or(DEFAULT_TTL));
        if on(Rule::Limits) {
            within("ttl", ttl, MIN_TTL, MAX_TTL)?;
        }
        if let Some(max_hold) = self.max_hold {
            within("max_hold", max_hold, MIN_TTL, MAX_HOLD_LIMIT)?;
        }
        if let Some(min_hold) = self.min_hold {
            within("min_hold", min_hold, Duration::from_millis(1), MAX_TTL)?;
            if self.max_hold.is_some_and(|max_hold| max_hold < min_hold) {
                return Err(Error::config("min_hold is longer than max_hold: make it at most as long"));
            }
        }
        if self.acks > 0 && !acks_possible {
            return Err(Error::config(format!(
                "acks={} was asked for, but this store has no replicas that could confirm: remove acks",
                self.acks
            )));
        }
        Ok(CheckedOptions {
            ttl,
            fixed_lease: self.fixed_lease,
            wait: self.wait,
            max_hold: self.max_hold,
            min_hold: self.min_hold,
            owner: self.owner.clone(),
            acks: self.acks,
        })
    }
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn within(option: &str, given: Duration, least: Duration, most: Duration) -> Result<(), Error> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(Error::config(format!("{option} is {given:?}: {least:?} to {} are allowed", readable(most))))
}

/// A duration for messages: parts of a millisecond tell nobody anything.
pub(crate) fn rounded(duration: Duration) -> Duration {
    if duration < Duration::from_millis(1) { duration } else { whole_millis(duration) }
}

fn readable(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds >= 2 * 24 * 60 * 60 => format!("{} days", seconds / (24 * 60 * 60)),
        seconds => format!("{} h", seconds / (60 * 60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_8_ttls_outside_the_limits_are_refused_naming_them() {
        for ttl in
            [Duration::ZERO, Duration::from_micros(9_999), MAX_TTL + Duration::from_millis(1), Duration::MAX]
        {
            let options = LockOptions { ttl: Some(ttl), ..LockOptions::default() };
            let error = options.check(false).unwrap_err().to_string();
            assert!(error.contains("10ms") && error.contains("24 h"), "{error}");
        }
    }

    #[test]
    fn ttls_at_the_limits_pass_and_parts_of_a_millisecond_are_cut_off() {
        for (ttl, kept) in [
            (MIN_TTL, MIN_TTL),
            (MAX_TTL, MAX_TTL),
            (Duration::from_micros(10_999), Duration::from_millis(10)),
        ] {
            let options = LockOptions { ttl: Some(ttl), ..LockOptions::default() };
            assert_eq!(options.check(false).unwrap().ttl, kept);
        }
    }

    #[test]
    fn holds_that_contradict_each_other_are_refused() {
        let options = LockOptions {
            min_hold: Some(Duration::from_secs(9)),
            max_hold: Some(Duration::from_secs(5)),
            ..LockOptions::default()
        };
        assert!(options.check(false).unwrap_err().to_string().contains("max_hold"));
    }
}
