//! The same on real servers, and that no secret is told: neither the password nor an owner token, whatever
//! happens to the connection.

use std::sync::Arc;
use std::time::Duration;

use leasehold::core::{Client, Store};
use leasehold::{BreakMode, LostCause};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, kinds_to_test};

use crate::support::{Seen, guard, pass, secs, settings, take, wait_for};

/// With the characters that have to be escaped in a URL.
const PASSWORD: &str = "p@ss/w#rd%41";
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(60);

async fn connect(url: &str, label: &str) -> Client {
    let config = RedisConfig::from_url(url).unwrap();
    let connect = move || {
        let config = config.clone();
        async move {
            let store: Arc<dyn Store> = Arc::new(RedisStore::connect(config).await?);
            Ok(store)
        }
    };
    Client::start(settings(label), connect).await.unwrap()
}

/// Waits until something is true.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(LONG, async {
        while !is_so() {
            pass(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "in vain: waited until {what}");
}

fn on_each_server(test: &str, body: &impl AsyncFn(&RedisServer)) {
    for kind in kinds_to_test(test) {
        println!("{test} on {kind}");
        let server = RedisServer::builder(kind).password(PASSWORD).start().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(body(&server));
    }
}

#[test]
fn a_day_in_the_life_of_a_connection_is_told_without_a_secret() {
    on_each_server(
        "a_day_in_the_life_of_a_connection_is_told_without_a_secret",
        &async |server: &RedisServer| {
            let seen = Seen::start();
            let proxy = Proxy::before(server).unwrap();
            let one = connect(&server.url_through(&proxy), "one").await;
            let other = connect(&server.url(), "other").await;
            let mut secrets = vec![PASSWORD.to_owned(), "p%40ss".to_owned()];

            let held = take(&one, "job").await;
            let waiter = wait_for(&other, "job");
            pass(secs(1)).await;
            secrets.push(held.owner_token().expose().to_owned());
            let _ = held.release().await.unwrap();
            let held = waiter.await.unwrap();
            secrets.push(held.owner_token().expose().to_owned());
            let figures = seen.figures();
            assert_eq!(figures.count("leasehold_handovers_total{side=given}"), 1, "{figures:?}");
            assert_eq!(figures.times("leasehold_acquire_seconds{outcome=granted}").len(), 2);

            other.break_lease("job", BreakMode::Notice).await.unwrap();
            assert!(held.renew().await.is_err());
            assert_eq!(held.lost().await, LostCause::Broken);
            drop(held);

            let short = guard(one.lock("short").unwrap().ttl(SHORT).try_acquire().await);
            secrets.push(short.owner_token().expose().to_owned());
            proxy.half_open();
            let cause = tokio::time::timeout(LONG, short.lost()).await.unwrap();
            assert_eq!(cause, LostCause::Unreachable);
            until("the connection is given up", || {
                seen.told().iter().any(|event| event.message.contains("the connection to the server is lost"))
            })
            .await;
            proxy.heal();
            until("it is there again", || {
                seen.told().iter().any(|event| event.message.contains("connected to the server again"))
            })
            .await;
            drop(short);
            let figures = seen.figures();
            assert_eq!(figures.count("leasehold_lost_total{cause=broken}"), 1);
            assert_eq!(figures.count("leasehold_lost_total{cause=unreachable}"), 1);
            assert!(figures.count("leasehold_renewals_total{outcome=failed}") >= 1);
            let lost = seen.told_once("the connection to the server is lost");
            assert_eq!(lost.fields.keys().collect::<Vec<_>>(), ["reason", "store"]);
            assert!(lost.fields["store"].contains(&format!("127.0.0.1:{}", proxy.port())), "{lost:?}");

            let told = format!("{:?}{figures:?}", seen.told());
            for secret in secrets {
                // Of an owner token the part before the label is the secret.
                let secret = secret.split("@one").next().unwrap().split("@other").next().unwrap().to_owned();
                assert!(!told.contains(&secret), "{secret} in {told}");
            }
        },
    );
}

#[test]
fn who_may_not_subscribe_is_warned_once_and_each_wait_counted() {
    on_each_server(
        "who_may_not_subscribe_is_warned_once_and_each_wait_counted",
        &async |server: &RedisServer| {
            let seen = Seen::start();
            let rights = ["ACL", "SETUSER", "app", "on", ">pw", "~lock:*", "resetchannels", "+@all"];
            server.command(&rights).unwrap();
            let holder = connect(&server.url(), "holder").await;
            let waiter = connect(&format!("redis://app:pw@{}/", server.address()), "waiter").await;
            for number in 1..=3 {
                let name = format!("job:{number}");
                let held = take(&holder, &name).await;
                let waiting = wait_for(&waiter, &name);
                pass(Duration::from_millis(300)).await;
                let _ = held.release().await.unwrap();
                let _ = waiting.await.unwrap().release().await.unwrap();
            }
            assert_eq!(seen.figures().count("leasehold_polling_fallbacks_total"), 3);
            let warned = seen.told_once("waiters poll instead of being told");
            assert_eq!(warned.level, tracing::Level::WARN);
            assert!(!format!("{:?}", seen.told()).contains(">pw"));
        },
    );
}
