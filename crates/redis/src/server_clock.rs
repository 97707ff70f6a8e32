//! The server's time as this process knows it: a lower bound, learned from replies. Owns no clock.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use leasehold_core::Moment;

/// How long an estimate is kept when no better one comes: the clocks drift apart, by 200 ppm at most 2 ms in
/// this time.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// What is known about the server's clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    best: Mutex<Option<Sample>>,
}

/// One reply that carried the server's time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The server's time in microseconds since 1970.
    server_micros: u64,
    /// When the reply had arrived: the server's clock showed at least `server_micros` then.
    received_at: Moment,
}

impl Sample {
    /// The server's time at that moment is at least this.
    fn at(self, moment: Moment) -> u64 {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if moment >= self.received_at {
            self.server_micros.saturating_add(micros(moment.since(self.received_at)))
        } else {
            self.server_micros.saturating_sub(micros(self.received_at.since(moment)))
        }
    }
}

impl ServerClock {
    /// Learns from a reply. The server's time was read between the two moments.
    pub(crate) fn learn(&self, server_micros: u64, sent_at: Moment, received_at: Moment) {
        let sample = Sample { server_micros, received_at };
        let mut best = self.best.lock().unwrap_or_else(PoisonError::into_inner);
        let keep_old = best.is_some_and(|old| {
            let fresh = received_at.since(old.received_at) < KEPT_FOR;
            // When even the latest reading of this reply is behind, the server's clock was set back.
            let set_back = old.at(sent_at) > server_micros;
            fresh && !set_back && old.at(received_at) > sample.at(received_at)
        });
        if !keep_old {
            *best = Some(sample);
        }
    }

    /// The server's time at a moment of our clock, in microseconds: this or later, unless its clock was set
    /// back since. `None` before anything was learned.
    pub(crate) fn at(&self, moment: Moment) -> Option<u64> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner).map(|sample| sample.at(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn the_estimate_is_never_ahead_of_the_server() {
        let clock = ServerClock::default();
        assert_eq!(clock.at(at(5)), None);
        clock.learn(1_000_000, at(100), at(140));
        assert_eq!(clock.at(at(140)), Some(1_000_000));
        assert_eq!(clock.at(at(150)), Some(1_010_000));
        assert_eq!(clock.at(at(130)), Some(990_000));
    }

    #[test]
    fn a_slow_reply_does_not_replace_a_quick_one() {
        let clock = ServerClock::default();
        clock.learn(1_000_000, at(100), at(101));
        clock.learn(1_050_000, at(150), at(900));
        assert_eq!(clock.at(at(1_000)), Some(1_899_000));
    }

    #[test]
    fn an_old_estimate_and_one_from_before_the_clock_was_set_back_are_replaced() {
        let clock = ServerClock::default();
        clock.learn(1_000_000, at(100), at(101));
        clock.learn(500_000, at(200), at(201));
        assert_eq!(clock.at(at(201)), Some(500_000));
        clock.learn(10_600_000, at(10_300), at(10_400));
        assert_eq!(clock.at(at(10_400)), Some(10_600_000));
    }
}
