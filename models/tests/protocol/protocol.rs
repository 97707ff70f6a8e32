//! The configuration of one model, and its actions.

use crate::rules::{Fault, Rule};
use crate::state::{Client, Ghost, Kind, Phase, Server, State, Token, token};

/// How often a waiter without a channel polls, in ticks.
pub const POLL_INTERVAL: u8 = 2;
/// How often a waiter polls that is not the first, in ticks.
pub const RARE_POLL: u8 = 12;

/// Who takes part, what may go wrong, and which rule is missing.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub off: Option<Rule>,
    pub kinds: Vec<Kind>,
    pub acquisitions: u8,
    pub ttl: u8,
    /// The TTL of an extension; 0 for no extensions.
    pub extended: u8,
    pub claim: u8,
    pub drift: u8,
    /// Ticks during which an acquire may take effect.
    pub life: u8,
    pub queue_ttl: u8,
    pub faults: u8,
    pub allowed: Vec<Fault>,
    pub cancels: u8,
    /// Replies are read as soon as they are sent (pushes may still be late); keeps large models small.
    pub instant_replies: bool,
    /// Within how many ticks waiters must be served once messages arrive; none: at some time.
    pub prompt: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes, for all but the one whose clock is slow.
    Tick(Option<usize>),
    /// Begins an acquisition.
    Start(usize),
    /// Sends the acquire (again).
    Acquire(usize),
    Renew(usize),
    Extend(usize),
    /// The holder releases.
    Release(usize),
    /// Sends the release or withdrawal (again).
    End(usize),
    Cancel(usize),
    /// The server executes the next request of a client.
    Serve(usize),
    ServeBadly(usize, Fault),
    /// A client reads its next message.
    Read(usize),
    ReadPush(usize),
    /// A request from a broken connection arrives after all.
    Arrive(usize, usize),
    /// The server notices that a connection is gone.
    Notice(usize, u8),
    Fault(usize, Fault),
}

impl Protocol {
    /// Two subscribers, one acquisition each, no faults.
    pub fn new(kinds: &[Kind]) -> Self {
        Self {
            off: None,
            kinds: kinds.to_vec(),
            acquisitions: 1,
            ttl: 2,
            extended: 0,
            claim: 2,
            drift: 0,
            life: 1,
            queue_ttl: 0,
            faults: 0,
            allowed: Vec::new(),
            cancels: 0,
            instant_replies: false,
            prompt: None,
        }
    }

    pub fn on(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    pub fn start(&self) -> State {
        let client = |&kind: &Kind| Client {
            kind,
            alive: true,
            subscribed: u8::from(kind != Kind::Polling && self.on(Rule::SubscribeFirst)),
            connection: 0,
            up: Vec::new(),
            down: Vec::new(),
            pushes: Vec::new(),
            late: Vec::new(),
            acquisition: 0,
            attempt: 0,
            phase: Phase::Idle,
            bound: None,
            ticket: None,
            at_head: false,
            due: false,
            unanswered: false,
            exposed: 0,
        };
        State {
            server: Server { lock: None, queue: Vec::new(), queue_left: 0, last_ticket: 0, fence: Some(0) },
            clients: self.kinds.iter().map(client).collect(),
            faults: self.faults,
            cancels: self.cancels,
            ghost: Ghost { newest: 0, newest_token: Token::MAX, newest_other: 0, broken: None },
        }
    }

    /// The owner token of a client's present acquisition.
    pub fn token(&self, state: &State, client: usize) -> Token {
        let one = &state.clients[client];
        match one.kind {
            Kind::Resumer => token(0, 0, 0),
            _ if self.on(Rule::NewTokenPerAcquisition) => token(client, one.acquisition, one.attempt),
            _ => token(client, 0, one.attempt),
        }
    }

    /// The claim time a waiter asks for in its entry.
    pub fn claim_of(&self, polling: bool) -> u8 {
        match (polling, self.on(Rule::PollingClaim)) {
            (false, _) => self.claim,
            (true, true) => self.claim.max(2 * POLL_INTERVAL),
            (true, false) => 1,
        }
    }

    /// The ticks left of a lease of `ttl` that counts from `age` ticks ago.
    pub fn left(&self, ttl: u8, age: u8) -> u8 {
        let drift = if self.on(Rule::Drift) { self.drift } else { 0 };
        ttl.saturating_sub(drift).saturating_sub(age)
    }

    pub fn longest(&self) -> u8 {
        self.ttl.max(self.extended).max(self.claim)
    }

    fn may(&self, state: &State, fault: Fault) -> bool {
        state.faults > 0 && self.allowed.contains(&fault)
    }

    /// What can happen next.
    pub fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ghost.broken.is_some() {
            return;
        }
        actions.push(Action::Tick(None));
        for index in 0..state.clients.len() {
            let client = &state.clients[index];
            actions.extend((0..client.late.len()).map(|which| Action::Arrive(index, which)));
            for connection in 0..=client.connection {
                let gone = !client.alive || connection < client.connection;
                if gone && client.subscribed & (1 << connection) != 0 {
                    actions.push(Action::Notice(index, connection));
                }
            }
            if client.alive {
                self.enabled_network(state, index, actions);
                self.enabled_client(state, index, actions);
                self.enabled_faults(state, index, actions);
            }
        }
        for fault in [Fault::LoseFence, Fault::LoseQueue] {
            if self.may(state, fault) {
                actions.push(Action::Fault(0, fault));
            }
        }
    }

    fn enabled_network(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[index];
        if !client.up.is_empty() {
            actions.push(Action::Serve(index));
            for fault in [Fault::WrongLiveness, Fault::RefuseWrites] {
                if self.may(state, fault) {
                    actions.push(Action::ServeBadly(index, fault));
                }
            }
        }
        if !client.down.is_empty() {
            actions.push(Action::Read(index));
        }
        if !client.pushes.is_empty() {
            actions.push(Action::ReadPush(index));
        }
    }

    fn enabled_client(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[index];
        let mine = self.token(state, index);
        match client.phase {
            Phase::Idle => {
                let first = &state.clients[0];
                let ready = first.acquisition == 0 && matches!(first.phase, Phase::Held { .. });
                if client.kind != Kind::Resumer || ready {
                    actions.push(Action::Start(index));
                }
            }
            Phase::Wanting => {
                if !client.acquire_pending(mine) && !client.renew_pending(mine) && self.may_poll(client) {
                    actions.push(Action::Acquire(index));
                }
                if state.cancels > 0 {
                    actions.push(Action::Cancel(index));
                }
            }
            Phase::Held { left, .. } => {
                if client.kind != Kind::Foreign && !client.renew_pending(mine) {
                    if left < self.left(self.ttl, 0) {
                        actions.push(Action::Renew(index));
                    }
                    if self.extended > 0 {
                        actions.push(Action::Extend(index));
                    }
                }
                actions.push(Action::Release(index));
            }
            Phase::Ending(ending) => {
                let retries = ending.sent == 0 || self.on(Rule::ReleaseRetried);
                if !client.release_pending(mine) && !ending.pausing && retries {
                    actions.push(Action::End(index));
                }
            }
            Phase::Done => {}
        }
    }

    /// A client sends what it has to at once, and polls at most once in a tick.
    fn may_poll(&self, client: &Client) -> bool {
        let polls = self.on(Rule::Poll) && client.bound.is_none_or(|bound| bound > 0);
        polls || client.due || client.ticket.is_none()
    }

    fn enabled_faults(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[index];
        let mine = self.token(state, index);
        let busy = !matches!(client.phase, Phase::Idle | Phase::Done);
        let resends = client.phase == Phase::Wanting && client.acquire_pending(mine)
            || matches!(client.phase, Phase::Ending(ending) if ending.sent > 0)
                && client.release_pending(mine)
                && self.on(Rule::ReleaseRetried);
        let gives_up = matches!(client.phase, Phase::Ending(ending) if ending.sent > 0);
        for (fault, possible) in [
            (Fault::Drop, busy),
            (Fault::Crash, busy && client.kind != Kind::Resumer),
            (Fault::Lose, !client.down.is_empty()),
            (Fault::Resend, resends),
            (Fault::GiveUp, gives_up),
        ] {
            if possible && self.may(state, fault) {
                actions.push(Action::Fault(index, fault));
            }
        }
        if busy && self.may(state, Fault::SlowClock) {
            actions.push(Action::Tick(Some(index)));
        }
    }
}
