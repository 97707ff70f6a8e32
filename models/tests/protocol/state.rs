//! The state of the model: one server, a few clients, and what is under way between them.
//!
//! All times are relative (what is left, or how long ago), fencing tokens and tickets are ranks: so equal
//! situations at different times are one state, and the search ends without a bound on time.

/// An owner token: the client, its acquisition, and the attempt (always 0 while tokens are reused on retry).
pub type Token = u8;

/// The value of a client's token.
pub const fn token(client: usize, acquisition: u8, attempt: u8) -> Token {
    #[expect(clippy::cast_possible_truncation, reason = "three clients at most")]
    let client = client as u8;
    client << 4 | acquisition << 2 | attempt
}

/// The client a token belongs to.
pub const fn owner(token: Token) -> usize {
    (token >> 4) as usize
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub server: Server,
    pub clients: Vec<Client>,
    pub faults: u8,
    pub cancels: u8,
    pub ghost: Ghost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    pub lock: Option<Lease>,
    /// In order of the tickets.
    pub queue: Vec<Entry>,
    /// Ticks until the queue key expires.
    pub queue_left: u8,
    pub last_ticket: u8,
    /// The last fencing token minted; none after an eviction.
    pub fence: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub token: Token,
    /// Ticks left; `FOREVER` for a key without expiry, which only a missing rule creates.
    pub left: u8,
}

pub const FOREVER: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub ticket: u8,
    pub token: Token,
    /// The client's connection, counted from 0.
    pub connection: u8,
    pub polling: bool,
    pub claim: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Waits with a channel.
    Subscriber,
    /// Waits without a channel.
    Polling,
    /// Tries once and does not wait.
    Trying,
    /// Knows only SET NX PX and compare-and-delete.
    Foreign,
    /// Resumes the lease of client 0.
    Resumer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each of which the search must tell apart"
)]
pub struct Client {
    pub kind: Kind,
    pub alive: bool,
    /// The server still counts these connections as subscribers (one bit each).
    pub subscribed: u8,
    pub connection: u8,
    pub up: Vec<Request>,
    pub down: Vec<Message>,
    /// Pushes on a connection of their own; used only where `Rule::PushesInOrder` is off.
    pub pushes: Vec<Message>,
    /// Sent on broken connections; may arrive at any time, or never.
    pub late: Vec<Request>,
    pub acquisition: u8,
    pub attempt: u8,
    pub phase: Phase,
    /// Ticks since the newest answered command of this connection was sent.
    pub bound: Option<u8>,
    pub ticket: Option<u8>,
    pub at_head: bool,
    /// Wants to send its acquire now.
    pub due: bool,
    /// An acquire on a broken connection was never answered.
    pub unanswered: bool,
    /// Ticks until an acquire on a broken connection can no longer take effect.
    pub exposed: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Idle,
    /// Acquiring or waiting.
    Wanting,
    Held {
        fence: u8,
        left: u8,
    },
    /// Releasing, withdrawing, or cleaning up after a loss.
    Ending(Ending),
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each of which the search must tell apart"
)]
pub struct Ending {
    /// The holder released; otherwise it lost its lease or never had one.
    pub release: bool,
    /// How often the release was sent (at most 2 is remembered).
    pub sent: u8,
    /// The server has freed the lease in answer to it.
    pub freed: bool,
    /// The user has been told.
    pub told: bool,
    /// Answered, but an old acquire could still arrive: again after the next tick.
    pub pausing: bool,
    /// For `Rule::LostIsFinal`: the lease that was lost.
    pub lost: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Acquire { token: Token, connection: u8, ticket: Option<u8>, life: u8, age: u8 },
    Renew { token: Token, ttl: u8, age: u8, confirms: Option<u8> },
    Release { token: Token, withdraw: bool },
    ForeignSet { token: Token, age: u8 },
    ForeignDelete { token: Token },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    Granted { token: Token, fence: u8, age: u8 },
    Queued { token: Token, ticket: u8, head: bool, again: bool, age: u8 },
    Busy { token: Token, age: u8 },
    Late { token: Token, age: u8 },
    Refused { token: Token },
    Renewed { token: Token, ttl: u8, age: u8, confirms: Option<u8> },
    NotRenewed { token: Token, age: u8 },
    Released { token: Token, freed: bool, past: bool },
    Grant { token: Token, fence: u8, claim: u8 },
    Next { token: Token },
}

/// What only the observer knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// The newest fencing token granted, to whom, and the newest one granted to any other token.
    pub newest: u8,
    pub newest_token: Token,
    pub newest_other: u8,
    pub broken: Option<Broken>,
}

/// Visits every value of one sort, wherever it is in the state.
type EachValue = fn(&mut State, &mut dyn FnMut(&mut u8));

/// A promise that was broken by the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    Stranger,
    FenceNotIncreasing,
    WaitsForItself,
    FalseLoss,
    Overtaken,
    StartsTooLate,
    HandedToTheDead,
}

impl Request {
    pub const fn token(self) -> Token {
        match self {
            Self::Acquire { token, .. }
            | Self::Renew { token, .. }
            | Self::Release { token, .. }
            | Self::ForeignSet { token, .. }
            | Self::ForeignDelete { token } => token,
        }
    }
}

impl Client {
    /// An acquire of this token is under way or answered but not yet read.
    pub fn acquire_pending(&self, mine: Token) -> bool {
        self.up.iter().any(|r| {
            matches!(r, Request::Acquire { token, .. } | Request::ForeignSet { token, .. } if *token == mine)
        }) || self.down.iter().any(|m| {
            matches!(m,
                Message::Granted { token, .. } | Message::Queued { token, .. } | Message::Busy { token, .. }
                | Message::Late { token, .. } | Message::Refused { token } if *token == mine)
        })
    }

    pub fn renew_pending(&self, mine: Token) -> bool {
        self.up.iter().any(|r| matches!(r, Request::Renew { token, .. } if *token == mine))
            || self.down.iter().any(|m| {
                matches!(m, Message::Renewed { token, .. } | Message::NotRenewed { token, .. } if *token == mine)
            })
    }

    pub fn release_pending(&self, mine: Token) -> bool {
        self.up.iter().any(|r| {
            matches!(r, Request::Release { token, .. } | Request::ForeignDelete { token } if *token == mine)
        }) || self.down.iter().any(|m| {
            matches!(m, Message::Released { token, .. } | Message::Refused { token } if *token == mine)
        })
    }

    /// Believes that it holds the lease.
    pub const fn believes(&self) -> bool {
        self.alive && matches!(self.phase, Phase::Held { .. })
    }
}

impl State {
    /// Replaces fencing tokens and tickets by their ranks, and forgets what no longer matters.
    pub fn normalise(&mut self) {
        for client in &mut self.clients {
            if !client.alive || client.phase == Phase::Done {
                client.bound = None;
            }
            if !matches!(client.phase, Phase::Wanting) {
                client.ticket = None;
                client.at_head = false;
                client.due = false;
                client.unanswered = false;
            }
        }
        self.rank(Self::each_fence);
        self.rank(Self::each_ticket);
        let mut newest = 0;
        self.server.last_ticket = 0;
        self.each_ticket(&mut |ticket| newest = newest.max(*ticket));
        self.server.last_ticket = newest;
    }

    fn rank(&mut self, each: EachValue) {
        let mut used = [false; 256];
        each(self, &mut |value| used[*value as usize] = true);
        used[0] = true;
        let mut ranks = [0_u8; 256];
        let mut next = 0;
        for value in 0..64 {
            if used[value] {
                ranks[value] = next;
                next += 1;
            }
        }
        each(self, &mut |value| *value = ranks[*value as usize]);
    }

    fn each_fence(&mut self, visit: &mut dyn FnMut(&mut u8)) {
        self.server.fence.as_mut().map(&mut *visit);
        visit(&mut self.ghost.newest);
        visit(&mut self.ghost.newest_other);
        for client in &mut self.clients {
            match &mut client.phase {
                Phase::Held { fence, .. } | Phase::Ending(Ending { lost: Some(fence), .. }) => visit(fence),
                _ => {}
            }
            for request in client.up.iter_mut().chain(&mut client.late) {
                if let Request::Renew { confirms: Some(fence), .. } = request {
                    visit(fence);
                }
            }
            for message in client.down.iter_mut().chain(&mut client.pushes) {
                match message {
                    Message::Granted { fence, .. }
                    | Message::Grant { fence, .. }
                    | Message::Renewed { confirms: Some(fence), .. } => visit(fence),
                    _ => {}
                }
            }
        }
    }

    fn each_ticket(&mut self, visit: &mut dyn FnMut(&mut u8)) {
        for entry in &mut self.server.queue {
            visit(&mut entry.ticket);
        }
        for client in &mut self.clients {
            client.ticket.as_mut().map(&mut *visit);
            for request in client.up.iter_mut().chain(&mut client.late) {
                if let Request::Acquire { ticket: Some(ticket), .. } = request {
                    visit(ticket);
                }
            }
            for message in &mut client.down {
                if let Message::Queued { ticket, .. } = message {
                    visit(ticket);
                }
            }
        }
    }
}
