//! Users with exactly the rights that `leasehold doctor --acl` prints, and with one of them missing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::core::store::{BreakMode, BreakReply};
use leasehold::{Client, Error, ErrorKind, Namespace, Released, Severity, smallest_acl};
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{RedisServer, ServerKind};

use crate::logs;
use crate::outages::connect_with;
use crate::support::{
    SLACK, connect, free, guard, run, run_on_each_server, take, until, until_nothing_is_left, until_queued,
    wait_for,
};

const TTL: Duration = Duration::from_secs(30);
const POLLING: &str = "waiters poll";

/// What an operator types: `ACL SETUSER app on >secret`, and behind it the line as it was printed. The server splits
/// it, quotes and all.
fn type_in(server: &RedisServer, user: &str, rules: &str) {
    let mut connection = TcpStream::connect(server.address()).unwrap();
    write!(connection, "ACL SETUSER {user} on >secret {rules}\r\n").unwrap();
    let mut answer = [0; 256];
    let length = connection.read(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer[..length]), "+OK\r\n", "{rules}");
}

fn url(server: &RedisServer, user: &str) -> String {
    format!("redis://{user}:secret@{}/", server.address())
}

fn printed() -> String {
    smallest_acl(&Namespace::default())
}

/// F024, F142: The rights that doctor prints, all under the namespace, are enough for everything.
#[test]
fn trap_45_f024_f142_the_printed_rights_are_enough_for_everything() {
    run_on_each_server("the_printed_rights_are_enough_for_everything", async |server| {
        logs::collect();
        for namespace in ["lock:", "", "a *b\"\\", "über:"] {
            server.command(&["FLUSHALL"]).unwrap();
            server.command(&["ACL", "LOG", "RESET"]).unwrap();
            let namespace = Namespace::new(namespace).unwrap();
            type_in(server, "app", &format!("reset on >secret {}", smallest_acl(&namespace)));
            let start = || async {
                let client =
                    Client::builder().namespace(namespace.clone()).connect(&url(server, "app")).await;
                client.unwrap()
            };
            let (one, other) = (start().await, start().await);
            use_everything(&one, &other).await;
            let log = server.command(&["ACL", "LOG"]).unwrap();
            assert_eq!(log, RespValue::Array(Vec::new()), "{namespace:?}");
            consult(&one).await;
            let fence = format!("{}~fence", namespace.as_str());
            until("nothing left", || crate::support::keys(server).iter().all(|key| *key == fence)).await;
        }
        assert_eq!(logs::with(&[POLLING, &format!("app@{}", server.address())]), Vec::<String>::new());
    });
}

async fn use_everything(one: &Client, other: &Client) {
    let held = take(one, "job", TTL).await;
    held.renew().await.unwrap();
    held.extend(TTL * 2).await.unwrap();
    let waiting = wait_for(other, "job", TTL);
    until_waiting(one, "job").await;
    assert_eq!(one.list("", 10).await.unwrap().entries.len(), 1);
    free(held).await;
    let next = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
    // Resumed elsewhere, and given back by both.
    let resumed = guard(one.lock("job").unwrap().owner(next.owner_token().clone()).try_acquire().await);
    free(resumed).await;
    assert_ne!(next.release().await.unwrap(), Released::Freed);
    let short = one.lock("short").unwrap().ttl(TTL).min_hold(Duration::from_millis(100));
    free(guard(short.try_acquire().await)).await;
    let broken = take(one, "broken", TTL).await;
    assert!(matches!(other.break_lease("broken", BreakMode::Notice).await, Ok(BreakReply::Broken { .. })));
    tokio::time::timeout(TTL, broken.lost()).await.unwrap();
    assert_eq!(broken.release().await.unwrap(), Released::AlreadyLost);
    other.break_lease("broken", BreakMode::Now).await.unwrap();
    drop(take(one, "dropped", TTL).await);
    until("released", || one.load().cleanups == 0).await;
}

/// The doctor asks more than this user may; that is a finding, and no right to lock is missing.
async fn consult(client: &Client) {
    let found = client.diagnose().await.unwrap();
    let rights: Vec<_> = found.iter().filter(|finding| finding.subject == "rights").collect();
    assert!(!rights.is_empty() && rights.iter().all(|found| found.severity == Severity::Fine), "{rights:#?}");
}

async fn until_waiting(client: &Client, name: &str) {
    let started = std::time::Instant::now();
    while client.inspect(name).await.unwrap().is_none_or(|seen| seen.waiters.is_empty()) {
        assert!(started.elapsed() < SLACK, "nobody waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What becomes of a client without a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// It is refused when it connects, and the error names the right.
    Refused,
    /// The error names `scripting=off`.
    NoScripts,
    /// Its waiters poll, which one warning says.
    Polls,
    /// It is not used for locking; the question that needs it is refused and names it.
    NoList,
    /// Locking works.
    Works,
}

fn without(command: &str) -> Without {
    match command {
        "eval" | "evalsha" => Without::NoScripts,
        "subscribe" | "publish" | "pubsub|numsub" => Without::Polls,
        "scan" => Without::NoList,
        // WAIT is for `acks` only.
        "select" | "info" | "ping" | "type" | "wait" => Without::Works,
        _ => Without::Refused,
    }
}

/// F025, F142: Each right that is missing is named at connect or done without; a refused push delays nobody
/// for long.
#[test]
fn trap_45_f025_f142_each_right_that_is_missing_is_named_or_done_without() {
    run_on_each_server("each_right_that_is_missing_is_named", async |server| {
        logs::collect();
        let printed = printed();
        for command in printed.split(' ').filter_map(|rule| rule.strip_prefix('+')) {
            let user = format!("no-{}", command.replace('|', "-"));
            // A right that is a part of another is taken away with it.
            let removed = command.split('|').next().unwrap();
            type_in(server, &user, &format!("{printed} -{removed}"));
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            let url = url(server, &user);
            match without(command) {
                Without::Refused => names(&refused(&url).await, command),
                Without::NoScripts => names(&refused(&url).await, "scripting=off"),
                Without::Polls => polls(server, &url, &user).await,
                Without::NoList => {
                    let client = connect(&url, "a").await;
                    free(take(&client, "job", TTL).await).await;
                    let _held = take(&client, "seen", TTL).await;
                    names(&client.list("", 10).await.unwrap_err(), command);
                }
                Without::Works => waits(server, &url).await,
            }
        }
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_45_keys_channels_and_databases_that_are_denied_are_named() {
    run_on_each_server("keys_channels_and_databases_that_are_denied", async |server| {
        logs::collect();
        let printed = printed();
        type_in(server, "keys", &printed.replace("~lock:*", "~other:*"));
        names(&refused(&url(server, "keys")).await, "~lock:*");
        type_in(server, "helpers", &printed.replace("~lock:*", "~lock:[^~]*"));
        names(&refused(&url(server, "helpers")).await, "~lock:*");
        type_in(server, "channels", &printed.replace("&lock:*", ""));
        polls(server, &url(server, "channels"), "channels").await;
        type_in(server, "db", &format!("{printed} -select"));
        names(&refused(&format!("{}2", url(server, "db"))).await, "select");
        type_in(server, "off", &format!("{printed} off"));
        assert_eq!(refused(&url(server, "off")).await.kind(), ErrorKind::Denied);
        until_nothing_is_left(server).await;
    });
}

async fn refused(url: &str) -> Error {
    Client::connect(url).await.unwrap_err()
}

fn names(error: &Error, word: &str) {
    assert_eq!(error.kind(), ErrorKind::Denied, "{word}: {error}");
    assert!(error.to_string().to_lowercase().contains(word), "{word} is not in: {error}");
}

/// Holds and waits, with a client of all rights at the other end.
async fn waits(server: &RedisServer, url: &str) {
    let (client, free_to_do_all) = (connect(url, "a").await, connect(&server.url(), "b").await);
    for (holder, waiter) in [(&client, &free_to_do_all), (&free_to_do_all, &client), (&client, &client)] {
        let held = take(holder, "job", TTL).await;
        let waiting = wait_for(waiter, "job", TTL);
        until_queued(server, "job", 1).await;
        free(held).await;
        free(tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap()).await;
    }
}

async fn polls(server: &RedisServer, url: &str, user: &str) {
    waits(server, url).await;
    let clients = 2;
    connect(url, "c").await;
    let store = format!("redis://{user}@{}", server.address());
    let said = logs::with(&[POLLING, &store]);
    assert_eq!(said.len(), clients, "one warning for each client: {said:#?}");
    assert!(said.iter().all(|line| line.contains("&lock:*") && line.contains("WARN")), "{said:#?}");
}

/// F142: A user without rights is told so within the time the store may take.
#[test]
fn f142_an_encumbered_user_waits_no_longer_than_the_store_may_take() {
    let server = RedisServer::start(ServerKind::default()).unwrap();
    run(async {
        type_in(&server, "app", &printed());
        let client = connect_with(&url(&server, "app"), "a", SLACK).await;
        let held = take(&client, "job", TTL).await;
        // Taken away while it is used: the next command that needs it says so, at once.
        type_in(&server, "app", "-evalsha -eval");
        let error = client.lock("other").unwrap().try_acquire().await.unwrap_err();
        names(&error, "scripting=off");
        let error = held.release().await.unwrap_err();
        names(&error, "scripting=off");
        type_in(&server, "app", "+evalsha +eval");
        free(take(&client, "other", TTL).await).await;
    });
}
