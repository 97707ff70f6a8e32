//! One reference model of a lock, and random operations of several clients against it: on memory, on a SQLite file,
//! on real Redis and Valkey servers. What the model does not allow is a failure, shown with the shortest sequence of
//! operations that proptest finds.
//!
//! `LEASEHOLD_MODEL_CASES=2000` runs that many cases on each store, `LEASEHOLD_MODEL_SEED=7` others than CI runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(missing_docs, unreachable_pub, reason = "a test binary has no readers")]

mod case;
mod model;
mod places;
mod steps;

use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use places::{Place, Places};

const CASES_VARIABLE: &str = "LEASEHOLD_MODEL_CASES";
const SEED_VARIABLE: &str = "LEASEHOLD_MODEL_SEED";
/// Steps of one case.
const MOST_STEPS: usize = 30;

fn asked<T: std::str::FromStr>(variable: &str, default: T) -> T {
    std::env::var(variable).ok().map_or(default, |text| text.parse().ok().unwrap())
}

/// Runs cases from a fixed seed on a store.
fn explore(places: &Places, cases: u32, worker: u8) {
    let seed: u64 = asked(SEED_VARIABLE, 1);
    let mut bytes = [worker; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: asked(CASES_VARIABLE, cases),
        failure_persistence: None,
        // Real time passes in each attempt to make a failure shorter.
        max_shrink_iters: if places.is_virtual() { 5_000 } else { 60 },
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let steps = proptest::collection::vec(steps::any(), 1..MOST_STEPS);
    let outcome = runner.run(&steps, |steps| {
        let outcome = places.run(|place: Place| case::run(place, steps));
        outcome.map_err(proptest::test_runner::TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, steps)) => {
            panic!("{}: {reason}\nafter {steps:#?}", places.name())
        }
        Err(TestError::Abort(reason)) => panic!("{}: {reason}", places.name()),
    }
}

#[test]
fn every_sequence_is_allowed_by_the_model_in_memory() {
    explore(&Places::memory(), 400, 0);
}

/// Cases on real stores take real time, most of it waiting: several run at the same time.
#[test]
fn every_sequence_is_allowed_by_the_model_on_real_stores() {
    std::thread::scope(|scope| {
        for (worker, places) in (1_u8..).zip(Places::real("every_sequence_is_allowed_by_the_model", 3)) {
            let run = move || explore(&places, 10, worker);
            let thread = std::thread::Builder::new().name(format!("worker {worker}"));
            thread.spawn_scoped(scope, run).unwrap();
        }
    });
}

/// As late as anything may be on a busy machine.
const SLACK: Duration = Duration::from_secs(15);
