//! What a run of an operation comes to.

use std::fmt;

use crate::error::{Error, ErrorKind, LostCause};
use crate::fencing::FencingToken;
use crate::lock::Busy;
use crate::name::Name;

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "AlreadyDone means that the body did not run"]
pub enum OnceOutcome<T> {
    /// The body ran, and its result is kept.
    Ran(T),
    /// It was done before: the result that was kept.
    AlreadyDone(Vec<u8>),
}

/// Why an operation has no result now.
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceError<T, E> {
    /// Somebody else is at it, until the time to wait was over. The body did not run.
    InProgress(Busy),
    /// The operation of this name was asked for with another request. The body did not run.
    DifferentRequest(Error),
    /// An earlier attempt may have acted, and [`IfUnknown::Refuse`](crate::IfUnknown::Refuse) was asked for. The body did not run.
    OutcomeUnknown(Error),
    /// The store failed before the body ran.
    Store(Error),
    /// The body failed. Others may run it again.
    Body(E),
    /// The lease was lost while the body ran. The record says *unknown*, and somebody else may be at it.
    Lost {
        /// The name of the operation.
        name: Name,
        /// How it was lost.
        cause: LostCause,
        /// The token the body ran under.
        fencing_token: FencingToken,
        /// What the body returned, if it completed before it could be cancelled.
        value: Option<T>,
    },
    /// The body succeeded and its result is larger than [`MAX_RESULT_BYTES`](crate::MAX_RESULT_BYTES), so it was not kept.
    TooLarge {
        /// What the body returned.
        value: T,
        /// How large it is.
        error: Error,
    },
    /// The body succeeded, and whether its result was kept is not known, or it could not be. While the process lives
    /// and the lease lasts, keeping it is tried on in the background where the store gave no answer; should that fail,
    /// the next caller runs the operation again, with the same idempotency key.
    NotKept {
        /// What the body returned.
        value: T,
        /// Why.
        error: Error,
    },
}

impl<T, E> OnceError<T, E> {
    pub(crate) fn before(error: Error) -> Self {
        match error.kind() {
            ErrorKind::DifferentRequest => Self::DifferentRequest(error),
            ErrorKind::OutcomeUnknown => Self::OutcomeUnknown(error),
            _ => Self::Store(error),
        }
    }

    /// What the body returned, if it completed and its result is not kept, or perhaps not.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Lost { value, .. } => value,
            Self::TooLarge { value, .. } | Self::NotKept { value, .. } => Some(value),
            _ => None,
        }
    }

    pub(crate) fn after(name: Name, value: T, error: Error, fencing_token: FencingToken) -> Self {
        match error.kind() {
            ErrorKind::Lost(cause) => Self::Lost { name, cause, fencing_token, value: Some(value) },
            ErrorKind::TooLarge => Self::TooLarge { value, error },
            _ => Self::NotKept { value, error },
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for OnceError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InProgress(busy) => write!(f, "in progress: {busy}"),
            Self::Lost { name, cause, fencing_token, .. } => write!(
                f,
                "{name}: the lease with the fencing token {fencing_token} was lost while the operation ran: {cause}"
            ),
            Self::Body(error) => error.fmt(f),
            Self::DifferentRequest(error)
            | Self::OutcomeUnknown(error)
            | Self::Store(error)
            | Self::TooLarge { error, .. }
            | Self::NotKept { error, .. } => error.fmt(f),
        }
    }
}

/// As for [`RunError`](crate::RunError), `source` tells nothing of the body's error.
impl<T: fmt::Debug, E: fmt::Display + fmt::Debug> std::error::Error for OnceError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::DifferentRequest(error)
            | Self::OutcomeUnknown(error)
            | Self::Store(error)
            | Self::TooLarge { error, .. }
            | Self::NotKept { error, .. } => error.source(),
            Self::InProgress(_) | Self::Lost { .. } | Self::Body(_) => None,
        }
    }
}
