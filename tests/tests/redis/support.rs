//! Servers, clients and waiting for the tests on Redis and Valkey.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::{Duration, Instant};

use leasehold::{Attempt, Client, Error, Guard, Label, Released};
use leasehold_testkit::servers::{Monitor, MonitorLine, RedisServer, ServerBuilder, kinds_to_test};

/// Longer than anything takes on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(5);
/// Longer than any test takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);

/// Runs a test on a server of each kind, all kinds at the same time: most of a test is waiting.
pub(crate) fn on_each_server(test: &str, body: impl Fn(&RedisServer) + Sync) {
    on_each_server_with(test, |settings| settings, body);
}

/// As [`on_each_server`], with settings.
pub(crate) fn on_each_server_with(
    test: &str,
    configure: impl Fn(ServerBuilder) -> ServerBuilder + Sync,
    body: impl Fn(&RedisServer) + Sync,
) {
    std::thread::scope(|scope| {
        for kind in kinds_to_test(test) {
            let (configure, body) = (&configure, &body);
            // The name is what a panic shows.
            let thread = std::thread::Builder::new().name(format!("{test} on {kind}"));
            let run = move || body(&configure(RedisServer::builder(kind)).start().unwrap());
            thread.spawn_scoped(scope, run).unwrap();
        }
    });
}

/// Runs the asynchronous part of a test.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, test).await.unwrap() })
}

/// Runs the asynchronous part of a test on a server of each kind.
pub(crate) fn run_on_each_server(test: &str, body: impl AsyncFn(&RedisServer) + Sync) {
    on_each_server(test, |server| run(body(server)));
}

pub(crate) async fn connect(url: &str, label: &str) -> Client {
    let builder = Client::builder().label(Label::new(label).unwrap());
    builder.connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Acquires a name that must be free.
pub(crate) async fn take(client: &Client, name: &str, ttl: Duration) -> Guard {
    guard(client.lock(name).unwrap().ttl(ttl).try_acquire().await)
}

pub(crate) fn guard(attempt: Result<Attempt, Error>) -> Guard {
    match attempt.unwrap() {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(busy) => panic!("busy: {busy}"),
    }
}

/// Releases a lease that must have been held until now.
pub(crate) async fn free(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// Starts to wait for a name, with a deadline that fails the test when it is missed.
pub(crate) fn wait_for(client: &Client, name: &str, ttl: Duration) -> tokio::task::JoinHandle<Guard> {
    let lock = client.lock(name).unwrap().ttl(ttl).wait(TEST_TIMEOUT);
    tokio::spawn(async move { guard(lock.acquire().await) })
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(SLACK, what, is_so).await;
}

pub(crate) async fn until_within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "not so after {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a command that answers a number answers.
pub(crate) fn number(server: &RedisServer, arguments: &[&str]) -> i64 {
    server.cli(arguments).unwrap().parse().unwrap()
}

/// How long the key of a name lasts, in milliseconds: -2 without a key, -1 for ever.
pub(crate) fn pttl(server: &RedisServer, name: &str) -> i64 {
    number(server, &["PTTL", &format!("lock:{name}")])
}

/// The key of the queue of a name, if anybody is queued.
pub(crate) fn queue_key(server: &RedisServer, name: &str) -> Option<String> {
    let ending = format!("}}:{name}");
    keys(server).into_iter().find(|key| key.starts_with("lock:~queue:") && key.ends_with(&ending))
}

/// How many processes are queued for a name.
pub(crate) fn queued(server: &RedisServer, name: &str) -> i64 {
    queue_key(server, name).map_or(0, |key| number(server, &["ZCARD", &key]))
}

pub(crate) async fn until_queued(server: &RedisServer, name: &str, processes: i64) {
    until(&format!("{processes} processes queued"), || queued(server, name) == processes).await;
}

pub(crate) fn keys(server: &RedisServer) -> BTreeSet<String> {
    let reply = server.command(&["KEYS", "*"]).unwrap();
    reply.items().unwrap().iter().map(|key| key.text().unwrap()).collect()
}

/// Waits until the server holds nothing but the fencing counter, far sooner than a long TTL would end.
pub(crate) async fn until_nothing_is_left(server: &RedisServer) {
    until("nothing left but the fencing counter", || keys(server).iter().all(|key| key == "lock:~fence"))
        .await;
}

/// The scripts that clients had executed.
pub(crate) fn script_calls(monitor: &Monitor) -> Vec<MonitorLine> {
    let is_script = |line: &MonitorLine| ["EVAL", "EVALSHA"].contains(&line.command().as_str());
    monitor.requests().unwrap().into_iter().filter(is_script).collect()
}

/// Whether a script call is a renewal: the only script with one key.
pub(crate) fn is_renewal(call: &MonitorLine) -> bool {
    call.arguments[2] == "1"
}
