//! Faults that tests inject between one process and the server, and the record of what it sent.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::name::Name;

/// An operation of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`Store::acquire`](crate::Store::acquire).
    Acquire,
    /// [`Store::release`](crate::Store::release).
    Release,
    /// [`Store::renew`](crate::Store::renew), one batch.
    Renew,
    /// [`Store::inspect`](crate::Store::inspect).
    Inspect,
    /// [`Store::list`](crate::Store::list).
    List,
    /// [`Store::break_lease`](crate::Store::break_lease).
    Break,
    /// [`Store::diagnose`](crate::Store::diagnose).
    Diagnose,
    /// [`Store::read_record`](crate::Store::read_record).
    ReadRecord,
    /// [`Store::swap_record`](crate::Store::swap_record).
    SwapRecord,
}

/// One thing a process sent, as [`MemoryStore::recorded`](super::MemoryStore::recorded) shows it. A batch of
/// renewals has a line for each lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When it was sent, on the process' clock.
    pub at: Moment,
    /// What.
    pub operation: Operation,
    /// The name it was about.
    pub name: Name,
    /// The label of the owner token, if the operation has one.
    pub owner: Option<String>,
}

/// What a process knows of the time of a pushed grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantBound {
    /// It came after the moment that lies this long before it.
    Age(Duration),
    /// Nothing, as right after a reconnect.
    Unknown,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    ReplyLost,
    RequestLost,
    /// Its reply is lost, and it reaches the server only after this long.
    Late(Duration),
}

/// The faults of one connection.
pub(super) struct Faults {
    pub(super) request_delay: Duration,
    pub(super) reply_delay: Duration,
    pub(super) push_delay: Duration,
    pub(super) unreachable: bool,
    pub(super) lose_pushes: bool,
    pub(super) grant_bound: GrantBound,
    refused: HashMap<Name, ErrorKind>,
    fates: HashMap<Operation, Vec<Fate>>,
    requests: HashMap<Operation, u64>,
    record: Option<Vec<Recorded>>,
}

impl Faults {
    pub(super) fn none() -> Self {
        Self {
            request_delay: Duration::ZERO,
            reply_delay: Duration::ZERO,
            push_delay: Duration::ZERO,
            unreachable: false,
            lose_pushes: false,
            grant_bound: GrantBound::Age(Duration::ZERO),
            refused: HashMap::new(),
            fates: HashMap::new(),
            requests: HashMap::new(),
            record: None,
        }
    }

    pub(super) fn add_fate(&mut self, operation: Operation, fate: Fate) {
        self.fates.entry(operation).or_default().push(fate);
    }

    /// The fate of the next request: in the order in which they were asked for.
    pub(super) fn take_fate(&mut self, operation: Operation) -> Fate {
        match self.fates.get_mut(&operation) {
            Some(fates) if !fates.is_empty() => fates.remove(0),
            _ => Fate::Answered,
        }
    }

    pub(super) fn refuse(&mut self, name: &Name, kind: Option<ErrorKind>) {
        match kind {
            Some(kind) => self.refused.insert(name.clone(), kind),
            None => self.refused.remove(name),
        };
    }

    pub(super) fn refusal(&self, name: &Name) -> Option<ErrorKind> {
        self.refused.get(name).copied()
    }

    pub(super) fn count(&mut self, operation: Operation) {
        *self.requests.entry(operation).or_default() += 1;
    }

    pub(super) fn requests(&self, operation: Operation) -> u64 {
        self.requests.get(&operation).copied().unwrap_or(0)
    }

    pub(super) fn start_record(&mut self) {
        self.record = Some(Vec::new());
    }

    pub(super) fn record(&mut self, line: impl FnOnce() -> Recorded) {
        if let Some(record) = &mut self.record {
            record.push(line());
        }
    }

    pub(super) fn recorded(&self) -> Vec<Recorded> {
        self.record.clone().unwrap_or_default()
    }
}
