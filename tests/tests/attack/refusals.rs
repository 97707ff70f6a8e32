//! Servers that are set up or run so that locks suffer: what is said, and that leases come through.

use std::time::Duration;

use leasehold::{Attempt, Client, ErrorKind, LeaseState, LostCause, Released};
use leasehold_testkit::servers::{RedisServer, ServerBuilder};

use crate::logs;
use crate::outages::connect_with;
use crate::support::{
    SLACK, connect, free, guard, number, on_each_server_with, pttl, run, run_on_each_server, take, until,
    until_nothing_is_left, until_queued, until_within, wait_for,
};

const TTL: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(60);

fn set(server: &RedisServer, name: &str, value: &str) {
    let reply = server.command(&["CONFIG", "SET", name, value]).unwrap();
    assert!(!reply.is_error(), "{reply:?}");
}

/// Limits the memory to what is used and a little more.
fn limit_memory(server: &RedisServer, policy: &str) {
    let used: u64 = server.info("memory").unwrap()["used_memory"].parse().unwrap();
    set(server, "maxmemory", &(used + 8 * 1024 * 1024).to_string());
    set(server, "maxmemory-policy", policy);
}

/// F159: An evicting server is warned of at connect, and an evicted lease is told as lost at the next renewal.
#[test]
fn trap_35_f159_eviction_is_warned_of_when_connecting_and_noticed_at_the_next_renewal() {
    run_on_each_server("eviction_is_warned_of_when_connecting", async |server| {
        logs::collect();
        limit_memory(server, "allkeys-random");
        let client = connect(&server.url(), "a").await;
        let store = client.store();
        let said = logs::with(&["WARN", "maxmemory-policy", "allkeys-random", &store]);
        assert_eq!(said.len(), 1, "{said:#?}");
        // Not again with every connection.
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        until("again", || !logs::with(&["connected to the server again", &store]).is_empty()).await;
        assert_eq!(logs::with(&["maxmemory-policy", &store]).len(), 1);

        let held = take(&client, "job", TTL).await;
        let filler = "x".repeat(10_000);
        for key in 0.. {
            assert!(key < 100_000, "never evicted");
            server.command(&["SET", &format!("cache:{key}"), &filler]).unwrap();
            if number(server, &["EXISTS", "lock:job"]) == 0 {
                break;
            }
        }
        let cause = tokio::time::timeout(TTL / 3 + SLACK, held.lost()).await.unwrap();
        assert_eq!(cause, LostCause::Missing);
        assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);

        for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "0")] {
            set(server, name, value);
            let before = logs::with(&["maxmemory-policy", &store]).len();
            connect(&server.url(), "a").await;
            assert_eq!(logs::with(&["maxmemory-policy", &store]).len(), before, "{name} {value}");
        }
    });
}

/// F159: On a server that is full and does not evict, an acquire says why; releases and renewals work.
#[test]
fn trap_36_f159_on_a_full_server_releases_renewals_and_hand_overs_work_and_acquires_say_why() {
    run_on_each_server("on_a_full_server_releases_work", async |server| {
        let client = connect_with(&server.url(), "a", Duration::from_secs(1)).await;
        let other = connect(&server.url(), "b").await;
        let held = take(&client, "job", TTL).await;
        let waiting = wait_for(&other, "job", TTL);
        until_queued(server, "job", 1).await;
        let unawaited = take(&client, "unawaited", TTL).await;
        set(server, "maxmemory", "1");
        refuses(&client, &["OOM", "maxmemory"]).await;
        // Who has it is told there as ever.
        assert!(matches!(other.lock("unawaited").unwrap().try_acquire().await, Ok(Attempt::Busy(_))));
        // Also on new connections, which are the rule when a server has got into such trouble.
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        // Longer than the lease would last by itself.
        tokio::time::sleep(TTL + TTL / 3).await;
        assert_eq!(held.state(), LeaseState::Held);
        free(held).await;
        free(unawaited).await;
        // Handed over on the spot, and not first after a claim that ended unseen.
        until("granted", || {
            assert!(waiting.is_finished() || pttl(server, "job") > 0, "the claim ended");
            waiting.is_finished()
        })
        .await;
        let next = waiting.await.unwrap();
        next.renew().await.unwrap();
        free(next).await;
        set(server, "maxmemory", "0");
        free(take(&client, "new", TTL).await).await;
        until_nothing_is_left(server).await;
    });
}

/// F064: A server that refuses all writes is named with its setting; a release is repeated until the server heals.
#[test]
fn trap_72_f064_a_server_that_refuses_every_write_is_named_and_a_long_lease_comes_through() {
    let configure = |settings: ServerBuilder| settings.config("save", "3600 1").config("dbfilename", "taken");
    on_each_server_with("a_server_that_refuses_every_write", configure, |server| {
        run(refuse_every_write(server));
    });
}

async fn refuse_every_write(server: &RedisServer) {
    let client = connect_with(&server.url(), "a", Duration::from_secs(1)).await;
    let other = connect(&server.url(), "b").await;
    let (long, released) = (take(&client, "long", LONG).await, take(&client, "released", LONG).await);
    let dropped = take(&client, "dropped", LONG).await;
    let waiting = wait_for(&other, "released", LONG);
    until_queued(server, "released", 1).await;
    for (begin, words) in [
        (fail_to_save as fn(&RedisServer), ["MISCONF", "stop-writes-on-bgsave-error"]),
        (|server| set(server, "min-replicas-to-write", "1"), ["NOREPLICAS", "min-replicas-to-write"]),
    ] {
        begin(server);
        refuses(&client, &words).await;
        assert_eq!(long.renew().await.unwrap_err().kind(), ErrorKind::Unknown);
        assert_eq!(long.state(), LeaseState::Uncertain);
        set(server, "stop-writes-on-bgsave-error", "no");
        set(server, "min-replicas-to-write", "0");
        until_within(LONG / 3 + SLACK, "held again", || long.state() == LeaseState::Held).await;
    }
    // A release that is refused says why, and is done when the server lets it.
    set(server, "min-replicas-to-write", "1");
    drop(dropped);
    let error = released.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(said(&error).contains("NOREPLICAS"), "{}", said(&error));
    set(server, "min-replicas-to-write", "0");
    free(tokio::time::timeout(SLACK * 2, waiting).await.unwrap().unwrap()).await;
    until_within(SLACK * 2, "cleaned up", || client.load().cleanups == 0).await;
    free(long).await;
    until_nothing_is_left(server).await;
}

/// F064: A server that is loading its data after a restart says so; a lease it has kept is held, and a release waits
/// until it is done.
#[test]
fn f064_a_server_that_is_still_loading_is_named_and_keeps_what_it_has() {
    // Slow to load, and answering in between.
    let configure = |settings: ServerBuilder| {
        settings.config("key-load-delay", "20000").config("loading-process-events-interval-bytes", "1024")
    };
    on_each_server_with("f064_a_server_that_is_still_loading", configure, |server| {
        run(async {
            let patient = connect_with(&server.url(), "a", LONG).await;
            let hasty = connect_with(&server.url(), "b", Duration::from_millis(500)).await;
            let (long, released) =
                (take(&patient, "long", LONG).await, take(&patient, "released", LONG).await);
            for key in 0..150_u32 {
                let noise: String = (0..300_u32).map(|at| (key * at * 7_919).to_string()).collect();
                server.command(&["SET", &format!("cache:{key}"), &noise]).unwrap();
            }
            let (told, restarted) = std::thread::scope(|scope| {
                let restarting = scope.spawn(|| server.restart(leasehold_testkit::servers::Data::Keep));
                let told = tokio::task::block_in_place(|| {
                    leasehold::blocking::block_on(loading_is_told(&hasty, &restarting))
                });
                (told, restarting.join().unwrap())
            });
            restarted.unwrap();
            assert!(told, "nobody was told that the server is loading");
            free(released).await;
            crate::outages::renews(&long).await;
            free(long).await;
            for key in 0..150_u32 {
                server.command(&["DEL", &format!("cache:{key}")]).unwrap();
            }
            // An acquire that the restart cut off is cleaned up, or has ended by itself.
            until_within(SLACK * 3, "nothing is left of the cut-off acquire", || {
                number(server, &["EXISTS", "lock:new"]) == 0
            })
            .await;
            until_nothing_is_left(server).await;
        });
    });
}

/// Whether an error names the loading before the server is up again.
async fn loading_is_told(
    client: &Client,
    restarting: &std::thread::ScopedJoinHandle<'_, std::io::Result<()>>,
) -> bool {
    let mut told = false;
    while !restarting.is_finished() {
        let lock = client.lock("new").unwrap().ttl(Duration::from_secs(2));
        if let Err(error) = lock.try_acquire().await {
            assert!(error.is_retryable(), "{error}");
            told |= said(&error).contains("loading");
        }
    }
    told
}

/// Makes snapshots fail, whoever runs the server.
fn fail_to_save(server: &RedisServer) {
    std::fs::create_dir(server.folder().join("taken")).unwrap();
    std::fs::write(server.folder().join("taken/file"), "").unwrap();
    server.command(&["BGSAVE"]).unwrap();
    let started = std::time::Instant::now();
    while server.info("persistence").unwrap()["rdb_last_bgsave_status"] != "err" {
        assert!(started.elapsed() < SLACK * 2, "the snapshot does not fail");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An acquire is refused with these words, after the time of the store.
async fn refuses(client: &Client, words: &[&str]) {
    for lock in [client.lock("new").unwrap(), client.lock("new").unwrap().wait(LONG)] {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        for word in words {
            assert!(said(&error).contains(word), "{word} is not in: {}", said(&error));
        }
    }
}

/// The message and those of its causes.
fn said(error: &leasehold::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text} ({inner})");
        cause = inner.source();
    }
    text
}

#[test]
fn trap_16_the_trouble_of_one_lease_is_not_that_of_others() {
    run_on_each_server("the_trouble_of_one_lease", async |server| {
        let client = connect(&server.url(), "a").await;
        let (lost, kept) = (take(&client, "lost", TTL).await, take(&client, "kept", TTL).await);
        // Their renewals go out together; one of them meets something that is no string.
        server.command(&["DEL", "lock:lost"]).unwrap();
        server.command(&["LPUSH", "lock:lost", "theirs"]).unwrap();
        assert_eq!(tokio::time::timeout(TTL + SLACK, lost.lost()).await.unwrap(), LostCause::Taken);
        tokio::time::sleep(TTL).await;
        assert_eq!(kept.state(), LeaseState::Held);
        free(kept).await;
        assert_eq!(lost.release().await.unwrap(), Released::AlreadyLost);
        free(guard(client.lock("kept").unwrap().try_acquire().await)).await;
    });
}
