//! Processes add to one counter under the lock while the primary is killed, frozen and replaced, again and again.

use std::time::{Duration, Instant};

use leasehold_testkit::servers::{Data, SentinelTrio, ServerKind};

use crate::common::{Workers, assert_nothing_left};
use crate::support::on_kind;

const PROCESSES: usize = 5;
const TTL: Duration = Duration::from_secs(1);
/// A failover that is noticed, takes place and is followed, on a busy machine.
const OUTAGE: Duration = Duration::from_secs(30);

/// What is done to the primary, in turn.
fn replace_primary(trio: &SentinelTrio, round: usize, old: usize) {
    match round % 3 {
        0 => {
            trio.node(old).kill().unwrap();
            trio.wait_for_failover_from(old).unwrap();
            trio.node(old).restart(Data::Lose).unwrap();
        }
        1 => trio.fail_over().unwrap(),
        _ => {
            trio.node(old).freeze().unwrap();
            trio.wait_for_failover_from(old).unwrap();
            trio.node(old).thaw().unwrap();
        }
    }
    trio.wait_for_failover_from(old).unwrap();
    trio.wait_until_ready().unwrap();
}

#[test]
fn the_count_is_exact_through_failovers_with_fencing() {
    on_kind(
        "the_count_is_exact_through_failovers",
        ServerKind::Valkey9,
        |trio| trio,
        |trio| {
            let folder = tempfile::tempdir().unwrap();
            let mut workers = Workers::new(&trio.url(), folder.path(), TTL, "fenced");
            workers.start_all(PROCESSES);
            for round in 0..3 {
                std::thread::sleep(Duration::from_millis(300));
                let started = Instant::now();
                let old = trio.primary().unwrap();
                replace_primary(trio, round, old);
                println!("round {round}: {:?}", started.elapsed());
            }
            std::thread::sleep(TTL);
            workers.finish();
            let tally = workers.tally();
            println!("{tally:?}");
            assert!(tally.counted > 100, "too few sections to say anything: {tally:?}");
            tally.assert_tokens_unique();
            assert_eq!(tally.lost_updates, 0, "{tally:?}");
            assert_eq!(tally.counted, tally.added, "{tally:?}");
            assert!(tally.longest_wait < OUTAGE, "a waiter was stuck: {tally:?}");
            assert_nothing_left(&trio.url(), TTL);
        },
    );
}
