//! The faults a test has asked for and that have not happened yet, and the handles that tell when they did. Owns
//! no I/O.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::exchange::Request;
use crate::lock;

/// What becomes of a connection after one of its replies was swallowed. TCP never loses one reply and delivers the
/// next, so the first two are what happens in practice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDrop {
    /// The connection breaks.
    Cut,
    /// Nothing passes any more in either direction, and nobody is told.
    Silence,
    /// Everything else passes. A client with several requests in flight then takes each later reply for that of
    /// the request before: only for connections that have one request in flight.
    Continue,
}

/// Which requests a fault is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMatch {
    command: Option<String>,
    content: Vec<u8>,
}

impl RequestMatch {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests with this command, such as `EVALSHA`; upper or lower case.
    pub fn command(name: &str) -> Self {
        Self { command: Some(name.to_ascii_uppercase()), content: Vec::new() }
    }

    /// Only those whose bytes hold this text: a key, a script's hash.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.content = text.into();
        self
    }

    fn accepts(&self, request: &Request, frame: &[u8]) -> bool {
        self.command.as_ref().is_none_or(|command| *command == request.command)
            && (self.content.is_empty() || frame.windows(self.content.len()).any(|part| part == self.content))
    }
}

impl From<&str> for RequestMatch {
    fn from(command: &str) -> Self {
        Self::command(command)
    }
}

/// How far a fault has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Armed,
    Fired,
    Released,
    Delivered,
    Failed,
}

/// A [`Stage`] that threads wait for.
#[derive(Debug)]
pub(super) struct Progress {
    stage: Mutex<Stage>,
    changed: Condvar,
}

impl Progress {
    fn new() -> Arc<Self> {
        Arc::new(Self { stage: Mutex::new(Stage::Armed), changed: Condvar::new() })
    }

    /// Stages only go forward.
    fn advance(&self, stage: Stage) {
        let mut current = lock(&self.stage);
        *current = stage.max(*current);
        drop(current);
        self.changed.notify_all();
    }

    fn wait_for(&self, stage: Stage, timeout: Duration) -> Option<Stage> {
        let (reached, timeout) = self
            .changed
            .wait_timeout_while(lock(&self.stage), timeout, |current| *current < stage)
            .unwrap_or_else(PoisonError::into_inner);
        (!timeout.timed_out()).then_some(*reached)
    }

    pub(super) fn fire(&self) {
        self.advance(Stage::Fired);
    }

    /// Reports that a request is held, and blocks until its handle lets it go, at the latest when that is dropped.
    pub(super) fn hold(&self) {
        self.fire();
        let held = self.changed.wait_while(lock(&self.stage), |stage| *stage < Stage::Released);
        drop(held.unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn report_delivery(&self, delivered: bool) {
        self.advance(if delivered { Stage::Delivered } else { Stage::Failed });
    }
}

/// A fault that happens once. Dropping the handle does not call it off.
#[derive(Debug)]
#[must_use = "a test whose fault never happened has tested nothing: wait for it, or ask whether it did"]
pub struct Fault {
    what: &'static str,
    progress: Arc<Progress>,
}

impl Fault {
    fn new(what: &'static str) -> Self {
        Self { what, progress: Progress::new() }
    }

    /// Whether it has happened.
    pub fn has_fired(&self) -> bool {
        *lock(&self.progress.stage) >= Stage::Fired
    }

    /// Waits until it has happened.
    ///
    /// # Errors
    /// `TimedOut` when it does not happen in time.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let timed_out = || {
            let message = format!("{} did not happen within {timeout:?}", self.what);
            io::Error::new(io::ErrorKind::TimedOut, message)
        };
        self.progress.wait_for(Stage::Fired, timeout).map(|_| ()).ok_or_else(timed_out)
    }
}

/// A request that is, or will be, stopped on its way to the server. Dropping this lets it go on.
#[derive(Debug)]
#[must_use = "the request goes on to the server when this is dropped"]
pub struct HeldRequest {
    fault: Fault,
}

impl HeldRequest {
    /// Whether such a request has come and is held.
    pub fn is_held(&self) -> bool {
        self.fault.has_fired()
    }

    /// Waits until such a request has come and is held.
    ///
    /// # Errors
    /// `TimedOut` when none comes in time.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        self.fault.wait(timeout)
    }

    /// Lets the request go on, and waits until it was sent to the server.
    ///
    /// # Errors
    /// When the connection to the server is broken, no request is held, or the time is over.
    pub fn deliver(self, timeout: Duration) -> io::Result<()> {
        if !self.is_held() {
            return Err(io::Error::other("no such request has come"));
        }
        let progress = &self.fault.progress;
        progress.advance(Stage::Released);
        match progress.wait_for(Stage::Delivered, timeout) {
            Some(Stage::Delivered) => Ok(()),
            Some(_) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the held request could not be sent")),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "the held request was not sent in time")),
        }
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.fault.progress.advance(Stage::Released);
    }
}

/// A reply that is to be swallowed.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub(super) after: AfterDrop,
    progress: Option<Arc<Progress>>,
}

impl Loss {
    /// The reply to a request that the client did not send.
    pub(super) fn of_duplicate() -> Self {
        Self { after: AfterDrop::Continue, progress: None }
    }

    pub(super) fn report(&self) {
        if let Some(progress) = &self.progress {
            progress.fire();
        }
    }
}

/// What is to happen to one request.
#[derive(Debug, Default)]
pub(super) struct RequestFaults {
    pub(super) loss: Option<Loss>,
    pub(super) hold: Option<Arc<Progress>>,
    pub(super) duplicate: Option<Arc<Progress>>,
}

/// Everything asked for and not used up.
#[derive(Debug, Default)]
pub(super) struct Plan {
    next_replies: Vec<Loss>,
    next_pushes: Vec<Loss>,
    lost_replies: Vec<(RequestMatch, Loss)>,
    holds: Vec<(RequestMatch, Arc<Progress>)>,
    duplicates: Vec<(RequestMatch, Arc<Progress>)>,
}

impl Plan {
    pub(super) fn lose_next_reply(&mut self, after: AfterDrop) -> Fault {
        let (fault, loss) = losing("the loss of a reply", after);
        self.next_replies.push(loss);
        fault
    }

    pub(super) fn lose_next_push(&mut self) -> Fault {
        let (fault, loss) = losing("the loss of a push", AfterDrop::Continue);
        self.next_pushes.push(loss);
        fault
    }

    pub(super) fn lose_reply_to(&mut self, request: RequestMatch, after: AfterDrop) -> Fault {
        let (fault, loss) = losing("the loss of the reply to a request", after);
        self.lost_replies.push((request, loss));
        fault
    }

    pub(super) fn hold_request(&mut self, request: RequestMatch) -> HeldRequest {
        let fault = Fault::new("a request to hold");
        self.holds.push((request, Arc::clone(&fault.progress)));
        HeldRequest { fault }
    }

    pub(super) fn duplicate_request(&mut self, request: RequestMatch) -> Fault {
        let fault = Fault::new("a request to duplicate");
        self.duplicates.push((request, Arc::clone(&fault.progress)));
        fault
    }

    /// Uses up what is meant for this request: at most one fault of each sort, the oldest first.
    pub(super) fn take_for_request(&mut self, request: &Request, frame: &[u8]) -> RequestFaults {
        // A handle that was dropped before its request came has let it go on already.
        self.holds.retain(|(_, progress)| *lock(&progress.stage) == Stage::Armed);
        RequestFaults {
            loss: take_first(&mut self.lost_replies, request, frame),
            hold: take_first(&mut self.holds, request, frame),
            duplicate: take_first(&mut self.duplicates, request, frame),
        }
    }

    pub(super) fn take_for_reply(&mut self) -> Option<Loss> {
        (!self.next_replies.is_empty()).then(|| self.next_replies.remove(0))
    }

    pub(super) fn take_for_push(&mut self) -> Option<Loss> {
        (!self.next_pushes.is_empty()).then(|| self.next_pushes.remove(0))
    }
}

fn losing(what: &'static str, after: AfterDrop) -> (Fault, Loss) {
    let fault = Fault::new(what);
    let loss = Loss { after, progress: Some(Arc::clone(&fault.progress)) };
    (fault, loss)
}

fn take_first<T>(rules: &mut Vec<(RequestMatch, T)>, request: &Request, frame: &[u8]) -> Option<T> {
    let index = rules.iter().position(|(rule, _)| rule.accepts(request, frame))?;
    Some(rules.remove(index).1)
}
