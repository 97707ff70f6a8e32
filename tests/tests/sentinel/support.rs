//! Trios, clients and waiting for the tests with Sentinels.

use std::future::Future;
use std::time::{Duration, Instant};

use leasehold::{Attempt, Client, Error, Guard, Label, Released};
use leasehold_testkit::servers::{RedisServer, SentinelTrio, ServerKind, TrioBuilder, kinds_to_test};

/// Longer than anything takes on a busy machine, the time to notice a failure aside.
pub(crate) const SLACK: Duration = Duration::from_secs(10);
/// Longer than any test takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a test on a trio of each kind, all kinds at the same time: most of a test is waiting.
pub(crate) fn on_each_kind(test: &str, body: impl Fn(&SentinelTrio) + Sync) {
    std::thread::scope(|scope| {
        for kind in kinds_to_test(test) {
            let body = &body;
            let thread = std::thread::Builder::new().name(format!("{test} on {kind}"));
            thread.spawn_scoped(scope, move || body(&SentinelTrio::start(kind).unwrap())).unwrap();
        }
    });
}

/// Runs a test on a trio of one kind, for what does not depend on the kind.
pub(crate) fn on_one_kind(
    test: &str,
    configure: impl Fn(TrioBuilder) -> TrioBuilder,
    body: impl FnOnce(&SentinelTrio),
) {
    on_kind(test, ServerKind::Redis7, configure, body);
}

pub(crate) fn on_kind(
    test: &str,
    kind: ServerKind,
    configure: impl Fn(TrioBuilder) -> TrioBuilder,
    body: impl FnOnce(&SentinelTrio),
) {
    if kinds_to_test(test).contains(&kind) {
        body(&configure(SentinelTrio::builder(kind)).start().unwrap());
    }
}

/// Runs the asynchronous part of a test.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, test).await.unwrap() })
}

pub(crate) async fn connect(url: &str, label: &str) -> Client {
    try_connect(url, label).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

pub(crate) async fn try_connect(url: &str, label: &str) -> Result<Client, Error> {
    Client::builder().label(Label::new(label).unwrap()).store_timeout(SLACK).connect(url).await
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

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < SLACK, "not so after {SLACK:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until every replica has what the primary had when this was called.
pub(crate) async fn until_replicated(trio: &SentinelTrio, primary: usize) {
    let offset =
        || trio.node(primary).info("replication").unwrap()["master_repl_offset"].parse::<u64>().unwrap();
    let wanted = offset();
    for replica in (0..3).filter(|number| *number != primary) {
        until("replicated", || {
            let info = trio.node(replica).info("replication").unwrap();
            info.get("slave_repl_offset").is_some_and(|have| have.parse::<u64>().unwrap() >= wanted)
        })
        .await;
    }
}

/// The names under which something is taken on a server.
pub(crate) fn lock_keys(server: &RedisServer) -> Vec<String> {
    let reply = server.command(&["KEYS", "lock:*"]).unwrap();
    let keys = reply.items().unwrap().iter().map(|key| key.text().unwrap());
    keys.filter(|key| key != "lock:~fence").collect()
}

/// Waits until no server that runs holds anything but the fencing counter.
pub(crate) async fn until_nothing_is_left(trio: &SentinelTrio) {
    for number in (0..3).filter(|number| trio.node(*number).process_id().is_some()) {
        until(&format!("nothing left on server {number}"), || lock_keys(trio.node(number)).is_empty()).await;
    }
}
