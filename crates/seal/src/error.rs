//! Why a resource could not be sealed: one kind per cause, the same for every database.

use std::error::Error as StdError;
use std::fmt;

use leasehold_core::FencingToken;

type Source = Box<dyn StdError + Send + Sync>;

/// Why a resource could not be sealed. In every case the transaction wrote nothing under this seal: the database
/// has rolled it back, or refuses to go on with it, or it is as it was before.
#[derive(Debug)]
#[non_exhaustive]
pub enum SealError {
    /// A newer holder has sealed the resource: this one is stale. Its transaction is rolled back, or can only be.
    Fenced {
        /// What is protected.
        resource: String,
        /// The token of this holder.
        mine: FencingToken,
        /// The newest token that has sealed it.
        newest: FencingToken,
    },
    /// The resource was sealed under another namespace, whose tokens cannot be compared with this one.
    Namespace {
        /// What is protected.
        resource: String,
        /// The namespace of this lease.
        mine: String,
        /// The namespace of the guard row.
        sealed_under: String,
    },
    /// The lease has no fencing token, since its store cannot mint.
    Unfenced {
        /// What is protected.
        resource: String,
    },
    /// The resource, or another argument, cannot be used.
    Argument {
        /// What is wrong.
        message: String,
    },
    /// The guard table, or what goes with it, is missing, of an older version, or was changed.
    Schema {
        /// The command that installs it.
        command: &'static str,
        /// What the database said.
        source: Source,
    },
    /// The database refuses this user the guard table.
    Denied {
        /// What the database said.
        source: Source,
    },
    /// The database or the transaction is read-only.
    ReadOnly {
        /// What the database said.
        source: Source,
    },
    /// The transaction has failed before, or is over: it can only be rolled back.
    Aborted {
        /// What the database said, if it was asked.
        source: Option<Source>,
    },
    /// There is no transaction that could hold the seal.
    NoTransaction {
        /// What the database said.
        source: Source,
    },
    /// Another transaction is in the way for too long, or has changed what this one has read: begin the
    /// transaction again, and seal first.
    Contended {
        /// What the database said.
        source: Source,
    },
    /// Anything else.
    Database {
        /// What the database or its driver said.
        source: Source,
    },
}

impl SealError {
    /// Whether the same transaction, begun again under the same lease, can succeed without anybody changing
    /// anything. After `Fenced` the lock has to be acquired again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// Whether a newer holder was here.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced { resource, mine, newest } => write!(
                f,
                "{resource}: fenced: it was sealed under fencing token {newest}, and this lease has {mine}: stop, \
                 and acquire again"
            ),
            Self::Namespace { resource, mine, sealed_under } => write!(
                f,
                "{resource}: it was sealed under the namespace {sealed_under:?}, and this lease is of {mine:?}, whose \
                 fencing tokens cannot be compared: if the lock has moved, change leasehold_guard once"
            ),
            Self::Unfenced { resource } => write!(
                f,
                "{resource}: this lease has no fencing token, so it cannot be told from a stale one: use a store \
                 that mints tokens"
            ),
            Self::Argument { message } => f.write_str(message),
            Self::Schema { command, source } => {
                write!(f, "the schema of the seal is missing, older or changed ({source}): run {command}")
            }
            Self::Denied { source } => write!(
                f,
                "the database refuses the seal ({source}): grant SELECT, INSERT and UPDATE on leasehold_guard, and \
                 EXECUTE on leasehold_seal_v1 where there is one"
            ),
            Self::ReadOnly { source } => write!(
                f,
                "the database or the transaction is read-only ({source}): write to the primary, in a transaction \
                 that may write"
            ),
            Self::Aborted { source: Some(source) } => {
                write!(f, "the transaction has failed before ({source}): roll it back and begin again")
            }
            Self::Aborted { source: None } => {
                f.write_str("the transaction is over already: begin another one, and seal it first")
            }
            Self::NoTransaction { source } => {
                write!(f, "nothing would hold the seal ({source}): begin a transaction first")
            }
            Self::Contended { source } => {
                write!(f, "another transaction is in the way ({source}): begin again, and seal first")
            }
            Self::Database { source } => write!(f, "the resource was not sealed: {source}"),
        }
    }
}

impl StdError for SealError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Fenced { .. } | Self::Namespace { .. } | Self::Unfenced { .. } | Self::Argument { .. } => {
                None
            }
            Self::Schema { source, .. }
            | Self::Denied { source }
            | Self::ReadOnly { source }
            | Self::Aborted { source: Some(source) }
            | Self::NoTransaction { source }
            | Self::Contended { source }
            | Self::Database { source } => Some(source.as_ref()),
            Self::Aborted { source: None } => None,
        }
    }
}
