//! The reference: what a lock may do. It keeps every state that is possible after what was seen, because a lease may
//! have ended or not while one looks, and a lost reply leaves it open what happened. Something seen that no state
//! allows is a fault of the lock. Pure: times come in as values.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

/// Time since the case began.
pub(crate) type At = Duration;
/// A store counts whole milliseconds, and a virtual clock rounds up.
const RESOLUTION: Duration = Duration::from_millis(6);

/// A request whose reply nobody waits for any more has arrived by then.
const LATE: Duration = Duration::from_secs(1);

/// When something was asked and when the answer was there: it happened in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: At,
    pub(crate) to: At,
}

/// One possible state of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    holder: Option<Hold>,
    /// Clients that wait in the store, with the one of their waiters that does; first to last.
    queue: VecDeque<(usize, usize)>,
    /// Further waiters of a client, in order of arrival.
    local: BTreeMap<usize, VecDeque<usize>>,
    /// Leases that the store lost, or that were broken, while their holders do not know it yet.
    orphans: BTreeSet<usize>,
}

/// A lease in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    lease: usize,
    client: usize,
    /// It ends between these two moments, if it ends by itself.
    ends: Option<(At, At)>,
}

/// Something that was seen.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// An attempt that did not wait, or not longer than this.
    Acquired {
        client: usize,
        lease: usize,
        fixed: Option<Duration>,
    },
    Busy {
        holder: Option<usize>,
    },
    /// A background waiter has it.
    Granted {
        client: usize,
        waiter: usize,
        lease: usize,
        fixed: Option<Duration>,
    },
    Freed {
        lease: usize,
    },
    AlreadyLost {
        lease: usize,
    },
    /// Nobody knows whether a release found its lease.
    ReleasedSomehow {
        lease: usize,
    },
    /// Its guard was dropped, and the clean-up is done.
    Dropped {
        lease: usize,
    },
    /// A lease was renewed; if it ends by itself, this much later than now.
    Renewed {
        lease: usize,
        fixed: Option<Duration>,
    },
    NotRenewed {
        lease: usize,
    },
    /// A renewal got no answer in time, and may take effect yet.
    RenewedSomehow {
        lease: usize,
        fixed: Option<Duration>,
    },
    /// Who was broken, as the answer says.
    Broken {
        holder: usize,
    },
    NobodyToBreak,
    BrokenSomehow,
    /// Holder and waiters, as the store tells them.
    Inspected {
        holder: Option<usize>,
        waiters: Vec<usize>,
    },
    /// Whether the name is among those that are taken.
    Listed {
        listed: bool,
    },
    /// The leases whose guards say that they hold, and those whose guards say that they lost.
    Guards {
        held: Vec<usize>,
        lost: Vec<usize>,
    },
}

/// All possible states.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) states: Vec<State>,
    newest_token: u64,
    /// After a broken connection waiters may be served in another order.
    order_is_known: bool,
    /// Set once replies were lost: outcomes may be unknown, and holders may learn late.
    pub(crate) in_trouble: bool,
}

impl Model {
    pub(crate) fn new() -> Self {
        let state =
            State { holder: None, queue: VecDeque::new(), local: BTreeMap::new(), orphans: BTreeSet::new() };
        Self { states: vec![state], newest_token: 0, order_is_known: true, in_trouble: false }
    }

    /// Takes note of what was seen in this time; an error if no state allows it.
    pub(crate) fn see(&mut self, span: Span, seen: &Seen) -> Result<(), String> {
        let mut next: Vec<State> = Vec::new();
        for state in self.states.iter().flat_map(|state| state.as_time_passes(span)) {
            for after in state.after(seen, span, self) {
                if !next.contains(&after) {
                    next.push(after);
                }
            }
        }
        if next.is_empty() {
            return Err(format!("{seen:?} at {span:?} is not allowed by {self}"));
        }
        self.states = next;
        Ok(())
    }

    /// Fencing tokens grow from grant to grant.
    pub(crate) fn token(&mut self, token: u64) -> Result<(), String> {
        if token <= self.newest_token {
            return Err(format!("the token {token} came after {}", self.newest_token));
        }
        self.newest_token = token;
        Ok(())
    }

    /// A client begins to wait in the background.
    pub(crate) fn waits(&mut self, client: usize, waiter: usize) {
        for state in &mut self.states {
            if state.queue.iter().any(|(waiting, _)| *waiting == client) {
                state.local.entry(client).or_default().push_back(waiter);
            } else {
                state.queue.push_back((client, waiter));
            }
        }
    }

    /// A background waiter is gone.
    pub(crate) fn gave_up(&mut self, client: usize, waiter: usize) {
        for state in &mut self.states {
            if let Some(local) = state.local.get_mut(&client) {
                local.retain(|other| *other != waiter);
            }
            state.leaves(client, waiter);
        }
    }

    /// The store loses the lease, and with `all` the queue as well, to which its waiters come back.
    pub(crate) fn loses(&mut self, all: bool) {
        for state in &mut self.states {
            if let Some(hold) = state.holder.take() {
                state.orphans.insert(hold.lease);
            }
        }
        self.order_is_known &= !all;
    }

    pub(crate) fn connections_broke(&mut self) {
        self.order_is_known = false;
        self.in_trouble = true;
    }

    /// Somebody waits for a name that is certainly free by now.
    pub(crate) fn must_serve(&self, now: At) -> bool {
        let span = Span { from: now, to: now };
        self.states.iter().all(|state| {
            let passed = state.as_time_passes(span);
            passed.iter().all(|state| state.holder.is_none() && !state.queue.is_empty())
        })
    }

    /// How many clients wait in the store, if that is certain.
    pub(crate) fn waiting_clients(&self) -> usize {
        self.states.iter().map(|state| state.queue.len()).max().unwrap_or(0)
    }
}

impl State {
    /// How many clients wait in the store.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether the name is free, or becomes free by itself.
    pub(crate) fn may_end(&self) -> bool {
        self.holder.as_ref().is_none_or(|hold| hold.ends.is_some())
    }

    /// The states that this one may have become: a lease may have ended.
    fn as_time_passes(&self, span: Span) -> Vec<Self> {
        let Some((earliest, latest)) = self.holder.as_ref().and_then(|hold| hold.ends) else {
            return vec![self.clone()];
        };
        let ended = Self { holder: None, ..self.clone() };
        if span.from > latest + RESOLUTION {
            vec![ended]
        } else if span.to + RESOLUTION < earliest {
            vec![self.clone()]
        } else {
            vec![self.clone(), ended]
        }
    }

    fn after(mut self, seen: &Seen, span: Span, model: &Model) -> Vec<Self> {
        let holds = |lease: usize| self.holder.as_ref().is_some_and(|hold| hold.lease == lease);
        let is_possible = match *seen {
            Seen::Acquired { client, lease, fixed } => {
                let possible = self.holder.is_none() && self.queue.is_empty();
                self.grant(client, lease, fixed, span);
                possible
            }
            Seen::Busy { holder } => {
                // Without a holder's name: it is being handed over, or the wait ended in the local queue.
                let told = self.holder.as_ref().map(|hold| hold.client);
                let is_served = |holder| told.is_none() && self.queue.iter().any(|place| place.0 == holder);
                (told.is_some() || !self.queue.is_empty())
                    && holder.is_none_or(|holder| Some(holder) == told || is_served(holder))
            }
            Seen::Granted { client, waiter, lease, fixed } => {
                let place = self.queue.iter().position(|place| *place == (client, waiter));
                let in_turn = place == Some(0) || (place.is_some() && !model.order_is_known);
                let possible = self.holder.is_none() && in_turn;
                self.leaves(client, waiter);
                self.grant(client, lease, fixed, span);
                possible
            }
            Seen::Freed { lease } => {
                let possible = holds(lease);
                self.holder = None;
                possible
            }
            Seen::AlreadyLost { lease } => {
                // A holder is told of the end a margin before it, and its release still frees the name.
                let told_early =
                    holds(lease) && self.holder.as_ref().is_some_and(|hold| hold.is_ending(span));
                let possible = !holds(lease) || told_early;
                if told_early {
                    self.holder = None;
                }
                self.orphans.remove(&lease);
                possible
            }
            Seen::ReleasedSomehow { lease } => {
                if holds(lease) {
                    self.holder = None;
                }
                self.orphans.remove(&lease);
                model.in_trouble
            }
            Seen::Dropped { lease } => {
                if holds(lease) {
                    self.holder = None;
                }
                self.orphans.remove(&lease);
                true
            }
            Seen::Renewed { lease, fixed } => {
                let possible = holds(lease);
                if let (Some(hold), Some(lasts)) = (&mut self.holder, fixed) {
                    hold.prolong(lasts, span);
                }
                possible
            }
            Seen::RenewedSomehow { lease, fixed } => return self.renewed_or_not(lease, fixed, span),
            Seen::NotRenewed { lease } => {
                let told_early = self.holder.as_ref().is_some_and(|hold| hold.is_ending(span));
                let possible = !holds(lease) || told_early || model.in_trouble;
                self.orphans.remove(&lease);
                possible
            }
            Seen::Broken { holder } => {
                let possible = self.holder.as_ref().is_some_and(|hold| hold.client == holder);
                self.loses_lease();
                possible
            }
            Seen::NobodyToBreak => self.holder.is_none(),
            Seen::BrokenSomehow => {
                let mut broken = self.clone();
                broken.loses_lease();
                return if model.in_trouble { vec![self, broken] } else { Vec::new() };
            }
            Seen::Inspected { holder, ref waiters } => {
                let queue: Vec<_> = self.queue.iter().map(|(client, _)| *client).collect();
                let same_holder = self.holder.as_ref().map(|hold| hold.client) == holder;
                // A free name that somebody waits for is about to be taken, and perhaps was by now.
                let is_changing = self.holder.is_none() && !queue.is_empty();
                is_changing || same_holder && (!model.order_is_known || queue == *waiters)
            }
            Seen::Listed { listed } => {
                let is_changing = self.holder.is_none() && !self.queue.is_empty();
                is_changing || self.holder.is_some() == listed
            }
            Seen::Guards { ref held, ref lost } => {
                let is_live = |lease: &usize| holds(*lease) || self.orphans.contains(lease);
                let knows = |lease: &usize| {
                    let ends = self.holder.as_ref().is_some_and(|hold| hold.is_ending(span));
                    !holds(*lease) || ends || model.in_trouble
                };
                held.iter().all(is_live) && lost.iter().all(knows)
            }
        };
        if is_possible { vec![self] } else { Vec::new() }
    }

    /// A renewal that got no answer may have taken effect, or take effect yet.
    fn renewed_or_not(self, lease: usize, fixed: Option<Duration>, span: Span) -> Vec<Self> {
        let mut renewed = self.clone();
        if let (Some(hold), Some(lasts)) = (&mut renewed.holder, fixed) {
            hold.prolong(lasts, Span { from: span.from, to: span.to + LATE });
        }
        let is_holder = self.holder.as_ref().is_some_and(|hold| hold.lease == lease);
        if is_holder { vec![self, renewed] } else { vec![self] }
    }

    fn grant(&mut self, client: usize, lease: usize, fixed: Option<Duration>, span: Span) {
        let ends = fixed.map(|lasts| (span.from + lasts, span.to + lasts));
        self.holder = Some(Hold { lease, client, ends });
    }

    fn loses_lease(&mut self) {
        if let Some(hold) = self.holder.take() {
            self.orphans.insert(hold.lease);
        }
    }

    /// A waiter leaves the store's queue; the next of its process takes a place at the end.
    fn leaves(&mut self, client: usize, waiter: usize) {
        let before = self.queue.len();
        self.queue.retain(|place| *place != (client, waiter));
        let next = self.local.get_mut(&client).filter(|_| self.queue.len() < before);
        if let Some(next) = next.and_then(VecDeque::pop_front) {
            self.queue.push_back((client, next));
        }
    }
}

impl Hold {
    /// Its holder may have been told of its end already: a tenth of its time and the drift allowance before it.
    fn is_ending(&self, span: Span) -> bool {
        self.ends.is_some_and(|(earliest, _)| span.to + crate::case::FIXED / 4 >= earliest)
    }

    fn prolong(&mut self, lasts: Duration, span: Span) {
        if let Some((earliest, latest)) = &mut self.ends {
            *earliest = (*earliest).max(span.from + lasts);
            *latest = (*latest).max(span.to + lasts);
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.order_is_known { "in this order" } else { "in any order" };
        writeln!(f, "the states that are possible ({order}):")?;
        self.states.iter().try_for_each(|state| writeln!(f, "  {state:?}"))
    }
}
