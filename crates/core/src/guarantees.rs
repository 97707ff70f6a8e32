//! What a store and its settings guarantee, fault by fault, for exclusion and for fencing tokens. It states; nothing
//! here makes it so. `docs/guarantees.md` is the same as a table, with the tests that show it.

use std::fmt;

/// What can go wrong, one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The holder does not run for longer than its TTL: stopped, swapped out, its virtual machine moved.
    HolderPause,
    /// The server, or the machine of an embedded store, crashes and comes back with everything it had confirmed.
    CrashKeepingData,
    /// It comes back without some of it, or empty.
    CrashLosingData,
    /// Another server takes its place.
    Failover,
    /// Some can reach it and others cannot.
    Partition,
    /// A wall clock is set ahead or back.
    ClockStep,
    /// Somebody deletes everything.
    Flush,
    /// The server deletes keys since its memory is full.
    Eviction,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 8] = [
        Self::HolderPause,
        Self::CrashKeepingData,
        Self::CrashLosingData,
        Self::Failover,
        Self::Partition,
        Self::ClockStep,
        Self::Flush,
        Self::Eviction,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HolderPause => "holder pause",
            Self::CrashKeepingData => "crash, data kept",
            Self::CrashLosingData => "crash, data lost",
            Self::Failover => "failover",
            Self::Partition => "partition",
            Self::ClockStep => "clock step",
            Self::Flush => "flush",
            Self::Eviction => "eviction",
        })
    }
}

/// What becomes of a promise under a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It holds as long as the clock of the server that goes on is not behind the last fencing token.
    HoldsIfClocksAgree,
    /// It can break: two holders at a time, or a token that is not larger than the one before.
    CanBreak,
    /// This store has no such fault.
    CannotHappen,
    /// There is no such promise.
    NotGiven,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds",
            Self::HoldsIfClocksAgree => "holds if clocks agree",
            Self::CanBreak => "can break",
            Self::CannotHappen => "cannot happen",
            Self::NotGiven => "not given",
        })
    }
}

/// A promise, and what each fault does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise([Outcome; Fault::ALL.len()]);

impl Promise {
    /// One that has the same outcome under every fault.
    pub const fn always(outcome: Outcome) -> Self {
        Self([outcome; Fault::ALL.len()])
    }

    /// The same, but with another outcome under this fault.
    #[must_use = "the promise is not changed in place"]
    pub const fn except(mut self, fault: Fault, outcome: Outcome) -> Self {
        self.0[fault as usize] = outcome;
        self
    }

    /// What becomes of it under this fault.
    pub const fn under(&self, fault: Fault) -> Outcome {
        self.0[fault as usize]
    }
}

/// What a store with its settings guarantees.
///
/// Two holders can overlap wherever `exclusion` can break. Where `fencing` holds and the place that is written to
/// checks the token, sealed before the first read, a stale write cannot get in even then.
///
/// It holds for one fault at a time and for clocks that run apart by less than 1 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Guarantees {
    /// At most one holder of a name at a time.
    pub exclusion: Promise,
    /// Each grant of a name carries a larger fencing token than the one before.
    pub fencing: Promise,
}

impl Guarantees {
    /// These two.
    pub const fn new(exclusion: Promise, fencing: Promise) -> Self {
        Self { exclusion, fencing }
    }

    /// What a store says that has not stated any.
    pub const NONE: Self = Self::new(Promise::always(Outcome::NotGiven), Promise::always(Outcome::NotGiven));

    /// The same, without fencing tokens.
    #[must_use = "the guarantees are not changed in place"]
    pub const fn unfenced(self) -> Self {
        Self { fencing: Promise::always(Outcome::NotGiven), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_an_outcome_of_its_own() {
        for fault in Fault::ALL {
            let promise = Promise::always(Outcome::Holds).except(fault, Outcome::CanBreak);
            for other in Fault::ALL {
                assert_eq!(promise.under(other) == Outcome::CanBreak, other == fault, "{fault} {other}");
            }
        }
    }
}
