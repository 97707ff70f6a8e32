//! The server's side: each function is one script, executed in one step.

use crate::protocol::Protocol;
use crate::rules::{Fault, Rule};
use crate::state::{
    Broken, Client, Entry, FOREVER, Kind, Lease, Message, Phase, Request, State, Token, owner,
};

/// One script call: by whom, and what goes wrong during it.
pub struct Execution<'a> {
    pub protocol: &'a Protocol,
    pub state: &'a mut State,
    pub client: usize,
    /// `WrongLiveness` (for the first waiter that is looked at) or `RefuseWrites`.
    pub fault: Option<Fault>,
}

enum Served {
    Nobody,
    Me,
    Handed,
}

impl Execution<'_> {
    /// Executes a request and returns the reply.
    pub fn run(&mut self, request: Request) -> Message {
        if self.fault == Some(Fault::RefuseWrites) {
            return self.refuse(request);
        }
        match request {
            Request::Acquire { token, connection, ticket, life, age } => {
                self.acquire(token, connection, ticket, life, age)
            }
            Request::Renew { token, ttl, age, confirms } => self.renew(token, ttl, age, confirms),
            Request::Release { token, withdraw } => self.release(token, withdraw),
            Request::ForeignSet { token, age } => self.foreign_set(token, age),
            Request::ForeignDelete { token } => {
                let freed = self.holder() == Some(token);
                if freed {
                    self.state.server.lock = None;
                }
                Message::Released { token, freed, past: true }
            }
        }
    }

    fn on(&self, rule: Rule) -> bool {
        self.protocol.on(rule)
    }

    fn holder(&self) -> Option<Token> {
        self.state.server.lock.map(|lock| lock.token)
    }

    fn caller(&mut self) -> &mut Client {
        &mut self.state.clients[self.client]
    }

    fn acquire(&mut self, token: Token, connection: u8, ticket: Option<u8>, life: u8, age: u8) -> Message {
        if life == 0 && self.on(Rule::NotAfter) {
            return Message::Late { token, age };
        }
        let waits = matches!(self.caller().kind, Kind::Subscriber | Kind::Polling);
        let mut place = ticket.unwrap_or(0);
        let mut again = false;
        match self.holder() {
            Some(holder) if holder == token => {
                if self.on(Rule::RegrantProlongs) {
                    self.prolong(self.protocol.ttl);
                }
                if self.remove_entries(token, connection) {
                    self.tell_head(Rule::RegrantTellsHead);
                }
                let fence = if self.on(Rule::RegrantMints) {
                    self.mint(token)
                } else {
                    self.state.server.fence.unwrap_or(0)
                };
                return Message::Granted { token, fence, age };
            }
            Some(_) => {
                if waits {
                    place = self.enqueue(token, connection, ticket);
                }
            }
            None => {
                if self.state.server.queue.is_empty() {
                    return self.take(token, connection, age);
                }
                if waits {
                    place = self.enqueue(token, connection, ticket);
                }
                match self.serve(token, true) {
                    Served::Me | Served::Nobody => return self.take(token, connection, age),
                    Served::Handed => {}
                }
            }
        }
        if let Some(holder) = self.holder() {
            self.check_waits_for_itself(holder, token);
        } else {
            again = true;
        }
        if !waits {
            return Message::Busy { token, age };
        }
        let head = self.state.server.queue.first().is_some_and(|entry| entry.token == token);
        Message::Queued { token, ticket: place, head, again, age }
    }

    fn take(&mut self, token: Token, connection: u8, age: u8) -> Message {
        self.remove_entries(token, connection);
        let fence = self.mint(token);
        self.set(token, self.protocol.ttl, None);
        self.tell_head(Rule::GrantTellsHead);
        Message::Granted { token, fence, age }
    }

    fn release(&mut self, token: Token, withdraw: bool) -> Message {
        let was_head = self.state.server.queue.first().is_some_and(|entry| entry.token == token);
        let newest = self.caller().connection;
        let all = self.on(Rule::WithdrawAllEntries);
        self.state.server.queue.retain(|e| e.token != token || (!all && e.connection != newest));
        let past = self.caller().exposed == 0;
        let compares = self.on(Rule::CompareOnRelease);
        let mine = self.holder() == Some(token) || (!compares && self.holder().is_some());
        let only_entries = withdraw && !self.on(Rule::WithdrawReleases);
        if !mine || only_entries {
            if was_head {
                self.tell_head(Rule::WithdrawTellsHead);
            }
            return Message::Released { token, freed: false, past };
        }
        if self.holder() != Some(token) {
            self.broken(Broken::Stranger);
        }
        if let Phase::Ending(ending) = &mut self.caller().phase {
            ending.freed = true;
        }
        if !self.on(Rule::HandOver) || !matches!(self.serve(token, false), Served::Handed) {
            self.state.server.lock = None;
        }
        Message::Released { token, freed: true, past }
    }

    fn renew(&mut self, token: Token, ttl: u8, age: u8, confirms: Option<u8>) -> Message {
        match self.holder() {
            Some(holder) if holder == token || !self.on(Rule::CompareOnRenew) => {
                if holder != token {
                    self.broken(Broken::Stranger);
                }
                self.prolong(ttl);
                Message::Renewed { token, ttl, age, confirms }
            }
            None if !self.on(Rule::RenewNeverCreates) => {
                self.set(token, ttl, None);
                Message::Renewed { token, ttl, age, confirms }
            }
            _ => Message::NotRenewed { token, age },
        }
    }

    fn foreign_set(&mut self, token: Token, age: u8) -> Message {
        if self.holder().is_some() {
            return Message::Busy { token, age };
        }
        self.set(token, self.protocol.ttl, None);
        Message::Granted { token, fence: 0, age }
    }

    /// Hands the lease to the first waiter that is alive.
    fn serve(&mut self, own: Token, acquiring: bool) -> Served {
        while !self.state.server.queue.is_empty() {
            let head = self.state.server.queue.remove(0);
            if head.token == own {
                if acquiring {
                    return Served::Me;
                }
                continue;
            }
            if self.on(Rule::LivenessBeforeGrant) && !self.counts_as_alive(head) {
                continue;
            }
            self.check_overtaken(head);
            let fence = if self.on(Rule::HandoverMints) {
                self.mint(head.token)
            } else {
                self.granted(head.token, self.state.server.fence.unwrap_or(0));
                self.state.server.fence.unwrap_or(0)
            };
            let claim = if self.on(Rule::ClaimTime) { head.claim } else { FOREVER };
            self.set(head.token, claim, Some(own));
            if !head.polling {
                let grant = Message::Grant { token: head.token, fence, claim: head.claim };
                let delivered = self.publish(head, grant);
                if !self.on(Rule::LivenessBeforeGrant) && !(delivered ^ self.take_wrong_liveness()) {
                    continue;
                }
            }
            self.tell_head(Rule::GrantTellsHead);
            return Served::Handed;
        }
        Served::Nobody
    }

    fn counts_as_alive(&mut self, entry: Entry) -> bool {
        let client = &self.state.clients[owner(entry.token)];
        let subscribed = client.subscribed & (1 << entry.connection) != 0;
        if entry.polling || !self.on(Rule::SkipDead) {
            if !entry.polling && !subscribed {
                self.broken(Broken::HandedToTheDead);
            }
            return true;
        }
        let current = client.alive
            && client.phase == Phase::Wanting
            && client.connection == entry.connection
            && self.protocol.token(self.state, owner(entry.token)) == entry.token;
        let wrong = self.take_wrong_liveness();
        if current && !subscribed && !wrong {
            self.broken(Broken::Overtaken);
        }
        subscribed ^ wrong
    }

    fn take_wrong_liveness(&mut self) -> bool {
        let wrong = self.fault == Some(Fault::WrongLiveness);
        if wrong {
            self.fault = None;
        }
        wrong
    }

    /// Somebody still queued was there before the one that is served.
    fn check_overtaken(&mut self, served: Entry) {
        let overtaken = self.state.server.queue.iter().any(|entry| {
            let client = &self.state.clients[owner(entry.token)];
            entry.token != served.token
                && client.phase == Phase::Wanting
                && client.ticket.is_some_and(|ticket| ticket < served.ticket)
        });
        // A repeated first try has no ticket yet, so it may lose its place until the next poll.
        if overtaken && !self.protocol.allowed.contains(&Fault::Resend) {
            self.broken(Broken::Overtaken);
        }
    }

    fn check_waits_for_itself(&mut self, holder: Token, token: Token) {
        if holder >> 2 == token >> 2 && holder != token {
            self.broken(Broken::WaitsForItself);
        }
    }

    /// Delivers to the connection the channel belongs to, if it is still there.
    fn publish(&mut self, entry: Entry, message: Message) -> bool {
        let separate = !self.on(Rule::PushesInOrder);
        let client = &mut self.state.clients[owner(entry.token)];
        let subscribed = client.subscribed & (1 << entry.connection) != 0;
        if subscribed && client.alive && client.connection == entry.connection {
            let stream = if separate { &mut client.pushes } else { &mut client.down };
            if stream.last() != Some(&message) {
                stream.push(message);
            }
        }
        subscribed
    }

    fn tell_head(&mut self, rule: Rule) {
        if !self.on(rule) {
            return;
        }
        if let Some(head) = self.state.server.queue.first().copied()
            && !head.polling
        {
            self.publish(head, Message::Next { token: head.token });
        }
    }

    fn enqueue(&mut self, token: Token, connection: u8, ticket: Option<u8>) -> u8 {
        let ticket = if self.on(Rule::TicketKept) { ticket } else { None };
        let server = &mut self.state.server;
        let ours = |entry: &Entry| entry.token == token && entry.connection <= connection;
        let keeps = |entry: &Entry| entry.connection == connection || self.protocol.on(Rule::PlaceKept);
        let before = server.queue.iter().find(|entry| ours(entry)).map(|entry| entry.ticket);
        let known = server.queue.iter().find(|entry| ours(entry) && keeps(entry)).map(|entry| entry.ticket);
        server.queue.retain(|entry| !ours(entry));
        server.last_ticket += 1;
        let ticket = [ticket, known].into_iter().flatten().min().unwrap_or(server.last_ticket);
        if before.is_some_and(|before| before < ticket) {
            self.broken(Broken::Overtaken);
        }
        let polls = self.state.clients[self.client].kind == Kind::Polling;
        let entry = Entry {
            ticket,
            token,
            connection,
            polling: polls && self.protocol.on(Rule::PollingMark),
            claim: self.protocol.claim_of(polls),
        };
        let server = &mut self.state.server;
        let place = server.queue.partition_point(|other| (other.ticket, other.token) < (ticket, token));
        server.queue.insert(place, entry);
        server.queue_left = self.protocol.queue_ttl;
        ticket
    }

    /// Removes the token's entries of this connection and of earlier ones; true if one was the first.
    fn remove_entries(&mut self, token: Token, connection: u8) -> bool {
        let removed = |entry: &Entry| entry.token == token && entry.connection <= connection;
        let was_head = self.state.server.queue.first().is_some_and(removed);
        self.state.server.queue.retain(|entry| !removed(entry));
        was_head
    }

    fn mint(&mut self, token: Token) -> u8 {
        let clock = if self.on(Rule::ClockFloor) { self.state.ghost.newest } else { 0 };
        let fence = match self.state.server.fence {
            Some(last) => last + 1,
            None => clock + 1,
        };
        self.state.server.fence = Some(fence);
        self.granted(token, fence);
        fence
    }

    fn granted(&mut self, token: Token, fence: u8) {
        let ghost = &mut self.state.ghost;
        if fence <= ghost.newest {
            ghost.broken = Some(Broken::FenceNotIncreasing);
        }
        if token != ghost.newest_token {
            ghost.newest_other = ghost.newest;
            ghost.newest_token = token;
        }
        ghost.newest = fence;
    }

    /// Sets the key, which must be free or `instead`'s.
    fn set(&mut self, token: Token, left: u8, instead: Option<Token>) {
        let gives_away = self.on(Rule::LivenessBeforeGrant) && self.on(Rule::CompareOnRelease);
        if gives_away && self.holder().is_some_and(|holder| Some(holder) != instead) {
            self.broken(Broken::Stranger);
        }
        self.state.server.lock = Some(Lease { token, left });
    }

    fn prolong(&mut self, ttl: u8) {
        let never_shorten = self.on(Rule::NeverShorten);
        if let Some(lock) = &mut self.state.server.lock {
            lock.left = if never_shorten { lock.left.max(ttl) } else { ttl };
        }
    }

    /// The server refuses the first write of the script.
    fn refuse(&mut self, request: Request) -> Message {
        let token = request.token();
        let hands_over = matches!(request, Request::Release { .. }) && self.holder() == Some(token);
        if hands_over
            && !self.on(Rule::PublishLast)
            && let Some(head) = self.state.server.queue.first().copied()
        {
            let fence = self.state.server.fence.unwrap_or(0) + 1;
            self.publish(head, Message::Grant { token: head.token, fence, claim: head.claim });
        }
        Message::Refused { token }
    }

    fn broken(&mut self, broken: Broken) {
        self.state.ghost.broken = Some(broken);
    }
}
