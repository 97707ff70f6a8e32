//! The promises of the protocol, as properties of the model.

use std::cell::RefCell;

use stateright::{Model, Property};

use crate::ahead::Ahead;
use crate::protocol::{Action, Protocol};
use crate::state::{Broken, Client, Kind, Phase, State, owner, token};

pub const ONE_HOLDER: &str = "never two holders at a time";
pub const NO_STRANGER: &str = "nobody touches a stranger's key";
pub const FENCES_GROW: &str = "fencing tokens grow, and no holder has an outdated one";
pub const SERVED: &str = "every waiter is served once messages arrive again";
pub const PROMPT: &str = "every waiter is served soon once messages arrive again";
pub const NOT_MISSED: &str = "no lease runs out unseen while messages arrive";
pub const NOTHING_LEFT: &str = "a finished acquisition leaves nothing behind";
pub const IN_ORDER: &str = "no live waiter is overtaken";
pub const NOT_TO_THE_DEAD: &str = "no lease is handed to a waiter that is known to be gone";
pub const NO_SELF_BLOCK: &str = "nobody waits for itself";
pub const TRUE_VERDICT: &str = "no release that freed the name is reported as lost";
pub const IN_TIME: &str = "nobody starts with a lease that is over";

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.enabled(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        self.forget(&mut state);
        state.normalise();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| one_holder(state)),
            Property::always(NO_STRANGER, |_, state: &State| state.ghost.broken != Some(Broken::Stranger)),
            Property::always(FENCES_GROW, |_, state: &State| fences_grow(state)),
            Property::always(SERVED, |model: &Protocol, state: &State| {
                model.ahead(state).served_after.is_some()
            }),
            Property::always(PROMPT, |model: &Protocol, state: &State| model.serves_promptly(state)),
            Property::always(NOT_MISSED, |model: &Protocol, state: &State| !model.ahead(state).missed),
            Property::always(NOTHING_LEFT, |model: &Protocol, state: &State| model.nothing_left(state)),
            Property::always(IN_ORDER, |_, state: &State| state.ghost.broken != Some(Broken::Overtaken)),
            Property::always(NOT_TO_THE_DEAD, |_, state: &State| {
                state.ghost.broken != Some(Broken::HandedToTheDead)
            }),
            Property::always(NO_SELF_BLOCK, |_, state: &State| {
                state.ghost.broken != Some(Broken::WaitsForItself)
            }),
            Property::always(TRUE_VERDICT, |_, state: &State| state.ghost.broken != Some(Broken::FalseLoss)),
            Property::always(IN_TIME, |_, state: &State| state.ghost.broken != Some(Broken::StartsTooLate)),
        ]
    }
}

fn one_holder(state: &State) -> bool {
    let holders = state.clients.iter().filter(|client| client.believes() && client.kind != Kind::Resumer);
    holders.count() <= 1
}

/// Tokens grow in the order of grants, and whoever believes to hold has one newer than any granted to others.
fn fences_grow(state: &State) -> bool {
    let ghost = &state.ghost;
    let mut shared = Vec::new();
    for (index, client) in state.clients.iter().enumerate() {
        let Phase::Held { fence, .. } = client.phase else { continue };
        if client.kind == Kind::Foreign {
            continue;
        }
        let resumer = client.kind == Kind::Resumer;
        let ours =
            ghost.newest_token == u8::MAX || owner(ghost.newest_token) == if resumer { 0 } else { index };
        let newest_of_others = if ours { ghost.newest_other } else { ghost.newest };
        if newest_of_others > fence || shared.contains(&fence) {
            return false;
        }
        shared.push(fence);
    }
    ghost.broken != Some(Broken::FenceNotIncreasing)
}

thread_local! {
    /// The look ahead of the state whose properties are being checked.
    static AHEAD: RefCell<Option<(State, Ahead)>> = const { RefCell::new(None) };
}

impl Protocol {
    fn ahead(&self, state: &State) -> Ahead {
        AHEAD.with_borrow_mut(|memory| match memory {
            Some((known, ahead)) if known == state => *ahead,
            _ => {
                let ahead = self.look_ahead(state);
                *memory = Some((state.clone(), ahead));
                ahead
            }
        })
    }

    fn serves_promptly(&self, state: &State) -> bool {
        let served_after = self.ahead(state).served_after;
        self.prompt.is_none_or(|most| served_after.is_some_and(|ticks| ticks <= most))
    }

    fn nothing_left(&self, state: &State) -> bool {
        let finished = |client: usize, wanted: u8| {
            (0..state.clients[client].acquisition)
                .any(|acquisition| (0..4).any(|attempt| token(client, acquisition, attempt) == wanted))
        };
        let ours = |value: u8| {
            let client = owner(value);
            let resumed = |one: &Client| one.kind == Kind::Resumer && one.phase != Phase::Done;
            state.clients[client].alive
                && matches!(state.clients[client].kind, Kind::Subscriber | Kind::Polling | Kind::Trying)
                && finished(client, value)
                && !(client == 0 && state.clients.iter().any(resumed))
        };
        let left = state.server.lock.is_some_and(|lock| ours(lock.token))
            || state.server.queue.iter().any(|entry| ours(entry.token));
        !left && self.ahead(state).clean
    }
}
