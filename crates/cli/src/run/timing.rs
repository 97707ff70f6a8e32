//! When a running command is told to stop, and when it is killed, from what is left of its lease. Pure: time
//! comes in as values. What is sent to whom is the supervisor's business.

use std::time::Duration;

use leasehold::core::Moment;

use crate::durations::show;

/// Without `--grace`, a command gets this long to stop …
const GRACE_MOST: Duration = Duration::from_secs(5);
/// … or this part of the TTL if that is less: renewal has then failed for more than a third of the TTL.
const GRACE_DIVISOR: u32 = 4;
/// The command must be gone this part of the TTL before the lease can have ended …
const MARGIN_DIVISOR: u32 = 10;
/// … but never has to be gone earlier than this before it.
const MARGIN_MOST: Duration = Duration::from_secs(1);
/// A lease is looked at no less often than this: timers do not count the time a machine sleeps.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How the end of a lease is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Between telling the command to stop and killing it.
    pub(crate) grace: Duration,
    /// Between killing it and the end of the lease.
    pub(crate) margin: Duration,
}

/// What the remaining time of a lease asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing; look again after this long at the latest.
    Nothing(Duration),
    /// Tell the command to stop.
    Terminate,
    /// Kill what is left of it.
    Kill,
}

impl Timing {
    /// The timing for a lease of this TTL. The error is advice for the user.
    pub(crate) fn new(ttl: Duration, grace: Option<Duration>) -> Result<Self, String> {
        let margin = (ttl / MARGIN_DIVISOR).min(MARGIN_MOST);
        let grace = grace.unwrap_or_else(|| GRACE_MOST.min(ttl / GRACE_DIVISOR));
        if grace >= ttl / 2 {
            return Err(format!(
                "--grace {} must be less than half of --ttl {}, or the command would be stopped while its lease \
                 is still being renewed: give a shorter --grace or a longer --ttl",
                show(grace),
                show(ttl)
            ));
        }
        Ok(Self { grace, margin })
    }

    /// What to do when this much is left until the lease can have ended.
    pub(crate) fn due(&self, remaining: Duration) -> Due {
        match remaining.checked_sub(self.margin) {
            None | Some(Duration::ZERO) => Due::Kill,
            Some(until_kill) => match until_kill.checked_sub(self.grace) {
                None | Some(Duration::ZERO) => Due::Terminate,
                Some(until_stop) => Due::Nothing(until_stop.min(LOOK_AGAIN)),
            },
        }
    }

    /// When to kill a command that is told to stop now, under a lease that lasts until then.
    pub(crate) fn kill_at(&self, now: Moment, safe_until: Moment) -> Moment {
        now.after(self.grace).min(safe_until.before(self.margin))
    }

    /// How long before the end of the lease the watchdog kills, which must not forestall the supervisor.
    pub(crate) fn watchdog_margin(&self) -> Duration {
        self.margin / 2
    }

    /// Whether this much is enough to start a command with: not yet the moment to stop it, with some room.
    pub(crate) fn allows_start(&self, remaining: Duration) -> bool {
        remaining > self.grace + 2 * self.margin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn grace_is_five_seconds_or_a_quarter_of_the_ttl() {
        assert_eq!(Timing::new(ms(30_000), None).unwrap(), Timing { grace: ms(5_000), margin: ms(1_000) });
        assert_eq!(Timing::new(ms(2_000), None).unwrap(), Timing { grace: ms(500), margin: ms(200) });
    }

    /// F141: A grace that does not fit the TTL is refused with both options named.
    #[test]
    fn f141_half_of_the_ttl_or_more_is_refused_naming_both_options() {
        for grace in [1_000, 1_500, 5_000] {
            let advice = Timing::new(ms(2_000), Some(ms(grace))).unwrap_err();
            assert!(advice.contains("--grace") && advice.contains("--ttl"), "{advice}");
        }
        assert!(Timing::new(ms(2_000), Some(ms(999))).is_ok());
        assert!(Timing::new(ms(2_000), Some(Duration::ZERO)).is_ok());
    }

    /// F022: TERM and KILL are planned by the lease: TERM, then the grace, then KILL, all before the lease
    /// can have ended.
    #[test]
    fn f022_the_command_is_told_before_it_is_killed_and_killed_before_the_lease_ends() {
        let timing = Timing::new(ms(3_000), Some(ms(500))).unwrap();
        assert_eq!(timing.due(ms(2_900)), Due::Nothing(ms(1_000)));
        assert_eq!(timing.due(ms(1_000)), Due::Nothing(ms(200)));
        assert_eq!(timing.due(ms(800)), Due::Terminate);
        assert_eq!(timing.due(ms(301)), Due::Terminate);
        assert_eq!(timing.due(ms(300)), Due::Kill);
        assert_eq!(timing.due(Duration::ZERO), Due::Kill);
    }

    #[test]
    fn the_grace_is_cut_short_by_the_end_of_the_lease() {
        let timing = Timing::new(ms(3_000), Some(ms(500))).unwrap();
        let at = |since| Moment::from_origin(ms(since));
        assert_eq!(timing.kill_at(at(10_000), at(12_000)), at(10_500));
        assert_eq!(timing.kill_at(at(10_000), at(10_600)), at(10_300));
        assert!(timing.kill_at(at(10_000), at(9_000)) < at(10_000), "a lease that is over: at once");
    }

    #[test]
    fn a_healthy_lease_is_never_in_the_time_for_stopping() {
        for (ttl, grace) in [(30_000, None), (2_000, None), (100, None), (2_000, Some(ms(999)))] {
            let timing = Timing::new(ms(ttl), grace).unwrap();
            // The least that is left with renewals at a third, and drift taken off.
            let least = ms(ttl * 2 / 3 - ttl / 100 - 2);
            assert!(matches!(timing.due(least), Due::Nothing(_)), "ttl {ttl} grace {grace:?}");
        }
    }
}
