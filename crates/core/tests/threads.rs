//! The engine on a thread of its own, with a real clock: programs that block, that use no async, that drop
//! things in places where nothing can be awaited.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics; the lints' own exceptions do not reach helpers of tests"
)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::blocking::{self, block_on};
use leasehold_core::{
    Attempt, Client, ClientSettings, Error, ErrorKind, Guard, KeeperRuntime, Label, Lease, LeaseState, Load,
    LostCause, MemoryStore, MemoryWorld, Name, Released, RunError, Store, SystemClock, VirtualClock,
};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

fn world() -> Arc<MemoryWorld> {
    MemoryWorld::new(Arc::new(SystemClock))
}

fn settings(label: &str) -> ClientSettings {
    ClientSettings { label: Some(Label::new(label).unwrap()), ..ClientSettings::default() }
}

async fn start(settings: ClientSettings, store: &Arc<MemoryStore>) -> Client {
    let store = Arc::downgrade(store);
    let connect = move || {
        let store: Arc<dyn Store> = store.upgrade().expect("the test keeps it");
        async move { Ok(store) }
    };
    Client::start(settings, connect).await.unwrap()
}

async fn client(world: &Arc<MemoryWorld>, label: &str) -> Client {
    start(settings(label), &Arc::new(MemoryStore::connect(world))).await
}

fn acquired(attempt: Result<Attempt, Error>) -> Guard {
    attempt.unwrap().into_guard().unwrap()
}

#[allow(clippy::disallowed_methods, reason = "here a thread that sleeps is the point")]
fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

#[allow(clippy::disallowed_methods, reason = "real time is the point here")]
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "timed out: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// F015: Renewal runs on a thread of its own, so a blocked runtime costs no lease.
#[tokio::test]
async fn trap_19_f015_a_program_that_blocks_its_runtime_for_three_ttls_keeps_its_lease() {
    let world = world();
    let (a, b) = (client(&world, "a").await, client(&world, "b").await);
    let ttl = Duration::from_secs(2);
    let guard = acquired(a.lock("job").unwrap().ttl(ttl).try_acquire().await);
    for _ in 0..6 {
        sleep(ttl / 2);
        assert_eq!(guard.state(), LeaseState::Held);
        assert!(matches!(b.lock("job").unwrap().try_acquire().await, Ok(Attempt::Busy(_))));
    }
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

#[test]
fn threads_without_async_exclude_each_other() {
    let world = world();
    let inside = Arc::new(AtomicU32::new(0));
    let runs = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let (world, inside, runs) = (Arc::clone(&world), Arc::clone(&inside), Arc::clone(&runs));
            std::thread::spawn(move || {
                let client = block_on(client(&world, &format!("process-{}", number / 2)));
                for _ in 0..40 {
                    let lock = client.lock("job").unwrap().wait_forever().blocking();
                    let body = |_: &Lease| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok::<_, Infallible>(runs.fetch_add(1, Ordering::SeqCst))
                    };
                    assert_eq!(lock.run(body).unwrap().released.unwrap(), Released::Freed);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 240);
    assert_eq!(world.stored_names(), 0);
}

#[tokio::test]
async fn the_blocking_form_works_inside_an_async_context() {
    let world = world();
    let (a, b) = (client(&world, "a").await, client(&world, "b").await);
    let lock = a.lock("job").unwrap().blocking();
    let blocking::Attempt::Acquired(guard) = lock.acquire().unwrap() else { panic!("busy") };
    guard.renew().unwrap();
    guard.extend(Duration::from_secs(60)).unwrap();
    let waiting = b.lock("job").unwrap().wait(Duration::from_millis(20)).blocking();
    assert!(matches!(waiting.acquire().unwrap(), blocking::Attempt::Busy(_)));
    assert!(matches!(waiting.try_acquire().unwrap(), blocking::Attempt::Busy(_)));
    assert_eq!(guard.release().unwrap(), Released::Freed);
    // Dropped by the thread that runs the runtime.
    drop(lock.acquire().unwrap());
    wait_until("the dropped guard is released", || world.stored_names() == 0);
}

#[test]
fn a_blocking_body_whose_lease_is_lost_gives_its_value_with_the_loss() {
    let world = world();
    let client = block_on(client(&world, "a"));
    let lock = client.lock("job").unwrap().ttl(Duration::from_millis(300)).blocking();
    let outcome = lock.run(|lease| {
        world.evict(lease.name());
        block_on(lease.cancelled());
        Ok::<_, Infallible>("too late")
    });
    let Err(RunError::Lost { cause, value, .. }) = outcome else { panic!("{outcome:?}") };
    // On a machine so busy that the lease ended first, that is the cause.
    assert!(matches!(cause, LostCause::Missing | LostCause::Expired | LostCause::Unreachable), "{cause:?}");
    assert_eq!(value, Some("too late"));
}

#[test]
fn a_blocking_body_that_panics_frees_the_name() {
    let world = world();
    let client = block_on(client(&world, "a"));
    let lock = client.lock("job").unwrap().blocking();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lock.run(|_| -> Result<(), Infallible> { std::panic::resume_unwind(Box::new("the body fails")) })
    }));
    assert!(outcome.is_err());
    wait_until("the name is free", || world.stored_names() == 0);
}

/// F123: The blocking form refuses it too, but not to a section whose lease is over: that one waits for others.
#[test]
fn f123_a_blocking_section_waits_for_its_own_name_only_after_its_lease() {
    let client = block_on(client(&world(), "a"));
    let waits = client.lock("job").unwrap().wait(PATIENCE).blocking();
    let limit = Duration::from_secs(1);
    let done = client.lock("job").unwrap().ttl(limit).max_hold(limit).blocking().run(|lease| {
        let refused = waits.acquire().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        block_on(lease.lost());
        let blocking::Attempt::Acquired(guard) = waits.acquire().unwrap() else { panic!("busy") };
        assert_eq!(guard.release().unwrap(), Released::Freed);
        Ok::<_, Infallible>(())
    });
    assert!(matches!(done, Err(RunError::Lost { value: Some(()), .. })), "{done:?}");
}

/// F079: A guard can be moved to another thread or task and be released there.
#[test]
fn trap_34_f079_a_guard_belongs_to_no_thread() {
    fn is_free_to_go<T: Send + Sync + 'static>() {}
    is_free_to_go::<Guard>();
    is_free_to_go::<Lease>();
    is_free_to_go::<Client>();
    is_free_to_go::<leasehold_core::Lock>();
    is_free_to_go::<blocking::Guard>();

    let world = world();
    let client = block_on(client(&world, "a"));
    let guard = acquired(block_on(client.lock("job").unwrap().try_acquire()));
    let released = std::thread::spawn(move || block_on(guard.release()).unwrap()).join().unwrap();
    assert_eq!(released, Released::Freed);
}

/// F010: A guard dropped on a thread without a runtime gives its name back.
#[test]
fn trap_32_f010_a_guard_may_be_dropped_where_there_is_no_runtime() {
    let world = world();
    let client = block_on(client(&world, "a"));
    let guard = acquired(block_on(client.lock("job").unwrap().try_acquire()));
    std::thread::spawn(move || drop(guard)).join().unwrap();
    block_on(client.close(PATIENCE)).unwrap();
    assert_eq!(world.stored_names(), 0);
}

/// F010: A guard dropped after its runtime has gone gives its name back.
#[test]
fn trap_32_f010_a_guard_may_be_dropped_after_the_runtime_it_was_acquired_on_is_gone() {
    let world = world();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (client, guard) = runtime.block_on(async {
        let client = client(&world, "a").await;
        let guard = acquired(client.lock("job").unwrap().try_acquire().await);
        (client, guard)
    });
    drop(runtime);
    assert_eq!(guard.state(), LeaseState::Held);
    drop(guard);
    block_on(client.close(PATIENCE)).unwrap();
    assert_eq!(world.stored_names(), 0);
}

#[test]
fn trap_32_everything_may_be_dropped_after_the_runtime_of_the_keeper_is_gone() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (client, guard, store) = runtime.block_on(async {
        let clock = Arc::new(VirtualClock::start());
        let store = Arc::new(MemoryStore::connect(&MemoryWorld::new(clock.clone())));
        let settings = ClientSettings { clock, keeper: KeeperRuntime::Current, ..settings("a") };
        let client = start(settings, &store).await;
        let guard = acquired(client.lock("job").unwrap().try_acquire().await);
        (client, guard, store)
    });
    drop(runtime);
    drop(guard);
    assert_eq!(client.load(), Load { cleanups: 1, ..Load::default() }, "nobody is there to do it");
    drop(client);
    // The TTL is what ends such a lease.
    assert!(store.world().raw_get(&Name::new("job").unwrap()).is_some());
}

#[test]
fn the_engines_thread_ends_with_the_last_use_of_its_client() {
    let world = world();
    let store = Arc::new(MemoryStore::connect(&world));
    let client = block_on(start(settings("a"), &store));
    let guard = acquired(block_on(client.lock("job").unwrap().try_acquire()));
    let other = client.clone();
    drop((client, other));
    sleep(Duration::from_millis(50));
    assert!(Arc::strong_count(&store) > 1, "a held guard keeps the thread");
    drop(guard);
    wait_until("the thread lets go of the store", || Arc::strong_count(&store) == 1);
    assert_eq!(world.stored_names(), 0, "released before the end");
}

#[test]
fn closing_waits_for_releases_in_the_background() {
    let world = world();
    let store = Arc::new(MemoryStore::connect(&world));
    let client = block_on(start(settings("a"), &store));
    for number in 0..100 {
        drop(acquired(block_on(client.lock(format!("job:{number}")).unwrap().try_acquire())));
    }
    let last = acquired(block_on(client.lock("last").unwrap().try_acquire()));
    store.delay_requests(Duration::from_millis(30));
    drop(last);
    block_on(client.close(PATIENCE)).unwrap();
    assert_eq!(world.stored_names(), 0);
    assert_eq!(client.load(), Load::default());
}

#[test]
fn one_client_serves_several_runtimes() {
    let world = world();
    let client = block_on(client(&world, "a"));
    let runs = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (client, runs) = (client.clone(), Arc::clone(&runs));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for _ in 0..50 {
                        let lock = client.lock("job").unwrap().wait_forever();
                        let body = async |_| Ok::<_, Infallible>(runs.fetch_add(1, Ordering::SeqCst));
                        lock.run(body).await.unwrap();
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 150);
    assert_eq!(world.stored_names(), 0);
}
