//! Run once: an operation with a name is done by one caller at a time, and its result is kept for those who ask
//! later. A claim is an ordinary lease of the name; beside it the store keeps a record, which only the holder of the
//! lease may change.
//!
//! | the store has | and the operation is |
//! |---|---|
//! | a lease, no record of this attempt yet | claimed |
//! | a lease and a record *started* | started: in progress |
//! | a record *done* | done; the result is in it |
//! | a record *retryable* | free: the last attempt has certainly not acted |
//! | a record *unknown*, or *started* and no lease of that attempt | free: the last attempt may have acted |

mod claim;
mod kept;
mod key;
mod outcome;
mod record;

use std::future::Future;
use std::time::Duration;

use crate::client::Client;
use crate::clock::Moment;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::lock::{Attempt, Busy, Lock, until_lost};
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::nesting;
use crate::options::COMMAND_TIMEOUT;
use crate::store::{StoreFuture, SwapReply, SwapRequest, Then};

pub use claim::{Claim, Claimed, Failed, MAX_RESULT_BYTES, OnceAttempt, Previous};
pub use kept::{Forgot, Progress, Recorded};
use key::Fingerprint;
pub use key::{IdempotencyKey, idempotency_key};
pub use outcome::{OnceError, OnceOutcome};
use record::{Record, State};

/// How long a record is kept unless something else is asked for: 24 h, as APIs that honour idempotency keys do.
pub const DEFAULT_RETAIN: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest time a record is kept, 1 s.
pub const MIN_RETAIN: Duration = Duration::from_secs(1);
/// The longest time a record is kept, 365 days.
pub const MAX_RETAIN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The first pause after a store that gave no answer; later ones double it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(500);
/// Only the holder of the lease changes a record, so the second swap finds what the first one saw; a record that ends
/// or is deleted just then takes one more.
const MOST_SWAPS: usize = 4;

/// What to do when an earlier attempt may have acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IfUnknown {
    /// Run again, with the same idempotency key: for whatever honours it, and for work that can be repeated.
    #[default]
    RunAgain,
    /// Report `OutcomeUnknown`: somebody has to look. Until then nobody who says so runs it.
    Refuse,
}

impl Client {
    /// An operation that is to be done once: see [`Once`]. It has the client's defaults of a lock.
    ///
    /// # Errors
    /// `Config` when the name is outside its limits.
    pub fn once(&self, name: impl AsRef<str>) -> Result<Once, Error> {
        Ok(Once {
            lock: self.lock(name)?,
            retain: DEFAULT_RETAIN,
            fingerprint: None,
            if_unknown: IfUnknown::default(),
        })
    }
}

/// An operation that is to be done once, and what is asked of it. Made by [`Client::once`]; each method returns the
/// changed operation.
///
/// What it guarantees: while the store keeps what it was told, at most one caller at a time runs the operation; after
/// one has succeeded and its result is kept, nobody runs it again for [`Once::retain`]; every attempt has the same
/// idempotency key; a caller that dies frees the operation when its lease ends.
///
/// What it does not guarantee: that the *act* happens once. A caller may die, or lose its lease, after it has acted
/// and before that was written down; the next one cannot tell and runs again. So whatever the body does must be safe to
/// repeat: an API that is given [`OnceAttempt::idempotency_key`], a write that is fenced or unique. A store that loses
/// its records (eviction, flush, failover) runs again, too.
///
/// The name is an ordinary lock: `client.lock` of the same name excludes it, and operators see who is at it.
///
/// ```
/// # async fn ask_carrier(_: &str) -> Result<String, std::io::Error> { Ok("JD014600001".into()) }
/// # async fn example(client: &leasehold_core::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_core::OnceOutcome;
///
/// let shipped = client
///     .once("ship:1001")?
///     .fingerprint("ship order 1001")
///     .run(|attempt| async move { ask_carrier(attempt.idempotency_key().as_str()).await })
///     .await?;
/// match shipped {
///     OnceOutcome::Ran(tracking) => println!("shipped: {tracking}"),
///     OnceOutcome::AlreadyDone(tracking) => println!("was shipped: {}", String::from_utf8_lossy(&tracking)),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an operation does nothing until it is run or claimed"]
pub struct Once {
    lock: Lock,
    retain: Duration,
    fingerprint: Option<Fingerprint>,
    if_unknown: IfUnknown,
}

impl Once {
    /// How long what is known of the operation is kept, from the last change on: 1 s to 365 days, 24 h by default.
    /// Later the same name is a new operation. Make it longer than the longest time after which an event can come
    /// again. That an attempt has begun is known for 24 h and for [`Once::max_hold`] at least, however short this is.
    pub fn retain(mut self, retain: Duration) -> Self {
        self.retain = retain;
        self
    }

    /// What is asked for, in bytes of the caller's choice: the request's body, or what counts of it. A later call for
    /// the same name with another one is refused as `DifferentRequest`; one without is not compared.
    pub fn fingerprint(mut self, request: impl AsRef<[u8]>) -> Self {
        self.fingerprint = Some(Fingerprint::of(request.as_ref()));
        self
    }

    /// What to do when an earlier attempt may have acted; run again by default.
    pub fn if_unknown(mut self, if_unknown: IfUnknown) -> Self {
        self.if_unknown = if_unknown;
        self
    }

    /// Wait at most this long for somebody else's result; by default not at all. See [`Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        self.with_lock(|lock| lock.wait(wait))
    }

    /// Wait for somebody else's result, however long that takes.
    pub fn wait_forever(self) -> Self {
        self.with_lock(Lock::wait_forever)
    }

    /// How soon others follow after a crash: 10 ms to 24 h, 30 s by default. See [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with_lock(|lock| lock.ttl(ttl))
    }

    /// How long one attempt may last. See [`Lock::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with_lock(|lock| lock.max_hold(max_hold))
    }

    /// Call this when the wait begins, and whenever the holder changes. It must not block.
    pub fn on_waiting(self, report: impl Fn(&Busy) + Send + Sync + 'static) -> Self {
        self.with_lock(|lock| lock.on_waiting(report))
    }

    /// The same operation for threads that do not use async.
    pub fn blocking(self) -> crate::blocking::Once {
        crate::blocking::Once(self)
    }

    /// The key that every attempt sends along to an API of somebody else.
    pub fn idempotency_key(&self) -> IdempotencyKey {
        idempotency_key(&self.engine().store.namespace(), self.name())
    }

    /// Runs the body if the operation is not done yet and nobody else is at it, and keeps what it returns. Otherwise
    /// gives the result that was kept, or says who is at it.
    ///
    /// An operation that was done before costs one round trip; one that is done now two more than a lock does.
    ///
    /// A body that fails leaves the operation to the next caller, as *unknown* or, if it has said
    /// [`OnceAttempt::has_not_acted`], as *retryable*. An answer that is final (an order that cannot be shipped) is a
    /// result and not a failure. When the lease is lost the body is cancelled, as in [`Lock::run`].
    ///
    /// # Errors
    /// See [`OnceError`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and gives the name back in the background; the operation is then *unknown*.
    pub async fn run<T, E, F, Fut>(self, body: F) -> Result<OnceOutcome<T>, OnceError<T, E>>
    where
        T: AsRef<[u8]>,
        F: FnOnce(OnceAttempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let claimed = match self.claim().await.map_err(OnceError::before)? {
            Claim::Claimed(claimed) => claimed,
            Claim::Done(result) => return Ok(OnceOutcome::AlreadyDone(result)),
            Claim::InProgress(busy) => return Err(OnceError::InProgress(busy)),
        };
        let (name, fencing_token) = (claimed.name().clone(), claimed.fencing_token());
        let attempt = claimed.attempt().clone();
        let body = nesting::inside(&claimed, || body(attempt));
        let result = match until_lost(&claimed, body).await {
            Ok(result) => result,
            Err(cause) => return Err(OnceError::Lost { name, cause, fencing_token, value: None }),
        };
        match result {
            Ok(value) => match claimed.complete(&value).await {
                Ok(()) => Ok(OnceOutcome::Ran(value)),
                Err(error) => Err(OnceError::after(name, value, error, fencing_token)),
            },
            Err(error) => Err(OnceError::Body(claimed.failed(error).await)),
        }
    }

    /// Claims the operation by hand: look, take the name, write down that it has begun.
    ///
    /// # Errors
    /// `Config` for options outside their limits, a record of a newer version, and a store that keeps no records;
    /// `DifferentRequest`, `OutcomeUnknown`; `Foreign` for a record that is not ours; `Lost` when the lease was lost
    /// before the attempt had begun; otherwise as [`Lock::acquire`]. Nothing is left behind.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lease and no place in the queue. The record may say that an attempt has begun;
    /// the next caller finds it *unknown*.
    pub async fn claim(&self) -> Result<Claim, Error> {
        let retain = self.checked_retain()?;
        let mut seen = self.look().await?;
        if let Some(result) = self.kept(seen.as_deref())? {
            return Ok(Claim::Done(result));
        }
        let guard = match self.lock.acquire().await? {
            Attempt::Acquired(guard) => guard,
            Attempt::Busy(busy) => return Ok(Claim::InProgress(busy)),
        };
        for _ in 0..MOST_SWAPS {
            match self.begin(&guard, seen.as_deref(), retain).await {
                Ok(Begun::Started(record, previous)) => {
                    return Ok(Claim::Claimed(Claimed::new(guard, record, previous, retain)));
                }
                Ok(Begun::Done(result)) => {
                    give_back(guard).await;
                    return Ok(Claim::Done(result));
                }
                Ok(Begun::Changed(current)) => seen = current,
                Err(error) => {
                    give_back(guard).await;
                    return Err(error);
                }
            }
        }
        give_back(guard).await;
        Err(Error::new(
            ErrorKind::Foreign,
            format!("{}: another program keeps changing the record of this operation", self.name()),
        ))
    }

    /// Writes down that an attempt has begun, if the record is as it was seen and allows one.
    async fn begin(&self, guard: &Guard, seen: Option<&[u8]>, retain: Duration) -> Result<Begun, Error> {
        if let Some(result) = self.kept(seen)? {
            return Ok(Begun::Done(result));
        }
        let last = seen.map(|bytes| Record::parse(self.name(), bytes)).transpose()?;
        let previous = last.as_ref().map(|last| match last.state {
            State::Retryable => Previous::Retryable,
            _ => Previous::Unknown,
        });
        if previous == Some(Previous::Unknown)
            && self.if_unknown == IfUnknown::Refuse
            && on(Rule::OutcomeUnknown)
        {
            return Err(outcome_unknown(self.name()));
        }
        let record = match &last {
            None => Record::first(guard.fencing_token(), self.fingerprint),
            Some(last) => last.next(guard.fencing_token(), self.fingerprint),
        };
        let written = record.encode();
        let reply = self
            .patiently(|engine| {
                engine.store.swap_record(SwapRequest {
                    name: self.name(),
                    owner: guard.owner_token(),
                    expected: seen,
                    record: &written,
                    retain: self.started_for(retain),
                    then: Then::Hold,
                })
            })
            .await?;
        match reply {
            SwapReply::Swapped { .. } => Ok(Begun::Started(record, previous)),
            // An earlier try whose reply was lost.
            SwapReply::Differs { current: Some(current) } if current == written => {
                Ok(Begun::Started(record, previous))
            }
            SwapReply::Differs { current } => Ok(Begun::Changed(current)),
            SwapReply::NotHeld { .. } => Err(crate::guard::lost(self.name(), guard.lost_or_missing())),
        }
    }

    /// The result, if the record says that it is done.
    fn kept(&self, record: Option<&[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let Some(record) = record else { return Ok(None) };
        let record = Record::parse(self.name(), record)?;
        if let (Some(kept), Some(asked)) = (record.fingerprint, self.fingerprint)
            && kept != asked
            && on(Rule::Fingerprint)
        {
            return Err(different_request(self.name()));
        }
        Ok(match record.state {
            State::Done(result) => Some(result),
            State::Started | State::Retryable | State::Unknown => None,
        })
    }

    async fn look(&self) -> Result<Option<Vec<u8>>, Error> {
        self.engine().check_usable()?;
        self.patiently(|engine| engine.store.read_record(self.name())).await
    }

    /// Asks the store, again while it gives no usable answer, until its time is over.
    async fn patiently<'a, T>(
        &'a self,
        question: impl Fn(&'a Engine) -> StoreFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let engine = self.engine();
        let timers = &engine.timers;
        let ends = timers.now().after(engine.store_timeout);
        let mut pause = FIRST_PAUSE;
        loop {
            let until = timers.now().after(COMMAND_TIMEOUT).min(ends);
            let error = match timers.before(until, question(engine)).await {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error)) if !error.is_retryable() => return Err(error.context(self.name())),
                Some(Err(error)) => error,
                None => no_reply(engine),
            };
            let again_at: Moment = timers.now().after(engine.jitter(pause / 2, pause));
            if again_at >= ends {
                return Err(error.context(self.name()));
            }
            timers.sleep_until(again_at).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    fn checked_retain(&self) -> Result<Duration, Error> {
        if !(MIN_RETAIN..=MAX_RETAIN).contains(&self.retain) {
            return Err(Error::config(format!(
                "retain is {:?}: {MIN_RETAIN:?} to 365 days are allowed",
                self.retain
            )));
        }
        if !self.engine().store.capabilities().records {
            return Err(Error::config(format!(
                "{} keeps no records of operations: run once needs scripts on Redis, so take scripting=off out of the \
                 URL, or use a lock",
                self.engine().store.describe()
            )));
        }
        Ok(Duration::from_millis(u64::try_from(self.retain.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long it is known that an attempt has begun. One that lasts longer than what is kept of it would not be
    /// found by those who refuse to run again.
    fn started_for(&self, retain: Duration) -> Duration {
        if on(Rule::StartedOutlastsAttempt) {
            retain.max(DEFAULT_RETAIN).max(self.lock.options.max_hold.unwrap_or_default())
        } else {
            retain
        }
    }

    fn with_lock(self, change: impl FnOnce(Lock) -> Lock) -> Self {
        Self { lock: change(self.lock), ..self }
    }

    fn engine(&self) -> &Engine {
        &self.lock.engine
    }

    fn name(&self) -> &Name {
        &self.lock.name
    }
}

/// What became of writing down that an attempt has begun.
enum Begun {
    Started(Record, Option<Previous>),
    Done(Vec<u8>),
    /// The record is another one than was seen.
    Changed(Option<Vec<u8>>),
}

impl Claimed {
    /// Says that the body has failed; its error.
    pub(crate) async fn failed<E>(self, error: E) -> E {
        let (how, name) = (self.attempt().failed(), self.attempt().lease().name().clone());
        if let Err(unsaid) = self.fail(how).await {
            tracing::warn!(%name, error = %unsaid, "an attempt failed without saying so: the next one finds it unknown");
        }
        error
    }
}

/// Gives a claim back under which nothing was done.
async fn give_back(guard: Guard) {
    let name = guard.name().clone();
    // Whoever asked has an answer already, and what is left is cleaned up in the background.
    if let Err(error) = guard.release().await {
        tracing::debug!(%name, %error, "a claim that was not needed could not be given back at once");
    }
}

fn no_reply(engine: &Engine) -> Error {
    let message = format!("{} gave no reply within {COMMAND_TIMEOUT:?}", engine.store.describe());
    Error::new(ErrorKind::Unknown, message)
}

fn different_request(name: &Name) -> Error {
    Error::new(
        ErrorKind::DifferentRequest,
        format!(
            "{name} was asked for before with another request (its fingerprint differs), so nothing was done: give \
             each operation a name of its own"
        ),
    )
}

fn outcome_unknown(name: &Name) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        format!(
            "{name}: an earlier attempt ended without saying whether it has acted, so nothing was done: find out, then \
             run it again without refusing that, or under another name"
        ),
    )
}
