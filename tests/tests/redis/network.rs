//! Requests and replies that are lost, late or never come: whatever the caller was told, nothing stays behind, and
//! nobody waits for a lease that nobody has.

use std::time::{Duration, Instant};

use leasehold::{Attempt, Client, ErrorKind, Label, Released};
use leasehold_testkit::proxy::{AfterDrop, Proxy, RequestMatch};
use leasehold_testkit::servers::RedisServer;

use crate::common::Seeded;
use crate::support::{
    SLACK, connect, free, guard, keys, pttl, run_on_each_server, take, until, until_nothing_is_left,
    until_within, wait_for,
};

const TTL: Duration = Duration::from_secs(60);
/// Longer than it takes to notice that a connection gives no answers, and to make another.
const NOTICED: Duration = Duration::from_secs(15);

/// A client through a proxy; the server has the scripts.
async fn behind_a_proxy(server: &RedisServer) -> (Proxy, Client) {
    let proxy = Proxy::before(server).unwrap();
    let client = connect(&server.url_through(&proxy), "a").await;
    free(take(&client, "warm-up", TTL).await).await;
    (proxy, client)
}

fn about(name: &str) -> RequestMatch {
    RequestMatch::command("EVALSHA").containing(&format!("lock:{name}"))
}

/// F001: On real servers a lost reply costs neither the lease nor its time, which counts from the first send.
#[test]
fn trap_1_trap_4_f001_a_lost_reply_to_an_acquire_costs_neither_the_lease_nor_its_time() {
    run_on_each_server("a_lost_reply_to_an_acquire", async |server| {
        let other = connect(&server.url(), "b").await;
        for after in [AfterDrop::Cut, AfterDrop::Silence] {
            let (proxy, client) = behind_a_proxy(server).await;
            let lost = proxy.drop_reply_to(about("job"), after);
            let held = guard(client.lock("job").unwrap().ttl(Duration::from_secs(20)).try_acquire().await);
            assert!(lost.has_fired());
            assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), held.owner_token().expose());
            let (remaining, on_server) = (held.remaining(), pttl(server, "job"));
            assert!(remaining.as_millis() <= u128::try_from(on_server).unwrap(), "{remaining:?} {on_server}");
            // The whole time again, however late the retry came.
            assert!(remaining > Duration::from_secs(18), "{after:?}: {remaining:?}");
            assert!(matches!(other.lock("job").unwrap().try_acquire().await.unwrap(), Attempt::Busy(_)));
            free(held).await;
            free(take(&other, "job", TTL).await).await;
        }
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_2_an_acquire_that_was_cancelled_after_its_reply_was_lost_is_taken_back() {
    run_on_each_server("an_acquire_cancelled_after_its_reply_was_lost", async |server| {
        for after in [AfterDrop::Cut, AfterDrop::Silence] {
            let (proxy, client) = behind_a_proxy(server).await;
            // A second lost reply and a slow way back: cancelled before any retry can have been answered.
            let lost = proxy.drop_reply_to(about("job"), after);
            let lock = client.lock("job").unwrap().ttl(TTL);
            let acquiring = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
            until("the reply is lost", || lost.has_fired()).await;
            acquiring.abort();
            until_within(NOTICED, "taken back", || pttl(server, "job") == -2).await;
            until("nothing left to clean up", || client.load().cleanups == 0).await;
        }
    });
}

#[test]
fn trap_3_an_acquire_that_arrives_after_it_was_cancelled_leaves_nothing() {
    run_on_each_server("an_acquire_that_arrives_after_it_was_cancelled", async |server| {
        // While it may still be executed, and when it may not.
        for late in [Duration::from_millis(400), Duration::from_millis(2_500)] {
            let (proxy, client) = behind_a_proxy(server).await;
            let held = proxy.hold_next_request(about("job"));
            let lock = client.lock("job").unwrap().ttl(TTL);
            let sent = Instant::now();
            let acquiring = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
            until("the request is held", || held.is_held()).await;
            // Its connection is gone when it is cancelled, so that the clean-up overtakes it on another.
            proxy.refuse().unwrap();
            proxy.cut();
            acquiring.abort();
            assert!(acquiring.await.is_err_and(|error| error.is_cancelled()));
            proxy.accept().unwrap();
            tokio::time::sleep(late.saturating_sub(sent.elapsed())).await;
            held.deliver(SLACK).unwrap();
            until_within(NOTICED, "nothing left to clean up", || client.load().cleanups == 0).await;
            assert_eq!(pttl(server, "job"), -2, "{late:?}");
        }
    });
}

/// F013: On real servers a release without an answer is repeated until the name is free.
#[test]
fn trap_31_f013_a_release_without_an_answer_is_repeated_until_the_name_is_free() {
    run_on_each_server("a_release_without_an_answer_is_repeated", async |server| {
        let other = connect(&server.url(), "b").await;
        for reply_only in [true, false] {
            let proxy = Proxy::before(server).unwrap();
            let builder =
                Client::builder().label(Label::new("a").unwrap()).store_timeout(Duration::from_secs(1));
            let client = builder.connect(&server.url_through(&proxy)).await.unwrap();
            free(take(&client, "warm-up", TTL).await).await;
            let held = take(&client, "job", TTL).await;
            let lost = reply_only.then(|| proxy.drop_reply_to(about("job"), AfterDrop::Cut));
            proxy.refuse().unwrap();
            if !reply_only {
                proxy.cut();
            }
            let error = held.release().await.unwrap_err();
            // A request that met the end of its connection may have been executed, too.
            let may_be = [ErrorKind::Unknown, ErrorKind::Unavailable];
            assert!(may_be[..if reply_only { 1 } else { 2 }].contains(&error.kind()), "{error}");
            assert!(lost.is_none_or(|lost| lost.has_fired()));
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.accept().unwrap();
            free(tokio::time::timeout(SLACK, wait_for(&other, "job", TTL)).await.unwrap().unwrap()).await;
            let again = client.lock("job").unwrap().wait(SLACK);
            until("connected again", || client.load().cleanups == 0).await;
            free(guard(again.acquire().await)).await;
        }
        until_nothing_is_left(server).await;
    });
}

/// F013: On real servers a release during a short outage frees the name.
#[test]
fn f013_a_release_during_a_short_outage_frees_the_name() {
    run_on_each_server("a_release_during_a_short_outage", async |server| {
        let (proxy, client) = behind_a_proxy(server).await;
        let held = take(&client, "job", TTL).await;
        proxy.refuse().unwrap();
        proxy.cut();
        let releasing = tokio::spawn(held.release());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!releasing.is_finished());
        proxy.accept().unwrap();
        let released = tokio::time::timeout(SLACK, releasing).await.unwrap().unwrap();
        // It never reached the server before: then that is known.
        assert_eq!(released.unwrap(), Released::Freed);
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_31_a_release_that_is_cancelled_completes() {
    run_on_each_server("a_release_that_is_cancelled_completes", async |server| {
        let (proxy, client) = behind_a_proxy(server).await;
        proxy.set_delay(Duration::from_millis(2), Duration::from_millis(2));
        let mut seeded = Seeded(5);
        for _ in 0..30 {
            let held = take(&client, "job", TTL).await;
            let patience = Duration::from_micros(seeded.below(6_000));
            // Whether it was in time does not matter.
            let _ = tokio::time::timeout(patience, held.release()).await;
            until("free", || pttl(server, "job") == -2).await;
        }
        // Nor does it need to have been sent.
        let held = take(&client, "job", TTL).await;
        proxy.refuse().unwrap();
        proxy.cut();
        assert!(tokio::time::timeout(Duration::from_millis(200), held.release()).await.is_err());
        proxy.accept().unwrap();
        until("free", || pttl(server, "job") == -2).await;
    });
}

#[test]
fn trap_30_an_acquire_cancelled_at_any_time_leaves_nothing() {
    run_on_each_server("an_acquire_cancelled_at_any_time_leaves_nothing", async |server| {
        let (proxy, client) = behind_a_proxy(server).await;
        proxy.set_delay(Duration::from_millis(2), Duration::from_millis(2));
        let other = connect(&server.url(), "b").await;
        let mut seeded = Seeded(6);
        for round in 0..100 {
            // Free, held for the whole time, or released in between.
            // The request of the round before may arrive only now, and its clean-up right after it.
            let held = if round % 3 == 0 { None } else { Some(wait_for(&other, "job", TTL).await.unwrap()) };
            let lock = client.lock("job").unwrap().ttl(TTL).wait(TTL);
            let acquiring = tokio::spawn(async move { lock.acquire().await.map(drop) });
            std::thread::sleep(Duration::from_micros(seeded.below(5_000)));
            if let Some(held) = held.filter(|_| round % 3 == 1) {
                free(held).await;
            }
            std::thread::sleep(Duration::from_micros(seeded.below(5_000)));
            acquiring.abort();
            until_nothing_is_left(server).await;
        }
        until("nothing left to clean up", || client.load().cleanups == 0).await;
        assert_eq!((client.load().leases, client.load().waiters), (0, 0));
    });
}

/// F049: Pauses of a real server leave no lease that is renewed.
#[test]
fn trap_13_f049_pauses_of_the_server_leave_no_lease_that_is_renewed() {
    const SHORT: Duration = Duration::from_millis(1_500);
    run_on_each_server("pauses_of_the_server_leave_no_lease", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let ends = Instant::now() + Duration::from_secs(7);
        let working = tokio::spawn({
            let client = client.clone();
            async move {
                while Instant::now() < ends {
                    match client.lock("job").unwrap().ttl(SHORT).wait(SHORT).acquire().await {
                        Ok(Attempt::Acquired(held)) => drop(held.release().await),
                        Ok(Attempt::Busy(_)) => {}
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                }
            }
        });
        let mut seeded = Seeded(8);
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(seeded.below(300))).await;
            // Shorter than the command timeout, about as long, and longer.
            let pause = (600 + seeded.below(900)).to_string();
            server.command(&["CLIENT", "PAUSE", &pause]).unwrap();
        }
        working.await.unwrap();
        let stopped = Instant::now();
        until_within(SHORT + SLACK, "no lease", || pttl(server, "job") == -2).await;
        free(take(&other, "job", TTL).await).await;
        println!("{}: free {:?} after the last use", server.kind(), stopped.elapsed());
        until_within(NOTICED, "nothing left to clean up", || client.load().cleanups == 0).await;
    });
}

/// F082: An acquire that failed because replies were slow leaves nothing on a real server.
#[test]
fn trap_2_f082_an_acquire_that_failed_because_replies_were_slow_leaves_nothing() {
    run_on_each_server("an_acquire_that_failed_because_replies_were_slow", async |server| {
        let other = connect(&server.url(), "b").await;
        // The lease is over when its grant arrives; and replies that come after the caller has given up.
        for (ttl, delay) in [(500, 800), (20_000, 1_500)] {
            let proxy = Proxy::before(server).unwrap();
            let builder =
                Client::builder().label(Label::new("a").unwrap()).store_timeout(Duration::from_secs(2));
            let client = builder.connect(&server.url_through(&proxy)).await.unwrap();
            free(take(&client, "warm-up", TTL).await).await;
            proxy.set_delay(Duration::ZERO, Duration::from_millis(delay));
            let lock = client.lock("job").unwrap().ttl(Duration::from_millis(ttl));
            let error = lock.try_acquire().await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
            proxy.set_delay(Duration::ZERO, Duration::ZERO);
            free(tokio::time::timeout(SLACK, wait_for(&other, "job", TTL)).await.unwrap().unwrap()).await;
            until_within(NOTICED, "nothing left to clean up", || client.load().cleanups == 0).await;
            assert_eq!(keys(server).into_iter().collect::<Vec<_>>(), ["lock:~fence"]);
        }
    });
}

#[test]
fn trap_5_a_lease_counts_from_before_its_request() {
    const SLOW: Duration = Duration::from_millis(400);
    run_on_each_server("a_lease_counts_from_before_its_request", async |server| {
        let (proxy, client) = behind_a_proxy(server).await;
        let ttl = Duration::from_secs(5);
        proxy.set_delay(Duration::ZERO, SLOW);
        let held = take(&client, "job", ttl).await;
        let (remaining, on_server) = (held.remaining(), pttl(server, "job"));
        assert!(remaining <= ttl.checked_sub(SLOW).unwrap(), "{remaining:?}");
        assert!(remaining.as_millis() <= u128::try_from(on_server).unwrap(), "{remaining:?} {on_server} ms");
        held.renew().await.unwrap();
        let (remaining, on_server) = (held.remaining(), pttl(server, "job"));
        assert!(remaining <= ttl.checked_sub(SLOW).unwrap(), "{remaining:?}");
        assert!(remaining.as_millis() <= u128::try_from(on_server).unwrap(), "{remaining:?} {on_server} ms");
        free(held).await;
    });
}
