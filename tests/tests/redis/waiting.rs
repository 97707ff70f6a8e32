//! Waiting on real servers: no release is missed, no message is needed, nobody who is gone is served, nobody who
//! is there is forgotten.

use std::time::{Duration, Instant};

use leasehold::{Attempt, Client};
use leasehold_testkit::proxy::Proxy;
use tokio::task::JoinHandle;

use crate::common::{Seeded, Workers};
use crate::support::{
    SLACK, connect, free, guard, keys, number, pttl, queue_key, queued, run_on_each_server, take, until,
    until_nothing_is_left, until_queued, until_within, wait_for,
};

const TTL: Duration = Duration::from_secs(60);

/// F007, F046: The same on real servers, also with slow replies.
#[test]
fn trap_22_f007_f046_a_release_at_any_moment_of_the_wait_hands_over_at_once() {
    run_on_each_server("a_release_at_any_moment_of_the_wait_hands_over", async |server| {
        // The waiter's request takes 3 ms to arrive, so the release overtakes it, meets it or follows it.
        let proxy = Proxy::before(server).unwrap();
        proxy.set_delay(Duration::from_millis(3), Duration::from_millis(3));
        let holder = connect(&server.url(), "holder").await;
        let waiter = connect(&server.url_through(&proxy), "waiter").await;
        let (mut seeded, mut times) = (Seeded(3), Vec::new());
        for _ in 0..150 {
            let held = take(&holder, "job", TTL).await;
            let lock = waiter.lock("job").unwrap().ttl(TTL).wait(TTL);
            let waiting = tokio::spawn(async move { (guard(lock.acquire().await), Instant::now()) });
            std::thread::sleep(Duration::from_micros(seeded.below(8_000)));
            let released = Instant::now();
            free(held).await;
            let (held, at) = waiting.await.unwrap();
            times.push(at - released);
            free(held).await;
        }
        times.sort();
        println!("{}: median {:?}, p90 {:?}, longest {:?}", server.kind(), times[75], times[135], times[149]);
        // A release that is missed is found by the poll after a second.
        assert!(times[135] < Duration::from_millis(500), "{:?}", times[135]);
        assert!(times[149] < SLACK, "{:?}", times[149]);
    });
}

#[test]
fn trap_23_a_grant_whose_message_is_lost_is_found_by_asking() {
    run_on_each_server("a_grant_whose_message_is_lost_is_found_by_asking", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let holder = connect(&server.url(), "holder").await;
        let waiter = connect(&server.url_through(&proxy), "waiter").await;
        let held = take(&holder, "job", TTL).await;
        let waiting = wait_for(&waiter, "job", TTL);
        until_queued(server, "job", 1).await;
        let lost = proxy.drop_next_push();
        let released = Instant::now();
        free(held).await;
        let held = waiting.await.unwrap();
        assert!(lost.has_fired());
        assert!(released.elapsed() < Duration::from_secs(1) + SLACK, "{:?}", released.elapsed());
        free(held).await;
    });
}

#[test]
fn trap_23_waiters_that_lost_their_connection_are_served_in_their_old_places() {
    run_on_each_server("waiters_that_lost_their_connection_are_served", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let holder = connect(&server.url(), "holder").await;
        let (first, second) = (
            connect(&server.url_through(&proxy), "1").await,
            connect(&server.url_through(&proxy), "2").await,
        );
        let held = take(&holder, "job", TTL).await;
        let first = wait_for(&first, "job", TTL);
        until_queued(server, "job", 1).await;
        let second = wait_for(&second, "job", TTL);
        until_queued(server, "job", 2).await;
        let before = entries(server, "job");
        proxy.cut();
        // The second asks by itself every 10 s at the earliest; after a reconnection at once.
        until("both are queued for their new connections", || {
            let now = entries(server, "job");
            now.len() == 2 && now.iter().all(|entry| !before.contains(entry))
        })
        .await;
        free(held).await;
        let held = tokio::time::timeout(SLACK, first).await.unwrap().unwrap();
        assert!(!second.is_finished());
        free(held).await;
        free(tokio::time::timeout(SLACK, second).await.unwrap().unwrap()).await;
        until_nothing_is_left(server).await;
    });
}

/// Waits for a name, holds it and gives it back.
fn pass_through(client: &Client, name: &str, ttl: Duration) -> JoinHandle<()> {
    let waiting = wait_for(client, name, ttl);
    tokio::spawn(async { free(waiting.await.unwrap()).await })
}

fn entries(server: &leasehold_testkit::servers::RedisServer, name: &str) -> Vec<String> {
    let Some(queue) = queue_key(server, name) else { return Vec::new() };
    let reply = server.command(&["ZRANGE", &queue, "0", "-1"]).unwrap();
    reply.items().unwrap().iter().map(|entry| entry.text().unwrap()).collect()
}

/// F043: On real servers the first waiter is served when the lease of a killed holder ends.
#[test]
fn trap_24_f043_the_first_waiter_is_served_when_the_lease_of_a_killed_holder_ends() {
    const SHORT: Duration = Duration::from_secs(1);
    run_on_each_server("the_first_waiter_is_served_when_a_killed_holders_lease_ends", async |server| {
        let folder = tempfile::tempdir().unwrap();
        let mut workers = Workers::new(&server.url(), folder.path(), SHORT, "plain");
        workers.linger = Duration::from_secs(60);
        workers.start(0);
        assert!(workers.wait_for_section(0));
        let client = connect(&server.url(), "me").await;
        let waiting: Vec<_> = (0..100).map(|_| pass_through(&client, "counter", SHORT)).collect();
        until_queued(server, "counter", 1).await;
        workers.kill(0);
        let killed = Instant::now();
        for task in waiting {
            task.await.unwrap();
        }
        assert!(killed.elapsed() < SHORT + SLACK, "{:?}", killed.elapsed());
        until_nothing_is_left(server).await;
    });
}

/// F051: On real servers a grant that arrives late is confirmed by asking again.
#[test]
fn trap_26_trap_64_f051_a_grant_that_arrives_late_is_confirmed_by_asking_again() {
    const SHORT: Duration = Duration::from_millis(1_500);
    run_on_each_server("a_grant_that_arrives_late_is_confirmed", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let holder = connect(&server.url(), "holder").await;
        let waiter = connect(&server.url_through(&proxy), "waiter").await;
        let held = take(&holder, "job", TTL).await;
        let waiting = wait_for(&waiter, "job", SHORT);
        until_queued(server, "job", 1).await;
        proxy.stall();
        free(held).await;
        let pushed = number(server, &["GET", "lock:~fence"]);
        // More than half of the claim.
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert!(!waiting.is_finished());
        proxy.resume();
        let held = waiting.await.unwrap();
        let token = i64::try_from(held.fencing_token().get()).unwrap();
        assert!(token > pushed, "{token} is the token of the late push, {pushed}");
        assert_eq!(number(server, &["GET", "lock:~fence"]), token);
        let (remaining, on_server) = (held.remaining(), pttl(server, "job"));
        assert!(
            remaining.as_millis() <= u128::try_from(on_server).unwrap() + 50,
            "{remaining:?} {on_server} ms"
        );
        free(held).await;
    });
}

#[test]
fn trap_26_a_grant_that_arrives_after_its_claim_has_passed_on_gives_nothing() {
    const SHORT: Duration = Duration::from_millis(800);
    run_on_each_server("a_grant_that_arrives_after_its_claim_gives_nothing", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let holder = connect(&server.url(), "holder").await;
        let late = connect(&server.url_through(&proxy), "late").await;
        let next = connect(&server.url(), "next").await;
        let held = take(&holder, "job", TTL).await;
        let late = wait_for(&late, "job", SHORT);
        until_queued(server, "job", 1).await;
        let next = wait_for(&next, "job", TTL);
        until_queued(server, "job", 2).await;
        proxy.stall();
        free(held).await;
        // Trap 27: a waiter that gives no sign of life loses its claim only.
        let held = tokio::time::timeout(SHORT + SLACK, next).await.unwrap().unwrap();
        proxy.resume();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!late.is_finished(), "two holders");
        assert!(server.cli(&["GET", "lock:job"]).unwrap().ends_with("@next"));
        free(held).await;
        free(tokio::time::timeout(SLACK, late).await.unwrap().unwrap()).await;
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_27_who_gave_up_waiting_is_not_served() {
    run_on_each_server("who_gave_up_waiting_is_not_served", async |server| {
        let (holder, waiter) =
            (connect(&server.url(), "holder").await, connect(&server.url(), "waiter").await);
        for cancelled in [false, true] {
            let held = take(&holder, "job", TTL).await;
            if cancelled {
                let waiting = wait_for(&waiter, "job", TTL);
                until_queued(server, "job", 1).await;
                waiting.abort();
            } else {
                let lock = waiter.lock("job").unwrap().wait(Duration::from_millis(200));
                assert!(matches!(lock.acquire().await.unwrap(), Attempt::Busy(_)));
            }
            until("withdrawn", || queue_key(server, "job").is_none()).await;
            free(held).await;
            assert_eq!(server.cli(&["EXISTS", "lock:job"]).unwrap(), "0", "cancelled: {cancelled}");
        }
    });
}

/// F019: On real servers a killed first waiter, among many that gave up, delays nobody.
#[test]
fn trap_27_f019_a_killed_first_waiter_among_many_that_gave_up_delays_nobody() {
    const SHORT: Duration = Duration::from_secs(1);
    run_on_each_server("a_killed_first_waiter_delays_nobody", async |server| {
        let folder = tempfile::tempdir().unwrap();
        let mut workers = Workers::new(&server.url(), folder.path(), SHORT, "plain");
        workers.linger = Duration::from_secs(60);
        workers.start(0);
        assert!(workers.wait_for_section(0));
        workers.start(1);
        until_queued(server, "counter", 1).await;
        let mut impatient = Vec::new();
        for number in 0..3 {
            let client = connect(&server.url(), &format!("impatient-{number}")).await;
            for task in 0..6 {
                let (client, mut seeded) = (client.clone(), Seeded(number * 10 + task));
                impatient.push(tokio::spawn(async move {
                    let ends = Instant::now() + Duration::from_secs(2);
                    while Instant::now() < ends {
                        let wait = Duration::from_millis(50 + seeded.below(100));
                        let attempt = client.lock("counter").unwrap().wait(wait).acquire().await.unwrap();
                        assert!(matches!(attempt, Attempt::Busy(_)), "two holders");
                    }
                }));
            }
        }
        for task in impatient {
            task.await.unwrap();
        }
        until("only the process that stays is queued", || queued(server, "counter") == 1).await;
        workers.kill(1);
        workers.kill(0);
        let killed = Instant::now();
        let fresh = connect(&server.url(), "fresh").await;
        let held = wait_for(&fresh, "counter", SHORT).await.unwrap();
        assert!(killed.elapsed() < SHORT + SLACK, "{:?}", killed.elapsed());
        free(held).await;
        until_nothing_is_left(server).await;
    });
}

/// F042: On real servers a queue lives as long as its waiters, and no longer.
#[test]
fn trap_27_trap_69_f042_a_queue_lives_as_long_as_its_waiters() {
    run_on_each_server("a_queue_lives_as_long_as_its_waiters", async |server| {
        let clients = [connect(&server.url(), "a").await, connect(&server.url(), "b").await];
        let holder = connect(&server.url(), "holder").await;
        let held = take(&holder, "job", TTL).await;
        let first = wait_for(&clients[0], "job", TTL);
        until_queued(server, "job", 1).await;
        let second = wait_for(&clients[1], "job", TTL);
        until_queued(server, "job", 2).await;
        let queue = queue_key(server, "job").unwrap();
        // As if nobody had asked for nearly a minute.
        server.command(&["PEXPIRE", &queue, "2500"]).unwrap();
        until("refreshed", || number(server, &["PTTL", &queue]) > 30_000).await;
        // Also one that has lost its end.
        server.command(&["PERSIST", &queue]).unwrap();
        until("given an end again", || number(server, &["PTTL", &queue]) > 30_000).await;
        assert_eq!(queued(server, "job"), 2);
        free(held).await;
        let held = first.await.unwrap();
        assert!(!second.is_finished());
        free(held).await;
        free(second.await.unwrap()).await;
    });
}

/// F129: On real servers a waiter whose entry is gone is queued again in its place.
#[test]
fn f129_a_waiter_whose_entry_is_gone_is_queued_again_in_its_place() {
    run_on_each_server("a_waiter_whose_entry_is_gone_is_queued_again", async |server| {
        let clients = [connect(&server.url(), "a").await, connect(&server.url(), "b").await];
        let holder = connect(&server.url(), "holder").await;
        let held = take(&holder, "job", TTL).await;
        let first = wait_for(&clients[0], "job", TTL);
        until_queued(server, "job", 1).await;
        let queue = queue_key(server, "job").unwrap();
        let entry = entries(server, "job").remove(0);
        server.command(&["DEL", &queue]).unwrap();
        // It arrives while the other's entry is gone, and is still behind it.
        let second = wait_for(&clients[1], "job", TTL);
        until_queued(server, "job", 2).await;
        assert_eq!(entries(server, "job")[0], entry);
        free(held).await;
        let held = first.await.unwrap();
        assert!(!second.is_finished());
        free(held).await;
        free(second.await.unwrap()).await;
    });
}

/// F027: Who may not subscribe polls, and is pushed to when it may again.
#[test]
fn trap_28_trap_68_f027_who_may_not_subscribe_polls_and_is_pushed_to_when_it_may_again() {
    run_on_each_server("who_may_not_subscribe_polls", async |server| {
        server.command(&["ACL", "SETUSER", "app", "on", ">pw", "~lock:*", "resetchannels", "+@all"]).unwrap();
        let holder = connect(&server.url(), "holder").await;
        let waiter = connect(&format!("redis://app:pw@{}/", server.address()), "waiter").await;
        assert!(!waiter.capabilities().push);
        let mut held = Vec::new();
        for number in 0..10 {
            held.push(take(&holder, &format!("job-{number}"), TTL).await);
        }
        let waiting: Vec<_> =
            (0..10).map(|number| wait_for(&waiter, &format!("job-{number}"), TTL)).collect();
        for number in 0..10 {
            until_queued(server, &format!("job-{number}"), 1).await;
        }
        for held in held {
            free(held).await;
        }
        let released = Instant::now();
        for task in waiting {
            free(task.await.unwrap()).await;
        }
        assert!(released.elapsed() < SLACK, "{:?}", released.elapsed());
        // The right comes back; the next connection subscribes.
        server.command(&["ACL", "SETUSER", "app", "&lock:*"]).unwrap();
        server.command(&["CLIENT", "KILL", "USER", "app"]).unwrap();
        until("subscribed", || waiter.capabilities().push).await;
        let held = take(&holder, "job", TTL).await;
        let waiting = wait_for(&waiter, "job", TTL);
        until_queued(server, "job", 1).await;
        assert!(!entries(server, "job")[0].starts_with("1 -"), "it still polls");
        free(held).await;
        free(waiting.await.unwrap()).await;
        for client in [holder, waiter] {
            client.close(SLACK).await.unwrap();
            drop(client);
        }
        until("no channel when nobody is there", || {
            server.command(&["PUBSUB", "CHANNELS", "*"]).unwrap().items().unwrap().is_empty()
        })
        .await;
    });
}

/// F126: On real servers nobody gives up early and nobody waits longer than asked.
#[test]
fn trap_29_f126_nobody_gives_up_early_and_nobody_waits_longer_than_asked() {
    const WAIT: Duration = Duration::from_millis(2_300);
    run_on_each_server("nobody_gives_up_early", async |server| {
        let holder = connect(&server.url(), "holder").await;
        // Renewed all the time, and shorter than the wait.
        let held = take(&holder, "job", Duration::from_millis(700)).await;
        let mut waiting = Vec::new();
        for number in 0..4 {
            let client = connect(&server.url(), &format!("waiter-{number}")).await;
            for _ in 0..2 {
                let lock = client.lock("job").unwrap().wait(WAIT);
                waiting.push(tokio::spawn(async move {
                    let started = Instant::now();
                    assert!(matches!(lock.acquire().await.unwrap(), Attempt::Busy(_)));
                    started.elapsed()
                }));
            }
        }
        for task in waiting {
            let waited = task.await.unwrap();
            assert!(waited >= WAIT, "gave up after {waited:?}");
            assert!(waited < WAIT + SLACK, "gave up after {waited:?}");
        }
        free(held).await;
        until_nothing_is_left(server).await;
    });
}

/// F045: The same on real servers.
#[test]
fn f045_waiters_that_leave_take_nothing_from_those_that_stay() {
    run_on_each_server("waiters_that_leave_take_nothing", async |server| {
        let (other, process) =
            (connect(&server.url(), "other").await, connect(&server.url(), "process").await);
        let ends = Instant::now() + Duration::from_secs(3);
        let taking = tokio::spawn(async move {
            while Instant::now() < ends {
                let held = wait_for(&other, "job", TTL).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
                free(held).await;
            }
        });
        let mut tasks = Vec::new();
        for task in 0..50 {
            let (process, mut seeded) = (process.clone(), Seeded(task));
            tasks.push(tokio::spawn(async move {
                while Instant::now() < ends {
                    let wait = Duration::from_millis(50 + seeded.below(450));
                    let lock = process.lock("job").unwrap().ttl(TTL).wait(wait);
                    if let Attempt::Acquired(held) = lock.acquire().await.unwrap() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        free(held).await;
                    }
                }
            }));
        }
        let patient: Vec<_> = (0..20).map(|_| pass_through(&process, "job", TTL)).collect();
        for task in patient {
            task.await.unwrap();
        }
        taking.await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_62_a_full_server_grants_nobody_a_lease_that_is_not_there() {
    run_on_each_server("a_full_server_grants_nobody_a_lease_that_is_not_there", async |server| {
        let (holder, waiter) =
            (connect(&server.url(), "holder").await, connect(&server.url(), "waiter").await);
        let held = take(&holder, "job", TTL).await;
        let waiting = wait_for(&waiter, "job", TTL);
        until_queued(server, "job", 1).await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        free(held).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        if waiting.is_finished() {
            assert!(server.cli(&["GET", "lock:job"]).unwrap().ends_with("@waiter"), "granted without a key");
        }
        println!(
            "{}: granted by a full server: {}, {:?}",
            server.kind(),
            waiting.is_finished(),
            keys(server)
        );
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        let held = tokio::time::timeout(SLACK + SLACK, waiting).await.unwrap().unwrap();
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), held.owner_token().expose());
        free(held).await;
        until_within(SLACK, "nothing left", || keys(server).iter().all(|key| key == "lock:~fence")).await;
    });
}
