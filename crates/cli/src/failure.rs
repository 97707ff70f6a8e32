//! Why the command could not do what it was asked, and the exit code that says so.
//!
//! The codes are a contract (`leasehold run --help` lists them); scripts branch on them.

use leasehold::{Error, ErrorKind};

/// Something asked for is wrong: the user must change the command line.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be reached or does not work (`EX_UNAVAILABLE` of sysexits).
pub(crate) const UNAVAILABLE: u8 = 69;
/// Anything else of ours (`EX_SOFTWARE`).
pub(crate) const OTHER: u8 = 70;
/// The command has succeeded and its outcome is kept, but its output could not be written (`EX_IOERR`).
pub(crate) const NOT_WRITTEN: u8 = 74;
/// Somebody else holds the name (`EX_TEMPFAIL`: try again later).
pub(crate) const BUSY: u8 = 75;
/// The store refuses this user something (`EX_NOPERM`).
pub(crate) const DENIED: u8 = 77;
/// The lease was lost while it was needed. Not a sysexits code; the first free one after them.
pub(crate) const LOST: u8 = 79;
/// Nothing was run, and the same call will not run it another time either: the operation was asked for with another
/// request, or may have been done and the caller wants to look. Ours, like 79.
pub(crate) const REFUSED: u8 = 80;
/// The command has succeeded, and its outcome was not kept or that is not certain. Ours, like 79.
pub(crate) const NOT_KEPT: u8 = 81;
/// The command was found and could not be started, as shells report it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as shells report it.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the command, as shells report it.
pub(crate) const SIGNAL_BASE: u8 = 128;

/// What to print and what to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self::new(OTHER, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Busy => BUSY,
            ErrorKind::Lost(_) => LOST,
            ErrorKind::Unavailable | ErrorKind::NotReplicated | ErrorKind::Unknown => UNAVAILABLE,
            ErrorKind::Config => USAGE,
            ErrorKind::DifferentRequest | ErrorKind::OutcomeUnknown => REFUSED,
            ErrorKind::TooLarge => NOT_KEPT,
            ErrorKind::Denied => DENIED,
            _ => OTHER,
        };
        Self::new(code, with_causes(&error))
    }
}

/// The message, and those of its causes that it does not repeat already.
pub(crate) fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text} ({words})");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::LostCause;

    /// F084: A taken name, an unreachable store, a refusal, a lost lease and wrong usage each have an exit
    /// code of their own.
    #[test]
    fn f084_each_kind_of_failure_has_its_own_exit_code() {
        for (kind, code) in [
            (ErrorKind::Busy, 75),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Unknown, 69),
            (ErrorKind::Denied, 77),
            (ErrorKind::Lost(LostCause::Taken), 79),
            (ErrorKind::Config, 2),
            (ErrorKind::DifferentRequest, 80),
            (ErrorKind::OutcomeUnknown, 80),
            (ErrorKind::TooLarge, 81),
            (ErrorKind::Foreign, 70),
        ] {
            assert_eq!(Failure::from(Error::new(kind, "x")).code, code, "{kind:?}");
        }
    }

    #[test]
    fn causes_are_told_once() {
        let error = Error::new(ErrorKind::Unavailable, "no answer: refused").with_source("refused");
        assert_eq!(Failure::from(error).message, "no answer: refused");
        let error = Error::new(ErrorKind::Unavailable, "no answer").with_source("refused");
        assert_eq!(Failure::from(error).message, "no answer (refused)");
    }
}
