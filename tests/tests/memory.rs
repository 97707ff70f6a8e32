//! Memory stays flat, in the client and on the server: over reconnects, over waits that are cancelled, and over names
//! that are used once (a million of them: `bench/results/redis-memory.md`). Every allocation of this process is
//! counted, so what grows by a few bytes each time shows.
//!
//! `LEASEHOLD_MEMORY_FACTOR=20` does everything twenty times as often, 10,000 reconnects and 400,000 cancelled waits:
//! `bench/results/memory-over-time.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
#![allow(missing_docs, reason = "a test binary has no readers")]
#![allow(unsafe_code, reason = "a counting allocator has to implement an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::core::Load;
use leasehold::{Attempt, Client};
use leasehold_testkit::servers::{RedisServer, for_each_server};

const FACTOR_VARIABLE: &str = "LEASEHOLD_MEMORY_FACTOR";
const RECONNECTS: usize = 500;
/// Clients that are disconnected at the same time: each takes its time to come back.
const CLIENTS: usize = 10;
const CANCELLED_WAITS: usize = 20_000;
/// Waits that are cancelled at the same time.
const CROWD: usize = 2_000;
const SLACK: Duration = Duration::from_secs(15);
const TTL: Duration = Duration::from_secs(60);
/// Some 70 bytes kept for each reconnect are more than this, and so are two bytes for each cancelled wait.
const MAY_GROW: isize = 32 * 1024;
/// The server gives memory back to its allocator in its own time.
const SERVER_MAY_GROW: i64 = 384 * 1024;

struct Counting;

static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is left to the system's allocator; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of this trait.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The tests of this file count what the whole process allocates, so only one runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn factor() -> usize {
    std::env::var(FACTOR_VARIABLE).map_or(1, |text| text.parse().unwrap())
}

fn allocated() -> isize {
    ALLOCATED.load(Ordering::Relaxed)
}

fn server_memory(server: &RedisServer) -> i64 {
    server.info("memory").unwrap()["used_memory"].parse().unwrap()
}

/// Does something again and again; the first tenth does not count, since it fills what is filled once.
fn assert_flat(server: &RedisServer, what: &str, times: usize, mut step: impl FnMut(usize)) {
    let warm_up = times / 10;
    (0..warm_up).for_each(&mut step);
    let before = (allocated(), settled_server_memory(server));
    (warm_up..times + warm_up).for_each(&mut step);
    let after = (allocated(), settled_server_memory(server));
    let grown = (after.0 - before.0, after.1 - before.1);
    println!("{}: {times} {what}: client {:+} bytes, server {:+} bytes", server.kind(), grown.0, grown.1);
    assert!(grown.0 < MAY_GROW, "the client keeps {} bytes after {times} {what}", grown.0);
    assert!(grown.1 < SERVER_MAY_GROW, "the server keeps {} bytes after {times} {what}", grown.1);
}

/// The smallest of a few looks: buffers of connections come and go.
fn settled_server_memory(server: &RedisServer) -> i64 {
    let looks = (0..10).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server_memory(server)
    });
    looks.min().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < SLACK, "not so after {SLACK:?}: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn trap_59_reconnects_leave_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for_each_server("trap_59_reconnects_leave_nothing", |server| {
        let runtime = runtime();
        let connect = |_| runtime.block_on(Client::connect(&server.url())).unwrap();
        let clients: Vec<Client> = (0..CLIENTS).map(connect).collect();
        let held = runtime.block_on(clients[0].lock("held").unwrap().ttl(TTL).try_acquire()).unwrap();
        let rounds = RECONNECTS * factor() / CLIENTS;
        assert_flat(server, &format!("times {CLIENTS} reconnects"), rounds, |_| {
            let subscribed = || -> BTreeSet<String> {
                let list = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
                list.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
            };
            let before = subscribed();
            assert_eq!(before.len(), CLIENTS);
            server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
            until("everybody is connected again", || {
                let now = subscribed();
                now.len() == CLIENTS && now.is_disjoint(&before)
            });
            for (number, client) in clients.iter().enumerate() {
                let lock = client.lock(format!("other:{number}")).unwrap().ttl(TTL);
                let Attempt::Acquired(guard) = runtime.block_on(lock.try_acquire()).unwrap() else {
                    panic!("held by nobody")
                };
                let _freed = runtime.block_on(guard.release()).unwrap();
            }
        });
        drop(held);
        for client in clients {
            runtime.block_on(client.close(SLACK)).unwrap();
            assert_eq!(client.load(), Load::default());
        }
    });
}

#[test]
fn trap_30_trap_59_cancelled_waits_leave_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for_each_server("trap_30_trap_59_cancelled_waits_leave_nothing", |server| {
        let runtime = runtime();
        let holder = runtime.block_on(Client::connect(&server.url())).unwrap();
        let client = runtime.block_on(Client::connect(&server.url())).unwrap();
        let held = runtime.block_on(holder.lock("job").unwrap().ttl(TTL).try_acquire()).unwrap();
        let one_crowd = |round: usize| {
            runtime.block_on(async {
                let mut waiting = tokio::task::JoinSet::new();
                for number in 0..CROWD {
                    // Most wait for one name behind each other, some alone for one of their own.
                    let name =
                        if number % 50 == 0 { format!("job:{round}:{number}") } else { "job".to_owned() };
                    if number % 50 == 0 {
                        let taken = holder.lock(&name).unwrap().ttl(TTL).try_acquire().await.unwrap();
                        waiting.spawn(async move {
                            let _held_while_they_wait = taken;
                            std::future::pending::<()>().await;
                        });
                    }
                    let lock = client.lock(&name).unwrap().ttl(TTL).wait_forever();
                    waiting.spawn(async move { drop(lock.acquire().await) });
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                assert!(client.load().waiters > 0, "nobody waits: there is nothing to cancel");
                waiting.shutdown().await;
            });
            until("nothing left to clean up", || {
                client.load() == Load::default() && holder.load().cleanups == 0
            });
        };
        let rounds = CANCELLED_WAITS * factor() / CROWD;
        assert_flat(server, &format!("times {CROWD} cancelled waits"), rounds, one_crowd);
        let seen = runtime.block_on(holder.inspect("job")).unwrap().unwrap();
        assert!(seen.waiters.is_empty(), "{seen:?}");
        drop(held);
    });
}
