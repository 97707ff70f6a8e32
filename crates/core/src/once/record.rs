//! What a store keeps about an operation: a line of text, and after it the result if there is one.
//!
//! `1 <state> <attempt> <fencing token> <fingerprint, or ->`, then for `done` a line feed and the result. The first
//! field is the version: a record of another one is never written over.

use crate::error::{Error, ErrorKind};
use crate::fencing::FencingToken;
use crate::name::Name;

use super::key::Fingerprint;

const VERSION: &str = "1";
const NO_FINGERPRINT: &str = "-";
/// The longest line this version writes has 103 bytes.
const LONGEST_LINE: usize = 128;

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// An attempt has begun. Once its lease is over, whether it has acted is not known.
    Started,
    /// It is done, with this result.
    Done(Vec<u8>),
    /// The last attempt has certainly not acted.
    Retryable,
    /// Whether the last attempt has acted is not known.
    Unknown,
}

impl State {
    fn word(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Done(_) => "done",
            Self::Retryable => "retryable",
            Self::Unknown => "unknown",
        }
    }
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) state: State,
    /// Counts attempts from 1.
    pub(crate) attempt: u64,
    /// Of the grant under which it was written: no two attempts write the same record.
    pub(crate) fencing_token: u64,
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl Record {
    pub(crate) fn first(fencing_token: FencingToken, fingerprint: Option<Fingerprint>) -> Self {
        Self { state: State::Started, attempt: 1, fencing_token: fencing_token.get(), fingerprint }
    }

    /// The record of the attempt that follows this one.
    pub(crate) fn next(&self, fencing_token: FencingToken, fingerprint: Option<Fingerprint>) -> Self {
        Self {
            state: State::Started,
            attempt: self.attempt.saturating_add(1),
            fencing_token: fencing_token.get(),
            fingerprint: fingerprint.or(self.fingerprint),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let fingerprint =
            self.fingerprint.map_or_else(|| NO_FINGERPRINT.to_owned(), |print| print.to_string());
        let line =
            format!("{VERSION} {} {} {} {fingerprint}", self.state.word(), self.attempt, self.fencing_token);
        let mut bytes = line.into_bytes();
        if let State::Done(result) = &self.state {
            bytes.push(b'\n');
            bytes.extend_from_slice(result);
        }
        bytes
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Config` for a newer version, `Foreign` for anything else.
    pub(crate) fn parse(name: &Name, bytes: &[u8]) -> Result<Self, Error> {
        let (line, result) = match bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        let line = std::str::from_utf8(line).map_err(|_| foreign(name))?;
        let (version, rest) = line.split_once(' ').ok_or_else(|| foreign(name))?;
        if version != VERSION {
            let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
            return Err(if is_number { newer(name, version) } else { foreign(name) });
        }
        Self::of_version_1(rest, result).ok_or_else(|| foreign(name))
    }

    fn of_version_1(line: &str, result: Option<&[u8]>) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [word, attempt, fencing_token, fingerprint] = fields.as_slice() else { return None };
        let state = match (*word, result) {
            ("started", None) => State::Started,
            ("done", Some(result)) => State::Done(result.to_vec()),
            ("retryable", None) => State::Retryable,
            ("unknown", None) => State::Unknown,
            _ => return None,
        };
        let fingerprint = match *fingerprint {
            NO_FINGERPRINT => None,
            text => Some(Fingerprint::parse(text)?),
        };
        Some(Self {
            state,
            attempt: attempt.parse().ok()?,
            fencing_token: fencing_token.parse().ok()?,
            fingerprint,
        })
    }
}

fn newer(name: &Name, version: &str) -> Error {
    Error::config(format!(
        "{name}: its record was written by a newer Leasehold (format {version}, this one knows {VERSION}), so it was \
         left alone: update this program"
    ))
}

fn foreign(name: &Name) -> Error {
    Error::new(
        ErrorKind::Foreign,
        format!(
            "{name}: what is kept as the record of this operation was not written by Leasehold; it was left untouched. \
             Use another namespace or name, or delete it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        Name::new("ship:1001").unwrap()
    }

    #[test]
    fn records_are_read_back_as_they_were_written() {
        let print = Some(Fingerprint::of(b"a request"));
        for state in [State::Started, State::Retryable, State::Unknown, State::Done(b"a\nb\0\xff".to_vec())] {
            for (attempt, fencing_token, fingerprint) in [(1, 5, None), (u64::MAX, u64::MAX, print)] {
                let record = Record { state: state.clone(), attempt, fencing_token, fingerprint };
                let bytes = record.encode();
                assert_eq!(Record::parse(&name(), &bytes).unwrap(), record);
                assert!(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()) < LONGEST_LINE);
            }
        }
    }

    #[test]
    fn the_form_is_that_of_the_documentation() {
        let record = Record::first(FencingToken::new(1_764_440_000_000_000).unwrap(), None);
        assert_eq!(record.encode(), b"1 started 1 1764440000000000 -");
        let done = Record { state: State::Done(b"JD014600001".to_vec()), ..record };
        assert_eq!(done.encode(), b"1 done 1 1764440000000000 -\nJD014600001");
    }

    #[test]
    fn a_record_of_a_newer_version_says_so() {
        for newer in [&b"2 started 1 5 -"[..], b"10 whatever\nit is"] {
            let error = Record::parse(&name(), newer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("newer Leasehold"), "{error}");
        }
    }

    #[test]
    fn anything_else_is_foreign() {
        for foreign in [
            &b""[..],
            b"1",
            b"1 ",
            b"OK",
            b"{\"state\":\"done\"}",
            b"1 done 1 5 -",
            b"1 started 1 5 -\nresult",
            b"1 started x 5 -",
            b"1 started 1 5 nonsense",
            b"1 started 1 5",
            b"1 started 1 5 - -",
            b"1 sleeping 1 5 -",
            b"\xff\xfe",
            b" started 1 5 -",
            &[b'x'; 1_000],
        ] {
            assert_eq!(
                Record::parse(&name(), foreign).unwrap_err().kind(),
                ErrorKind::Foreign,
                "{foreign:?}"
            );
        }
    }
}
