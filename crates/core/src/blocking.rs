//! The same locks for threads that do not use async. Each call blocks the calling thread and drives the async
//! call there; renewal goes on in the engine's own thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::error::{Error, LostCause};
use crate::guard::{self, Lease, Released};
use crate::lease::LeaseState;
use crate::lock::{self, Busy, Completed, RunError};
use crate::nesting;
use crate::once::{self, Claim, OnceAttempt, OnceError, OnceOutcome};

/// Drives a future to its end on this thread. It needs no runtime of the caller and may be called anywhere,
/// but blocks whatever runs on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

/// What became of an attempt; the blocking form of [`lock::Attempt`].
#[derive(Debug)]
#[must_use = "an acquired guard that is dropped releases the name at once"]
pub enum Attempt {
    /// The name is held by this guard.
    Acquired(Guard),
    /// Somebody else has it.
    Busy(Busy),
}

/// The blocking form of [`lock::Lock`]; made by [`lock::Lock::blocking`].
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired or run"]
pub struct Lock(pub(crate) lock::Lock);

impl Lock {
    /// See [`lock::Lock::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<Attempt, Error> {
        block_on(self.0.acquire()).map(Attempt::from)
    }

    /// See [`lock::Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Attempt, Error> {
        block_on(self.0.try_acquire()).map(Attempt::from)
    }

    /// Acquires the name, runs the body on this thread, and releases it.
    ///
    /// A thread cannot be cancelled: long work must look at [`Lease::state`] or pass the fencing token on. If
    /// the lease was lost meanwhile, the body's value comes back in [`RunError::Lost`].
    ///
    /// # Errors
    /// As [`lock::Lock::run`].
    pub fn run<T, E>(
        self,
        body: impl FnOnce(&Lease) -> Result<T, E>,
    ) -> Result<Completed<T>, RunError<T, E>> {
        let guard = match self.acquire().map_err(RunError::Store)? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => return Err(RunError::Busy(busy)),
        };
        let (name, fencing_token) = (self.0.name.clone(), guard.fencing_token());
        let value = nesting::inside(&guard, || body(guard.lease())).map_err(RunError::Body)?;
        if let LeaseState::Lost(cause) = guard.state() {
            return Err(RunError::Lost { name, cause, fencing_token, value: Some(value) });
        }
        lock::completed(name, value, fencing_token, guard.release())
    }
}

/// The blocking form of [`once::Once`]; made by [`once::Once::blocking`].
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until it is run or claimed"]
pub struct Once(pub(crate) once::Once);

impl Once {
    /// Runs the body on this thread if the operation is not done yet and nobody else is at it; see
    /// [`once::Once::run`].
    ///
    /// A thread cannot be cancelled: long work must look at the [`Lease`] of its attempt. If the lease was lost
    /// meanwhile, the body's value comes back in [`OnceError::Lost`].
    ///
    /// # Errors
    /// As [`once::Once::run`].
    pub fn run<T: AsRef<[u8]>, E>(
        self,
        body: impl FnOnce(&OnceAttempt) -> Result<T, E>,
    ) -> Result<OnceOutcome<T>, OnceError<T, E>> {
        let claimed = match self.claim().map_err(OnceError::before)? {
            Claim::Claimed(claimed) => claimed,
            Claim::Done(result) => return Ok(OnceOutcome::AlreadyDone(result)),
            Claim::InProgress(busy) => return Err(OnceError::InProgress(busy)),
        };
        let (name, fencing_token) = (claimed.name().clone(), claimed.fencing_token());
        match nesting::inside(&claimed, || body(claimed.attempt())) {
            Ok(value) => match block_on(claimed.complete(&value)) {
                Ok(()) => Ok(OnceOutcome::Ran(value)),
                Err(error) => Err(OnceError::after(name, value, error, fencing_token)),
            },
            Err(error) => Err(OnceError::Body(block_on(claimed.failed(error)))),
        }
    }

    /// Claims the operation by hand; see [`once::Once::claim`]. What the claim offers as async can be driven by
    /// [`block_on`].
    ///
    /// # Errors
    /// As there.
    pub fn claim(&self) -> Result<Claim, Error> {
        block_on(self.0.claim())
    }
}

/// The blocking form of [`guard::Guard`].
#[derive(Debug)]
#[must_use = "dropping the guard releases the name"]
pub struct Guard(guard::Guard);

impl Guard {
    /// A view of the lease that can be cloned and passed on.
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// See [`guard::Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Released, Error> {
        block_on(self.0.release())
    }

    /// See [`guard::Guard::renew`].
    ///
    /// # Errors
    /// As there.
    pub fn renew(&self) -> Result<(), Error> {
        block_on(self.0.renew())
    }

    /// See [`guard::Guard::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self, ttl: Duration) -> Result<(), Error> {
        block_on(self.0.extend(ttl))
    }

    /// Blocks until the lease is lost; see [`Lease::lost`].
    pub fn lost(&self) -> LostCause {
        block_on(self.0.lost())
    }
}

impl std::ops::Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.0.lease()
    }
}

impl From<lock::Attempt> for Attempt {
    fn from(attempt: lock::Attempt) -> Self {
        match attempt {
            lock::Attempt::Acquired(guard) => Self::Acquired(Guard(guard)),
            lock::Attempt::Busy(busy) => Self::Busy(busy),
        }
    }
}
