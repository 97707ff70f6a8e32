//! Failures that users of other lock libraries met, replayed on real servers. Each test is named after its case.

use std::time::{Duration, Instant};

use leasehold::{Attempt, Client, ErrorKind, LeaseState, LockOptions, LostCause, Released};
use leasehold_testkit::proxy::Proxy;

use crate::logs;
use crate::outages::connect_with;
use crate::support::{
    SLACK, connect, free, guard, on_each_server, pttl, run_on_each_server, take, until,
    until_nothing_is_left, until_queued, until_within, wait_for,
};

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(30);

/// F015: The same on real servers, with somebody waiting.
#[test]
fn f015_a_program_that_blocks_its_runtime_keeps_its_lease() {
    on_each_server("f015_a_program_that_blocks_its_runtime", |server| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let waiter =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let other = waiter.block_on(connect(&server.url(), "b"));
        runtime.block_on(async {
            let held = take(&connect(&server.url(), "a").await, "job", TTL).await;
            let waiting = waiter.spawn({
                let lock = other.lock("job").unwrap().ttl(TTL).wait(LONG);
                async move { guard(lock.acquire().await) }
            });
            std::thread::sleep(TTL * 3);
            assert_eq!(held.state(), LeaseState::Held);
            assert!(!waiting.is_finished(), "two had it");
            let before = held.fencing_token();
            free(held).await;
            let next = waiting.await.unwrap();
            assert!(next.fencing_token() > before);
            free(next).await;
        });
    });
}

/// F036: Thousands of leases on a slow network survive a pause of the server.
#[test]
fn f036_many_leases_on_a_slow_way_survive_a_pause_of_the_server() {
    const LEASES: usize = 2_000;
    let ttl = Duration::from_secs(6);
    run_on_each_server("f036_many_leases", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let client = connect(&server.url_through(&proxy), "a").await;
        proxy.set_delay(Duration::from_millis(10), Duration::from_millis(10));
        let taking = (0..LEASES).map(|number| {
            let lock = client.lock(format!("job:{number}")).unwrap().ttl(ttl);
            tokio::spawn(async move { guard(lock.try_acquire().await) })
        });
        let mut held = Vec::with_capacity(LEASES);
        for one in taking.collect::<Vec<_>>() {
            held.push(one.await.unwrap());
        }
        tokio::time::sleep(ttl / 2).await;
        server.command(&["CLIENT", "PAUSE", "2000"]).unwrap();
        tokio::time::sleep(ttl).await;
        let lost = held.iter().filter(|guard| matches!(guard.state(), LeaseState::Lost(_))).count();
        assert_eq!(lost, 0, "of {LEASES}");
        drop(held);
        until_within(SLACK * 4, "given back", || client.load().cleanups == 0).await;
        until_nothing_is_left(server).await;
    });
}

/// F039: A name that was lost once is renewed again the next time.
#[test]
fn f039_a_name_that_was_lost_once_is_renewed_again_the_next_time() {
    run_on_each_server("f039_a_name_that_was_lost_once", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let client = connect(&server.url_through(&proxy), "a").await;
        let held = take(&client, "job", TTL).await;
        proxy.refuse().unwrap();
        proxy.cut();
        assert_eq!(held.lost().await, LostCause::Unreachable);
        tokio::time::sleep(TTL / 2).await;
        proxy.accept().unwrap();
        held_normally(&client, server).await;
        // The same when somebody deletes the key.
        let held_again = take(&client, "job", TTL).await;
        server.command(&["DEL", "lock:job"]).unwrap();
        assert_eq!(held_again.lost().await, LostCause::Missing);
        held_normally(&client, server).await;
        // The guards of the lost leases are still there: theirs are no longer renewed, and neither frees anything.
        let third = take(&client, "job", TTL).await;
        assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
        drop(held_again);
        tokio::time::sleep(TTL / 2).await;
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), third.owner_token().expose());
        free(third).await;
    });
}

async fn held_normally(client: &Client, server: &leasehold_testkit::servers::RedisServer) {
    let wait = client.lock("job").unwrap().ttl(TTL).wait(LONG);
    let held = guard(wait.acquire().await);
    let ends = Instant::now() + TTL * 2;
    while Instant::now() < ends {
        assert_eq!(held.state(), LeaseState::Held);
        assert!(pttl(server, "job") > 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    free(held).await;
}

/// F040: Trouble is seen as uncertain, the loss is told once, and listeners that panic or are slow harm
/// nobody.
#[test]
fn f040_trouble_is_seen_and_the_loss_is_told_once_whatever_listeners_do() {
    run_on_each_server("f040_trouble_is_seen_and_the_loss_is_told_once", async |server| {
        logs::collect();
        let proxy = Proxy::before(server).unwrap();
        let client = connect(&server.url_through(&proxy), "a").await;
        let long = take(&client, "long", LONG).await;
        let name = format!("job-{}", server.port());
        let held = take(&client, &name, TTL * 3).await;
        proxy.stall();
        until_within(TTL * 3, "in doubt", || held.state() == LeaseState::Uncertain).await;
        proxy.resume();
        until_within(TTL * 3, "held again", || held.state() == LeaseState::Held).await;
        // One listener panics, one is slow, one comes late.
        let listen = |then: fn()| {
            let lease = held.lease().clone();
            tokio::spawn(async move {
                let cause = lease.lost().await;
                then();
                cause
            })
        };
        let (panics, slow) = (listen(|| panic!("on purpose")), listen(|| std::thread::sleep(TTL)));
        server.command(&["SET", &format!("lock:{name}"), "theirs", "PX", "60000"]).unwrap();
        assert_eq!(slow.await.unwrap(), LostCause::Taken);
        assert!(panics.await.unwrap_err().is_panic());
        assert_eq!(held.lost().await, LostCause::Taken, "also for those who come late");
        let said = logs::with(&["lease lost", &name]);
        assert_eq!(said.len(), 1, "{said:#?}");
        // The other lease of this client is still renewed.
        long.renew().await.unwrap();
        free(long).await;
        assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(server.cli(&["GET", &format!("lock:{name}")]).unwrap(), "theirs");
    });
}

/// F051: A grant that arrives after its time is not taken for a lease.
#[test]
fn f051_a_grant_that_arrives_after_its_time_is_not_taken_for_a_lease() {
    run_on_each_server("f051_a_grant_that_arrives_after_its_time", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let (client, other) =
            (connect(&server.url(), "a").await, connect(&server.url_through(&proxy), "b").await);
        let held = take(&client, "job", LONG).await;
        let waiting = wait_for(&other, "job", TTL);
        until_queued(server, "job", 1).await;
        proxy.stall();
        free(held).await;
        // The claim ends meanwhile.
        tokio::time::sleep(TTL * 2).await;
        assert_eq!(pttl(server, "job"), -2);
        proxy.resume();
        let next = tokio::time::timeout(SLACK * 2, waiting).await.unwrap().unwrap();
        assert!(!next.remaining().is_zero());
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), next.owner_token().expose());
        let newest = server.cli(&["GET", "lock:~fence"]).unwrap();
        assert_eq!(next.fencing_token().get().to_string(), newest, "the token of a grant that is over");
        free(next).await;
        until_nothing_is_left(server).await;
    });
}

/// F072: A server that is away while a lease is held is told once and ends nothing that still has time.
#[test]
fn f072_a_server_that_is_away_while_a_lease_is_held_is_told_once_and_ends_nothing() {
    run_on_each_server("f072_a_server_that_is_away", async |server| {
        logs::collect();
        let client = connect(&server.url(), "a").await;
        let name = format!("away-{}", server.port());
        let held = take(&client, &name, TTL).await;
        let cancelled = tokio::spawn({
            let lease = held.lease().clone();
            async move { lease.cancelled().await }
        });
        server.kill().unwrap();
        assert_eq!(held.lost().await, LostCause::Unreachable);
        cancelled.await.unwrap();
        tokio::time::sleep(TTL * 2).await;
        server.restart(leasehold_testkit::servers::Data::Lose).unwrap();
        free(guard(client.lock(&name).unwrap().ttl(TTL).wait(LONG).acquire().await)).await;
        let store = client.store();
        for words in [
            ["WARN", "lease lost", &name],
            ["WARN", "the connection to the server is lost", &store],
            ["INFO", "connected to the server again", &store],
        ] {
            let said = logs::with(&words);
            assert_eq!(said.len(), 1, "{words:?}: {said:#?}");
        }
    });
}

/// F088: An expired lease can be neither prolonged nor given back, whoever has the name.
#[test]
fn f088_an_expired_lease_cannot_be_prolonged_or_given_back_whoever_has_the_name() {
    run_on_each_server("f088_an_expired_lease", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        for taken in [false, true] {
            let lock = client.lock("job").unwrap().ttl(Duration::from_secs(1)).fixed_lease();
            let held = guard(lock.try_acquire().await);
            until("expired", || pttl(server, "job") == -2).await;
            let next = if taken { Some(take(&other, "job", LONG).await) } else { None };
            let before = pttl(server, "job");
            for refused in [held.renew().await, held.extend(LONG).await] {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Lost(LostCause::Expired));
            }
            assert_eq!(held.state(), LeaseState::Lost(LostCause::Expired));
            assert_eq!(held.remaining(), Duration::ZERO);
            assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
            let after = pttl(server, "job");
            match next {
                Some(next) => {
                    assert!(after > 0 && after <= before, "{before} {after}");
                    assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), next.owner_token().expose());
                    free(next).await;
                }
                None => assert_eq!(after, -2),
            }
        }
    });
}

/// F136: With the defaults a crash blocks the name for half a minute at most.
#[test]
fn f136_the_defaults_recover_from_a_crash_within_half_a_minute() {
    run_on_each_server("f136_the_defaults_recover", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let client = connect(&server.url_through(&proxy), "a").await;
        let defaults = client.lock("job").unwrap();
        let held = guard(defaults.try_acquire().await);
        assert!((1..=30_000).contains(&pttl(server, "job")));
        // Whoever comes while it runs sees by whom, and for how long at most, the name is taken.
        let other = connect(&server.url(), "b").await;
        let Attempt::Busy(busy) = other.lock("job").unwrap().try_acquire().await.unwrap() else {
            panic!("two have it");
        };
        assert!(busy.to_string().contains('a'), "{busy}");
        assert!(busy.remaining.unwrap() <= Duration::from_secs(30));
        free(held).await;
    });
}

/// F139: There is no default store: without a URL, or with one that is not understood, nothing starts.
#[test]
fn f139_trap_57_nothing_is_a_lock_unless_a_store_was_named() {
    run_on_each_server("f139_nothing_is_a_lock", async |server| {
        for url in ["", " ", "redis", "localhost", "127.0.0.1:6379", "$LEASEHOLD_STORE", "memory", "redis://"]
        {
            let error = Client::connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url:?}: {error}");
        }
        let (one, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        // What is in effect can be read.
        assert!(one.store().starts_with("redis://127.0.0.1:"), "{}", one.store());
        let held = take(&one, "job", LONG).await;
        assert!(matches!(other.lock("job").unwrap().try_acquire().await.unwrap(), Attempt::Busy(_)));
        free(held).await;
    });
}

/// F141: Options that contradict each other are refused by name, and all others work.
#[test]
fn f141_options_that_contradict_each_other_are_refused_by_name_and_all_others_work() {
    run_on_each_server("f141_options_that_contradict_each_other", async |server| {
        let client = connect(&server.url(), "a").await;
        let lock = || client.lock("job").unwrap();
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(24 * 60 * 60));
        for allowed in [
            lock(),
            lock().fixed_lease(),
            lock().ttl(short),
            lock().ttl(long),
            lock().ttl(long).fixed_lease().wait_forever(),
            lock().wait(Duration::ZERO),
            lock().wait(Duration::MAX),
            lock().max_hold(short),
            lock().max_hold(long * 365),
            lock().min_hold(Duration::from_millis(1)),
            lock().min_hold(short).max_hold(short),
        ] {
            let attempt = allowed.acquire().await.unwrap_or_else(|error| panic!("{allowed:?}: {error}"));
            drop(attempt);
            until("free", || pttl(server, "job") == -2).await;
        }
        for (refused, names) in [
            (lock().ttl(Duration::ZERO), &["ttl", "10ms"][..]),
            (lock().ttl(long + Duration::from_millis(1)), &["ttl", "24 h"]),
            (lock().max_hold(Duration::ZERO), &["max_hold"]),
            (lock().min_hold(Duration::ZERO), &["min_hold", "1ms"]),
            (lock().min_hold(long * 2), &["min_hold", "24 h"]),
            (
                lock().min_hold(Duration::from_secs(2)).max_hold(Duration::from_secs(1)),
                &["min_hold", "max_hold"],
            ),
        ] {
            let error = refused.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            for name in names {
                assert!(error.to_string().contains(name), "{name}: {error}");
            }
        }
        // Defaults of a client are checked when it is made.
        let defaults = LockOptions { ttl: Some(Duration::ZERO), ..LockOptions::default() };
        let error = Client::builder().defaults(defaults).connect(&server.url()).await.unwrap_err();
        assert!(error.to_string().contains("ttl"), "{error}");
        until_nothing_is_left(server).await;
    });
}

/// F157: Expired, taken by another, unreachable and released before are told apart.
#[test]
fn f157_what_became_of_a_lease_is_told_apart() {
    run_on_each_server("f157_what_became_of_a_lease", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let client = connect_with(&server.url_through(&proxy), "a", Duration::from_secs(1)).await;
        let expired = guard(client.lock("job").unwrap().ttl(TTL).fixed_lease().try_acquire().await);
        assert_eq!(expired.lost().await, LostCause::Expired);
        assert_eq!(expired.release().await.unwrap(), Released::AlreadyLost);
        let taken = take(&client, "job", TTL).await;
        server.command(&["SET", "lock:job", "theirs", "PX", "60000"]).unwrap();
        assert_eq!(taken.lost().await, LostCause::Taken);
        let error = taken.renew().await.unwrap_err();
        assert!(error.to_string().contains("job") && error.to_string().contains("another holder"), "{error}");
        assert_eq!(taken.release().await.unwrap(), Released::AlreadyLost);
        server.command(&["DEL", "lock:job"]).unwrap();
        // Given back twice is impossible: releasing takes the guard. What others have of it says that it is over.
        let released = take(&client, "job", LONG).await;
        let view = released.lease().clone();
        free(released).await;
        assert_eq!(view.state(), LeaseState::Released);
        let unreachable = take(&client, "job", LONG).await;
        proxy.refuse().unwrap();
        proxy.cut();
        let error = unreachable.release().await.unwrap_err();
        assert!([ErrorKind::Unavailable, ErrorKind::Unknown].contains(&error.kind()), "{error}");
        assert!(error.to_string().contains("job") && error.to_string().contains("release"), "{error}");
    });
}
