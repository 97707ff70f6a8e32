//! A claim on an operation: the lease under which it runs, and the record that says how far it has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::key::{IdempotencyKey, idempotency_key};
use super::record::{Record, State};
use crate::error::{Error, ErrorKind, LostCause};
use crate::fencing::FencingToken;
use crate::guard::{Guard, Lease, Settled};
use crate::lock::Busy;
use crate::mutation::{Rule, on};

/// The largest result that is kept, 1 MiB: it is read by every later call. Keep large results elsewhere, and their
/// place here.
pub const MAX_RESULT_BYTES: usize = 1024 * 1024;

/// What became of a claim. That somebody else is at it, or has done it, is an outcome and not an error.
#[derive(Debug)]
#[must_use = "a claim that is dropped gives the operation up"]
pub enum Claim {
    /// It is this caller's turn: act, then say how it went.
    Claimed(Claimed),
    /// It was done before, with this result.
    Done(Vec<u8>),
    /// Somebody else is at it.
    InProgress(Busy),
}

/// What the last attempt at an operation left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Previous {
    /// It said that it had certainly not acted.
    Retryable,
    /// It ended without saying so: it may have acted.
    Unknown,
}

/// How an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It has certainly not acted.
    Retryable,
    /// It may have acted: a timeout, a lost reply.
    Unknown,
}

/// A view of an attempt at an operation. Clones are cheap and may go anywhere.
#[derive(Clone, Debug)]
pub struct OnceAttempt {
    lease: Lease,
    key: IdempotencyKey,
    number: u64,
    previous: Option<Previous>,
    has_not_acted: Arc<AtomicBool>,
}

impl OnceAttempt {
    /// The key that makes an API of somebody else do it once: the same for every attempt. Send it along.
    pub fn idempotency_key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The fencing token of this attempt, for writes of your own. It differs from attempt to attempt, so it is no
    /// idempotency key.
    pub fn fencing_token(&self) -> FencingToken {
        self.lease.fencing_token()
    }

    /// The lease it runs under.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Which attempt it is, from 1, as far as the store remembers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What the attempt before this one left; `None` for the first.
    pub fn previous(&self) -> Option<Previous> {
        self.previous
    }

    /// Says that this attempt has certainly not acted. If it fails now, the record says *retryable*; without this it
    /// says *unknown*, since a failure that was seen here (a timeout, a lost reply) may follow an act there.
    pub fn has_not_acted(&self) {
        self.has_not_acted.store(true, Ordering::Release);
    }

    pub(super) fn failed(&self) -> Failed {
        if self.has_not_acted.load(Ordering::Acquire) || !on(Rule::OutcomeUnknown) {
            Failed::Retryable
        } else {
            Failed::Unknown
        }
    }
}

/// An operation that is this caller's to do. Dereferences to the [`Guard`] of its lease, which is renewed meanwhile.
///
/// Say how it went with [`Claimed::complete`] or [`Claimed::fail`]. One that is dropped, or whose process dies, leaves
/// the operation *unknown*: the next caller is told so and runs it again, under the same idempotency key.
///
/// ```
/// # async fn ask_carrier(_: &str) -> Result<String, std::io::Error> { Ok("JD014600001".into()) }
/// # async fn example(client: &leasehold_core::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_core::{Claim, Failed};
///
/// match client.once("ship:1001")?.claim().await? {
///     Claim::Done(tracking) => println!("was shipped: {}", String::from_utf8_lossy(&tracking)),
///     Claim::InProgress(busy) => println!("{busy}"),
///     Claim::Claimed(claimed) => match ask_carrier(claimed.attempt().idempotency_key().as_str()).await {
///         Ok(tracking) => claimed.complete(tracking).await?,
///         Err(_timeout) => claimed.fail(Failed::Unknown).await?,
///     },
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a claim that is dropped gives the operation up"]
pub struct Claimed {
    guard: Guard,
    record: Record,
    retain: Duration,
    attempt: OnceAttempt,
}

impl Claimed {
    pub(super) fn new(guard: Guard, record: Record, previous: Option<Previous>, retain: Duration) -> Self {
        let lease = guard.lease().clone();
        let attempt = OnceAttempt {
            key: idempotency_key(&lease.engine.store.namespace(), lease.name()),
            number: record.attempt,
            previous,
            has_not_acted: Arc::default(),
            lease,
        };
        Self { guard, record, retain, attempt }
    }

    /// A view of the attempt that can be cloned and passed on.
    pub fn attempt(&self) -> &OnceAttempt {
        &self.attempt
    }

    /// Keeps the result, at most 1 MiB, and gives the name back in the same step. Whoever asks from now on gets it.
    ///
    /// # Errors
    /// `TooLarge`: the result was not kept, and the record says *unknown*. `Lost`: the lease was over before, so
    /// somebody else may be at it; nothing was changed. `Unknown` when the store did not answer within its timeout:
    /// the result may have been kept. In each case but `TooLarge` the next caller finds out what the record says.
    ///
    /// # Cancel safety
    /// When the future is dropped, the result may or may not be kept; the name is given back in the background.
    pub async fn complete(self, result: impl AsRef<[u8]>) -> Result<(), Error> {
        let result = result.as_ref();
        if result.len() > MAX_RESULT_BYTES && on(Rule::ResultLimit) {
            let error = too_large(&self.guard, result.len());
            let name = self.guard.name().clone();
            if let Err(unsaid) = self.end(State::Unknown).await {
                tracing::warn!(%name, error = %unsaid, "an attempt ended without saying how: the next one finds it unknown");
            }
            return Err(error);
        }
        self.end(State::Done(result.to_vec())).await
    }

    /// Says that the operation was not done, and gives the name back in the same step. The next caller runs it again.
    ///
    /// # Errors
    /// `Lost` and `Unknown` as [`Claimed::complete`]: the record then says *unknown*.
    ///
    /// # Cancel safety
    /// As [`Claimed::complete`].
    pub async fn fail(self, how: Failed) -> Result<(), Error> {
        self.end(match how {
            Failed::Retryable => State::Retryable,
            Failed::Unknown => State::Unknown,
        })
        .await
    }

    async fn end(self, state: State) -> Result<(), Error> {
        let name = self.guard.name().clone();
        let record = Record { state, ..self.record.clone() };
        match self.guard.settle(&self.record.encode(), &record.encode(), self.retain).await? {
            Settled::Kept => Ok(()),
            Settled::NotHeld(cause) => Err(lost(&name, cause)),
        }
    }
}

impl std::ops::Deref for Claimed {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

fn too_large(guard: &Guard, bytes: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!(
            "{}: the result has {bytes} bytes and at most {MAX_RESULT_BYTES} are kept, so it was not: keep it elsewhere \
             and return where it is",
            guard.name()
        ),
    )
}

fn lost(name: &crate::name::Name, cause: LostCause) -> Error {
    Error::new(
        ErrorKind::Lost(cause),
        format!(
            "{name}: the lease was lost before the outcome could be kept ({cause}): somebody else may be at it"
        ),
    )
}
