//! Moments and clocks. Every deadline in the engine is a [`Moment`] of one [`Clock`]; no wall clock is used
//! anywhere, so stepping the system time changes nothing.

use std::fmt;
use std::time::Duration;

/// A point on a [`Clock`], in nanoseconds since that clock's origin. Only moments of one clock compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment this long after the clock's origin.
    pub fn from_origin(since: Duration) -> Self {
        Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time since the clock's origin.
    pub fn since_origin(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// This moment plus a duration; [`Moment::NEVER`] instead of an overflow.
    #[must_use = "a moment is not changed in place"]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// This moment minus a duration; the origin instead of an underflow.
    #[must_use = "a moment is not changed in place"]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long from an earlier moment to this one; zero when that moment is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("Moment(never)");
        }
        write!(f, "Moment({:?})", self.since_origin())
    }
}

/// A clock that never goes back and, where the system offers it, counts the time a machine sleeps.
pub trait Clock: Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Moment;
}

/// The system's clock since boot, time in suspend included: `CLOCK_BOOTTIME` on Linux, `CLOCK_MONOTONIC` on
/// macOS (which counts suspend there).
///
/// It does not count while a virtual machine is paused or moved; only fencing tokens protect against that.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        Moment::from_origin(Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        ))
    }
}

/// The clock of a paused Tokio runtime: time moves only when every task waits, and then jumps to the next
/// timer. For tests, of this crate and of programs that use it.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    origin: tokio::time::Instant,
}

impl VirtualClock {
    /// A clock that starts now. Call it inside a runtime whose time is paused.
    pub fn start() -> Self {
        #[allow(clippy::disallowed_methods, reason = "the virtual clock is where virtual time is read")]
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        // An hour past the origin, so that tests can look at moments before the start.
        Moment::from_origin(Duration::from_secs(3600) + self.origin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_overflowing() {
        let moment = Moment::from_origin(Duration::from_secs(5));
        assert_eq!(moment.after(Duration::MAX), Moment::NEVER);
        assert_eq!(moment.before(Duration::MAX), Moment::default());
        assert_eq!(Moment::default().since(moment), Duration::ZERO);
    }

    #[test]
    fn the_system_clock_moves_forward() {
        let first = SystemClock.now();
        assert!(SystemClock.now() >= first);
        assert!(first > Moment::default());
    }
}
