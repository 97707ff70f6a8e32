//! How waiters on one node are told: its wake connection, opened when the first waiter queues there. Where there is
//! none, waiters poll.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use leasehold_core::{Clock, Moment, SystemClock};

use super::line::Line;
use crate::failure::{Failure, Refusal};
use crate::shared::Shared;

/// A user who may not subscribe tries again after this long; so does one whose line cannot be opened …
const DENIED_PAUSE: Duration = Duration::from_secs(60);
/// … after this.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(1);
/// Opening the line and subscribing take this long at most; whoever waits polls until then.
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);

/// The wake connection of one node.
pub(super) struct Wake {
    shared: Arc<Shared>,
    line: RwLock<Option<Arc<Line>>>,
    /// Held while a line is opened or a slot subscribed.
    opening: tokio::sync::Mutex<Option<Moment>>,
}

impl Wake {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, line: RwLock::new(None), opening: tokio::sync::Mutex::new(None) }
    }

    /// The line, if it has the channel of a slot.
    pub(super) fn at(&self, slot: u16) -> Option<Arc<Line>> {
        self.line().filter(|line| line.has(slot))
    }

    /// Subscribes to the channel of a slot; `None` where waiters have to poll.
    ///
    /// # Errors
    /// The slot is at another node.
    pub(super) async fn subscribe(&self, slot: u16) -> Result<Option<Arc<Line>>, Failure> {
        if let Some(line) = self.at(slot) {
            return Ok(Some(line));
        }
        let mut not_before = self.opening.lock().await;
        if let Some(line) = self.at(slot) {
            return Ok(Some(line));
        }
        if not_before.is_some_and(|moment| SystemClock.now() < moment) {
            return Ok(None);
        }
        let limited = {
            let _inside = self.shared.handle.enter();
            tokio::time::timeout(OPEN_TIMEOUT, self.open_and_subscribe(slot))
        };
        let pause = match limited.await {
            Ok(Ok((line, Ok(())))) => return Ok(Some(line)),
            Ok(Ok((_, Err(refusal)))) if refusal.is_about_the_slot() => {
                return Err(Failure::Refused(refusal));
            }
            Ok(Ok((_, Err(refusal)))) => {
                self.shared.warn_once_about_polling(&refusal);
                DENIED_PAUSE
            }
            Ok(Err(why)) => {
                tracing::debug!(
                    store = self.shared.config.describe(),
                    why,
                    "no wake connection: waiters poll"
                );
                UNREACHABLE_PAUSE
            }
            Err(_) => UNREACHABLE_PAUSE,
        };
        *not_before = Some(SystemClock.now().after(pause));
        Ok(None)
    }

    async fn open_and_subscribe(&self, slot: u16) -> Result<(Arc<Line>, Result<(), Refusal>), String> {
        let line = match self.line() {
            Some(line) => line,
            None => self.open().await?,
        };
        match line.subscribe(slot).await {
            Some(answer) => Ok((line, answer)),
            None => Err("it ended while subscribing".to_owned()),
        }
    }

    async fn open(&self) -> Result<Arc<Line>, String> {
        // Sockets belong to the runtime on which they are opened, and the caller may have none.
        let opened = self.shared.handle.spawn(Line::open(Arc::clone(&self.shared))).await;
        let line = Arc::new(opened.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?);
        let mut place = self.line.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::clone(&line));
        Ok(line)
    }

    fn line(&self) -> Option<Arc<Line>> {
        let line = self.line.read().unwrap_or_else(PoisonError::into_inner);
        line.as_ref().filter(|line| !line.is_dead()).cloned()
    }

    /// Ends the line.
    pub(super) fn close(&self) {
        *self.line.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
