//! One live connection: sending commands on it, the bound of grants that are read from it, and noticing that
//! it has died. Never reconnects.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{COMMAND_TIMEOUT, Clock, Error, ErrorKind, Moment, SystemClock};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::Notify;

use crate::failure::{Failure, Refusal};
use crate::script::Script;

/// So many commands in a row without any reply end the connection. They count only if they were sent one after
/// another, so many at once count as one.
const MOST_TIMEOUTS: u32 = 2;

/// A live connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Random, new for every connection: names its wake channel.
    pub(crate) id: String,
    /// Whether its wake channel is subscribed.
    pub(crate) subscribed: bool,
    link: MultiplexedConnection,
    health: Arc<Health>,
}

/// What is known about a connection, shared by those who send on it and the one who reads it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// When the newest command was sent whose reply was read, in nanoseconds of the clock; 0 = none yet.
    replied_sent_at: AtomicU64,
    dead: AtomicBool,
    timeouts: AtomicU32,
    last_timeout_at: AtomicU64,
    /// Commands under way.
    pending: AtomicUsize,
    /// Why the connection should be given up, once it should.
    reason: OnceLock<&'static str>,
    given_up: Notify,
}

impl Health {
    /// A moment certainly before everything that is read from the connection after this call, if there is one:
    /// replies and pushes arrive in order, so what is read after a reply happened after its command was sent.
    pub(crate) fn bound(&self) -> Option<Moment> {
        match self.replied_sent_at.load(Ordering::Acquire) {
            0 => None,
            nanos => Some(Moment::from_origin(Duration::from_nanos(nanos))),
        }
    }

    /// Notes that nothing can be sent or read any more.
    pub(crate) fn died(&self) {
        self.dead.store(true, Ordering::Release);
        self.give_up("the server closed it");
    }

    /// Asks for another connection; the first reason is kept.
    pub(crate) fn give_up(&self, reason: &'static str) {
        self.reason.get_or_init(|| reason);
        self.given_up.notify_one();
    }

    /// Waits until the connection should be given up; why.
    pub(crate) async fn given_up(&self) -> &'static str {
        loop {
            if let Some(reason) = self.reason.get() {
                return reason;
            }
            self.given_up.notified().await;
        }
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.reason.get().is_some()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    fn replied(&self, sent_at: Moment) {
        self.replied_sent_at.fetch_max(nanos(sent_at), Ordering::AcqRel);
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    fn timed_out(&self, sent_at: Moment, now: Moment) {
        if nanos(sent_at) < self.last_timeout_at.load(Ordering::Acquire) {
            return;
        }
        self.last_timeout_at.store(nanos(now), Ordering::Release);
        if self.timeouts.fetch_add(1, Ordering::AcqRel) + 1 >= MOST_TIMEOUTS {
            self.give_up("the server gives no answers");
        }
    }
}

impl Connection {
    pub(crate) fn new(id: String, link: MultiplexedConnection, health: Arc<Health>) -> Self {
        Self { id, subscribed: false, link, health }
    }

    /// The same connection, with or without its wake channel.
    pub(crate) fn with_subscription(self, subscribed: bool) -> Self {
        Self { subscribed, ..self }
    }

    /// The same connection for waiters that are told on the wake channel of another one.
    pub(crate) fn with_wake_channel_of(self, other: &Self) -> Self {
        Self { id: other.id.clone(), subscribed: other.subscribed, ..self }
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.health.pending.load(Ordering::Acquire) > 0
    }

    /// Sends a command and reads its reply.
    pub(crate) async fn call(&self, command: &Cmd) -> Result<Answered, Failure> {
        let flight = self.begin()?;
        let result = self.link.clone().send_packed_command(command).await;
        flight.finish(result)
    }

    /// Sends commands together and reads the reply of each. A reply can be an error of its own.
    pub(crate) async fn call_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let flight = self.begin()?;
        let result = self.link.clone().send_packed_commands(commands, 0, commands.len()).await;
        Ok(flight.finish(result)?.value)
    }

    /// Calls a script by its hash, and once more with its text if the server does not know it.
    pub(crate) async fn call_script(&self, script: &Script, by_hash: &Cmd) -> Result<Answered, Failure> {
        let mut answered = self.call(by_hash).await?;
        // Thousands can find out together that the server has forgotten it: the text is sent by the first of them.
        if answered.is_unknown_script() && script.text_was_sent_after(answered.sent_at) {
            answered = self.call(by_hash).await?;
        }
        if !answered.is_unknown_script() {
            return Ok(answered);
        }
        script.text_is_sent_at(SystemClock.now());
        self.call(&script.by_text(by_hash)).await
    }

    fn begin(&self) -> Result<Flight<'_>, Failure> {
        if self.health.is_dead() {
            let message = "the connection to the server was just lost and is being made anew";
            return Err(Failure::NotSent(Error::new(ErrorKind::Unavailable, message)));
        }
        self.health.pending.fetch_add(1, Ordering::AcqRel);
        Ok(Flight { health: &self.health, sent_at: SystemClock.now(), landed: false })
    }
}

/// A reply and the time it took.
#[derive(Debug)]
pub(crate) struct Answered<T = Value> {
    pub(crate) value: T,
    /// A moment before the command was sent.
    pub(crate) sent_at: Moment,
}

impl Answered {
    fn is_unknown_script(&self) -> bool {
        Refusal::in_value(&self.value).is_some_and(|refusal| refusal.code == "NOSCRIPT")
    }

    /// The reply, unless it is an error of the server.
    pub(crate) fn accepted(self) -> Result<Value, Failure> {
        match Refusal::in_value(&self.value) {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => Ok(self.value),
        }
    }
}

impl Refusal {
    /// The error a reply is.
    pub(crate) fn in_value(value: &Value) -> Option<Self> {
        match value {
            Value::ServerError(error) => Some(Self::new(error.code(), error.details().unwrap_or_default())),
            _ => None,
        }
    }
}

/// A command under way. One that is dropped after it has waited for long counts as timed out.
struct Flight<'a> {
    health: &'a Health,
    sent_at: Moment,
    landed: bool,
}

impl Flight<'_> {
    fn finish<T>(mut self, result: Result<T, RedisError>) -> Result<Answered<T>, Failure> {
        self.landed = true;
        match result {
            Ok(value) => {
                self.health.replied(self.sent_at);
                Ok(Answered { value, sent_at: self.sent_at })
            }
            Err(error) => Err(Failure::ReplyLost(error)),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.health.pending.fetch_sub(1, Ordering::AcqRel);
        if !self.landed {
            let now = SystemClock.now();
            // The caller's clock started a little earlier.
            if now.since(self.sent_at) >= COMMAND_TIMEOUT * 9 / 10 {
                self.health.timed_out(self.sent_at, now);
            }
        }
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    fn gives_up(health: &Health) -> bool {
        use std::future::Future;
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(health.given_up()).poll(&mut context).is_ready()
    }

    #[test]
    fn the_bound_is_the_newest_command_that_was_answered() {
        let health = Health::default();
        assert_eq!(health.bound(), None);
        health.replied(at(20));
        health.replied(at(10));
        assert_eq!(health.bound(), Some(at(20)));
    }

    #[test]
    fn timeouts_in_a_row_end_a_connection_and_many_at_once_count_as_one() {
        let health = Health::default();
        for _ in 0..64 {
            health.timed_out(at(0), at(1_000));
        }
        assert!(!gives_up(&health));
        health.replied(at(1_001));
        health.timed_out(at(1_002), at(2_002));
        assert!(!gives_up(&health), "a reply in between starts the count anew");
        health.timed_out(at(2_003), at(3_003));
        assert!(gives_up(&health));
    }
}
