//! Looks ahead from a state: what happens when nothing goes wrong any more.
//!
//! Everybody does at once what the protocol tells him to, messages arrive at once, and holders release as soon
//! as they hold. Requests from broken connections never arrive. Then every waiter must be served, and nothing
//! may be left.

use crate::protocol::{POLL_INTERVAL, Protocol, RARE_POLL};
use crate::rules::Rule;
use crate::state::{Kind, Phase, State, owner};

/// A look ahead that takes longer than this many ticks has found a waiter that is never served.
const LIMIT: u8 = 2 * RARE_POLL + 8;

/// What the look ahead found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Ticks until the last waiter of the state was served; none if one never was.
    pub served_after: Option<u8>,
    /// A lease that was handed over ran out although the process it was given to was there.
    pub missed: bool,
    /// Nothing is left once all leases have run out.
    pub clean: bool,
}

impl Protocol {
    /// Follows the fair, loss-free continuation of a state.
    pub fn look_ahead(&self, start: &State) -> Ahead {
        let mut state = start.clone();
        state.faults = 0;
        state.cancels = 0;
        for client in &mut state.clients {
            client.late.clear();
        }
        let mut waiting: Vec<usize> = (0..state.clients.len()).filter(|&i| Self::waits(&state, i)).collect();
        let mut served_after = waiting.is_empty().then_some(0);
        let mut missed = false;
        let before = state.server.lock.map(|lock| lock.token);
        let mut handed_over = false;
        for ticks in 0..LIMIT {
            while self.advance(&mut state, &mut waiting) {
                handed_over |= state.server.lock.is_some_and(|lock| Some(lock.token) != before);
            }
            if waiting.is_empty() && served_after.is_none() {
                served_after = Some(ticks);
            }
            if waiting.is_empty() && self.settled(&state) {
                missed |= handed_over && Self::runs_out_unseen(&state, u8::MAX);
                return Ahead { served_after, missed, clean: self.leaves_nothing(state) };
            }
            missed |= handed_over && Self::runs_out_unseen(&state, 1);
            self.tick(&mut state, None);
            self.polls_due(&mut state, ticks + 1);
        }
        Ahead { served_after, missed, clean: false }
    }

    fn waits(state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        client.alive
            && client.phase == Phase::Wanting
            && matches!(client.kind, Kind::Subscriber | Kind::Polling)
    }

    /// The lease ends within that many ticks although the process it was given to is there.
    fn runs_out_unseen(state: &State, within: u8) -> bool {
        let lock = state.server.lock;
        lock.is_some_and(|lock| {
            let client = &state.clients[owner(lock.token)];
            lock.left <= within && client.alive && client.kind != Kind::Foreign
        })
    }

    /// Takes one step that needs no time; false if there is none.
    fn advance(&self, state: &mut State, waiting: &mut Vec<usize>) -> bool {
        for index in 0..state.clients.len() {
            let client = &state.clients[index];
            if !client.alive {
                continue;
            }
            if !client.up.is_empty() {
                self.serve_next(state, index, None);
            } else if !client.down.is_empty() {
                let message = state.clients[index].down.remove(0);
                self.read(state, index, message);
            } else if !client.pushes.is_empty() {
                let message = state.clients[index].pushes.remove(0);
                self.read(state, index, message);
            } else if matches!(client.phase, Phase::Held { .. }) {
                waiting.retain(|&waiter| waiter != index);
                self.release(state, index);
            } else if self.sends_now(state, index) {
                if state.clients[index].phase == Phase::Wanting {
                    self.send_acquire(state, index);
                } else {
                    self.send_ending(state, index);
                }
            } else {
                continue;
            }
            return true;
        }
        false
    }

    fn sends_now(&self, state: &State, index: usize) -> bool {
        let client = &state.clients[index];
        match client.phase {
            Phase::Wanting if client.kind == Kind::Foreign => false,
            Phase::Wanting => client.due || client.ticket.is_none(),
            Phase::Ending(ending) => !ending.pausing && (ending.sent == 0 || self.on(Rule::ReleaseRetried)),
            _ => false,
        }
    }

    fn polls_due(&self, state: &mut State, ticks: u8) {
        if !self.on(Rule::Poll) {
            return;
        }
        for client in &mut state.clients {
            if client.alive && client.phase == Phase::Wanting {
                let often = client.at_head && self.on(Rule::HeadPollsOften);
                let interval = match client.kind {
                    Kind::Polling => POLL_INTERVAL,
                    _ if often => 1,
                    _ => RARE_POLL,
                };
                client.due |= ticks.is_multiple_of(interval);
            }
        }
    }

    fn settled(&self, state: &State) -> bool {
        state.clients.iter().all(|client| {
            !client.alive
                || matches!(client.phase, Phase::Idle | Phase::Done)
                || client.kind == Kind::Foreign && client.phase == Phase::Wanting
                || matches!(client.phase, Phase::Ending(ending) if ending.sent > 0 && !self.on(Rule::ReleaseRetried))
        })
    }

    /// Once everybody is done, only what dead processes left is there, and it runs out.
    fn leaves_nothing(&self, mut state: State) -> bool {
        let dead = |token| !state.clients[owner(token)].alive;
        let only_dead = state.server.queue.iter().all(|entry| dead(entry.token));
        for _ in 0..=self.longest().max(2 * POLL_INTERVAL).max(self.queue_ttl) {
            self.tick(&mut state, None);
        }
        only_dead && state.server.lock.is_none() && (self.queue_ttl == 0 || state.server.queue.is_empty())
    }
}
