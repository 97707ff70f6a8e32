//! The client's side: what is sent, how replies and pushes are read, and how an acquisition ends.

use crate::protocol::Protocol;
use crate::rules::Rule;
use crate::state::{Broken, Client, Ending, Kind, Message, Phase, Request, State, Token, owner};

impl Protocol {
    /// Sends the acquire again: a retry, a poll, a confirmation.
    pub fn send_acquire(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        if !self.on(Rule::SameTokenOnRetry) && client.ticket.is_none() && client.attempt < 3 {
            client.attempt += 1;
        }
        self.send_first_acquire(state, index);
    }

    fn send_first_acquire(&self, state: &mut State, index: usize) {
        state.clients[index].due = false;
        let token = self.token(state, index);
        let client = &mut state.clients[index];
        client.up.push(match client.kind {
            Kind::Foreign => Request::ForeignSet { token, age: 0 },
            _ => Request::Acquire {
                token,
                connection: client.connection,
                ticket: client.ticket,
                life: self.life,
                age: 0,
            },
        });
    }

    pub fn start_acquisition(&self, state: &mut State, index: usize) {
        state.clients[index].phase = Phase::Wanting;
        self.send_first_acquire(state, index);
    }

    pub fn send_renewal(&self, state: &mut State, index: usize, ttl: u8) {
        let token = self.token(state, index);
        let client = &mut state.clients[index];
        client.up.push(Request::Renew { token, ttl, age: 0, confirms: None });
        if let (Phase::Held { left, .. }, false) = (&mut client.phase, self.on(Rule::UnknownNeverProlongs)) {
            *left = (*left).max(ttl);
        }
    }

    pub fn release(&self, state: &mut State, index: usize) {
        state.clients[index].phase = Phase::Ending(Ending { release: true, ..Ending::default() });
        self.send_ending(state, index);
        if !self.on(Rule::NoRenewalAfterRelease) {
            self.send_renewal(state, index, self.ttl);
        }
    }

    pub fn cancel(&self, state: &mut State, index: usize) {
        if self.on(Rule::WithdrawOnCancel) {
            state.clients[index].phase = Phase::Ending(Ending::default());
            self.send_ending(state, index);
        } else {
            self.finish(state, index);
        }
    }

    /// Sends the release or the withdrawal.
    pub fn send_ending(&self, state: &mut State, index: usize) {
        let token = self.token(state, index);
        let client = &mut state.clients[index];
        let Phase::Ending(ending) = &mut client.phase else { return };
        ending.sent = (ending.sent + 1).min(2);
        let withdraw = !ending.release;
        client.up.push(match client.kind {
            Kind::Foreign => Request::ForeignDelete { token },
            _ => Request::Release { token, withdraw },
        });
    }

    /// The acquisition is over, its token forgotten.
    pub fn finish(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        client.acquisition += 1;
        client.attempt = 0;
        client.ticket = None;
        client.exposed = 0;
        client.phase = if client.acquisition < self.acquisitions { Phase::Idle } else { Phase::Done };
    }

    /// Reads one message, reply or push.
    pub fn read(&self, state: &mut State, index: usize, message: Message) {
        let mine = self.token(state, index);
        let client = &mut state.clients[index];
        if let Some(age) = message.age() {
            client.bound = Some(client.bound.map_or(age, |bound| bound.min(age)));
        }
        match message {
            Message::Grant { token, fence, claim } => self.read_grant(state, index, token, fence, claim),
            Message::Next { token } => {
                client.at_head |= token == mine && client.phase == Phase::Wanting;
            }
            _ if message.token() != mine => {}
            Message::Granted { fence, age, .. } => self.read_granted(client, fence, age),
            Message::Renewed { ttl, age, confirms, .. } => {
                let left = self.left_after_reply(ttl, age);
                Self::read_renewed(client, left, confirms, self.on(Rule::LostIsFinal));
            }
            Message::NotRenewed { .. } => match client.phase {
                Phase::Held { .. } => client.phase = Phase::Ending(Ending::default()),
                Phase::Wanting => client.due = true,
                _ => {}
            },
            Message::Queued { ticket, head, again, .. } => {
                if client.phase == Phase::Wanting {
                    client.ticket = client.ticket.or(Some(ticket));
                    client.at_head = head;
                    client.due |= again;
                    client.subscribe_if(client.kind == Kind::Subscriber);
                }
            }
            Message::Late { .. } | Message::Refused { .. } => {
                client.due = client.phase == Phase::Wanting;
            }
            Message::Busy { .. } => self.read_busy(state, index),
            Message::Released { freed, past, .. } => self.read_released(state, index, freed, past),
        }
    }

    fn left_after_reply(&self, ttl: u8, age: u8) -> u8 {
        self.left(ttl, if self.on(Rule::DeadlineFromSend) { age } else { 0 })
    }

    fn read_granted(&self, client: &mut Client, fence: u8, age: u8) {
        let fresh = self.left_after_reply(self.ttl, age);
        match &mut client.phase {
            Phase::Wanting if fresh > 0 => client.phase = Phase::Held { fence, left: fresh },
            Phase::Wanting => client.due = true,
            Phase::Held { left, .. } => *left = (*left).max(fresh),
            _ => {}
        }
    }

    fn read_renewed(client: &mut Client, fresh: u8, confirms: Option<u8>, lost_is_final: bool) {
        match &mut client.phase {
            Phase::Held { left, .. } => *left = (*left).max(fresh),
            Phase::Wanting => {
                if let (Some(fence), true) = (confirms, fresh > 0) {
                    client.phase = Phase::Held { fence, left: fresh };
                }
            }
            Phase::Ending(Ending { lost: Some(fence), sent: 0, .. }) if !lost_is_final && fresh > 0 => {
                client.phase = Phase::Held { fence: *fence, left: fresh };
            }
            _ => {}
        }
    }

    fn read_busy(&self, state: &mut State, index: usize) {
        let mine = self.token(state, index);
        let client = &mut state.clients[index];
        if client.kind == Kind::Foreign || client.phase != Phase::Wanting {
            return;
        }
        let unanswered = client.unanswered || client.acquire_pending(mine);
        if !unanswered || !self.on(Rule::BusyWithdraws) {
            self.finish(state, index);
        } else {
            client.phase = Phase::Ending(Ending::default());
            self.send_ending(state, index);
        }
    }

    fn read_released(&self, state: &mut State, index: usize, freed: bool, past: bool) {
        let client = &mut state.clients[index];
        let Phase::Ending(ending) = &mut client.phase else { return };
        let knows = ending.sent < 2 || !self.on(Rule::ReleaseUnknown);
        if ending.release && !ending.told && !freed && knows && ending.freed {
            state.ghost.broken = Some(Broken::FalseLoss);
        }
        ending.told = true;
        ending.pausing = true;
        if past || !self.on(Rule::CleanUpPastNotAfter) {
            self.finish(state, index);
        }
    }

    /// A pushed grant has no send time of its own: it counts from the bound.
    fn read_grant(&self, state: &mut State, index: usize, token: Token, fence: u8, claim: u8) {
        let mine = self.token(state, index);
        let client = &mut state.clients[index];
        let over = matches!(client.phase, Phase::Idle | Phase::Done);
        if token != mine || over {
            if self.on(Rule::ReleaseUnwanted) && owner(token) == index {
                client.up.push(Request::Release { token, withdraw: true });
            }
            return;
        }
        if client.phase != Phase::Wanting {
            return;
        }
        let bound = if self.on(Rule::BoundBeforePush) { client.bound } else { Some(0) };
        let bound = if self.on(Rule::EmptyBoundConfirms) { bound } else { bound.or(Some(0)) };
        let fresh = bound.map_or(0, |age| self.left(claim, age));
        let old = bound.is_some_and(|age| 2 * age > claim || fresh == 0);
        if bound.is_some() && (!old || !self.on(Rule::OldBoundConfirms)) {
            client.phase = Phase::Held { fence, left: fresh };
            if fresh == 0 {
                state.ghost.broken = Some(Broken::StartsTooLate);
            }
        } else if self.on(Rule::ConfirmByAcquire) {
            client.due = true;
        } else if !client.renew_pending(mine) {
            let ttl = self.ttl;
            client.up.push(Request::Renew { token, ttl, age: 0, confirms: Some(fence) });
        }
    }
}

impl Client {
    /// Subscribes the present connection, if it is not yet.
    pub fn subscribe_if(&mut self, subscribes: bool) {
        if subscribes {
            self.subscribed |= 1 << self.connection;
        }
    }
}

impl Message {
    pub const fn token(self) -> Token {
        match self {
            Self::Granted { token, .. }
            | Self::Queued { token, .. }
            | Self::Busy { token, .. }
            | Self::Late { token, .. }
            | Self::Refused { token }
            | Self::Renewed { token, .. }
            | Self::NotRenewed { token, .. }
            | Self::Released { token, .. }
            | Self::Grant { token, .. }
            | Self::Next { token } => token,
        }
    }

    /// Ticks since the command this answers was sent.
    const fn age(self) -> Option<u8> {
        match self {
            Self::Granted { age, .. }
            | Self::Queued { age, .. }
            | Self::Busy { age, .. }
            | Self::Late { age, .. }
            | Self::Renewed { age, .. }
            | Self::NotRenewed { age, .. } => Some(age),
            _ => None,
        }
    }
}
