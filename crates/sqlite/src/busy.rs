//! Waiting for other processes' transactions: short sleeps of random length until a deadline, instead of
//! SQLite's own handler, whose sleeps grow to 100 ms and starve whoever has waited longest.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// The shortest and the longest sleep, in microseconds: a transaction takes 10 to 20.
const SHORTEST_US: u64 = 30;
const LONGEST_US: u64 = 200;

/// One wait for a turn at the file.
pub(crate) struct Patience {
    until: Instant,
    random: u64,
}

impl Patience {
    /// Waits until this moment.
    pub(crate) fn until(until: Instant) -> Self {
        Self { until, random: RandomState::new().hash_one(0) | 1 }
    }

    /// Waits this long from now.
    pub(crate) fn lasting(timeout: Duration) -> Self {
        let now = Instant::now();
        Self::until(now.checked_add(timeout).unwrap_or(now))
    }

    /// Whether the time is over.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Sleeps a little; `false` when the time is over.
    pub(crate) fn sleep(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        std::thread::sleep(Duration::from_micros(SHORTEST_US + self.next() % (LONGEST_US - SHORTEST_US)));
        true
    }

    /// Marsaglia's xorshift: spreading processes apart needs no better randomness.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
