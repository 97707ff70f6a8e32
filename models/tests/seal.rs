//! An exhaustive model of seal, check and expiry: three holders of one lock, whose lease may end at any moment, who
//! may stop for ever at any step, and a database with transactions and row locks. With the seal, in one transaction
//! or in two, the value is what was accepted, whatever the order; with a check on write only the model finds the
//! update that is lost.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use stateright::{Checker, Model, Property};

const HOLDERS: usize = 3;
/// Tokens that are handed out; a holder may get several.
const TOKENS: u8 = 6;

/// How a holder guards its read and its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sealed,
    SealedTwice,
    CheckedOnWrite,
    /// A seal whose transaction ends before the read, and no second one.
    SealedAlone,
    /// The seal without the row lock: a check, and then work in the same transaction.
    Unlocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Seal,
    Read,
    Write,
    WriteChecked,
    Commit,
}

impl Way {
    fn steps(self) -> &'static [Step] {
        use Step::{Commit, Read, Seal, Write, WriteChecked};
        match self {
            Self::Sealed | Self::Unlocked => &[Seal, Read, Write, Commit],
            Self::SealedTwice => &[Seal, Read, Commit, Seal, Write, Commit],
            Self::SealedAlone => &[Seal, Commit, Read, Write, Commit],
            Self::CheckedOnWrite => &[Read, WriteChecked],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Work {
    token: u8,
    next: u8,
    read: u8,
    /// What it will have written, and sealed, once it commits.
    writes: Option<u8>,
    seals: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Who holds the lock, as its store sees it.
    lease: Option<usize>,
    granted: u8,
    holders: [Option<Work>; HOLDERS],
    /// Of the guard row and of the protected one, as committed.
    fence: u8,
    value: u8,
    written_under: u8,
    accepted: u8,
    /// Whether a write was accepted after one under a newer token.
    went_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Acquire(usize),
    LeaseEnds,
    Step(usize),
    /// It crashes, and the database rolls back.
    Crash(usize),
}

struct Protocol(Way);

impl Protocol {
    /// The holder whose open transaction has the lock on the guard row.
    fn locked_by(&self, state: &State) -> Option<usize> {
        (0..HOLDERS)
            .find(|who| state.holders[*who].is_some_and(|work| work.seals))
            .filter(|_| self.0 != Way::Unlocked)
    }

    fn step(&self, state: &mut State, who: usize) -> Option<()> {
        let mut work = state.holders[who]?;
        match self.0.steps()[usize::from(work.next)] {
            // It waits for the lock.
            Step::Seal if self.locked_by(state).is_some() => return None,
            Step::Seal if state.fence > work.token => {
                state.holders[who] = None;
                return Some(());
            }
            Step::Seal => work.seals = true,
            Step::Read => work.read = state.value,
            Step::Write => work.writes = Some(work.read + 1),
            Step::WriteChecked => {
                if state.written_under <= work.token {
                    work.writes = Some(work.read + 1);
                    Self::commit(state, &mut work);
                }
            }
            Step::Commit => Self::commit(state, &mut work),
        }
        work.next += 1;
        state.holders[who] = Some(work).filter(|work| usize::from(work.next) < self.0.steps().len());
        Some(())
    }

    fn commit(state: &mut State, work: &mut Work) {
        if std::mem::take(&mut work.seals) {
            state.fence = work.token;
        }
        if let Some(value) = work.writes.take() {
            state.value = value;
            state.accepted += 1;
            state.went_back |= state.written_under > work.token;
            state.written_under = work.token;
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            lease: None,
            granted: 0,
            holders: [None; HOLDERS],
            fence: 0,
            value: 0,
            written_under: 0,
            accepted: 0,
            went_back: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.lease.is_some() {
            actions.push(Action::LeaseEnds);
        }
        for who in 0..HOLDERS {
            match state.holders[who] {
                None if state.lease.is_none() && state.granted < TOKENS => actions.push(Action::Acquire(who)),
                None => {}
                Some(_) => actions.extend([Action::Step(who), Action::Crash(who)]),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Acquire(who) => {
                state.granted += 1;
                state.lease = Some(who);
                state.holders[who] =
                    Some(Work { token: state.granted, next: 0, read: 0, writes: None, seals: false });
            }
            Action::LeaseEnds => state.lease = None,
            Action::Step(who) => self.step(&mut state, who)?,
            Action::Crash(who) => state.holders[who] = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the value is what was accepted", |_, state: &State| {
                state.value == state.accepted
            }),
            Property::always("no write follows one under a newer token", |_, state: &State| !state.went_back),
            Property::sometimes("two holders overlap", |_, state: &State| {
                state.holders.iter().flatten().count() > 1
            }),
            Property::sometimes("several writes are accepted", |_, state: &State| state.accepted > 2),
        ]
    }
}

fn explore(way: Way) -> impl Checker<Protocol> {
    let checked = Protocol(way).checker().spawn_bfs().join();
    eprintln!("{way:?}: {} states", checked.unique_state_count());
    checked
}

#[test]
fn with_the_seal_no_order_of_steps_loses_an_update() {
    for way in [Way::Sealed, Way::SealedTwice] {
        let checked = explore(way);
        assert!(checked.unique_state_count() > 10_000, "the model is not trivial");
        checked.assert_properties();
    }
}

#[test]
fn a_check_on_write_only_loses_an_update() {
    let checked = explore(Way::CheckedOnWrite);
    assert!(checked.discovery("the value is what was accepted").is_some());
    // The schedule of the guide is one: 33 reads, its lease ends, 34 reads, 33 writes, 34 writes.
    let schedule = vec![
        Action::Acquire(0),
        Action::Step(0),
        Action::LeaseEnds,
        Action::Acquire(1),
        Action::Step(1),
        Action::Step(0),
        Action::Step(1),
    ];
    checked.assert_discovery("the value is what was accepted", schedule);
    // Its writes are in order of their tokens all the same: that check does what it says.
    assert!(checked.discovery("no write follows one under a newer token").is_none());
}

#[test]
fn a_seal_that_is_not_held_until_the_write_loses_an_update() {
    for way in [Way::SealedAlone, Way::Unlocked] {
        assert!(explore(way).discovery("the value is what was accepted").is_some(), "{way:?}");
    }
}
