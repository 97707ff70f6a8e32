//! Eight processes add to one counter under the lock while some of them, or the server, are killed, frozen and
//! started again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::servers::{Data, RedisServer, ServerBuilder};

use crate::common::{Seeded, Tally, Workers, assert_nothing_left};
use crate::support::{SLACK, number, on_each_server, on_each_server_with, pttl, queue_key};

const PROCESSES: usize = 8;
const TTL: Duration = Duration::from_secs(1);
/// How long workers are disturbed.
const TIME: Duration = Duration::from_secs(7);

fn workers(server: &RedisServer, folder: &tempfile::TempDir, ttl: Duration, mode: &'static str) -> Workers {
    Workers::new(&server.url(), folder.path(), ttl, mode)
}

/// Looks at the keys again and again: trap 9, trap 69.
fn assert_every_key_ends(server: &RedisServer, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        assert_ne!(pttl(server, "counter"), -1, "a lease without an end");
        if let Some(queue) = queue_key(server, "counter") {
            assert_ne!(number(server, &["PTTL", &queue]), -1, "a queue without an end");
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// F094: Through kills at any moment no key without an expiry is left, and a count under the lock stays
/// exact.
#[test]
fn trap_9_trap_69_f094_the_count_is_exact_through_kills_and_stops_shorter_than_the_ttl() {
    on_each_server("the_count_is_exact_through_kills_and_stops", |server| {
        let folder = tempfile::tempdir().unwrap();
        let mut workers = workers(server, &folder, TTL, "plain");
        workers.start_all(PROCESSES);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_every_key_ends(server, &stop));
            disturb(&mut workers);
            stop.store(true, Ordering::Relaxed);
        });
        let tally = finish(server, workers);
        assert_eq!(tally.lost_updates, 0, "{tally:?}");
        // A killed worker may have added without saying so.
        assert!(tally.unlogged <= tally.kills, "{tally:?}");
        assert!(tally.longest_wait < TTL + SLACK, "a waiter was stuck: {tally:?}");
    });
}

/// Kills and stops workers; the last two are left alone, their waits are measured.
fn disturb(workers: &mut Workers) {
    let mut seeded = Seeded(1);
    let ends = Instant::now() + TIME;
    while Instant::now() < ends {
        std::thread::sleep(Duration::from_millis(50 + seeded.below(300)));
        let worker = seeded.index(PROCESSES - 2);
        if seeded.below(2) == 0 {
            workers.kill_and_restart(worker);
        } else {
            workers.freeze(worker, Duration::from_millis(100 + seeded.below(400)));
        }
    }
}

/// Lets the workers end, and checks what must hold however they were disturbed.
fn finish(server: &RedisServer, mut workers: Workers) -> Tally {
    workers.finish();
    let tally = workers.tally();
    println!("{} {}: {tally:?}", server.kind(), workers.mode);
    assert!(tally.counted > 10, "too few sections to say anything: {tally:?}");
    tally.assert_tokens_unique();
    assert_nothing_left(&server.url(), workers.ttl);
    tally
}

/// Freezes workers inside their sections for longer than the TTL.
fn freeze_past_the_ttl(server: &RedisServer, mode: &'static str) -> Tally {
    let folder = tempfile::tempdir().unwrap();
    let mut workers = workers(server, &folder, TTL, mode);
    workers.linger = Duration::from_millis(8);
    workers.start_all(PROCESSES);
    for worker in 0..3 {
        assert!(workers.freeze_in_section(worker, TTL * 3 / 2), "worker {worker} never got the lock");
    }
    let tally = finish(server, workers);
    assert!(tally.longest_wait < TTL + SLACK, "a waiter was stuck: {tally:?}");
    tally
}

#[test]
fn trap_7_a_stop_longer_than_the_ttl_loses_updates_without_fencing() {
    on_each_server("a_stop_longer_than_the_ttl_loses_updates_without_fencing", |server| {
        let tally = freeze_past_the_ttl(server, "plain");
        assert!(
            tally.lost_updates > 0,
            "a frozen holder overwrote nothing: the test shows nothing: {tally:?}"
        );
    });
}

#[test]
fn trap_7_a_stop_longer_than_the_ttl_loses_nothing_with_fencing() {
    on_each_server("a_stop_longer_than_the_ttl_loses_nothing_with_fencing", |server| {
        let tally = freeze_past_the_ttl(server, "fenced");
        assert_eq!(tally.lost_updates, 0, "{tally:?}");
        assert_eq!(tally.counted, tally.added, "{tally:?}");
        assert!(tally.refused > 0, "no stale write was refused: the test shows nothing: {tally:?}");
    });
}

#[test]
fn trap_20_a_holder_that_was_stopped_for_longer_than_the_ttl_knows_it_when_it_looks() {
    on_each_server("a_holder_that_was_stopped_knows_it_when_it_looks", |server| {
        let tally = freeze_past_the_ttl(server, "careful");
        assert!(tally.stopped > 0, "nobody noticed the loss: {tally:?}");
    });
}

/// Starts the server again several times while workers are at work; the longest time it was away.
fn restart_repeatedly(
    server: &RedisServer,
    workers: &mut Workers,
    data: Data,
    downs: &[Duration],
) -> Duration {
    let mut seeded = Seeded(2);
    let mut longest = Duration::ZERO;
    for down in downs {
        std::thread::sleep(Duration::from_millis(600 + seeded.below(600)));
        if data == Data::Keep {
            workers.kill_and_restart(seeded.index(PROCESSES - 2));
        }
        let started = Instant::now();
        server.kill().unwrap();
        std::thread::sleep(*down);
        server.restart(data).unwrap();
        longest = longest.max(started.elapsed());
    }
    std::thread::sleep(TTL);
    longest
}

const DOWNS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(400), Duration::from_millis(1_500), Duration::ZERO];

#[test]
fn a_server_that_is_killed_and_comes_back_with_its_data_costs_no_update() {
    on_each_server_with("a_server_that_comes_back_with_its_data", ServerBuilder::append_only, |server| {
        let folder = tempfile::tempdir().unwrap();
        let mut workers = workers(server, &folder, TTL, "plain");
        workers.start_all(PROCESSES);
        let away = restart_repeatedly(server, &mut workers, Data::Keep, &DOWNS);
        let tally = finish(server, workers);
        assert_eq!(tally.lost_updates, 0, "{tally:?}");
        // A killed worker may have added without saying so.
        assert!(tally.unlogged <= tally.kills, "{tally:?}");
        assert!(
            tally.longest_wait < away + TTL + SLACK,
            "a waiter was stuck, server away {away:?}: {tally:?}"
        );
    });
}

/// The server forgets every lease in the middle of somebody's section.
fn restart_empty(server: &RedisServer, mode: &'static str) -> Tally {
    let folder = tempfile::tempdir().unwrap();
    let mut workers = workers(server, &folder, TTL, mode);
    // Longer than the server and the connections need to come back.
    workers.linger = Duration::from_millis(300);
    workers.start_all(PROCESSES);
    let away = restart_repeatedly(server, &mut workers, Data::Lose, &[Duration::ZERO; 5]);
    let tally = finish(server, workers);
    assert!(tally.longest_wait < away + TTL + SLACK, "a waiter was stuck: {tally:?}");
    tally
}

#[test]
fn trap_37_a_server_that_comes_back_empty_may_cost_updates_without_fencing() {
    on_each_server("a_server_that_comes_back_empty_without_fencing", |server| {
        let tally = restart_empty(server, "plain");
        println!("{}: {} updates lost to overlaps", server.kind(), tally.lost_updates);
        assert!(tally.lost_updates > 0, "nobody overlapped: the test shows nothing: {tally:?}");
    });
}

#[test]
fn trap_37_a_server_that_comes_back_empty_costs_no_update_with_fencing() {
    on_each_server("a_server_that_comes_back_empty_with_fencing", |server| {
        let tally = restart_empty(server, "fenced");
        assert!(tally.refused > 0, "nobody overlapped: the test shows nothing: {tally:?}");
        assert_eq!(tally.lost_updates, 0, "{tally:?}");
        assert_eq!(tally.counted, tally.added, "{tally:?}");
    });
}
