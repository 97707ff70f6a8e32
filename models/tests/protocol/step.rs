//! What each action does to the state: time, the network, and the faults.

use crate::protocol::{Action, Protocol};
use crate::rules::{Fault, Rule};
use crate::server::Execution;
use crate::state::{Client, Ending, FOREVER, Kind, Message, Phase, Request, State, Token};

impl Protocol {
    /// Applies an action.
    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick(slow) => {
                if slow.is_some() {
                    state.faults -= 1;
                }
                self.tick(state, slow);
            }
            Action::Start(index) => self.start_acquisition(state, index),
            Action::Acquire(index) => self.send_acquire(state, index),
            Action::Renew(index) => self.send_renewal(state, index, self.ttl),
            Action::Extend(index) => self.send_renewal(state, index, self.extended),
            Action::Release(index) => self.release(state, index),
            Action::End(index) => self.send_ending(state, index),
            Action::Cancel(index) => {
                state.cancels -= 1;
                self.cancel(state, index);
            }
            Action::Serve(index) => self.serve_next(state, index, None),
            Action::ServeBadly(index, fault) => {
                state.faults -= 1;
                self.serve_next(state, index, Some(fault));
            }
            Action::Read(index) => {
                let message = state.clients[index].down.remove(0);
                self.read(state, index, message);
            }
            Action::ReadPush(index) => {
                let message = state.clients[index].pushes.remove(0);
                self.read(state, index, message);
            }
            Action::Arrive(index, which) => {
                let request = state.clients[index].late.remove(which);
                Execution { protocol: self, state, client: index, fault: None }.run(request);
            }
            Action::Notice(index, connection) => state.clients[index].subscribed &= !(1 << connection),
            Action::Fault(index, fault) => {
                state.faults -= 1;
                self.fault(state, index, fault);
            }
        }
    }

    pub fn serve_next(&self, state: &mut State, index: usize, fault: Option<Fault>) {
        let request = state.clients[index].up.remove(0);
        let reply = Execution { protocol: self, state, client: index, fault }.run(request);
        state.clients[index].down.push(reply);
        while self.instant_replies && !state.clients[index].down.is_empty() {
            let message = state.clients[index].down.remove(0);
            self.read(state, index, message);
        }
    }

    /// One tick passes on the server and on every client but a slow one.
    pub fn tick(&self, state: &mut State, slow: Option<usize>) {
        if let Some(lock) = &mut state.server.lock {
            if lock.left != FOREVER {
                lock.left -= 1;
            }
            if lock.left == 0 {
                state.server.lock = None;
            }
        }
        if self.on(Rule::QueueExpires) && state.server.queue_left > 0 {
            state.server.queue_left -= 1;
            if state.server.queue_left == 0 {
                state.server.queue.clear();
            }
        }
        for (index, client) in state.clients.iter_mut().enumerate() {
            for request in client.up.iter_mut().chain(&mut client.late) {
                if let Request::Acquire { life, .. } = request {
                    *life = life.saturating_sub(1);
                }
            }
            client.exposed = client.exposed.saturating_sub(1);
            if slow != Some(index) {
                self.client_tick(client);
            }
        }
    }

    fn client_tick(&self, client: &mut Client) {
        let oldest = self.longest();
        let older = |age: &mut u8| *age = (*age + 1).min(oldest);
        for request in client.up.iter_mut().chain(&mut client.late) {
            match request {
                Request::Acquire { age, .. }
                | Request::Renew { age, .. }
                | Request::ForeignSet { age, .. } => older(age),
                _ => {}
            }
        }
        for message in &mut client.down {
            match message {
                Message::Granted { age, .. }
                | Message::Queued { age, .. }
                | Message::Busy { age, .. }
                | Message::Late { age, .. }
                | Message::Renewed { age, .. }
                | Message::NotRenewed { age, .. } => older(age),
                _ => {}
            }
        }
        client.bound.as_mut().map(older);
        match &mut client.phase {
            Phase::Held { left, fence } => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    let lost = (!self.on(Rule::LostIsFinal)).then_some(*fence);
                    client.phase = Phase::Ending(Ending { lost, ..Ending::default() });
                }
            }
            Phase::Ending(ending) => ending.pausing = false,
            _ => {}
        }
    }

    fn fault(&self, state: &mut State, index: usize, fault: Fault) {
        let client = &mut state.clients[index];
        match fault {
            Fault::Drop => {
                let mine = self.token(state, index);
                self.reconnect(&mut state.clients[index], mine);
            }
            Fault::Crash => {
                client.alive = false;
                client.phase = Phase::Done;
                client.down.clear();
                client.pushes.clear();
                let up = std::mem::take(&mut client.up);
                client.late.extend(up);
            }
            Fault::Lose => {
                client.down.remove(0);
            }
            Fault::Resend => {
                if client.phase == Phase::Wanting {
                    self.send_acquire(state, index);
                } else {
                    self.send_ending(state, index);
                }
            }
            Fault::GiveUp => self.finish(state, index),
            Fault::LoseFence => state.server.fence = None,
            Fault::LoseQueue => state.server.queue.clear(),
            Fault::WrongLiveness | Fault::RefuseWrites | Fault::SlowClock => {}
        }
    }

    fn reconnect(&self, client: &mut Client, mine: Token) {
        client.unanswered |= client.acquire_pending(mine);
        for request in std::mem::take(&mut client.up) {
            if let Request::Acquire { life, .. } = request {
                client.exposed = client.exposed.max(life);
            }
            client.late.push(request);
        }
        client.down.clear();
        client.pushes.clear();
        client.connection += 1;
        let subscribes = matches!(client.kind, Kind::Subscriber | Kind::Trying | Kind::Resumer);
        client.subscribe_if(subscribes && self.on(Rule::SubscribeFirst));
        if self.on(Rule::NoBoundAfterReconnect) {
            client.bound = None;
        }
        client.at_head = false;
        client.due = client.phase == Phase::Wanting && self.on(Rule::PollAfterReconnect);
    }

    /// Forgets late requests that can have no effect any more.
    pub fn forget(&self, state: &mut State) {
        if self.on(Rule::NotAfter) {
            for client in &mut state.clients {
                client.late.retain(|request| !matches!(request, Request::Acquire { life: 0, .. }));
            }
        }
    }
}
