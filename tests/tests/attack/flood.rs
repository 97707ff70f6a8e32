//! Ten thousand commands under way when the connection breaks: every caller is told, in time, and nothing stays
//! behind, in the server or here.

use std::time::{Duration, Instant};

use leasehold::core::Load;
use leasehold::{Attempt, Client, ErrorKind, Guard};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, ServerKind};

use crate::outages::connect_with;
use crate::process::{Use, alone};
use crate::support::{SLACK, connect, free, guard, keys, run, run_on_each_server, until_within};

const COMMANDS: usize = 10_000;
const TTL: Duration = Duration::from_secs(60);
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Ten thousand tasks on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

#[test]
fn ten_thousand_commands_under_way_are_all_answered_for_when_the_connection_breaks() {
    alone("flood::ten_thousand_commands_under_way_are_all_answered_for_when_the_connection_breaks", || {
        let server = RedisServer::start(ServerKind::default()).unwrap();
        run(async {
            let proxy = Proxy::before(&server).unwrap();
            let client = connect_with(&server.url_through(&proxy), "a", STORE_TIMEOUT).await;
            let mut figures = Vec::new();
            for round in 0..4 {
                // The server comes back only after all have given up.
                proxy.stall();
                let told = told(&client, || {
                    proxy.refuse().unwrap();
                    proxy.cut();
                    proxy.resume();
                })
                .await;
                assert_eq!(told.acquired.len(), 0);
                // What was on its way may have been executed, whatever was said to later tries.
                assert!(told.unknown > COMMANDS / 2, "{told:?}");
                assert!(told.longest < STORE_TIMEOUT + PATIENCE / 4, "{:?}", told.longest);
                proxy.accept().unwrap();
                nothing_is_left(&server, &client).await;
                println!("round {round}: {told:?}, {:?}", Use::now());

                // The server is there again at once: many get their lease on the new connection.
                proxy.stall();
                let told = told_when_it_comes_back(&client, &proxy).await;
                println!("round {round}: {told:?}, {:?}", Use::now());
                drop(told);
                nothing_is_left(&server, &client).await;
                figures.push(Use::now());
            }
            // What ten thousand lost futures leave each time would be more: their tokens and names alone are 1 MiB.
            let (first, last) = (figures[1], figures[3]);
            assert!(last.memory_kib < first.memory_kib + first.memory_kib / 5, "memory grows: {figures:?}");
            assert!(last.open_files <= first.open_files && last.threads <= first.threads, "{figures:?}");
            until_within(SLACK, "nothing is left here", || client.load() == Load::default()).await;
        });
    });
}

async fn told_when_it_comes_back(client: &Client, proxy: &Proxy) -> Told {
    told(client, || {
        proxy.cut();
        proxy.resume();
    })
    .await
}

/// What the callers were told.
struct Told {
    acquired: Vec<Guard>,
    unknown: usize,
    unavailable: usize,
    longest: Duration,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { acquired, unknown, unavailable, longest } = self;
        write!(f, "{} acquired, {unknown} unknown, {unavailable} unavailable, ", acquired.len())?;
        write!(f, "longest {longest:?}")
    }
}

async fn told(client: &Client, break_it: impl FnOnce()) -> Told {
    let asking: Vec<_> = (0..COMMANDS)
        .map(|number| {
            let lock = client.lock(format!("flood:{number}")).unwrap().ttl(TTL);
            tokio::spawn(async move {
                let started = Instant::now();
                (lock.try_acquire().await, started.elapsed())
            })
        })
        .collect();
    // So that most of them are on their way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    break_it();
    let mut told = Told { acquired: Vec::new(), unknown: 0, unavailable: 0, longest: Duration::ZERO };
    for one in asking {
        let (outcome, took) = tokio::time::timeout(PATIENCE, one).await.unwrap().unwrap();
        told.longest = told.longest.max(took);
        match outcome {
            Ok(Attempt::Acquired(guard)) => told.acquired.push(guard),
            Ok(Attempt::Busy(busy)) => panic!("nobody else is there: {busy}"),
            Err(error) if error.kind() == ErrorKind::Unknown => told.unknown += 1,
            Err(error) if error.kind() == ErrorKind::Unavailable => told.unavailable += 1,
            Err(error) => panic!("{error}"),
        }
    }
    told
}

async fn nothing_is_left(server: &RedisServer, client: &Client) {
    until_within(PATIENCE + SLACK, "no clean-up left", || client.load().cleanups == 0).await;
    let left = keys(server);
    assert!(left.iter().all(|key| key == "lock:~fence"), "{} keys are left", left.len());
}

/// F093: A server that has forgotten the scripts is sent each text about once, not by everybody.
#[test]
fn f093_a_server_that_has_forgotten_the_scripts_is_sent_each_text_about_once() {
    run_on_each_server("f093_a_server_that_has_forgotten_the_scripts", async |server| {
        const AT_ONCE: usize = 2_000;
        let client = connect(&server.url(), "a").await;
        for round in 0..3 {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            server.command(&["CONFIG", "RESETSTAT"]).unwrap();
            let asking: Vec<_> = (0..AT_ONCE)
                .map(|number| {
                    let lock = client.lock(format!("job:{round}:{number}")).unwrap().ttl(TTL);
                    tokio::spawn(async move { guard(lock.try_acquire().await) })
                })
                .collect();
            for one in asking {
                free(tokio::time::timeout(PATIENCE, one).await.unwrap().unwrap()).await;
            }
            let texts = server.command_stats().unwrap().get("eval").map_or(0, |stats| stats.calls);
            println!("{}: the text was sent {texts} times", server.kind());
            assert!((2..20).contains(&texts), "an acquire and a release: {texts}");
        }
    });
}
