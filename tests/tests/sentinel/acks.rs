//! `acks`: a grant counts only once replicas have it. Fewer than asked: given back, and said so.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LeaseState, LostCause};
use leasehold_testkit::servers::{SentinelTrio, TrioBuilder};

use crate::support::{
    SLACK, connect, free, guard, lock_keys, on_each_kind, on_one_kind, run, take, until,
    until_nothing_is_left,
};

const TTL: Duration = Duration::from_secs(20);

/// Commands that a server was asked, by name.
fn calls(trio: &SentinelTrio, command: &str) -> u64 {
    trio.node(0).command_stats().unwrap().get(command).map_or(0, |stats| stats.calls)
}

#[test]
fn trap_43_too_few_replicas_are_an_error_and_leave_nothing() {
    on_each_kind("too_few_replicas_are_an_error", |trio| {
        run(async {
            let client = connect(&format!("{}?acks=2", trio.url()), "a").await;
            free(take(&client, "job", TTL).await).await;
            assert_eq!(calls(trio, "wait"), 1);
            // One of the two confirms nothing any more.
            trio.node(2).freeze().unwrap();
            let started = Instant::now();
            let error = client.lock("job").unwrap().ttl(TTL).try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
            assert!(error.to_string().contains("1 of 2"), "{error}");
            assert!(started.elapsed() < SLACK);
            assert!(lock_keys(trio.node(0)).is_empty(), "not given back at once");
            // Whoever asks for one is served, and nobody who asks for none is held up.
            free(guard(client.lock("job").unwrap().ttl(TTL).acks(1).try_acquire().await)).await;
            let waits = calls(trio, "wait");
            free(guard(client.lock("job").unwrap().ttl(TTL).acks(0).try_acquire().await)).await;
            assert_eq!(calls(trio, "wait"), waits);
            // More than there are can never be had.
            let error = client.lock("job").unwrap().ttl(TTL).acks(9).try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
            trio.node(2).thaw().unwrap();
            // It comes back, and with it the second acknowledgement.
            let deadline = Instant::now() + SLACK;
            let again = loop {
                match client.lock("job").unwrap().ttl(TTL).try_acquire().await {
                    Ok(attempt) => break guard(Ok(attempt)),
                    Err(error) if Instant::now() > deadline => panic!("{error}"),
                    Err(_) => {}
                }
            };
            free(again).await;
            until_nothing_is_left(trio).await;
        });
    });
}

#[test]
fn trap_66_a_waiter_that_was_handed_the_name_confirms_it_by_an_acquire_of_its_own() {
    on_one_kind(
        "a_waiter_that_was_handed_the_name_confirms",
        |trio| trio,
        |trio| {
            run(async {
                let (client, other) = (connect(&trio.url(), "a").await, connect(&trio.url(), "b").await);
                let held = take(&client, "job", TTL).await;
                let lock = other.lock("job").unwrap().ttl(TTL).wait(SLACK).acks(2);
                let waiting = tokio::spawn(async move { lock.acquire().await });
                let queue = ["KEYS", "lock:~queue:*"];
                until("queued", || trio.node(0).command(&queue).unwrap().items().unwrap().len() == 1).await;
                let (waits, token) = (calls(trio, "wait"), held.fencing_token());
                free(held).await;
                let served = guard(waiting.await.unwrap());
                assert!(calls(trio, "wait") > waits, "no replica was waited for");
                // The release minted one, the confirmation another.
                assert!(served.fencing_token() > token);
                free(served).await;
                // With a replica that confirms nothing, the waiter is refused, and the name is free.
                let held = take(&client, "job", TTL).await;
                let lock = other.lock("job").unwrap().ttl(TTL).wait(SLACK).acks(2);
                let waiting = tokio::spawn(async move { lock.acquire().await });
                until("queued", || trio.node(0).command(&queue).unwrap().items().unwrap().len() == 1).await;
                trio.node(1).freeze().unwrap();
                free(held).await;
                let error = waiting.await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
                until("free", || lock_keys(trio.node(0)).is_empty()).await;
                trio.node(1).thaw().unwrap();
            });
        },
    );
}

#[test]
fn trap_66_renewals_and_releases_do_not_wait_behind_a_replica() {
    on_one_kind(
        "renewals_do_not_wait_behind_a_replica",
        |trio| trio,
        |trio| {
            run(async {
                let client = connect(&trio.url(), "a").await;
                let held = take(&client, "held", TTL).await;
                trio.node(1).freeze().unwrap();
                let asking: Vec<_> = (0..5)
                    .map(|number| {
                        let lock = client.lock(format!("job-{number}")).unwrap().ttl(TTL).acks(2);
                        tokio::spawn(async move { lock.try_acquire().await })
                    })
                    .collect();
                until("asked for", || lock_keys(trio.node(0)).len() == 6).await;
                // Those are waited for on the server now.
                for _ in 0..20 {
                    held.renew().await.unwrap();
                }
                free(held).await;
                assert!(asking.iter().all(|asking| !asking.is_finished()), "a renewal waited for a replica");
                for asking in asking {
                    let error = asking.await.unwrap().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
                }
                trio.node(1).thaw().unwrap();
                until_nothing_is_left(trio).await;
            });
        },
    );
}

/// F028: One replica has confirmed the lease and the other one, which was cut off, is promoted: the name is granted
/// twice, the first holder is told at its next renewal, and its fencing token is the smaller one. With both replicas
/// asked for, the first grant is refused instead.
#[test]
fn f028_another_replica_than_the_one_that_confirmed_is_promoted() {
    on_one_kind("f028_another_replica_is_promoted", TrioBuilder::links, |trio| {
        run(async {
            let (client, other) = (connect(&trio.url(), "a").await, connect(&trio.url(), "b").await);
            // The one that will be promoted hears nothing any more.
            trio.link(1).stall();
            let both = client.lock("job").unwrap().ttl(TTL).acks(2).try_acquire().await.unwrap_err();
            assert_eq!(both.kind(), ErrorKind::NotReplicated, "{both}");
            let held =
                guard(client.lock("job").unwrap().ttl(Duration::from_secs(12)).acks(1).try_acquire().await);
            trio.node(0).kill().unwrap();
            assert_eq!(trio.wait_for_failover_from(0).unwrap(), 1);
            let second = take(&other, "job", TTL).await;
            assert!(
                second.fencing_token() > held.fencing_token(),
                "a fencing check could not tell them apart"
            );
            let cause = tokio::time::timeout(Duration::from_secs(12), held.lost()).await.unwrap();
            assert!(matches!(cause, LostCause::Taken | LostCause::Missing), "{cause}");
            assert_eq!(second.state(), LeaseState::Held);
            free(second).await;
        });
    });
}
