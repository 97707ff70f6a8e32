//! What is kept of an operation, for those who look, and how it is forgotten.

use super::record::{Record, State};
use super::{MIN_RETAIN, Once, give_back};
use crate::error::Error;
use crate::guard::Settled;
use crate::lock::{Attempt, Busy};

/// What is kept of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// How far it has come.
    pub progress: Progress,
    /// The number of the last attempt, from 1.
    pub attempt: u64,
    /// The fencing token of that attempt.
    pub fencing_token: u64,
}

/// How far an operation has come, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// An attempt has begun. If its lease is over, it may have acted.
    Started,
    /// It is done.
    Done {
        /// The size of its result.
        bytes: usize,
    },
    /// The last attempt has certainly not acted.
    Retryable,
    /// The last attempt may have acted.
    Unknown,
}

/// What became of forgetting an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "somebody may be at it"]
pub enum Forgot {
    /// This was kept, and is no more.
    Forgotten(Recorded),
    /// There was nothing.
    Nothing,
    /// Somebody is at it.
    InProgress(Busy),
}

impl Recorded {
    fn of(record: &Record) -> Self {
        let progress = match &record.state {
            State::Started => Progress::Started,
            State::Done(result) => Progress::Done { bytes: result.len() },
            State::Retryable => Progress::Retryable,
            State::Unknown => Progress::Unknown,
        };
        Self { progress, attempt: record.attempt, fencing_token: record.fencing_token }
    }
}

impl Once {
    /// Looks at what is kept of the operation, without changing anything.
    ///
    /// # Errors
    /// `Config` for a record of a newer version and a store that keeps no records; `Foreign` for a record that is not
    /// ours; otherwise as [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    /// Nothing is changed.
    pub async fn recorded(&self) -> Result<Option<Recorded>, Error> {
        self.checked_retain()?;
        let record = self.look().await?.map(|bytes| Record::parse(self.name(), &bytes)).transpose()?;
        Ok(record.as_ref().map(Recorded::of))
    }

    /// Forgets the operation: the next caller runs it, whatever became of it before. For people who have found out
    /// what an attempt that may have acted has done. Its attempts are counted from 1 again a second later.
    ///
    /// # Errors
    /// As [`Once::recorded`]; `Lost` and `Unknown` as [`Claimed::complete`](crate::Claimed::complete).
    ///
    /// # Cancel safety
    /// When the future is dropped, it may or may not be forgotten; no lease is left.
    pub async fn forget(&self) -> Result<Forgot, Error> {
        if self.recorded().await?.is_none() {
            return Ok(Forgot::Nothing);
        }
        let guard = match self.lock.acquire().await? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => return Ok(Forgot::InProgress(busy)),
        };
        let seen = match self.look_and_parse().await {
            Ok(Some(seen)) => seen,
            nothing => {
                give_back(guard).await;
                return nothing.map(|_none| Forgot::Nothing);
            }
        };
        let (bytes, record) = seen;
        // Stores delete no records: one that says nothing against a run, and ends soon, is the same.
        let last = Record {
            state: State::Retryable,
            attempt: record.attempt,
            fencing_token: guard.fencing_token().get(),
            fingerprint: None,
        };
        match guard.settle(&bytes, &last.encode(), MIN_RETAIN).await? {
            Settled::Kept => Ok(Forgot::Forgotten(Recorded::of(&record))),
            Settled::NotHeld(cause) => Err(crate::guard::lost(self.name(), cause)),
        }
    }

    async fn look_and_parse(&self) -> Result<Option<(Vec<u8>, Record)>, Error> {
        let Some(bytes) = self.look().await? else { return Ok(None) };
        let record = Record::parse(self.name(), &bytes)?;
        Ok(Some((bytes, record)))
    }
}
