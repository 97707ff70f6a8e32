//! Why a transaction did not happen, and what that is as an error of the store.

use std::path::Path;

use leasehold_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

/// Why a transaction did not happen.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The fencing tokens reserved so far are used up, and this caller may not wait for the disk.
    ReserveFirst,
    /// The request's `not_after` has passed.
    Late,
    /// Fencing tokens have come to the end of their range.
    FencingUsedUp,
    /// The store is closed.
    Closed,
    /// A statement failed, and the transaction was rolled back.
    Statement(rusqlite::Error),
    /// The commit failed; what it wrote may still come to life when the file is recovered after a crash.
    Commit(rusqlite::Error),
    /// The file cannot be used as it is.
    Refused(Error),
}

impl Failure {
    /// Whether a caller that may wait can still succeed.
    pub(crate) fn wants_patience(&self) -> bool {
        matches!(self, Self::ReserveFirst) || self.is_busy() || self.is_full()
    }

    /// Whether another process was in the way.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(
            self.code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
        )
    }

    /// Whether the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Whether the file is not what was once written into it.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }

    /// What happened, in words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Statement(error) | Self::Commit(error) => error.to_string(),
            Self::Refused(error) => error.to_string(),
            other => format!("{other:?}"),
        }
    }

    /// The same failure, of a statement that commits.
    pub(crate) fn of_commit(self) -> Self {
        match self {
            Self::Statement(error) => Self::Commit(error),
            other => other,
        }
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Statement(error) | Self::Commit(error) => error.sqlite_error_code(),
            _ => None,
        }
    }

    /// The error that callers of the store see.
    pub(crate) fn into_error(self, path: &Path) -> Error {
        let file = path.display();
        match self {
            Self::ReserveFirst => Error::new(
                ErrorKind::Unavailable,
                format!("sqlite:{file}: fencing tokens could not be reserved on disk"),
            ),
            Self::Late => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "sqlite:{file}: the request got its turn only after its time had passed, so nothing was done"
                ),
            ),
            Self::FencingUsedUp => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "sqlite:{file}: fencing tokens are used up: the wall clock or the last token is beyond 2^53 \
                     microseconds; set the clock, or stop all users of the file and start a new one"
                ),
            ),
            Self::Closed => {
                Error::new(ErrorKind::Unavailable, format!("sqlite:{file}: this store is closed"))
            }
            Self::Refused(error) => error,
            Self::Statement(source) => statement_error(source, path),
            Self::Commit(source) => commit_error(source, path),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Statement(error)
    }
}

/// A commit that failed for want of room or of a turn has written nothing that counts. After any other
/// failure the commit may be in the log all the same, and come to life when the log is recovered.
fn commit_error(source: rusqlite::Error, path: &Path) -> Error {
    match source.sqlite_error_code() {
        Some(
            ErrorCode::DiskFull
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::ReadOnly,
        ) => statement_error(source, path),
        _ => Error::new(
            ErrorKind::Unknown,
            format!("sqlite:{}: the disk failed during a commit, which may or may not count: look at the system's log", path.display()),
        )
        .with_source(source),
    }
}

/// The kind of a SQLite error, with what to do about it.
pub(crate) fn statement_error(source: rusqlite::Error, path: &Path) -> Error {
    let file = path.display();
    let (kind, message) = match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => (
            ErrorKind::Unavailable,
            format!(
                "sqlite:{file}: another process kept the file locked for too long: look for a program that has \
                 it open in a transaction (a database shell, a backup)"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Unavailable,
            format!("sqlite:{file}: the disk is full: make room on the file system of this file"),
        ),
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            ErrorKind::Denied,
            format!(
                "sqlite:{file}: the file cannot be written by this user: it, its directory, and the files \
                 beside it that end in -wal and -shm must be writable"
            ),
        ),
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Unavailable,
            format!(
                "sqlite:{file}: the file, or one beside it that ends in -wal or -shm, could not be opened: check \
                 that its directory exists and is writable, and the limit of open files"
            ),
        ),
        Some(ErrorCode::NotADatabase) => {
            (ErrorKind::Config, format!("sqlite:{file}: this is not a SQLite database: name another file"))
        }
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Config,
            format!(
                "sqlite:{file}: the file is damaged: stop everything that uses it, move it away with the files \
                 beside it that end in -wal and -shm, and start again"
            ),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            format!(
                "sqlite:{file}: reading or writing the file failed: look at the system's log and its disk"
            ),
        ),
        _ => (ErrorKind::Unavailable, format!("sqlite:{file}: SQLite refused to work: {source}")),
    };
    Error::new(kind, message).with_source(source)
}
