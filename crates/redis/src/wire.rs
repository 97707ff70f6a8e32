//! The texts that processes exchange through the server: queue entries and messages on wake channels. Every one
//! begins with a format version, so that a fleet can be upgraded process by process.

use std::time::Duration;

use leasehold_core::{FencingToken, OwnerToken};

/// The version written, and the only one read.
const VERSION: &str = "1";
/// Begins the connection of a waiter that has none and polls; the server time until which it counts as alive,
/// in microseconds, follows.
const POLLING: char = '-';

/// How a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told<'a> {
    /// By a message to this connection.
    ByPush(&'a str),
    /// It asks. Not heard of until this server time, it counts as dead.
    ByPolling { alive_until_micros: u64 },
}

/// The entry of a waiter in a queue: who it is, where it is told, and how long it may take to confirm a grant.
pub(crate) fn entry(told: Told<'_>, claim: Duration, owner: &OwnerToken) -> String {
    let (claim, owner) = (claim.as_millis(), owner.expose());
    match told {
        Told::ByPush(connection_id) => format!("{VERSION} {connection_id} {claim} {owner}"),
        Told::ByPolling { alive_until_micros } => {
            format!("{VERSION} {POLLING}{alive_until_micros} {claim} {owner}")
        }
    }
}

/// How the waiter of a queue entry is told, and who it is; `None` for another format version.
pub(crate) fn read_entry(entry: &[u8]) -> Option<(Told<'_>, OwnerToken)> {
    let mut fields = std::str::from_utf8(entry).ok()?.splitn(4, ' ');
    if fields.next()? != VERSION {
        return None;
    }
    let (connection_id, _claim) = (fields.next()?, fields.next()?);
    let told = match connection_id.strip_prefix(POLLING) {
        Some(until) => Told::ByPolling { alive_until_micros: until.parse().ok()? },
        None => Told::ByPush(connection_id),
    };
    Some((told, OwnerToken::parse(fields.next()?).ok()?))
}

/// A message on a wake channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The owner was granted the name it waits for.
    Grant { owner: OwnerToken, fencing_token: FencingToken, claim: Duration },
    /// The owner is first in its queue.
    Next { owner: OwnerToken, remaining: Option<Duration> },
}

impl Message {
    /// Reads a message; `None` for another version and anything else that is not understood.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?;
        let (version, rest) = text.split_once(' ')?;
        let (kind, rest) = rest.split_once(' ')?;
        match (version, kind) {
            (VERSION, "grant") => {
                let mut fields = rest.splitn(3, ' ');
                Some(Self::Grant {
                    fencing_token: FencingToken::new(fields.next()?.parse().ok()?)?,
                    claim: Duration::from_millis(fields.next()?.parse().ok()?),
                    owner: OwnerToken::parse(fields.next()?).ok()?,
                })
            }
            (VERSION, "next") => {
                let (remaining, owner) = rest.split_once(' ')?;
                let owner = OwnerToken::parse(owner).ok()?;
                let remaining: i64 = remaining.parse().ok()?;
                Some(Self::Next { owner, remaining: remaining_time(remaining) })
            }
            _ => None,
        }
    }
}

/// What `PTTL` says: `None` for a key that never expires, nothing for one that is gone.
pub(crate) fn remaining_time(pttl: i64) -> Option<Duration> {
    const NEVER_EXPIRES: i64 = -1;
    (pttl != NEVER_EXPIRES).then(|| Duration::from_millis(u64::try_from(pttl).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerToken {
        OwnerToken::parse("MDEyMzQ1Njc4OWFiY2RlZg@web-1:42").unwrap()
    }

    #[test]
    fn entries_have_four_fields_and_are_read_back() {
        let polling = Told::ByPolling { alive_until_micros: 1_764_440_000_000_000 };
        for (told, text) in [
            (Told::ByPush("c0ffee"), "1 c0ffee 3000 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42"),
            (polling, "1 -1764440000000000 3000 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42"),
        ] {
            assert_eq!(entry(told, Duration::from_secs(3), &owner()), text);
            assert_eq!(read_entry(text.as_bytes()), Some((told, owner())));
        }
        assert_eq!(read_entry(b"2 c0ffee 3000 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42"), None);
    }

    #[test]
    fn messages_are_read() {
        assert_eq!(
            Message::read(b"1 grant 1764440000000000 3000 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42"),
            Some(Message::Grant {
                owner: owner(),
                fencing_token: FencingToken::new(1_764_440_000_000_000).unwrap(),
                claim: Duration::from_secs(3),
            })
        );
        for (pttl, remaining) in [("250", Some(250)), ("0", Some(0)), ("-2", Some(0)), ("-1", None)] {
            assert_eq!(
                Message::read(format!("1 next {pttl} MDEyMzQ1Njc4OWFiY2RlZg@web-1:42").as_bytes()),
                Some(Message::Next { owner: owner(), remaining: remaining.map(Duration::from_millis) })
            );
        }
    }

    #[test]
    fn messages_of_another_version_or_form_are_ignored() {
        for other in [
            "0",
            "2 grant 5 3000 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42",
            "1 grant 0 3000 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42",
            "1 grant 5 3000 nobody",
            "1 grant 5 -1 MDEyMzQ1Njc4OWFiY2RlZg@web-1:42",
            "1 dance 5",
            "1 grant",
            "",
        ] {
            assert_eq!(Message::read(other.as_bytes()), None, "{other}");
        }
        assert_eq!(Message::read(&[b'1', b' ', 0xff]), None);
    }
}
