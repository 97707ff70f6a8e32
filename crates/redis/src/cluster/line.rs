//! One wake connection: subscriptions to the wake channels of slots, and what is read from them. Speaks the protocol
//! itself, since a node ends subscriptions without being asked when a slot moves, and redis-rs takes that for the
//! reply to whatever was sent last.
//!
//! Nothing but subscriptions and PING is sent on it, so replies and messages are in the order in which they happened
//! at the node: the send time of the newest one that was answered is a lower bound for every message after it.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::store::StoreEvent;
use leasehold_core::{COMMAND_TIMEOUT, Clock, Error, ErrorKind, Moment, SystemClock};
use redis::{Cmd, PushKind, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};

use super::frames::first_frame;
use crate::config::RedisConfig;
use crate::events::deliver_message;
use crate::failure::Refusal;
use crate::handshake::{DriverTask, command};
use crate::random;
use crate::reply;
use crate::shared::Shared;
use crate::transport::{self, Stream};

/// A line on which nobody waits is asked this often whether it is alive. Each time, slots for which nobody has
/// waited since the last time are unsubscribed.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// What is not answered for this long ends the line.
const SILENCE: Duration = COMMAND_TIMEOUT.saturating_mul(2);
/// Read at once. A message has about a hundred bytes.
const READ_BYTES: usize = 16 * 1_024;
/// Longer frames come from no server that only sends messages.
const LONGEST_FRAME: usize = 1_024 * 1_024;

type Socket = Pin<Box<dyn Stream>>;

/// A wake connection, as those who wait on it see it.
pub(super) struct Line {
    /// Random, new for every connection: part of the names of its channels.
    pub(super) id: String,
    state: Arc<State>,
    wishes: mpsc::UnboundedSender<Wish>,
    _task: DriverTask,
}

/// Shared with the task that reads the line.
struct State {
    shared: Arc<Shared>,
    subscribed: Mutex<BTreeSet<u16>>,
    dead: AtomicBool,
    hurry: Notify,
}

/// Asks for the channel of a slot.
struct Wish {
    slot: u16,
    done: oneshot::Sender<Result<(), Refusal>>,
}

impl Line {
    /// Opens the connection and says hello.
    pub(super) async fn open(shared: Arc<Shared>) -> Result<Self, Error> {
        let id = random::connection_id()?;
        let (task_shared, handle) = (Arc::clone(&shared), shared.handle.clone());
        let (mut socket, mut rest) =
            (transport::open(&shared.primary.find(&shared.config).await?).await?, Vec::new());
        greet(&mut socket, &mut rest, &shared.config).await?;
        let state = Arc::new(State {
            shared: task_shared,
            subscribed: Mutex::default(),
            dead: AtomicBool::new(false),
            hurry: Notify::new(),
        });
        let (wishes, orders) = mpsc::unbounded_channel();
        let reader = Reader {
            id: id.clone(),
            ended: EndsLine(Arc::clone(&state)),
            state: Arc::clone(&state),
            expected: VecDeque::new(),
            bound: None,
            last_sent: SystemClock.now(),
            idle: BTreeSet::new(),
        };
        let task = DriverTask::new(handle.spawn(reader.run(socket, rest, orders)));
        Ok(Self { id, state, wishes, _task: task })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state.dead.load(Ordering::Acquire)
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        !self.is_dead() && self.state.subscribed().contains(&slot)
    }

    /// Subscribes to the channel of a slot; `None` when the line ends before the node has confirmed it.
    pub(super) async fn subscribe(&self, slot: u16) -> Option<Result<(), Refusal>> {
        let (done, answered) = oneshot::channel();
        self.wishes.send(Wish { slot, done }).ok()?;
        answered.await.ok()
    }

    /// Makes sure that the bound of messages is refreshed as often as those who wait need it.
    pub(super) fn hurry(&self) {
        self.state.hurry.notify_one();
    }
}

impl State {
    fn subscribed(&self) -> std::sync::MutexGuard<'_, BTreeSet<u16>> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has everybody who waits for a name of these slots ask again.
    fn ask_again(&self, slots: &BTreeSet<u16>) {
        let keys = &self.shared.config.keys;
        for owner in self.shared.waiters.expecting(|name| slots.contains(&keys.slot(name))) {
            self.shared.events.deliver(StoreEvent::AskAgain { owner });
        }
        self.shared.lost.notify_one();
    }
}

/// Notes the end of a line, also when its task is ended or its runtime shut down.
struct EndsLine(Arc<State>);

impl Drop for EndsLine {
    fn drop(&mut self) {
        self.0.dead.store(true, Ordering::Release);
        let slots = std::mem::take(&mut *self.0.subscribed());
        if !slots.is_empty() {
            self.0.ask_again(&slots);
        }
    }
}

/// Sends HELLO and reads its answer.
async fn greet(socket: &mut Socket, rest: &mut Vec<u8>, config: &RedisConfig) -> Result<(), Error> {
    let mut hello = command(&["HELLO", "3"]);
    if let Some(password) = &config.login.password {
        hello.arg("AUTH").arg(config.login.user.as_deref().unwrap_or("default")).arg(password.expose());
    }
    let lost = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("the connection was lost while greeting ({error})"))
    };
    socket.write_all(&hello.get_packed_command()).await.map_err(lost)?;
    socket.flush().await.map_err(lost)?;
    loop {
        match take_frame(rest) {
            Ok(Some(Value::ServerError(error))) => {
                return Err(Refusal::new(error.code(), error.details().unwrap_or_default()).into_error());
            }
            Ok(Some(_)) => return Ok(()),
            Ok(None) => {}
            Err(reason) => return Err(Error::new(ErrorKind::Unavailable, reason)),
        }
        let closed = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        rest.reserve(READ_BYTES);
        if socket.read_buf(rest).await.map_err(lost)? == 0 {
            return Err(lost(closed()));
        }
    }
}

/// Takes the first whole frame out of what was read.
fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<Value>, &'static str> {
    const NO_FRAME: &str = "the node sent what is no message";
    if bytes.is_empty() {
        return Ok(None);
    }
    let Some(length) = first_frame(bytes).map_err(|_| NO_FRAME)? else {
        return if bytes.len() > LONGEST_FRAME { Err(NO_FRAME) } else { Ok(None) };
    };
    let frame: Vec<u8> = bytes.drain(..length).collect();
    redis::parse_redis_value(&frame).map(Some).map_err(|_| NO_FRAME)
}

/// What was sent and is not answered yet.
enum Expected {
    Ping { sent_at: Moment },
    Subscribe { slot: u16, channel: String, sent_at: Moment, done: oneshot::Sender<Result<(), Refusal>> },
    Unsubscribe,
}

/// The task that reads and writes a line.
struct Reader {
    id: String,
    ended: EndsLine,
    state: Arc<State>,
    expected: VecDeque<Expected>,
    /// A moment certainly before every message that is read from now on.
    bound: Option<Moment>,
    last_sent: Moment,
    /// Slots for which nobody waited at the last heartbeat.
    idle: BTreeSet<u16>,
}

impl Reader {
    async fn run(mut self, mut socket: Socket, mut rest: Vec<u8>, mut orders: mpsc::UnboundedReceiver<Wish>) {
        let reason = loop {
            match take_frame(&mut rest) {
                Ok(Some(frame)) => {
                    self.take(frame);
                    continue;
                }
                Ok(None) => {}
                Err(reason) => break reason,
            }
            let pause = self.next_ping().saturating_sub(SystemClock.now().since(self.last_sent));
            rest.reserve(READ_BYTES);
            let to_send = tokio::select! {
                read = socket.read_buf(&mut rest) => match read {
                    Ok(0) | Err(_) => break "the node closed it",
                    Ok(_) => continue,
                },
                wish = orders.recv() => match wish {
                    Some(wish) => self.subscribe(wish),
                    None => break "it is not needed any more",
                },
                () = self.state.hurry.notified() => continue,
                () = tokio::time::sleep(pause) => match self.ping() {
                    Some(to_send) => to_send,
                    None => break "the node gives no answers",
                },
            };
            let sent = async {
                socket.write_all(&to_send).await?;
                socket.flush().await
            };
            if !matches!(tokio::time::timeout(SILENCE, sent).await, Ok(Ok(()))) {
                break "the node takes no more";
            }
        };
        if !self.state.shared.is_closed() {
            tracing::debug!(store = self.state.shared.config.describe(), reason, "a wake connection ended");
        }
        drop(self.ended);
    }

    /// How long after the last command the next PING goes out.
    fn next_ping(&self) -> Duration {
        self.state.shared.waiters.bound_interval().map_or(HEARTBEAT, |interval| interval.min(HEARTBEAT))
    }

    fn subscribe(&mut self, wish: Wish) -> Vec<u8> {
        let channel = self.state.shared.config.keys.slot_channel(wish.slot, &self.id);
        let to_send = command(&["SSUBSCRIBE", &channel]).get_packed_command();
        self.last_sent = SystemClock.now();
        let sent_at = self.last_sent;
        self.expected.push_back(Expected::Subscribe { slot: wish.slot, channel, sent_at, done: wish.done });
        to_send
    }

    /// A PING, after unsubscribing what nobody waits for; `None` when the node has been silent for too long.
    fn ping(&mut self) -> Option<Vec<u8>> {
        let now = SystemClock.now();
        let oldest = self.expected.iter().find_map(|expected| match expected {
            Expected::Ping { sent_at } | Expected::Subscribe { sent_at, .. } => Some(*sent_at),
            Expected::Unsubscribe => None,
        });
        if oldest.is_some_and(|oldest| now.since(oldest) > SILENCE) {
            return None;
        }
        let mut to_send = Vec::new();
        for slot in self.unneeded() {
            let channel = self.state.shared.config.keys.slot_channel(slot, &self.id);
            to_send.extend(command(&["SUNSUBSCRIBE", &channel]).get_packed_command());
            self.expected.push_back(Expected::Unsubscribe);
        }
        to_send.extend(Cmd::ping().get_packed_command());
        self.expected.push_back(Expected::Ping { sent_at: now });
        self.last_sent = now;
        Some(to_send)
    }

    /// Takes out the slots for which nobody waits now and nobody waited the last time.
    fn unneeded(&mut self) -> Vec<u16> {
        let (keys, waiters) = (&self.state.shared.config.keys, &self.state.shared.waiters);
        let idle = self.state.subscribed().clone();
        if idle.is_empty() {
            return Vec::new();
        }
        let waited_for = || waiters.slots_expected(|name| keys.slot(name));
        let needed = waited_for();
        let idle: BTreeSet<_> = idle.difference(&needed).copied().collect();
        let mut unneeded: Vec<_> = idle.intersection(&self.idle).copied().collect();
        self.idle = idle;
        self.state.subscribed().retain(|slot| !unneeded.contains(slot));
        // Whoever begins to wait counts before looking whether there is a channel: seen here, or seeing none.
        let needed = waited_for();
        unneeded.retain(|slot| {
            let back = needed.contains(slot);
            if back {
                self.state.subscribed().insert(*slot);
            }
            !back
        });
        unneeded
    }

    fn take(&mut self, frame: Value) {
        match frame {
            Value::Push { kind: PushKind::SMessage, data } => self.message(&data),
            Value::Push { kind: PushKind::SSubscribe, data } => self.confirmed(&data),
            Value::Push { kind: PushKind::SUnsubscribe, data } => self.unsubscribed(&data),
            Value::Push { .. } => {}
            Value::ServerError(error) => {
                let refusal = Refusal::new(error.code(), error.details().unwrap_or_default());
                // One that was unsubscribed because its slot has moved; otherwise somebody wants to know.
                if let Some(Expected::Subscribe { done, .. }) = self.expected.pop_front() {
                    let _gone = done.send(Err(refusal));
                }
            }
            _pong => {
                while let Some(expected) = self.expected.pop_front() {
                    if let Expected::Ping { sent_at } = expected {
                        self.bound = Some(sent_at);
                        break;
                    }
                }
            }
        }
    }

    fn message(&self, data: &[Value]) {
        let [_channel, payload] = data else { return };
        let Ok(payload) = reply::bytes(payload) else { return };
        deliver_message(payload, self.bound, &self.state.shared.waiters, &self.state.shared.events);
    }

    fn confirmed(&mut self, data: &[Value]) {
        let Some(confirmed) = data.first().and_then(|channel| reply::text(channel).ok()) else { return };
        while let Some(expected) = self.expected.pop_front() {
            if let Expected::Subscribe { slot, channel, sent_at, done } = expected
                && channel == confirmed
            {
                self.bound = Some(sent_at);
                self.state.subscribed().insert(slot);
                let _gone = done.send(Ok(()));
                break;
            }
        }
    }

    /// The answer to an unsubscription, or a slot that has moved to another node.
    fn unsubscribed(&mut self, data: &[Value]) {
        let Some(channel) = data.first().and_then(|channel| reply::text(channel).ok()) else { return };
        let keys = &self.state.shared.config.keys;
        let moved: BTreeSet<_> = {
            let mut subscribed = self.state.subscribed();
            let slot = crate::tags::slot_of(channel.as_bytes());
            let ours = keys.slot_channel(slot, &self.id) == channel;
            if ours && subscribed.remove(&slot) { BTreeSet::from([slot]) } else { BTreeSet::new() }
        };
        if !moved.is_empty() {
            self.state.ask_again(&moved);
        }
    }
}
