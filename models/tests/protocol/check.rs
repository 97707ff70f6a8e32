//! Runs the checker.

use std::collections::BTreeSet;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::protocol::Protocol;
use crate::rules::{Fault, Rule};

/// No run looks at more states than this; a complete search that would is a failure.
const MOST_STATES: usize = 40_000_000;

impl Protocol {
    pub fn faults(mut self, faults: u8, allowed: &[Fault]) -> Self {
        self.faults = faults;
        self.allowed = allowed.to_vec();
        self
    }

    pub fn cancels(mut self, cancels: u8) -> Self {
        self.cancels = cancels;
        self
    }

    pub fn acquisitions(mut self, acquisitions: u8) -> Self {
        self.acquisitions = acquisitions;
        self
    }

    pub fn ttl(mut self, ttl: u8, claim: u8) -> Self {
        self.ttl = ttl;
        self.claim = claim;
        self
    }

    pub fn extended(mut self, extended: u8) -> Self {
        self.extended = extended;
        self
    }

    pub fn drift(mut self, drift: u8) -> Self {
        self.drift = drift;
        self
    }

    pub fn life(mut self, life: u8) -> Self {
        self.life = life;
        self
    }

    pub fn prompt(mut self, ticks: u8) -> Self {
        self.prompt = Some(ticks);
        self
    }

    pub fn instant_replies(mut self) -> Self {
        self.instant_replies = true;
        self
    }

    pub fn queue_ttl(mut self, queue_ttl: u8) -> Self {
        self.queue_ttl = queue_ttl;
        self
    }
}

/// Searches all states and finds every promise kept.
pub fn holds(model: &Protocol) {
    holds_except(&[], model);
}

/// Searches all states and finds every promise kept but those that the faults of the model make impossible.
pub fn holds_except(impossible: &[&str], model: &Protocol) {
    let promises = model.properties().iter().map(|property| property.name).collect::<BTreeSet<_>>();
    let kept = promises.into_iter().filter(|name| !impossible.contains(name)).collect::<BTreeSet<_>>();
    let started = Instant::now();
    let checker = model
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyOf(kept.clone()))
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps, {:?}", checker.state_count(), started.elapsed());
    for (name, path) in checker.discoveries() {
        let last = path.last_state().clone();
        assert!(!kept.contains(name), "broken: {name}\nby {:?}\nin {last:?}", path.into_actions());
    }
    assert!(checker.state_count() < MOST_STATES, "the search is not complete");
}

/// Without the rule, the checker finds a way to break the promise.
pub fn counterexample(rule: Rule, promise: &'static str, model: &Protocol) {
    println!("without {rule:?}:");
    let mut model = model.clone();
    model.off = Some(rule);
    limit(promise, &model);
}

/// The protocol cannot keep the promise in this model: the checker finds a way to break it.
pub fn limit(promise: &'static str, model: &Protocol) {
    let started = Instant::now();
    let checker = model
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    println!("{} states, {:?}", checker.unique_state_count(), started.elapsed());
    let path = checker.discovery(promise).unwrap_or_else(|| panic!("nothing breaks \"{promise}\""));
    println!("\"{promise}\" is broken by {:?}", path.into_actions());
}

/// Without the rule nothing breaks: it is not needed for any promise of the model.
pub fn no_counterexample(rule: Rule, model: &Protocol) {
    let mut model = model.clone();
    model.off = Some(rule);
    holds(&model);
}
