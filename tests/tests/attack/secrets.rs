//! Passwords and owner tokens are in no error, no debug output, no log and no listing.

use std::time::Duration;

use leasehold::core::store::BreakMode;
use leasehold::{Attempt, Client, Error, RunError};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::RedisServer;

use crate::logs;
use crate::outages::connect_with;
use crate::support::{SLACK, free, on_each_server_with, run, take, until, until_queued, wait_for};

/// Everything that has a meaning in a URL, in a shell or in a log.
const PASSWORD: &str = "hush@/#%?&:+ \"\\é";
const ENCODED: &str = "hush%40%2F%23%25%3F%26%3A%2B%20%22%5C%C3%A9";
const TTL: Duration = Duration::from_secs(30);

/// Collects everything that is shown, to be searched.
#[derive(Default)]
struct Shown(Vec<String>);

impl Shown {
    fn add(&mut self, shown: &impl std::fmt::Debug) {
        self.0.push(format!("{shown:?} {shown:#?}"));
    }

    fn add_error(&mut self, error: &Error) {
        let mut text = format!("{error} {error:?} {error:#?}");
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            text = format!("{text} {inner} {inner:?}");
            cause = inner.source();
        }
        self.0.push(text);
    }

    fn assert_without(&self, secret: &str) {
        for text in self.0.iter().chain(&logs::with(&[])) {
            assert!(!text.contains(secret), "{secret:?} is shown: {text}");
        }
    }
}

#[test]
fn trap_44_no_password_and_no_owner_token_is_ever_shown() {
    on_each_server_with(
        "no_password_and_no_owner_token",
        |settings| settings.password(PASSWORD),
        |server| {
            logs::collect();
            run(async {
                let proxy = Proxy::before(server).unwrap();
                let url = format!("redis://:{ENCODED}@{}/", proxy.address());
                let client = connect_with(&url, "a", Duration::from_secs(2)).await;
                let mut shown = Shown::default();
                let tokens = use_and_break(server, &proxy, &client, &mut shown).await;
                refused_logins(server, &mut shown).await;
                let (seen, logged) = (shown.0.len(), logs::with(&[]).len());
                println!("{}: {seen} texts and {logged} lines of log", server.kind());
                assert!(logs::with(&["WARN", "connection to the server is lost"]).len() >= 2);
                shown.assert_without("hush");
                assert_eq!(tokens.len(), 3);
                for token in tokens {
                    shown.assert_without(token.split('@').next().unwrap());
                }
            });
        },
    );
}

/// Everything that can be shown while it works, and while the server is away. The owner tokens that were used.
async fn use_and_break(
    server: &RedisServer,
    proxy: &Proxy,
    client: &Client,
    shown: &mut Shown,
) -> Vec<String> {
    let held = take(client, "job", TTL).await;
    let mut tokens = vec![held.owner_token().expose().to_owned()];
    let lock = client.lock("job").unwrap().owner(held.owner_token().clone());
    shown.add(&(&held, held.lease(), held.owner_token(), &lock, client, Client::builder()));
    let waiting = wait_for(client, "job", TTL);
    until_queued(server, "job", 1).await;
    shown.add(&client.lock("job").unwrap().try_acquire().await);
    shown.add(&client.inspect("job").await);
    shown.add(&client.list("", 10).await);
    shown.add(&client.diagnose().await);
    // Refused by a server that repeats what it was sent.
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
    shown.add_error(&client.lock("new").unwrap().try_acquire().await.unwrap_err());
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
    server.command(&["LPUSH", "lock:list", "x"]).unwrap();
    shown.add_error(&client.lock("list").unwrap().try_acquire().await.unwrap_err());
    shown.add_error(&client.inspect("list").await.err().unwrap_or_else(|| Error::config("listed")));
    free(held).await;
    let next = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
    tokens.push(next.owner_token().expose().to_owned());
    let broken = client.break_lease("job", BreakMode::Notice).await;
    shown.add(&broken);
    shown.add(&next.lost().await);
    shown.add(&(next.release().await, client.inspect("job").await));
    let last = take(client, "last", TTL).await;
    tokens.push(last.owner_token().expose().to_owned());
    proxy.refuse().unwrap();
    proxy.cut();
    shown.add_error(&client.lock("new").unwrap().try_acquire().await.unwrap_err());
    shown.add_error(&client.list("", 10).await.unwrap_err());
    shown.add_error(&last.renew().await.unwrap_err());
    let ran = client.lock("new").unwrap().run(async |_| Ok::<(), ()>(())).await;
    assert!(matches!(ran, Err(RunError::Store(_))));
    shown.add(&ran);
    shown.add_error(&last.release().await.unwrap_err());
    proxy.accept().unwrap();
    until("given back", || client.load().cleanups == 0).await;
    proxy.half_open();
    shown.add_error(&client.lock("new").unwrap().try_acquire().await.unwrap_err());
    proxy.heal();
    tokens
}

/// Wrong words, wrong ways to write them, and servers that are not there.
async fn refused_logins(server: &RedisServer, shown: &mut Shown) {
    let at = server.address();
    for url in [
        format!("redis://:hush-wrong@{at}/"),
        format!("redis://nobody:hush@{at}/"),
        format!("redis://:hush/@{at}/"),
        format!("redis://:12/hush@{at}/"),
        format!("redis://app:12?hush@{at}/"),
        format!("redis://:hush#@{at}/"),
        format!("redis://:hu%sh hush@{at}/"),
        format!("redis://{at}/?password=hush&user=nobody"),
        format!("redis://{at}/?password=hush&what=1"),
        format!("rediss://:hush@{at}/?ca=/no/such/file"),
        format!("redis+sentinel://:hush@{at}/"),
        format!(":hush@{at}"),
        format!("hush@{at}"),
        "redis://:hush@127.0.0.1:1/".to_owned(),
    ] {
        let client = Client::builder().store_timeout(Duration::from_millis(300)).connect(&url).await;
        shown.add_error(&client.unwrap_err());
    }
}

#[test]
fn trap_44_a_password_works_with_every_character_that_has_a_meaning_in_a_url() {
    on_each_server_with(
        "a_password_works_with_every_character",
        |settings| settings.password(PASSWORD),
        |server| {
            run(async {
                for url in [
                    format!("redis://:{ENCODED}@{}/", server.address()),
                    format!("redis://default:{ENCODED}@{}/", server.address()),
                    format!("redis://{}/?password={ENCODED}", server.address()),
                ] {
                    let client = Client::connect(&url).await.unwrap();
                    let Attempt::Acquired(held) = client.lock("job").unwrap().try_acquire().await.unwrap()
                    else {
                        panic!("busy");
                    };
                    // Questions have a connection of their own.
                    assert_eq!(client.list("", 10).await.unwrap().entries.len(), 1);
                    free(held).await;
                }
            });
        },
    );
}
