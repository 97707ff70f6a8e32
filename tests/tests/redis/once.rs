//! Run once on real servers: what it sends, which rights it needs, what a full server and late requests do to it.

use std::convert::Infallible;
use std::time::Duration;

use leasehold::{
    Claim, Claimed, Client, ErrorKind, Failed, Namespace, OnceError, OnceOutcome, Previous, smallest_acl,
};
use leasehold_testkit::proxy::{AfterDrop, Proxy, RequestMatch};
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{Monitor, RedisServer};

use crate::support::{SLACK, connect, free, keys, number, run_on_each_server, take, until};

const TTL: Duration = Duration::from_secs(60);

async fn ship(client: &Client, name: &str) -> OnceOutcome<&'static str> {
    let once = client.once(name).unwrap().ttl(TTL);
    let outcome = once.run(|_| async { Ok::<_, Infallible>("JD1") }).await;
    outcome.unwrap_or_else(|error| panic!("{name}: {error}"))
}

async fn claimed(client: &Client, name: &str) -> Claimed {
    match client.once(name).unwrap().ttl(TTL).claim().await {
        Ok(Claim::Claimed(claimed)) => claimed,
        other => panic!("{name}: {other:?}"),
    }
}

/// What clients asked for, without the heartbeat.
fn asked(monitor: &Monitor) -> Vec<String> {
    let lines = monitor.requests().unwrap().into_iter().map(|line| line.command());
    lines.filter(|command| ["GET", "EVAL", "EVALSHA"].contains(&command.as_str())).collect()
}

fn record(server: &RedisServer, name: &str) -> Option<String> {
    let ending = format!("}}:{name}");
    let key =
        keys(server).into_iter().find(|key| key.starts_with("lock:~once:") && key.ends_with(&ending))?;
    assert!(number(server, &["PTTL", &key]) > 0, "{key} has an end");
    server.command(&["GET", &key]).unwrap().text()
}

#[test]
fn the_first_call_is_two_requests_more_than_a_lock_and_later_calls_are_one() {
    run_on_each_server("the_first_call_is_two_requests_more", async |server| {
        let client = connect(&server.url(), "a").await;
        drop(ship(&client, "warm-up").await);
        free(take(&client, "job", TTL).await).await;
        let monitor = server.monitor().unwrap();
        free(take(&client, "job", TTL).await).await;
        assert_eq!(asked(&monitor).len(), 2);
        monitor.clear().unwrap();
        assert_eq!(ship(&client, "ship:1").await, OnceOutcome::Ran("JD1"));
        assert_eq!(asked(&monitor), ["GET", "EVALSHA", "EVALSHA", "EVALSHA"]);
        monitor.clear().unwrap();
        let other = connect(&server.url(), "b").await;
        monitor.clear().unwrap();
        for calls in 1..=3 {
            assert_eq!(ship(&other, "ship:1").await, OnceOutcome::AlreadyDone(b"JD1".to_vec()));
            assert_eq!(asked(&monitor).len(), calls);
        }
        let left = keys(server);
        assert!(left.iter().all(|key| key == "lock:~fence" || key.starts_with("lock:~once:{")), "{left:?}");
    });
}

#[test]
fn trap_45_the_smallest_rights_are_enough() {
    run_on_each_server("the_smallest_rights_are_enough", async |server| {
        let rules = smallest_acl(&Namespace::default());
        let words: Vec<_> =
            ["ACL", "SETUSER", "app", "on", ">secret"].into_iter().chain(rules.split(' ')).collect();
        assert!(!server.command(&words).unwrap().is_error());
        let client = connect(&format!("redis://app:secret@{}/", server.address()), "a").await;
        drop(ship(&client, "ship:1").await);
        drop(ship(&client, "ship:1").await);
        claimed(&client, "ship:2").await.fail(Failed::Retryable).await.unwrap();
        assert_eq!(server.command(&["ACL", "LOG"]).unwrap(), RespValue::Array(Vec::new()));
    });
}

#[test]
fn without_scripts_it_is_refused_before_anything_is_sent() {
    run_on_each_server("without_scripts_it_is_refused", async |server| {
        let url = format!("{}?scripting=off&allow_unfenced=1", server.url());
        // Redis 7 has no commands that could take the place of scripts.
        let Ok(client) = Client::connect(&url).await else { return };
        let error = client.once("ship:1").unwrap().claim().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("scripting=off"), "{error}");
        assert!(keys(server).is_empty());
    });
}

/// The result that a full server does not take is kept as soon as it does; until then the claim stays.
#[test]
fn a_full_server_costs_neither_the_claim_nor_the_result() {
    run_on_each_server("a_full_server_costs_neither", async |server| {
        let client = connect(&server.url(), "a").await;
        let held = claimed(&client, "ship:1").await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let kept = tokio::spawn(held.complete("JD1"));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!kept.is_finished() && number(server, &["EXISTS", "lock:ship:1"]) == 1);
        assert!(record(server, "ship:1").unwrap().starts_with("1 started 1 "));
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        kept.await.unwrap().unwrap();
        assert!(record(server, "ship:1").unwrap().ends_with("\nJD1"));
        assert_eq!(number(server, &["EXISTS", "lock:ship:1"]), 0);
    });
}

#[test]
fn trap_1_lost_replies_change_nothing() {
    run_on_each_server("lost_replies_change_nothing", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let client = connect(&server.url_through(&proxy), "a").await;
        drop(ship(&client, "warm-up").await);
        let matches = [
            ("look", RequestMatch::command("GET").containing("look")),
            ("grant", RequestMatch::command("EVALSHA").containing("lock:grant")),
            ("start", RequestMatch::command("EVALSHA").containing("1 started 1")),
            ("settle", RequestMatch::command("EVALSHA").containing("1 done 1")),
        ];
        for (name, request) in matches {
            let lost = proxy.drop_reply_to(request, AfterDrop::Cut);
            assert_eq!(ship(&client, name).await, OnceOutcome::Ran("JD1"), "{name}");
            assert!(lost.has_fired(), "{name}");
            let kept = record(server, name).unwrap();
            assert!(kept.starts_with("1 done 1 ") && kept.ends_with("\nJD1"), "{name}: {kept}");
            until(name, || number(server, &["EXISTS", &format!("lock:{name}")]) == 0).await;
        }
    });
}

/// Trap 3: a request that was held up on the way finds another holder, and does nothing.
#[test]
fn trap_3_a_late_request_writes_over_nobody() {
    run_on_each_server("a_late_request_writes_over_nobody", async |server| {
        for (late, then) in [("1 started 1", "first"), ("1 done 1", "second")] {
            let name = format!("ship:{then}");
            let proxy = Proxy::before(server).unwrap();
            let client = connect(&server.url_through(&proxy), "a").await;
            drop(ship(&client, "warm-up").await);
            let held = proxy.hold_next_request(RequestMatch::command("EVALSHA").containing(late));
            let call = tokio::spawn({
                let once = client.once(&name).unwrap().ttl(TTL);
                async move { once.run(|_| async { Ok::<_, Infallible>("late") }).await }
            });
            until("the request is held up", || held.is_held()).await;
            // Its caller is gone, and its lease was broken; another one has done the work.
            call.abort();
            let other = connect(&server.url(), "b").await;
            other.break_lease(&name, leasehold::BreakMode::Now).await.unwrap();
            until("it can be claimed", || number(server, &["EXISTS", &format!("lock:{name}")]) == 0).await;
            let next = claimed(&other, &name).await;
            assert_eq!(next.attempt().previous(), (then == "second").then_some(Previous::Unknown));
            let before = record(server, &name);
            held.deliver(SLACK).unwrap();
            assert_eq!(record(server, &name), before);
            next.complete("JD2").await.unwrap();
            assert_eq!(ship(&other, &name).await, OnceOutcome::AlreadyDone(b"JD2".to_vec()));
        }
    });
}

/// A record that another program has put there is told with its key, and is left as it is.
#[test]
fn a_key_of_another_program_in_the_place_of_a_record_is_left_untouched() {
    run_on_each_server("a_key_of_another_program", async |server| {
        let client = connect(&server.url(), "a").await;
        drop(ship(&client, "ship:1").await);
        let key = keys(server).into_iter().find(|key| key.starts_with("lock:~once:")).unwrap();
        for (write, look, kind) in [
            (&["SET", &key, "2 done 1 5 - more"][..], "GET", ErrorKind::Config),
            (&["SET", &key, "{\"shipped\":true}"], "GET", ErrorKind::Foreign),
            (&["HSET", &key, "field", "value"], "HGETALL", ErrorKind::Foreign),
        ] {
            server.command(&["DEL", &key]).unwrap();
            server.command(write).unwrap();
            let before = server.command(&[look, &key]).unwrap();
            let once = client.once("ship:1").unwrap();
            let outcome = once.run(|_| async { Ok::<_, Infallible>("JD2") }).await;
            let Err(OnceError::Store(error)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(server.command(&[look, &key]).unwrap(), before);
            assert_eq!(number(server, &["EXISTS", "lock:ship:1"]), 0, "no lease is left");
        }
    });
}
