//! A failover in the middle of work: service is back within seconds, and a lease that was held goes on or is lost,
//! never both.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Guard, LeaseState};
use leasehold_testkit::servers::{Data, SentinelTrio, TrioBuilder};

use crate::support::{
    SLACK, connect, free, guard, lock_keys, on_each_kind, on_one_kind, run, take, until,
    until_nothing_is_left, until_replicated,
};

const TTL: Duration = Duration::from_secs(20);
/// A failover that was asked for has taken place by then, or was given up.
const AGAIN: Duration = Duration::from_secs(15);

/// Takes the names, a hundred at a time in the queue behind them.
async fn take_many(client: &leasehold::Client, count: usize, ttl: Duration) -> Vec<Guard> {
    let mut held = Vec::new();
    for number in 0..count {
        held.push(take(client, &format!("job-{number}"), ttl).await);
    }
    held
}

/// Every lease that is held still can be renewed, and the store has it under its owner token.
async fn assert_all_held(trio: &SentinelTrio, primary: usize, held: &[Guard]) {
    for guard in held {
        guard.renew().await.unwrap();
        assert_eq!(guard.state(), LeaseState::Held, "{}", guard.name());
        let key = format!("lock:{}", guard.name());
        assert_eq!(trio.node(primary).cli(&["GET", &key]).unwrap(), guard.owner_token().expose());
    }
}

/// F012: After a planned failover, with the old primary reachable as a replica, fifty leases are renewed and released
/// on the new primary, and new ones are granted, without an error and without a restart.
#[test]
fn f012_trap_41_a_planned_failover_interrupts_nothing() {
    on_each_kind("f012_a_planned_failover_interrupts_nothing", |trio| {
        run(async {
            let client = connect(&trio.url(), "a").await;
            let held = take_many(&client, 50, TTL).await;
            until_replicated(trio, 0).await;
            trio.fail_over().unwrap();
            let mut begun = Instant::now();
            let mut newest = held.last().unwrap().fencing_token();
            let mut longest = Duration::ZERO;
            // Acquires and releases all the time while the primary changes.
            while !trio.is_primary(1) || trio.is_primary(0) {
                if begun.elapsed() > AGAIN {
                    // On a very busy machine Sentinels give up now and then.
                    trio.fail_over().unwrap();
                    begun = Instant::now();
                }
                let started = Instant::now();
                let probe = take(&client, "probe", TTL).await;
                assert!(probe.fencing_token() > newest, "a fencing token went back");
                newest = probe.fencing_token();
                // One that was granted by the old primary at the last moment may be gone there, and says so.
                if let Err(error) = probe.release().await {
                    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
                }
                longest = longest.max(started.elapsed());
            }
            println!("{}: longest acquire and release {longest:?}", trio.node(0).kind());
            let new = trio.wait_for_failover_from(0).unwrap();
            assert_all_held(trio, new, &held).await;
            let after = take(&client, "after", TTL).await;
            assert!(after.fencing_token() > newest);
            for guard in held.into_iter().chain([after]) {
                free(guard).await;
            }
            until_nothing_is_left(trio).await;
        });
    });
}

#[test]
fn trap_41_a_killed_primary_is_replaced_within_seconds_and_its_leases_go_on() {
    on_each_kind("a_killed_primary_is_replaced_within_seconds", |trio| {
        run(async {
            let (client, other) = (connect(&trio.url(), "a").await, connect(&trio.url(), "b").await);
            let held = take_many(&client, 5, TTL).await;
            let waiting = other.lock("job-0").unwrap().ttl(TTL).wait_forever();
            let waiting = tokio::spawn(async move { guard(waiting.acquire().await) });
            let queue = ["KEYS", "lock:~queue:*:job-0"];
            until("queued", || trio.node(0).command(&queue).unwrap().items().unwrap().len() == 1).await;
            until_replicated(trio, 0).await;
            trio.node(0).kill().unwrap();
            let killed = Instant::now();
            // Asked for while nobody is primary: it is granted as soon as somebody is.
            let after = take(&client, "after", TTL).await;
            println!("{}: served again after {:?}", trio.node(1).kind(), killed.elapsed());
            assert!(after.fencing_token() > held[4].fencing_token());
            let new = trio.wait_for_failover_from(0).unwrap();
            assert_all_held(trio, new, &held).await;
            // The waiter was told of the new primary too, and is served by the release there.
            for guard in held.into_iter().chain([after]) {
                free(guard).await;
            }
            let served = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
            free(served).await;
            until_nothing_is_left(trio).await;
        });
    });
}

/// Replication is not waited for, so a release can be lost in a failover like anything else.
#[test]
fn a_name_that_was_released_just_before_a_failover_is_free_after_it() {
    on_one_kind("a_name_that_was_released_just_before", TrioBuilder::links, |trio| {
        run(async {
            let (client, other) = (connect(&trio.url(), "a").await, connect(&trio.url(), "b").await);
            let held = take_many(&client, 3, TTL).await;
            until_replicated(trio, 0).await;
            trio.link(1).stall();
            for guard in held {
                free(guard).await;
            }
            trio.node(0).kill().unwrap();
            assert_eq!(trio.wait_for_failover_from(0).unwrap(), 1);
            until("released on the new primary, too", || lock_keys(trio.node(1)).is_empty()).await;
            free(take(&other, "job-0", TTL).await).await;
        });
    });
}

/// The sockets of a frozen server stay open, and its kernel goes on taking connections: only the Sentinels tell.
#[test]
fn a_frozen_primary_is_left_as_soon_as_sentinels_name_another() {
    on_one_kind(
        "a_frozen_primary_is_left",
        |trio| trio,
        |trio| {
            run(async {
                let client = connect(&trio.url(), "a").await;
                let held = take_many(&client, 5, TTL).await;
                until_replicated(trio, 0).await;
                trio.node(0).freeze().unwrap();
                let after = take(&client, "after", TTL).await;
                let new = trio.wait_for_failover_from(0).unwrap();
                assert_all_held(trio, new, &held).await;
                // Thawed, it takes itself for the primary until it is told; nobody asks it.
                trio.node(0).thaw().unwrap();
                let again = take(&client, "again", TTL).await;
                assert!(again.fencing_token() > after.fencing_token());
                until("the thawed one is a replica", || !trio.is_primary(0)).await;
                assert_all_held(trio, new, &held).await;
            });
        },
    );
}

#[test]
fn a_primary_that_is_cut_off_is_left_though_its_connections_stay_open() {
    on_one_kind(
        "a_primary_that_is_cut_off_is_left",
        |trio| trio,
        |trio| {
            run(async {
                let client = connect(&trio.url(), "a").await;
                let held = take_many(&client, 5, TTL).await;
                until_replicated(trio, 0).await;
                trio.proxy(0).half_open();
                let after = take(&client, "after", TTL).await;
                let new = trio.wait_for_failover_from(0).unwrap();
                assert_all_held(trio, new, &held).await;
                free(after).await;
            });
        },
    );
}

#[test]
fn lost_sentinels_matter_to_nobody_as_long_as_one_answers_and_an_old_one_is_not_believed() {
    on_one_kind(
        "lost_sentinels_matter_to_nobody",
        |trio| trio,
        |trio| {
            run(async {
                let url = trio.url_through_proxies();
                let client = connect(&url, "a").await;
                // This one misses the failover, and comes back knowing only the old primary, which is down.
                trio.sentinel(1).kill().unwrap();
                trio.node(0).kill().unwrap();
                let new = trio.wait_for_failover_from(0).unwrap();
                let held = take(&client, "job", TTL).await;
                trio.sentinel(1).restart(Data::Lose).unwrap();
                assert_eq!(trio.named_by(1), Some(0), "it should know no better");
                let another = connect(&url, "b").await;
                let second = take(&another, "other", TTL).await;
                assert_eq!(trio.node(new).cli(&["EXISTS", "lock:other"]).unwrap(), "1");
                // It tells its old news to those who listen, too.
                tokio::time::sleep(Duration::from_secs(4)).await;
                held.renew().await.unwrap();
                second.renew().await.unwrap();
                // One of the three is enough, and the two others may be silent instead of gone.
                trio.sentinel(1).kill().unwrap();
                trio.sentinel_proxy(2).half_open();
                let third = connect(&url, "c").await;
                let _third = take(&third, "third", TTL).await;
                assert_eq!(held.state(), LeaseState::Held);
            });
        },
    );
}
