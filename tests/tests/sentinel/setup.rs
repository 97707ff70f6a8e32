//! Sentinels and servers that are not as the URL says: one clear message within the time given, that names the node
//! and what to do, and nothing left anywhere.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, ErrorKind};
use leasehold_testkit::servers::{SERVICE, SentinelTrio, ServerKind, kinds_to_test};

use crate::support::{
    connect, free, lock_keys, on_each_kind, on_kind, on_one_kind, run, take, try_connect,
    until_nothing_is_left,
};

const TTL: Duration = Duration::from_secs(20);
/// The store's time in these tests.
const GIVEN: Duration = Duration::from_secs(2);

/// Why this URL cannot be used, told in time.
async fn refusal(url: &str) -> Error {
    let started = Instant::now();
    let result = Client::builder().store_timeout(GIVEN).connect(url).await;
    let error = result.err().unwrap_or_else(|| panic!("{url} is connected"));
    assert!(started.elapsed() < GIVEN + Duration::from_secs(5), "{url}: told after {:?}", started.elapsed());
    error
}

fn hosts(trio: &SentinelTrio) -> String {
    (0..3).map(|number| trio.sentinel(number).address().to_string()).collect::<Vec<_>>().join(",")
}

#[test]
fn what_is_not_as_the_url_says_is_told_with_its_address_and_what_to_write() {
    on_each_kind("what_is_not_as_the_url_says_is_told", |trio| {
        run(async {
            let (sentinel, server) = (trio.sentinel(0).address(), trio.node(0).address());
            let replica = trio.node(1).address();
            let all = hosts(trio);
            for (url, kind, words) in [
                // A service that nobody knows.
                (
                    format!("redis+sentinel://{all}/nothing"),
                    ErrorKind::Config,
                    vec!["\"nothing\"", "\"orders\""],
                ),
                // A Sentinel given as a plain server.
                (
                    format!("redis://{sentinel}/"),
                    ErrorKind::Config,
                    vec!["Sentinel", "redis+sentinel://", "service"],
                ),
                // A plain server given as a Sentinel.
                (
                    format!("redis+sentinel://{server}/{SERVICE}"),
                    ErrorKind::Config,
                    vec!["no Sentinel", &format!("redis://{server}/")],
                ),
                // A replica given as the primary.
                (format!("redis://{replica}/"), ErrorKind::Unavailable, vec!["replica", "primary"]),
                // Nobody there.
                (
                    format!("redis+sentinel://127.0.0.1:9,127.0.0.1:7/{SERVICE}"),
                    ErrorKind::Unavailable,
                    vec!["127.0.0.1:9", "127.0.0.1:7", "cannot be reached"],
                ),
            ] {
                let error = refusal(&url).await;
                let message = error.to_string();
                assert_eq!(error.kind(), kind, "{url}: {message}");
                for word in words {
                    assert!(message.contains(word), "{url}: {word} is not in {message}");
                }
            }
            // One of them is wrong, the others make up for it.
            let mixed = format!("redis+sentinel://{server},{sentinel},127.0.0.1:9/{SERVICE}");
            let client = connect(&mixed, "a").await;
            free(take(&client, "job", TTL).await).await;
            for number in 0..3 {
                assert!(lock_keys(trio.node(number)).is_empty());
            }
        });
    });
}

#[test]
fn servers_and_sentinels_have_passwords_of_their_own() {
    let with_passwords = |trio: leasehold_testkit::servers::TrioBuilder| {
        trio.password("of-servers").sentinel_password("of-sentinels")
    };
    on_kind("servers_and_sentinels_have_passwords", ServerKind::Redis8, with_passwords, |trio| {
        run(async {
            let client = connect(&trio.url(), "a").await;
            let held = take(&client, "job", TTL).await;
            let all = hosts(trio);
            for (url, words) in [
                (format!("redis+sentinel://:of-servers@{all}/{SERVICE}"), ["sentinel_password=", "wants"]),
                (
                    format!("redis+sentinel://:of-servers@{all}/{SERVICE}?sentinel_password=wrong-secret"),
                    ["sentinel_password", "WRONGPASS"],
                ),
                // The servers' own: the address says which one it is.
                (
                    format!("redis+sentinel://:wrong-secret@{all}/{SERVICE}?sentinel_password=of-sentinels"),
                    ["WRONGPASS", &trio.proxy(0).address().to_string()],
                ),
                (
                    format!("redis+sentinel://{all}/{SERVICE}?sentinel_password=of-sentinels"),
                    ["password", &trio.proxy(0).address().to_string()],
                ),
            ] {
                let error = refusal(&url).await;
                let message = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
                for word in words {
                    assert!(message.contains(word), "{word} is not in {message}");
                }
                assert!(!message.contains("secret") && !message.contains("of-s"), "{message}");
            }
            trio.node(0).kill().unwrap();
            trio.wait_for_failover_from(0).unwrap();
            free(take(&client, "after", TTL).await).await;
            held.renew().await.unwrap();
        });
    });
}

#[test]
fn mixed_versions_fail_over_to_each_other() {
    let test = "mixed_versions_fail_over";
    if kinds_to_test(test).len() < ServerKind::ALL.len() {
        return;
    }
    // Data of the older one can be read by the newer one, not the other way round.
    let mixed = SentinelTrio::builder(ServerKind::Redis7)
        .node_kind(1, ServerKind::Redis8)
        .sentinel_kind(ServerKind::Valkey9)
        .start()
        .unwrap();
    run(async {
        let client = connect(&mixed.url(), "a").await;
        let held = take(&client, "job", TTL).await;
        crate::support::until_replicated(&mixed, 0).await;
        mixed.node(0).kill().unwrap();
        assert_eq!(mixed.wait_for_failover_from(0).unwrap(), 1);
        let after = take(&client, "after", TTL).await;
        assert!(after.fencing_token() > held.fencing_token());
        held.renew().await.unwrap();
    });
}

/// What was asked for while nobody could grant it leaves nothing when it is given up.
#[test]
fn an_acquire_that_no_primary_serves_ends_in_its_time_and_leaves_nothing() {
    on_one_kind(
        "an_acquire_that_no_primary_serves",
        |trio| trio,
        |trio| {
            run(async {
                let client = Client::builder().store_timeout(GIVEN).connect(&trio.url()).await.unwrap();
                // Without the Sentinels there is no failover.
                for number in 0..3 {
                    trio.sentinel(number).kill().unwrap();
                }
                let held = take(&client, "job", Duration::from_secs(3)).await;
                trio.node(0).freeze().unwrap();
                let started = Instant::now();
                let error = client.lock("other").unwrap().ttl(TTL).try_acquire().await.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
                assert!(started.elapsed() < GIVEN + Duration::from_secs(3), "{:?}", started.elapsed());
                // The holder is told in its time.
                tokio::time::timeout(Duration::from_secs(8), held.lost()).await.unwrap();
                let error = try_connect(&trio.url(), "b").await.unwrap_err();
                assert!(error.to_string().contains(&trio.sentinel(2).address().to_string()), "{error}");
                trio.node(0).thaw().unwrap();
                for number in 0..3 {
                    trio.restart_sentinel(number).unwrap();
                }
                free(take(&client, "after", TTL).await).await;
                until_nothing_is_left(trio).await;
            });
        },
    );
}
