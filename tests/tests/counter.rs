//! Eight processes add to one counter under the lock while some of them are killed and frozen, on the embedded
//! store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::time::{Duration, Instant};

use common::{Seeded, Workers, assert_nothing_left};

const PROCESSES: usize = 8;
const TTL: Duration = Duration::from_millis(1_000);

fn sqlite(folder: &tempfile::TempDir) -> String {
    format!("sqlite:{}", folder.path().join("locks.db").display())
}

#[test]
fn the_count_is_exact_through_kills_and_stops_shorter_than_the_ttl() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let mut workers = Workers::new(&store, folder.path(), TTL, "plain");
    workers.start_all(PROCESSES);
    let mut seeded = Seeded(1);
    let ends = Instant::now() + Duration::from_secs(10);
    while Instant::now() < ends {
        std::thread::sleep(Duration::from_millis(100 + seeded.below(400)));
        // The last two are left alone: their waits are measured.
        let worker = seeded.index(PROCESSES - 2);
        if seeded.below(2) == 0 {
            workers.kill_and_restart(worker);
        } else {
            workers.freeze(worker, Duration::from_millis(100 + seeded.below(400)));
        }
    }
    workers.finish();
    let tally = workers.tally();
    println!("{tally:?}");
    assert_eq!(tally.lost_updates, 0, "{tally:?}");
    assert_eq!(tally.counted, tally.added + tally.unlogged, "{tally:?}");
    assert!(tally.counted > 50, "too few sections to say anything: {tally:?}");
    assert!(tally.longest_wait < TTL + Duration::from_secs(5), "a waiter was stuck: {tally:?}");
    tally.assert_tokens_unique();
    assert_nothing_left(&store, TTL);
}

/// Freezes workers inside their sections for longer than the TTL.
fn freeze_past_the_ttl(mode: &'static str) -> common::Tally {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder);
    let mut workers = Workers::new(&store, folder.path(), TTL, mode);
    workers.linger = Duration::from_millis(4);
    workers.start_all(PROCESSES);
    for worker in 0..4 {
        assert!(workers.freeze_in_section(worker, TTL * 3 / 2), "worker {worker} never got the lock");
    }
    workers.finish();
    let tally = workers.tally();
    println!("{mode}: {tally:?}");
    assert!(tally.longest_wait < TTL + Duration::from_secs(5), "a waiter was stuck: {tally:?}");
    tally.assert_tokens_unique();
    assert_nothing_left(&store, TTL);
    tally
}

#[test]
fn a_stop_longer_than_the_ttl_loses_updates_without_fencing() {
    let tally = freeze_past_the_ttl("plain");
    assert!(tally.lost_updates > 0, "a frozen holder overwrote nothing: the test shows nothing: {tally:?}");
}

#[test]
fn a_stop_longer_than_the_ttl_loses_nothing_with_fencing() {
    let tally = freeze_past_the_ttl("fenced");
    assert_eq!(tally.lost_updates, 0, "{tally:?}");
    assert_eq!(tally.counted, tally.added, "{tally:?}");
    assert!(tally.refused > 0, "no stale write was refused: the test shows nothing: {tally:?}");
}
