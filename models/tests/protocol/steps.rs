//! An exhaustive model of acquiring step by step, while a slot migrates in a cluster (`docs/protocol.md`): take, mint
//! and verify are requests of their own, each of which may be executed at any time after it was sent and answered at
//! any time after that.
//!
//! The keys are at one node or the other, and each is always at exactly one, so to the model they are simply there;
//! but a fencing token may be minted by the clock of either node, one of which is always behind. Retries of a take are
//! sent with the same owner token, and an earlier one may arrive late; an operator may delete the key between steps.

use std::collections::{HashSet, VecDeque};

const TTL: u8 = 2;
const LAST_TICK: u8 = 5;

/// What the steps consist of; each can be left out.
#[derive(Clone, Copy)]
struct Rules {
    /// The third step: granted only if the key is still this owner's.
    verify: bool,
    /// Granted only if the first TTL has not passed.
    in_time: bool,
    /// The second step comes after the first.
    mint_after_take: bool,
}

const ALL: Rules = Rules { verify: true, in_time: true, mint_after_take: true };

/// What may go wrong once in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    LateTake,
    Deletion,
}

/// Where a client is in its one acquisition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Idle,
    /// Sent, and not executed yet.
    Takes {
        began: u8,
    },
    Taken {
        began: u8,
    },
    Mints {
        began: u8,
    },
    Minted {
        began: u8,
        token: u8,
    },
    Verifies {
        began: u8,
        token: u8,
    },
    Verified {
        began: u8,
        token: u8,
        mine: bool,
    },
    /// Believes that it holds the name until that tick.
    Holds {
        token: u8,
        until: u8,
    },
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    now: u8,
    /// Who has the lock key, and until when.
    key: Option<(usize, u8)>,
    last_token: u8,
    newest_grant: u8,
    clients: [Phase; 2],
    /// Takes that were given up and may still arrive.
    late: [bool; 2],
    faults: u8,
}

impl State {
    fn start() -> Self {
        Self {
            now: 0,
            key: None,
            last_token: 0,
            newest_grant: 0,
            clients: [Phase::Idle; 2],
            late: [false; 2],
            faults: 1,
        }
    }

    fn holder(&self) -> Option<usize> {
        self.key.filter(|(_, until)| *until > self.now).map(|(owner, _)| owner)
    }

    fn believes(&self, client: usize) -> bool {
        matches!(self.clients[client], Phase::Holds { until, .. } if until > self.now)
    }

    fn is_between_steps(&self, client: usize) -> bool {
        let granted = matches!(self.clients[client], Phase::Verified { mine: true, .. });
        !granted && !self.believes(client)
    }

    fn with(&self, client: usize, phase: Phase) -> Self {
        let mut next = self.clone();
        next.clients[client] = phase;
        next
    }

    /// Sets the key if it is free, or prolongs what this owner has. Whether it is the owner's.
    fn take(&mut self, owner: usize) -> bool {
        match self.holder() {
            Some(other) if other != owner => return false,
            Some(_) => {
                let until = self.key.map_or(0, |(_, until)| until);
                self.key = Some((owner, until.max(self.now + TTL)));
            }
            None => self.key = Some((owner, self.now + TTL)),
        }
        true
    }

    fn give_back(&mut self, owner: usize) {
        if self.holder() == Some(owner) {
            self.key = None;
        }
    }

    /// Every state that can come next.
    fn next(&self, rules: Rules, fault: Option<Fault>) -> Vec<Self> {
        let mut all = Vec::new();
        if self.now < LAST_TICK {
            all.push(Self { now: self.now + 1, ..self.clone() });
        }
        if fault == Some(Fault::Deletion) && self.faults > 0 {
            // An operator who breaks a lease takes the risk; between the steps there is none yet.
            if self.holder().is_some_and(|owner| self.is_between_steps(owner)) {
                all.push(Self { key: None, faults: 0, ..self.clone() });
            }
        }
        for client in 0..self.clients.len() {
            self.steps_of(client, rules, fault, &mut all);
            if self.late[client] {
                let mut next = self.clone();
                next.late[client] = false;
                all.push(next.clone());
                next.take(client);
                all.push(next);
            }
        }
        all
    }

    fn steps_of(&self, client: usize, rules: Rules, fault: Option<Fault>, all: &mut Vec<Self>) {
        match self.clients[client] {
            Phase::Idle if rules.mint_after_take => {
                all.push(self.with(client, Phase::Takes { began: self.now }));
            }
            Phase::Idle => self.mints(
                client,
                self.now,
                |began, token| Phase::Verified { began, token, mine: false },
                all,
            ),
            Phase::Takes { began } => {
                let mut next = self.with(client, Phase::Taken { began });
                if !next.take(client) {
                    next.clients[client] = Phase::Idle;
                }
                all.push(next);
                if fault == Some(Fault::LateTake) && self.faults > 0 {
                    let mut next = self.with(client, Phase::Takes { began: self.now });
                    (next.late[client], next.faults) = (true, 0);
                    all.push(next);
                }
            }
            Phase::Taken { began } => all.push(self.with(client, Phase::Mints { began })),
            Phase::Mints { began } => {
                self.mints(client, began, |began, token| Phase::Minted { began, token }, all);
            }
            Phase::Minted { began, token } if rules.verify => {
                all.push(self.with(client, Phase::Verifies { began, token }));
            }
            Phase::Minted { began, token } => all.push(self.granted(client, began, token, rules)),
            Phase::Verifies { began, token } => {
                let mine = self.holder() == Some(client);
                let mut next = self.with(client, Phase::Verified { began, token, mine });
                if mine {
                    next.take(client);
                }
                all.push(next);
            }
            // The wrong order: minted before it was taken.
            Phase::Verified { began, token, mine: false } if !rules.mint_after_take => {
                let mut next = self.clone();
                if next.take(client) {
                    all.push(next.granted(client, began.max(self.now), token, rules));
                }
            }
            Phase::Verified { began, token, mine: true } => {
                all.push(self.granted(client, began, token, rules));
            }
            Phase::Verified { .. } => all.push(self.with(client, Phase::Over)),
            Phase::Holds { until, .. } => {
                let mut next = self.with(client, Phase::Over);
                next.give_back(client);
                all.push(next);
                if until <= self.now {
                    all.push(self.with(client, Phase::Over));
                }
            }
            Phase::Over => {}
        }
    }

    /// By the clock of the node that has the counter now: the right one, or one that is behind.
    fn mints(&self, client: usize, began: u8, then: impl Fn(u8, u8) -> Phase, all: &mut Vec<Self>) {
        for clock in [self.now, 0] {
            let token = (self.last_token + 1).max(clock);
            let mut next = self.with(client, then(began, token));
            next.last_token = token;
            all.push(next);
        }
    }

    /// The last reply is read.
    fn granted(&self, client: usize, began: u8, token: u8, rules: Rules) -> Self {
        if rules.in_time && self.now >= began + TTL {
            let mut next = self.with(client, Phase::Over);
            next.give_back(client);
            return next;
        }
        // Without the rule the lease counts from the verification, which has just prolonged it.
        let until = if rules.in_time { began + TTL } else { self.now + TTL };
        let mut next = self.with(client, Phase::Holds { token, until });
        next.newest_grant = next.newest_grant.max(token);
        next
    }
}

/// The first promise that is broken in any run; `None` when all hold. And how many states there are.
fn search(rules: Rules, fault: Option<Fault>) -> (Option<&'static str>, usize) {
    let mut seen = HashSet::from([State::start()]);
    let mut waiting = VecDeque::from([State::start()]);
    while let Some(state) = waiting.pop_front() {
        for next in state.next(rules, fault) {
            let holders = (0..next.clients.len()).filter(|client| next.believes(*client)).count();
            if holders > 1 {
                return (Some("two holders"), seen.len());
            }
            let grants = next.clients.iter().zip(&state.clients);
            let new = grants.filter_map(|(after, before)| match (after, before) {
                (Phase::Holds { .. }, Phase::Holds { .. }) => None,
                (Phase::Holds { token, .. }, _) => Some(*token),
                _ => None,
            });
            if new.into_iter().any(|token| token <= state.newest_grant) {
                return (Some("a token goes back"), seen.len());
            }
            if seen.insert(next.clone()) {
                waiting.push_back(next);
            }
        }
    }
    (None, seen.len())
}

#[test]
fn trap_67_step_by_step_never_grants_two_holders_and_tokens_grow() {
    for fault in [None, Some(Fault::LateTake), Some(Fault::Deletion)] {
        let (broken, states) = search(ALL, fault);
        println!("{states} states");
        assert_eq!(broken, None);
        assert!(states > 10_000, "{states} states are too few to say anything");
    }
}

#[test]
fn trap_67_without_any_of_its_rules_step_by_step_breaks_a_promise() {
    let without_verify = Rules { verify: false, ..ALL };
    assert_eq!(search(without_verify, Some(Fault::Deletion)).0, Some("two holders"));
    let at_any_time = Rules { in_time: false, ..ALL };
    assert_eq!(search(at_any_time, None).0, Some("two holders"));
    let mint_first = Rules { mint_after_take: false, ..ALL };
    assert_eq!(search(mint_first, None).0, Some("a token goes back"));
}
