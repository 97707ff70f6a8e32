//! Servers that have forgotten our scripts.

use std::time::{Duration, Instant};

use leasehold::{BreakMode, BreakReply, Client, Error, LeaseState};
use leasehold_testkit::servers::{Data, RedisServer, ServerBuilder};

use crate::support::{
    SLACK, connect, free, on_each_server_with, pttl, run, run_on_each_server, take, until,
    until_nothing_is_left, until_queued, wait_for,
};

const TTL: Duration = Duration::from_secs(60);

/// Asks again while the connection that ended with the server is made anew: some operations are tried once only.
async fn persist<T>(patience: Duration, operation: impl AsyncFn() -> Result<T, Error>) -> T {
    let started = Instant::now();
    loop {
        match operation().await {
            Err(error) if error.is_retryable() && started.elapsed() < patience => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}

/// Every operation once, each after the scripts were forgotten.
async fn every_operation(
    server: &RedisServer,
    patience: Duration,
    clients: [&Client; 2],
    forget: impl AsyncFn(),
) {
    let [client, other] = clients;
    forget().await;
    let held = take(client, "job", TTL).await;
    forget().await;
    persist(patience, async || held.renew().await).await;
    forget().await;
    persist(patience, async || held.extend(TTL * 2).await).await;
    assert!(pttl(server, "job") > 61_000);
    forget().await;
    assert!(persist(patience, async || client.inspect("job").await).await.is_some());
    forget().await;
    assert_eq!(persist(patience, async || client.list("", 10).await).await.entries.len(), 1);
    forget().await;
    let waiting = wait_for(other, "job", TTL);
    until_queued(server, "job", 1).await;
    forget().await;
    free(held).await;
    let held = waiting.await.unwrap();
    forget().await;
    let broken = persist(patience, async || client.break_lease("job", BreakMode::Now).await).await;
    assert!(matches!(broken, BreakReply::Broken { .. }));
    forget().await;
    persist(patience, async || client.diagnose().await).await;
    forget().await;
    drop(held);
    let lock = client.lock("job").unwrap().ttl(TTL).min_hold(Duration::from_millis(100));
    forget().await;
    let held = crate::support::guard(lock.wait(SLACK).acquire().await);
    forget().await;
    free(held).await;
    until_nothing_is_left(server).await;
}

/// F066, F093: Every operation survives a flush of the scripts.
#[test]
fn trap_41_f066_f093_every_operation_survives_a_flush_of_the_scripts() {
    run_on_each_server("every_operation_survives_a_flush_of_the_scripts", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let forget = async || drop(server.command(&["SCRIPT", "FLUSH"]).unwrap());
        every_operation(server, Duration::ZERO, [&client, &other], forget).await;
    });
}

/// F066: Every operation survives a restart of the server.
#[test]
fn trap_41_f066_every_operation_survives_a_restart_of_the_server() {
    on_each_server_with("every_operation_survives_a_restart", ServerBuilder::append_only, |server| {
        run(async {
            let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
            every_operation(server, SLACK, [&client, &other], async || server.restart(Data::Keep).unwrap())
                .await;
        });
    });
}

/// F093: Renewals that go out together survive a server that forgets its scripts all the time.
#[test]
fn f093_renewals_that_go_out_together_survive_a_server_that_forgets_all_the_time() {
    run_on_each_server("renewals_survive_a_server_that_forgets_all_the_time", async |server| {
        let client = connect(&server.url(), "a").await;
        let mut held = Vec::new();
        for number in 0..100 {
            held.push(take(&client, &format!("job-{number}"), Duration::from_secs(3)).await);
        }
        let ends = Instant::now() + Duration::from_secs(4);
        while Instant::now() < ends {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        until("all are held for sure", || held.iter().all(|held| held.state() == LeaseState::Held)).await;
        for held in held {
            free(held).await;
        }
        until_nothing_is_left(server).await;
    });
}
