//! Errors and the causes of a loss: one kind per cause, each saying whether a retry makes sense. Contention is
//! an outcome ([`crate::Busy`]), not an error of a store.

use std::error::Error as StdError;
use std::fmt;

/// Why something did not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder has the name and the time to wait is over.
    Busy,
    /// The lease was lost; the cause says how.
    Lost(LostCause),
    /// The store could not be reached or refused to work, and nothing was changed.
    Unavailable,
    /// Fewer replicas confirmed than were asked for; the lease was given back.
    NotReplicated,
    /// The request was sent and its reply was lost, so whether it took effect is not known. What it may have
    /// left behind is cleaned up in the background.
    Unknown,
    /// Something the caller asked for is not possible as asked: a name, an option, a URL.
    Config,
    /// The store refuses this user a command, a key or a channel.
    Denied,
    /// The key of the name holds something that is not a lock. It was left untouched.
    Foreign,
    /// The operation of this name was asked for with another request (see [`crate::Once::fingerprint`]).
    DifferentRequest,
    /// Whether an earlier attempt at the operation has acted is not known, and the caller asked not to run again
    /// then (see [`crate::IfUnknown::Refuse`]).
    OutcomeUnknown,
    /// The result of an operation is too large to be kept.
    TooLarge,
}

impl ErrorKind {
    /// Whether trying again can succeed without anybody changing anything. After `Lost` that means to acquire
    /// again: this lease does not come back.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Busy | Self::Lost(_) | Self::Unavailable | Self::NotReplicated | Self::Unknown => true,
            Self::Config
            | Self::Denied
            | Self::Foreign
            | Self::DifferentRequest
            | Self::OutcomeUnknown
            | Self::TooLarge => false,
        }
    }
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostCause {
    /// Its time ran out: a fixed lease ended, or this process did not run for too long to renew it.
    Expired,
    /// The store says that somebody else holds the name now.
    Taken,
    /// The store no longer has the lease: evicted, flushed, deleted, or expired there.
    Missing,
    /// The store gave no answer to renewals until the lease's time was over.
    Unreachable,
    /// `max_hold` has passed.
    MaxHold,
    /// An operator broke the lease.
    Broken,
    /// This process is a fork of the one that acquired the lease. The lease stays with the parent.
    Forked,
}

impl LostCause {
    /// One word, for metrics and machines.
    pub fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::Missing => "missing",
            Self::Unreachable => "unreachable",
            Self::MaxHold => "max_hold",
            Self::Broken => "broken",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its time ran out before it was renewed or released",
            Self::Taken => "another holder has it now",
            Self::Missing => "the store no longer has it (expired, deleted, flushed or evicted)",
            Self::Unreachable => "the store could not be reached until its time was over",
            Self::MaxHold => "its longest allowed hold time (max_hold) has passed",
            Self::Broken => "an operator broke it",
            Self::Forked => "it belongs to the parent of this forked process",
        })
    }
}

/// An error of Leasehold: what happened, to which name and store, and what to do next.
///
/// Neither `Display` nor `Debug` ever shows a password or an owner token.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind with a message for people. What a library or a server put into it is made one line,
    /// without control characters: it may end up in a log or on a terminal.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: one_line(message.into()), source: None }
    }

    /// An error of the kind `Config`.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// Adds the error that led to this one.
    #[must_use = "the error is not changed in place"]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts words before the message, for instance the name it is about.
    #[must_use = "the error is not changed in place"]
    pub fn context(mut self, words: impl fmt::Display) -> Self {
        self.message = one_line(format!("{words}: {}", self.message));
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether trying again can succeed without anybody changing anything. After `Lost` that means to acquire
    /// again: this lease does not come back.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The text with its line breaks, and the blanks around them, as single blanks, and other control characters escaped.
fn one_line(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let escaped = |character: char| {
        if character.is_control() { character.escape_default().to_string() } else { character.to_string() }
    };
    lines.join(" ").chars().map(escaped).collect()
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_put_into_a_message_cannot_break_its_line_or_reach_the_terminal() {
        let error = Error::config("refused: two\r\n  lines\n\n \u{1b}[31mred\u{1b}[0m\u{9b}1m\0\ttab");
        assert_eq!(error.to_string(), r"refused: two lines \u{1b}[31mred\u{1b}[0m\u{9b}1m\u{0}\ttab");
        assert_eq!(error.context("a\nb").to_string().split(": ").next(), Some("a b"));
        assert_eq!(Error::config("zażółć — fine").to_string(), "zażółć — fine");
    }
}
