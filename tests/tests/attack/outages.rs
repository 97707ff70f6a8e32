//! A server that gives no answers, for longer than anybody is ready to wait: frozen, or behind a connection that is
//! open at one end only. And one that is started again.

use std::future::Future;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use leasehold::core::store::BreakMode;
use leasehold::{Attempt, Client, Error, ErrorKind, Guard, Label, LeaseState, LostCause, Released};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{Data, RedisServer};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{
    SLACK, connect, free, guard, is_renewal, on_each_server_with, queued, run, run_on_each_server,
    script_calls, take, until, until_nothing_is_left, until_queued, until_within, wait_for,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(3);
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const WAIT: Duration = Duration::from_millis(1_500);
/// How much later than asked a busy machine may let somebody go on. Far less than the silence lasts.
const LATE: Duration = Duration::from_millis(2_500);
/// How long the server is silent, in seconds, instead of 6.
const SILENCE_VARIABLE: &str = "LEASEHOLD_SILENCE_SECONDS";

fn silence() -> Duration {
    let asked = std::env::var(SILENCE_VARIABLE).ok();
    Duration::from_secs(asked.map_or(6, |text| text.parse().unwrap()))
}

pub(crate) async fn connect_with(url: &str, label: &str, store_timeout: Duration) -> Client {
    let builder = Client::builder().label(Label::new(label).unwrap()).store_timeout(store_timeout);
    builder.connect(url).await.unwrap()
}

#[test]
fn a_frozen_server_keeps_nobody_for_longer_than_asked_and_everybody_is_served_afterwards() {
    run_on_each_server("a_frozen_server_keeps_nobody_for_longer_than_asked", async |server| {
        let url = server.url();
        survive(server, &url, || server.freeze().unwrap(), || server.thaw().unwrap()).await;
    });
}

#[test]
fn a_half_open_connection_keeps_nobody_for_longer_than_asked_and_everybody_is_served_afterwards() {
    run_on_each_server("a_half_open_connection_keeps_nobody_for_longer", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let url = server.url_through(&proxy);
        survive(server, &url, || proxy.half_open(), || proxy.heal()).await;
    });
}

/// Everything a client can be asked while the server is silent, and what becomes of it afterwards.
async fn survive(server: &RedisServer, url: &str, begin: impl FnOnce(), end: impl FnOnce()) {
    let client = connect_with(url, "a", STORE_TIMEOUT).await;
    let patient = connect_with(url, "b", LONG).await;
    let other = connect(&server.url(), "c").await;
    let (long, short) = (take(&client, "long", LONG).await, take(&client, "short", SHORT).await);
    let released = take(&client, "released", LONG).await;
    let dropped = take(&client, "dropped", LONG).await;
    let awaited = take(&other, "awaited", LONG).await;
    let waiting = wait_for(&patient, "awaited", LONG);
    until_queued(server, "awaited", 1).await;
    let (limited, knows) = wait_a_little(&client, "awaited");
    // It has to know who holds the name: otherwise it is told about the store.
    knows.await.unwrap();

    begin();
    let silent_since = Instant::now();
    drop(dropped);
    ask_everything(server, &client, &long, &short, released).await;
    let (took, outcome) = limited.await.unwrap();
    assert!(matches!(outcome, Ok(Attempt::Busy(_))), "{outcome:?}");
    assert_took(server, "wait", took, WAIT);
    tokio::time::sleep(silence().saturating_sub(silent_since.elapsed())).await;
    assert!(!waiting.is_finished(), "it waits for ever, and its store timeout is not over");
    end();

    // A lease that is long enough outlives all that; one that is not was lost once.
    until_within(SLACK * 3, "no clean-up left", || client.load().cleanups == 0).await;
    long.renew().await.unwrap();
    assert_eq!(long.state(), LeaseState::Held);
    assert_eq!(short.release().await.unwrap(), Released::AlreadyLost);
    free(awaited).await;
    free(tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap()).await;
    for name in ["released", "dropped", "new", "new-and-wait", "short"] {
        free(take(&other, name, LONG).await).await;
    }
    no_renewal_but_of(server, "lock:long").await;
    free(long).await;
    until_nothing_is_left(server).await;
}

/// Waits for [`WAIT`]; the second future is ready when it knows for whom.
fn wait_a_little(client: &Client, name: &str) -> (JoinHandle<Timed<Attempt>>, oneshot::Receiver<()>) {
    let (tell, told) = oneshot::channel();
    let tell = Mutex::new(Some(tell));
    let lock = client.lock(name).unwrap().wait(WAIT).on_waiting(move |_| {
        if let Some(tell) = tell.lock().unwrap().take() {
            tell.send(()).unwrap();
        }
    });
    (tokio::spawn(timed(async move { lock.acquire().await })), told)
}

async fn ask_everything(server: &RedisServer, client: &Client, long: &Guard, short: &Guard, released: Guard) {
    let (new, new_and_wait) = (client.lock("new").unwrap(), client.lock("new-and-wait").unwrap().wait(LONG));
    let asked = tokio::join!(
        timed(new.try_acquire()),
        timed(new_and_wait.acquire()),
        timed(released.release()),
        timed(long.renew()),
        timed(client.inspect("long")),
        timed(client.list("", 10)),
        timed(client.break_lease("nobody", BreakMode::Now)),
        timed(client.diagnose()),
        timed(short.lost()),
    );
    let (acquired, waited, released, renewed, inspected, listed, broken, diagnosed, lost) = asked;
    assert_gave_up(server, "try_acquire", acquired, STORE_TIMEOUT);
    assert_gave_up(server, "acquire", waited, STORE_TIMEOUT);
    assert_gave_up(server, "release", released, STORE_TIMEOUT);
    assert_gave_up(server, "inspect", inspected, STORE_TIMEOUT);
    assert_gave_up(server, "list", listed, STORE_TIMEOUT);
    assert_gave_up(server, "break", broken, STORE_TIMEOUT);
    assert_gave_up(server, "diagnose", diagnosed, STORE_TIMEOUT);
    // One command, whose retries are the keeper's.
    assert_eq!(renewed.1.unwrap_err().kind(), ErrorKind::Unknown);
    assert!(renewed.0 < STORE_TIMEOUT + LATE, "{:?}", renewed.0);
    assert_eq!(lost.1, LostCause::Unreachable);
    assert!(lost.0 < SHORT, "told only after {:?}", lost.0);
    assert_eq!(long.state(), LeaseState::Uncertain);
}

/// How long something took, and what came of it.
type Timed<T> = (Duration, Result<T, Error>);

async fn timed<T>(asked: impl Future<Output = T>) -> (Duration, T) {
    let started = Instant::now();
    let outcome = asked.await;
    (started.elapsed(), outcome)
}

fn assert_gave_up<T: std::fmt::Debug>(
    server: &RedisServer,
    what: &str,
    (took, outcome): Timed<T>,
    limit: Duration,
) {
    let error = outcome.unwrap_err();
    assert!([ErrorKind::Unknown, ErrorKind::Unavailable].contains(&error.kind()), "{what}: {error}");
    assert_took(server, what, took, limit);
}

fn assert_took(server: &RedisServer, what: &str, took: Duration, limit: Duration) {
    println!("{}: {what} gave up after {took:?}", server.kind());
    // Timers of the runtime count in whole milliseconds.
    assert!(took + Duration::from_millis(2) >= limit, "{what} gave up early: {took:?}");
    assert!(took < limit + LATE, "{what} took {took:?}");
}

/// Watches for longer than a third of any TTL in use.
async fn no_renewal_but_of(server: &RedisServer, key: &str) {
    let monitor = server.monitor().unwrap();
    tokio::time::sleep(SHORT / 2).await;
    let stray: Vec<_> = script_calls(&monitor)
        .into_iter()
        .filter(|call| is_renewal(call) && !call.arguments.iter().any(|argument| argument == key))
        .collect();
    assert!(stray.is_empty(), "{stray:?}");
}

#[test]
fn a_server_that_is_started_again_with_its_data_costs_no_lease_and_no_waiter() {
    on_each_server_with(
        "a_server_that_is_started_again_with_its_data",
        leasehold_testkit::servers::ServerBuilder::append_only,
        |server| {
            run(async {
                let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
                let ttl = Duration::from_secs(20);
                let held = take(&client, "job", ttl).await;
                let waiting = wait_for(&other, "job", ttl);
                until_queued(server, "job", 1).await;
                for _ in 0..2 {
                    server.restart(Data::Keep).unwrap();
                    // On its new connection.
                    until("queued again", || queued(server, "job") == 1).await;
                    until("both are connected again", || channels(server).len() == 2).await;
                }
                renews(&held).await;
                assert_eq!(held.state(), LeaseState::Held);
                let before = held.fencing_token();
                free(held).await;
                let next = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
                assert!(next.fencing_token() > before);
                free(next).await;
                until_nothing_is_left(server).await;
            });
        },
    );
}

/// Renews a lease, on a connection that is perhaps just being made.
pub(crate) async fn renews(held: &Guard) {
    let started = Instant::now();
    while let Err(error) = held.renew().await {
        assert!(error.kind() == ErrorKind::Unknown && started.elapsed() < SLACK * 2, "{error}");
    }
    assert_eq!(held.state(), LeaseState::Held);
}

/// The wake channels that somebody listens on.
pub(crate) fn channels(server: &RedisServer) -> Vec<String> {
    let reply = server.command(&["PUBSUB", "CHANNELS", "lock:~wake:*"]).unwrap();
    let mut names: Vec<_> = reply.items().unwrap().iter().map(|name| name.text().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn trap_37_a_server_that_is_started_again_empty_is_noticed_and_serves_its_waiters() {
    run_on_each_server("a_server_that_is_started_again_empty", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let held = take(&client, "job", SHORT).await;
        let waiting = wait_for(&other, "job", SHORT);
        until_queued(server, "job", 1).await;
        let before = held.fencing_token();
        server.restart(Data::Lose).unwrap();
        let cause = tokio::time::timeout(SHORT + SLACK, held.lost()).await.unwrap();
        // Whichever comes first: its renewal, or the waiter.
        assert!([LostCause::Missing, LostCause::Taken].contains(&cause), "{cause:?}");
        let next = tokio::time::timeout(SHORT + SLACK, waiting).await.unwrap().unwrap();
        assert!(next.fencing_token() > before);
        assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
        free(next).await;
        free(guard(client.lock("job").unwrap().wait(SLACK).acquire().await)).await;
        until_nothing_is_left(server).await;
    });
}
