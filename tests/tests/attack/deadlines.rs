//! The promise that matters most: under every fault the loss is told by the local deadline, and the body is dropped
//! while the server still has the lease.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold::{Client, Lease, LostCause, RunError};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::RedisServer;
use tokio::task::JoinHandle;

use crate::support::{
    SLACK, connect, free, guard, number, run_on_each_server, until_nothing_is_left, until_within,
};

const TTL: Duration = Duration::from_secs(3);

/// A body that runs until it is dropped.
struct Body {
    running: JoinHandle<(LostCause, Instant)>,
    dropped: Receiver<Instant>,
    lease: Lease,
}

/// Tells when it is dropped.
struct Witness(std::sync::mpsc::Sender<Instant>);

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

impl Body {
    async fn start(client: &Client, name: &str) -> Self {
        let (dropping, dropped) = channel();
        let (tell, lease) = tokio::sync::oneshot::channel();
        let lock = client.lock(name).unwrap().ttl(TTL);
        let running = tokio::spawn(async move {
            let ended = lock
                .run(|lease| async move {
                    let _witness = Witness(dropping);
                    tell.send(lease).unwrap();
                    std::future::pending::<Result<(), ()>>().await
                })
                .await;
            match ended {
                Err(RunError::Lost { cause, .. }) => (cause, Instant::now()),
                other => panic!("not lost: {other:?}"),
            }
        });
        Self { running, dropped, lease: lease.await.unwrap() }
    }

    /// What it saw of its loss. The deadline is sampled, so it is at most the true one.
    async fn end(self) -> End {
        let deadline = Arc::new(Mutex::new(Instant::now()));
        let sampling = tokio::spawn({
            let (lease, deadline) = (self.lease.clone(), Arc::clone(&deadline));
            async move {
                loop {
                    let now = Instant::now();
                    let ends = now + lease.remaining();
                    {
                        let mut latest = deadline.lock().unwrap();
                        *latest = ends.max(*latest);
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        let told = async {
            self.lease.lost().await;
            Instant::now()
        };
        let (told, ended) = tokio::join!(told, self.running);
        sampling.abort();
        let dropped = self.dropped.try_recv().unwrap();
        let deadline = *deadline.lock().unwrap();
        End { cause: ended.unwrap().0, told, dropped, deadline }
    }
}

struct End {
    cause: LostCause,
    told: Instant,
    dropped: Instant,
    deadline: Instant,
}

impl End {
    fn assert_in_time(&self, what: &str) {
        assert!(self.told <= self.deadline, "{what}: told {:?} too late", self.told - self.deadline);
        assert!(self.dropped <= self.deadline, "{what}: dropped {:?} too late", self.dropped - self.deadline);
    }
}

/// Looks at a key until it is gone; the last moment at which it was certainly there.
fn last_seen(server: &RedisServer, name: &str) -> JoinHandle<Instant> {
    let (mut connection, key) = (server.connect().unwrap(), format!("lock:{name}"));
    tokio::task::spawn_blocking(move || {
        let mut seen = Instant::now();
        loop {
            let asked = Instant::now();
            let left: i64 = connection.command(&["PTTL", &key]).unwrap().text().unwrap().parse().unwrap();
            if left <= 0 {
                return seen;
            }
            seen = asked;
            std::thread::sleep(Duration::from_millis(2));
        }
    })
}

/// Breaks the way to the server, and mends it.
type Fault = (&'static str, fn(&Proxy), fn(&Proxy));

const FAULTS: [Fault; 6] = [
    ("half-open", Proxy::half_open, Proxy::heal),
    ("stalled", Proxy::stall, Proxy::resume),
    (
        "cut off",
        |proxy| {
            proxy.refuse().unwrap();
            proxy.cut();
        },
        |proxy| proxy.accept().unwrap(),
    ),
    ("slow-requests", |proxy| proxy.set_delay(Duration::from_millis(2_500), Duration::ZERO), still),
    ("slow-replies", |proxy| proxy.set_delay(Duration::ZERO, Duration::from_secs(4)), still),
    (
        "both-slow",
        |proxy| {
            proxy.set_delay(Duration::from_millis(1_400), Duration::from_millis(1_400));
        },
        still,
    ),
];

fn still(proxy: &Proxy) {
    proxy.set_delay(Duration::ZERO, Duration::ZERO);
}

/// F016, F040: Under every fault the body is dropped while the server still has the lease.
#[test]
fn trap_21_f016_f040_the_body_is_dropped_while_the_server_still_has_the_lease_under_every_fault() {
    run_on_each_server("the_body_is_dropped_while_the_server_still_has_the_lease", async |server| {
        let mut running = Vec::new();
        for (what, begin, end) in FAULTS {
            let proxy = Proxy::before(server).unwrap();
            let client = connect(&server.url_through(&proxy), "a").await;
            let body = Body::start(&client, what).await;
            let seen = last_seen(server, what);
            running.push(async move {
                // After the first renewal, which comes after a third of the TTL.
                tokio::time::sleep(TTL * 5 / 12).await;
                begin(&proxy);
                let ended = body.end().await;
                ended.assert_in_time(what);
                assert_eq!(ended.cause, LostCause::Unreachable, "{what}");
                // Mended only then: our own release would take the key away.
                let seen = seen.await.unwrap();
                end(&proxy);
                (proxy, client, what, ended.dropped, seen)
            });
        }
        let mut done = Vec::new();
        for one in running.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
            done.push(one.await.unwrap());
        }
        for (proxy, client, what, dropped, seen) in done {
            println!("{}: {what}: dropped {:?} before the key was gone", server.kind(), seen - dropped);
            assert!(dropped < seen, "{what}: dropped {:?} after the key was last seen", dropped - seen);
            until_within(SLACK * 3, "cleaned up", || client.load().cleanups == 0).await;
            free(guard(client.lock(what).unwrap().wait(SLACK * 2).acquire().await)).await;
            drop(proxy);
        }
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_21_the_body_is_dropped_before_the_lease_ends_on_a_frozen_server() {
    run_on_each_server("the_body_is_dropped_before_the_lease_ends_on_a_frozen_server", async |server| {
        let client = connect(&server.url(), "a").await;
        let body = Body::start(&client, "job").await;
        tokio::time::sleep(TTL * 5 / 12).await;
        // A renewal in between would only move it.
        let ends = number(server, &["PEXPIRETIME", "lock:job"]);
        server.freeze().unwrap();
        let ended = body.end().await;
        let now_ms =
            i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        ended.assert_in_time("frozen");
        println!("{}: dropped about {} ms before the key ends", server.kind(), ends - now_ms);
        assert!(now_ms < ends, "{} ms late", now_ms - ends);
        server.thaw().unwrap();
        free(guard(client.lock("job").unwrap().wait(SLACK * 2).acquire().await)).await;
        until_nothing_is_left(server).await;
    });
}
