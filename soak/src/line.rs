//! What a worker of the soak tells: one line of words for each thing that happened. Owns the wording only.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};

/// A time in microseconds since the machine was started: all processes of a machine share that clock.
pub(super) type Micros = u64;

/// The present time.
pub(super) fn now() -> Micros {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(id);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000 + nanos.unwrap_or(0) / 1_000
}

/// One line of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A contended name was granted.
    Got { name: String, token: u64, asked: Micros, at: Micros },
    /// Its hold is over.
    End(End),
    /// An acquisition ended without a grant: `busy`, `cancelled`, or the kind of error.
    Without { outcome: String },
    /// A name that is used once was taken and given back.
    Once,
    /// A sign of life.
    Beat(Beat),
}

/// How a hold of a contended name ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) name: String,
    pub(super) token: u64,
    /// `added`, `refused` by a newer token at the protected resource, or `stopped` because the lease was lost.
    pub(super) outcome: String,
    /// The last moment at which the holder was told that it holds the lease.
    pub(super) believed: Micros,
    /// When it began to give the name back.
    pub(super) let_go: Micros,
    /// `freed`, `kept` (by `min_hold`), `lost`, `unknown`, `unavailable` or `dropped`.
    pub(super) released: String,
    /// The cause of the loss, or `-`.
    pub(super) cause: String,
}

/// What a worker says of itself every second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) at: Micros,
    pub(super) resident_kib: u64,
    /// Since when the longest waiting task waits; 0 if none does.
    pub(super) waits_since: Micros,
    /// Leases, waiters, names and clean-ups of the client.
    pub(super) load: u64,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Got { name, token, asked, at } => write!(f, "got {name} {token} {asked} {at}"),
            Self::End(end) => {
                let End { name, token, outcome, believed, let_go, released, cause } = end;
                write!(f, "end {name} {token} {outcome} {believed} {let_go} {released} {cause}")
            }
            Self::Without { outcome } => write!(f, "without {outcome}"),
            Self::Once => f.write_str("once"),
            Self::Beat(beat) => {
                let Beat { at, resident_kib, waits_since, load } = beat;
                write!(f, "beat {at} {resident_kib} {waits_since} {load}")
            }
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_ascii_whitespace();
        let parsed = match words.next() {
            Some("got") => Self::Got {
                name: word(&mut words)?,
                token: number(&mut words)?,
                asked: number(&mut words)?,
                at: number(&mut words)?,
            },
            Some("end") => Self::End(End {
                name: word(&mut words)?,
                token: number(&mut words)?,
                outcome: word(&mut words)?,
                believed: number(&mut words)?,
                let_go: number(&mut words)?,
                released: word(&mut words)?,
                cause: word(&mut words)?,
            }),
            Some("without") => Self::Without { outcome: word(&mut words)? },
            Some("once") => Self::Once,
            Some("beat") => Self::Beat(Beat {
                at: number(&mut words)?,
                resident_kib: number(&mut words)?,
                waits_since: number(&mut words)?,
                load: number(&mut words)?,
            }),
            _ => return Err(format!("a worker wrote {line:?}")),
        };
        Ok(parsed)
    }
}

fn word(words: &mut SplitAsciiWhitespace<'_>) -> Result<String, String> {
    words.next().map(ToOwned::to_owned).ok_or_else(|| "a worker's line is too short".to_owned())
}

fn number(words: &mut SplitAsciiWhitespace<'_>) -> Result<u64, String> {
    word(words)?.parse().map_err(|error| format!("a worker's line holds no number: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let end = End {
            name: "hot:1".into(),
            token: 7,
            outcome: "added".into(),
            believed: 12,
            let_go: 13,
            released: "freed".into(),
            cause: "-".into(),
        };
        for line in [
            Line::Got { name: "hot:1".into(), token: 7, asked: 10, at: 11 },
            Line::End(end),
            Line::Without { outcome: "busy".into() },
            Line::Once,
            Line::Beat(Beat { at: 1, resident_kib: 2, waits_since: 3, load: 4 }),
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        assert!("end hot:1 7".parse::<Line>().is_err());
    }
}
