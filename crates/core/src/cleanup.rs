//! What is left behind when an acquisition is abandoned, a guard is dropped or a release is cancelled, and how
//! it is removed in the background: compare-and-delete by owner token, until the store has confirmed it or the
//! lease has ended by itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::engine::Shared;
use crate::error::{Error, ErrorKind};
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::observe;
use crate::options::COMMAND_TIMEOUT;
use crate::owner::OwnerToken;
use crate::store::{ReleaseRequest, SwapReply, SwapRequest, Then};

const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The store judges lateness by its own clock, known to the client within a round trip.
const LATE_SLACK: Duration = Duration::from_millis(50);
const MOST_RETRY: Duration = Duration::from_secs(1);

/// Something of ours that may be left in the store.
#[derive(Debug)]
pub(crate) struct CleanUp {
    pub(crate) name: Name,
    pub(crate) owner: OwnerToken,
    /// Keep the name taken until this moment (`min_hold`).
    pub(crate) keep_until: Option<Moment>,
    /// A request may still arrive until this moment, so clean up once more after it.
    pub(crate) late_until: Option<Moment>,
    /// Whatever is left has ended by itself at this moment.
    pub(crate) gone_at: Moment,
    /// A record to write in the same step as the name is given back.
    pub(crate) settlement: Option<Settlement>,
}

/// An outcome that the store has not confirmed.
#[derive(Debug)]
pub(crate) struct Settlement {
    /// The record it takes the place of.
    pub(crate) expected: Option<Vec<u8>>,
    pub(crate) record: Vec<u8>,
    pub(crate) retain: Duration,
}

impl CleanUp {
    /// For a grant that came for somebody who does not wait any more.
    pub(crate) fn unwanted_grant(name: Name, owner: OwnerToken, gone_at: Moment) -> Self {
        Self { name, owner, keep_until: None, late_until: None, gone_at, settlement: None }
    }

    /// Works until nothing can be left.
    async fn run(mut self, shared: &Shared) {
        let mut pause = FIRST_RETRY;
        loop {
            let now = shared.now();
            let reply = shared.timers.before(now.after(COMMAND_TIMEOUT), self.give_back(shared, now)).await;
            match (reply, self.late_until) {
                (Some(Ok(())), Some(late_until)) if now <= late_until && on(Rule::CleanUpUntilLate) => {
                    shared.timers.sleep_until(late_until.after(LATE_SLACK)).await;
                    continue;
                }
                (Some(Ok(())), _) => return observe::clean_up("done"),
                (Some(Err(error)), _) if !error.is_retryable() => {
                    tracing::warn!(name = %self.name, %error, "could not clean up; the lease ends by itself");
                    return observe::clean_up("refused");
                }
                (Some(Err(_)) | None, _) => {}
            }
            if shared.now() >= self.gone_at {
                tracing::warn!(name = %self.name, "gave up cleaning up: the lease has ended by itself");
                return observe::clean_up("expired");
            }
            shared.timers.sleep(shared.jitter(pause / 2, pause)).await;
            pause = (pause * 2).min(MOST_RETRY);
        }
    }
}

impl CleanUp {
    /// Gives the name back, with the record if there is one to write.
    async fn give_back(&mut self, shared: &Shared, now: Moment) -> Result<(), Error> {
        let keep_for = self.keep_until.map(|until| until.since(now)).filter(|keep| !keep.is_zero());
        let (name, owner) = (&self.name, &self.owner);
        if let Some(Settlement { expected, record, retain }) = &mut self.settlement {
            let request = SwapRequest {
                name,
                owner,
                expected: expected.as_deref(),
                record,
                retain: *retain,
                then: Then::Release { keep_for },
            };
            match shared.store.swap_record(request).await {
                // Written now or by an earlier try, or somebody else may be at it.
                Ok(SwapReply::Swapped { .. } | SwapReply::NotHeld { .. }) => return Ok(()),
                Ok(SwapReply::Differs { current: None }) if expected.is_some() => {
                    *expected = None;
                    let message = "the record has ended: it is written anew";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
                Err(error) if error.is_retryable() => return Err(error),
                // It cannot be written: the name is given back without it.
                Ok(SwapReply::Differs { .. }) | Err(_) => self.settlement = None,
            }
        }
        let (name, owner) = (&self.name, &self.owner);
        shared.store.release(ReleaseRequest { name, owner, keep_for }).await.map(drop)
    }
}

/// Clean-ups that wait for the keeper, and how many are not finished.
#[derive(Debug, Default)]
pub(crate) struct CleanUps {
    jobs: Mutex<Vec<CleanUp>>,
    unfinished: AtomicUsize,
    finished: Notify,
}

impl CleanUps {
    pub(crate) fn push(&self, job: CleanUp) {
        self.unfinished.fetch_add(1, Ordering::AcqRel);
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
    }

    /// Starts what was pushed since the last call.
    pub(crate) fn start(shared: &Arc<Shared>) {
        let jobs = std::mem::take(&mut *shared.cleanups.jobs.lock().unwrap_or_else(PoisonError::into_inner));
        for job in jobs {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                job.run(&shared).await;
                shared.cleanups.unfinished.fetch_sub(1, Ordering::AcqRel);
                shared.cleanups.finished.notify_waiters();
                shared.wake.notify_one();
            });
        }
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::Acquire)
    }

    /// Waits until nothing is unfinished.
    pub(crate) async fn finished(&self) {
        loop {
            let finished = self.finished.notified();
            tokio::pin!(finished);
            finished.as_mut().enable();
            if self.unfinished() == 0 {
                return;
            }
            finished.await;
        }
    }
}
