//! Processes add to one counter under the lock while the slot of its name moves from node to node, or its shard fails
//! over.

use std::time::{Duration, Instant};

use leasehold_testkit::servers::{Data, RedisCluster, ServerKind, kinds_to_test};

use crate::common::{Seeded, Tally, Workers, assert_nothing_left};

const PROCESSES: usize = 4;
const TTL: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(5);
/// How long the slot is moved about.
const TIME: Duration = Duration::from_secs(6);

fn finish(cluster: &RedisCluster, mut workers: Workers) -> Tally {
    workers.finish();
    let tally = workers.tally();
    println!("{} {}: {tally:?}", cluster.kind(), workers.mode);
    assert!(tally.counted > 10, "too few sections to say anything: {tally:?}");
    tally.assert_tokens_unique();
    assert_nothing_left(&cluster.url(), workers.ttl);
    tally
}

#[test]
fn trap_41_trap_67_the_count_is_exact_while_its_slot_moves_again_and_again() {
    let test = "the_count_is_exact_while_its_slot_moves";
    std::thread::scope(|scope| {
        for kind in kinds_to_test(test) {
            let thread = std::thread::Builder::new().name(format!("{test} on {kind}"));
            thread.spawn_scoped(scope, move || count_while_moving(kind)).unwrap();
        }
    });
}

fn count_while_moving(kind: ServerKind) {
    let cluster = RedisCluster::builder(kind).replicas(0).start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut workers = Workers::new(&cluster.url(), folder.path(), TTL, "plain");
    workers.start_all(PROCESSES);
    let slot = cluster.slot_of("lock:counter").unwrap();
    let mut seeded = Seeded(3);
    let ends = Instant::now() + TIME;
    while Instant::now() < ends {
        let mut pause = || std::thread::sleep(Duration::from_millis(20 + seeded.below(250)));
        let from = cluster.owner_of(slot).unwrap();
        let to = (from + 1) % 3;
        cluster.begin_migration(slot, from, to).unwrap();
        pause();
        cluster.move_keys(slot, from, to).unwrap();
        pause();
        // What came back to the old node meanwhile.
        cluster.move_keys(slot, from, to).unwrap();
        cluster.finish_migration(slot, from, to).unwrap();
        pause();
        workers.kill_and_restart(0);
    }
    let tally = finish(&cluster, workers);
    assert_eq!(tally.lost_updates, 0, "{tally:?}");
    // A killed worker may have added without saying so.
    assert!(tally.unlogged <= tally.kills, "{tally:?}");
    assert!(tally.longest_wait < TTL + SLACK, "a waiter was stuck: {tally:?}");
}

/// F012: When the primary of a shard dies, its replica takes over, and no update is lost with fencing.
#[test]
fn f012_the_count_is_exact_with_fencing_while_its_shard_fails_over() {
    let Some(kind) = kinds_to_test("the_count_is_exact_while_its_shard_fails_over").into_iter().next() else {
        return;
    };
    let cluster = RedisCluster::start(kind).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut workers = Workers::new(&cluster.url(), folder.path(), TTL, "fenced");
    workers.start_all(PROCESSES);
    let slot = cluster.slot_of("lock:counter").unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..2 {
        assert!(workers.wait_for_section(1), "nobody gets in");
        let primary = cluster.owner_of(slot).unwrap();
        let replica = (primary + 3) % 6;
        let began = Instant::now();
        cluster.node(primary).kill().unwrap();
        cluster.until_primary(replica).unwrap();
        longest = longest.max(began.elapsed());
        std::thread::sleep(Duration::from_millis(500));
        cluster.node(primary).restart(Data::Lose).unwrap();
        cluster.until_whole().unwrap();
    }
    let tally = finish(&cluster, workers);
    assert_eq!(tally.lost_updates, 0, "{tally:?}");
    assert_eq!(tally.counted, tally.added, "{tally:?}");
    assert!(
        tally.longest_wait < longest + TTL + SLACK,
        "a waiter was stuck, {longest:?} without a primary: {tally:?}"
    );
}
