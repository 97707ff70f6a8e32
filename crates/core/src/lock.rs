//! What users ask of a name: [`Lock`] collects options, then acquires once, waits, or runs a body under the
//! lease.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::acquire::{OnWaiting, Outcome, acquire};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, LostCause};
use crate::fencing::FencingToken;
use crate::guard::{Guard, Lease, Released};
use crate::lease::LeaseState;
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::nesting;
use crate::options::{LockOptions, Wait};
use crate::owner::OwnerToken;
use crate::store::{Held, Holder};

/// Who has the name that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The name that was asked for.
    pub name: Name,
    /// The holder as it calls itself, never its token; or what it is if it is no Leasehold client. `None` when it is
    /// not known, for instance because others wait for it in this process.
    pub holder: Option<String>,
    /// How long the present lease lasts if it is not renewed; `None` when it is not known or has no end.
    pub remaining: Option<Duration>,
    /// Whether somebody may renew it: not a name that is only kept for its `min_hold`, nor a broken lease.
    pub renewable: bool,
}

impl Busy {
    fn of(name: &Name, held: Option<Held>) -> Self {
        let holder = held.as_ref().and_then(|held| match &held.holder {
            Holder::HandedOver => None,
            other => Some(other.to_string()),
        });
        let ends = |held: &Held| matches!(held.holder, Holder::Kept { .. } | Holder::Broken { .. });
        let renewable = !held.as_ref().is_some_and(ends);
        Self { name: name.clone(), holder, remaining: held.and_then(|held| held.remaining), renewable }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is held by {}", self.name, self.holder.as_deref().unwrap_or("another holder"))?;
        match self.remaining {
            Some(remaining) if self.renewable => write!(f, " for another {remaining:.1?} unless renewed"),
            Some(remaining) => write!(f, " for another {remaining:.1?}"),
            None => Ok(()),
        }
    }
}

/// What became of an attempt. Contention is an outcome, not an error.
#[derive(Debug)]
#[must_use = "an acquired guard that is dropped releases the name at once"]
pub enum Attempt {
    /// The name is held by this guard.
    Acquired(Guard),
    /// Somebody else has it.
    Busy(Busy),
}

impl Attempt {
    /// The guard, or an error of the kind `Busy`.
    ///
    /// # Errors
    /// `Busy` when somebody else has the name.
    pub fn into_guard(self) -> Result<Guard, Error> {
        match self {
            Self::Acquired(guard) => Ok(guard),
            Self::Busy(busy) => Err(Error::new(ErrorKind::Busy, busy.to_string())),
        }
    }
}

/// What a body that ran under a lease left.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed<T> {
    /// What the body returned.
    pub value: T,
    /// The fencing token it ran under.
    pub fencing_token: FencingToken,
    /// How the name was given back: `Freed`, or an error, which does not undo the work: it means that the end of the
    /// hold could not be confirmed. A lease that was lost before is [`RunError::Lost`].
    pub released: Result<Released, Error>,
}

/// Why [`Lock::run`] did not complete.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<T, E> {
    /// Somebody else had the name until the time to wait was over. The body did not run.
    Busy(Busy),
    /// The lease was lost while the body ran.
    Lost {
        /// The name of the lock.
        name: Name,
        /// How it was lost; `Missing` if only the release found out.
        cause: LostCause,
        /// The token the body ran under.
        fencing_token: FencingToken,
        /// What the body returned, if it completed before it could be cancelled. Another holder may have
        /// worked at the same time.
        value: Option<T>,
    },
    /// The store failed before the body ran.
    Store(Error),
    /// The body failed.
    Body(E),
}

impl<T, E> RunError<T, E> {
    /// What the body returned, if it completed although the lease was lost.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Lost { value, .. } => value,
            _ => None,
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for RunError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(busy) => busy.fmt(f),
            Self::Lost { name, cause, fencing_token, .. } => write!(
                f,
                "{name}: the lease with the fencing token {fencing_token} was lost while the work ran: {cause}"
            ),
            Self::Store(error) => error.fmt(f),
            Self::Body(error) => error.fmt(f),
        }
    }
}

/// For errors of the body that are `Box<dyn Error>` and the like, too, which are no `Error` themselves; so `source` tells
/// nothing of the body's error: match [`RunError::Body`] to get at it.
impl<T: fmt::Debug, E: fmt::Display + fmt::Debug> std::error::Error for RunError<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            _ => None,
        }
    }
}

/// A name and what is asked of it. Made by `Client::lock`; each method returns the changed lock.
///
/// Nothing is sent before [`Lock::acquire`], [`Lock::try_acquire`] or [`Lock::run`] is polled, and options are
/// checked there.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired or run"]
pub struct Lock {
    pub(crate) engine: Arc<Engine>,
    pub(crate) name: Name,
    pub(crate) options: LockOptions,
    on_waiting: Option<OnWaiting>,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, name: Name, options: LockOptions) -> Self {
        Self { engine, name, options, on_waiting: None }
    }

    /// How long the lease lasts without renewal: 10 ms to 24 h, 30 s by default. It is renewed every third of
    /// it, so it only decides how soon others follow after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Do not renew: the lease ends after its TTL even if the work goes on.
    pub fn fixed_lease(mut self) -> Self {
        self.options.fixed_lease = true;
        self
    }

    /// Wait at most this long for a name that is taken. The budget runs from the first poll and covers all
    /// waiting for other holders; without it there is no waiting.
    ///
    /// It says nothing of a store that does not answer: that one has `store_timeout` (10 s by default, see the
    /// client's builder) before the call ends with `Unavailable`, however short the wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = if wait.is_zero() { Wait::No } else { Wait::For(wait) };
        self
    }

    /// Wait until the name is granted, however long that takes.
    pub fn wait_forever(mut self) -> Self {
        self.options.wait = Wait::Forever;
        self
    }

    /// Lose the lease after this long, even if its holder lives: 10 ms to 365 days. Hung work cannot hold a
    /// name for ever. The name is given back in the background, a moment after the loss is told.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Keep the name taken for at least this long (1 ms to 24 h), even if it is released earlier: for schedules
    /// on servers whose clocks differ.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options.min_hold = Some(min_hold);
        self
    }

    /// Resume the lease of this owner, for instance in another process. The grant carries a new fencing token,
    /// which fences the previous process out.
    ///
    /// There is one lease, and both processes own it: when one of them releases it or drops its guard, the name
    /// is free, and the other believes that it holds it until its next renewal. So the previous one must have
    /// stopped, or its writes must be checked by fencing token. While a guard of this client holds the lease,
    /// acquiring reports `Config`.
    pub fn owner(mut self, owner: OwnerToken) -> Self {
        self.options.owner = Some(owner);
        self
    }

    /// How many replicas must confirm a grant before it counts; 0 by default. Where fewer do within a second (or
    /// half the TTL), the lease is given back and the error is `NotReplicated`.
    ///
    /// It narrows the window in which a failover loses a lease and the name is granted twice; it does not close it:
    /// another replica may be promoted, and renewals are not confirmed. Fencing tokens tell the stale holder then.
    pub fn acks(mut self, acks: u32) -> Self {
        self.options.acks = acks;
        self
    }

    /// Call this when the acquisition begins to wait, and whenever the holder it waits for changes. It must
    /// not block.
    pub fn on_waiting(mut self, report: impl Fn(&Busy) + Send + Sync + 'static) -> Self {
        let name = self.name.clone();
        self.on_waiting = Some(Arc::new(move |held| report(&Busy::of(&name, Some(held.clone())))));
        self
    }

    /// The same lock for threads that do not use async.
    pub fn blocking(self) -> crate::blocking::Lock {
        crate::blocking::Lock(self)
    }

    /// Acquires the name, waiting as long as [`Lock::wait`] says.
    ///
    /// Guarantees: while the guard's state is not lost, no other client of the store holds the name, as long as
    /// clocks run apart by less than 1 % and the store loses no data. Fencing tokens grow from grant to grant.
    ///
    /// A lock is not reentrant: whoever holds the name and acquires it again, in the same task too, is told
    /// `Busy`. To wait for it inside the body of [`Lock::run`] that holds it is refused at once with `Config`. A
    /// guard kept by hand belongs to no task: whoever waits for its own waits, and after a TTL the log warns of it.
    ///
    /// # Errors
    /// `Config` for options outside their limits, `Unavailable` when the store gave no usable answer for
    /// `store_timeout`, `Unknown` when its reply was lost, `Denied` and `Foreign` as the store reports them.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: key, queue entry and renewal are removed in the background.
    /// The place in the queue is given up.
    pub async fn acquire(&self) -> Result<Attempt, Error> {
        let options = self.options.check(self.engine.store.capabilities().acks)?;
        let outcome = acquire(&self.engine, &self.name, &options, self.on_waiting.as_ref()).await?;
        Ok(match outcome {
            Outcome::Acquired(cell) => {
                Attempt::Acquired(Guard::new(Arc::clone(&self.engine), cell, options.min_hold))
            }
            Outcome::Busy(held) => Attempt::Busy(Busy::of(&self.name, held)),
        })
    }

    /// Acquires the name if it is free, without waiting for another holder.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Attempt, Error> {
        let mut once = self.clone();
        once.options.wait = Wait::No;
        once.acquire().await
    }

    /// Acquires the name, runs the body under it, and releases it.
    ///
    /// When the lease is lost, the body's future is dropped before the lease can have ended in the store. What
    /// the body spawned or moved to another thread goes on: give it the [`Lease`] and let it watch
    /// [`Lease::cancelled`]. A body that does not yield cannot be cancelled; its value comes back in
    /// [`RunError::Lost`].
    ///
    /// # Errors
    /// [`RunError::Busy`], [`RunError::Lost`], [`RunError::Store`] or the body's own as [`RunError::Body`]. A body
    /// that fails is reported as `Body` also when the lease was lost meanwhile: its error says more.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the name in the background.
    pub async fn run<T, E, F, Fut>(self, body: F) -> Result<Completed<T>, RunError<T, E>>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let guard = match self.acquire().await.map_err(RunError::Store)? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => return Err(RunError::Busy(busy)),
        };
        let fencing_token = guard.fencing_token();
        let body = nesting::inside(&guard, || body(guard.lease().clone()));
        let value = match until_lost(&guard, body).await {
            Ok(value) => value.map_err(RunError::Body)?,
            Err(cause) => {
                return Err(RunError::Lost { name: self.name, cause, fencing_token, value: None });
            }
        };
        if let LeaseState::Lost(cause) = guard.state() {
            return Err(RunError::Lost { name: self.name, cause, fencing_token, value: Some(value) });
        }
        let released = guard.release().await;
        completed(self.name, value, fencing_token, released)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The outcome of a body whose lease seemed to be held until its release.
pub(crate) fn completed<T, E>(
    name: Name,
    value: T,
    fencing_token: FencingToken,
    released: Result<Released, Error>,
) -> Result<Completed<T>, RunError<T, E>> {
    if matches!(released, Ok(Released::AlreadyLost)) && on(Rule::LateLoss) {
        return Err(RunError::Lost { name, cause: LostCause::Missing, fencing_token, value: Some(value) });
    }
    Ok(Completed { value, fencing_token, released })
}

/// The body's output, or the cause if the lease is lost first. The body is dropped on return.
pub(crate) async fn until_lost<Fut: Future>(guard: &Guard, body: Fut) -> Result<Fut::Output, LostCause> {
    let mut body = std::pin::pin!(body);
    let mut lost = std::pin::pin!(guard.lost());
    std::future::poll_fn(|context| {
        if on(Rule::CancelBody)
            && let Poll::Ready(cause) = lost.as_mut().poll(context)
        {
            return Poll::Ready(Err(cause));
        }
        nesting::inside(guard, || body.as_mut().poll(context)).map(Ok)
    })
    .await
}
