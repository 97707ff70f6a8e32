//! A hundred reconnects in a row, and a server that throws out whoever does not read fast enough.

use std::time::{Duration, Instant};

use leasehold::core::Load;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, ServerKind};

use crate::outages::{channels, renews};
use crate::process::{Use, alone};
use crate::support::{
    SLACK, connect, free, keys, queued, run, run_on_each_server, take, until, until_nothing_is_left,
    until_queued, until_within, wait_for,
};

const TTL: Duration = Duration::from_secs(10);
const RECONNECTS: u64 = 100;
/// Two megabytes of messages that nobody understands.
const FLOOD: &str = "for _ = 1, 200 do redis.call('PUBLISH', ARGV[1], string.rep('x', 10000)) end";

#[test]
fn a_hundred_reconnects_cost_no_lease_no_waiter_and_nothing_of_the_machine() {
    alone("reconnects::a_hundred_reconnects_cost_no_lease_no_waiter_and_nothing_of_the_machine", || {
        let server = RedisServer::start(ServerKind::default()).unwrap();
        run(async {
            let proxy = Proxy::before(&server).unwrap();
            let (client, other) =
                (connect(&server.url_through(&proxy), "a").await, connect(&server.url(), "b").await);
            let held = take(&client, "held", TTL).await;
            let awaited = take(&other, "awaited", TTL).await;
            let waiting = wait_for(&client, "awaited", TTL);
            until_queued(&server, "awaited", 1).await;
            reconnect(&server, &proxy, 10).await;
            let (before, started) = (Use::now(), Instant::now());
            reconnect(&server, &proxy, RECONNECTS).await;
            println!("{RECONNECTS} reconnects in {:?}: {before:?}, then {:?}", started.elapsed(), Use::now());
            renews(&held).await;
            assert_eq!(queued(&server, "awaited"), 1, "entries of earlier connections are left");
            until_within(SLACK * 2, "as before", || {
                let now = Use::now();
                // What the proxy has for each connection ends a moment later.
                now.open_files <= before.open_files && now.threads <= before.threads
            })
            .await;
            assert!(Use::now().memory_kib < before.memory_kib + 4 * 1024, "{before:?} {:?}", Use::now());
            free(awaited).await;
            free(tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap()).await;
            free(held).await;
            until_nothing_is_left(&server).await;
            until_within(SLACK, "nothing is left here", || client.load() == Load::default()).await;
        });
    });
}

async fn reconnect(server: &RedisServer, proxy: &Proxy, times: u64) {
    for _ in 0..times {
        let before = channels(server);
        proxy.cut();
        until("another channel, and only that", || {
            let now = channels(server);
            now.len() == before.len() && now != before
        })
        .await;
    }
}

#[test]
fn a_server_that_closes_connections_over_its_output_limit_serves_their_waiters_later() {
    run_on_each_server("a_server_that_closes_connections_over_its_output_limit", async |server| {
        let set = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 65536 32768 1"];
        server.command(&set).unwrap();
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let held = take(&client, "held", TTL).await;
        let awaited = take(&other, "awaited", TTL).await;
        let waiting = wait_for(&client, "awaited", TTL);
        until_queued(server, "awaited", 1).await;
        for _ in 0..3 {
            let before = channels(server);
            // More than may wait to be read, at one go.
            for channel in &before {
                server.command(&["EVAL", FLOOD, "0", channel]).unwrap();
            }
            until_within(SLACK * 2, "other channels", || {
                let now = channels(server);
                now.len() == before.len() && now.iter().all(|channel| !before.contains(channel))
            })
            .await;
        }
        renews(&held).await;
        free(awaited).await;
        free(tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap()).await;
        free(held).await;
        assert_eq!(keys(server).into_iter().collect::<Vec<_>>(), ["lock:~fence"]);
    });
}
