//! A store that cannot be reached or does not answer: the two budgets, to wait for the lock and for the store,
//! and which of them decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::memory::{MemoryStore, MemoryWorld};
use leasehold_core::{
    Client, ClientSettings, Clock, Error, ErrorKind, KeeperRuntime, Released, Store, VirtualClock,
};

use crate::support::{
    Process, Random, TICK, World, acquired, assert_about, busy, free, millis, pass, secs, waiting,
};

/// What an outage looks like to the process.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Unreachable,
    Hang,
}

impl Outage {
    const ALL: [Self; 2] = [Self::Unreachable, Self::Hang];

    fn set(self, process: &Process, on: bool) {
        match self {
            Self::Unreachable => process.store.unreachable(on),
            Self::Hang => process.store.hang(on),
        }
    }
}

async fn start(store_timeout: Duration, connect: impl Fn() -> Attempted + Send + Sync + 'static) -> Started {
    let clock = Arc::new(VirtualClock::start());
    let world = MemoryWorld::new(clock.clone());
    let settings = ClientSettings {
        clock: clock.clone(),
        keeper: KeeperRuntime::Current,
        store_timeout,
        ..ClientSettings::default()
    };
    let started = clock.now();
    let client = Client::start(settings, move || {
        let attempted = connect();
        let world = Arc::clone(&world);
        async move {
            match attempted {
                Attempted::Error(kind) => Err(Error::new(kind, "not yet")),
                Attempted::Hang => std::future::pending().await,
                Attempted::Connected => Ok(Arc::new(MemoryStore::connect(&world)) as Arc<dyn Store>),
            }
        }
    })
    .await;
    (client, clock.now().since(started))
}

type Started = (Result<Client, Error>, Duration);

enum Attempted {
    Error(ErrorKind),
    Hang,
    Connected,
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_at_the_start_is_tried_again() {
    let attempts = AtomicU32::new(0);
    let (client, took) = start(secs(10), move || match attempts.fetch_add(1, Ordering::Relaxed) {
        0..5 => Attempted::Error(ErrorKind::Unavailable),
        _ => Attempted::Connected,
    })
    .await;
    assert!(took <= secs(5), "it took {took:?}");
    free(acquired(client.unwrap().lock("job").unwrap().try_acquire().await)).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_at_the_start_is_given_up_within_the_store_timeout() {
    let (client, took) = start(secs(4), || Attempted::Error(ErrorKind::Unavailable)).await;
    assert_eq!(client.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(took <= secs(4) + TICK && took >= secs(3), "it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_at_the_start_is_given_up_at_the_store_timeout() {
    let (client, took) = start(secs(4), || Attempted::Hang).await;
    assert_eq!(client.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_about(took, secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_setting_at_the_start_is_told_at_once() {
    let (client, took) = start(secs(4), || Attempted::Error(ErrorKind::Config)).await;
    let error = client.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable(), took), (ErrorKind::Config, false, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_store_timeout_only_costs_time() {
    for outage in Outage::ALL {
        let world = World::new();
        let a = world.process_with("a", |settings| settings.store_timeout = secs(5)).await;
        outage.set(&a, true);
        let lock = a.lock("job").ttl(secs(60));
        let attempt = tokio::spawn(async move { lock.try_acquire().await });
        pass(millis(4_000)).await;
        assert!(!attempt.is_finished(), "{outage:?}");
        outage.set(&a, false);
        let ended = world.now();
        free(acquired(attempt.await.unwrap())).await;
        assert!(world.now().since(ended) <= millis(1_010), "{outage:?}");
        pass(secs(3)).await;
        world.assert_empty(format!("{outage:?}"));
        a.assert_idle(format!("{outage:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_store_timeout_is_told_just_then() {
    for outage in Outage::ALL {
        for (timeout, wait) in
            [(millis(300), None), (secs(5), None), (secs(5), Some(secs(1))), (secs(5), Some(secs(60)))]
        {
            let world = World::new();
            let a = world.process_with("a", |settings| settings.store_timeout = timeout).await;
            outage.set(&a, true);
            let lock = a.lock("job").ttl(secs(60));
            let lock = if let Some(wait) = wait { lock.wait(wait) } else { lock };
            let started = world.now();
            let error = lock.acquire().await.unwrap_err();
            let context = format!("{outage:?} {timeout:?} {wait:?}: {error}");
            assert_about(world.now().since(started), timeout);
            let kind = match outage {
                Outage::Unreachable => ErrorKind::Unavailable,
                Outage::Hang => ErrorKind::Unknown,
            };
            assert_eq!((error.kind(), error.is_retryable()), (kind, true), "{context}");
            outage.set(&a, false);
            pass(secs(3)).await;
            world.assert_empty(&context);
            a.assert_idle(&context);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_knows_the_holder_is_told_busy_when_its_time_to_wait_ends_in_an_outage() {
    for outage in Outage::ALL {
        for wait in [millis(1_900), millis(2_500), millis(3_300), millis(5_000)] {
            let world = World::new();
            let (a, b) = (world.process("a").await, world.process("b").await);
            let _guard = a.take("job", secs(60)).await;
            let started = world.now();
            let waiter = waiting(b.lock("job").wait(wait));
            pass(millis(1_500)).await;
            outage.set(&b, true);
            let seen = busy(waiter.await.unwrap());
            assert_eq!(seen.holder.as_deref(), Some("a"));
            assert_about(world.now().since(started), wait);
            outage.set(&b, false);
            pass(secs(3)).await;
            assert!(world.inspect("job").await.unwrap().waiters.is_empty(), "withdrawn after {outage:?}");
            b.assert_idle(format!("{outage:?} {wait:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_of_an_outage_longer_than_the_store_timeout() {
    for outage in Outage::ALL {
        let world = World::new();
        let a = world.process("a").await;
        let b = world.process_with("b", |settings| settings.store_timeout = millis(3_500)).await;
        let _guard = a.take("job", secs(60)).await;
        let waiter = waiting(b.lock("job").wait_forever());
        pass(millis(1_500)).await;
        outage.set(&b, true);
        let failed = world.now();
        let error = waiter.await.unwrap().unwrap_err();
        // It notices when it asks the next time, half a second later.
        assert_about(world.now().since(failed), millis(4_000));
        assert!(error.is_retryable());
        outage.set(&b, false);
        pass(secs(3)).await;
        assert!(world.inspect("job").await.unwrap().waiters.is_empty(), "withdrawn after {outage:?}");
        b.assert_idle(format!("{outage:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_leaves_waiters_in_their_places() {
    for outage in Outage::ALL {
        let world = World::new();
        let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
        let guard = a.take("job", secs(60)).await;
        let second = waiting(b.lock("job").wait_forever());
        pass(millis(1)).await;
        let third = waiting(c.lock("job").wait_forever());
        pass(millis(1)).await;
        outage.set(&b, true);
        pass(secs(8)).await;
        outage.set(&b, false);
        pass(secs(2)).await;
        free(guard).await;
        let released = world.now();
        free(acquired(second.await.unwrap())).await;
        free(acquired(third.await.unwrap())).await;
        assert_about(world.now().since(released), Duration::ZERO);
    }
}

/// F013: In an outage the caller of a release is told at the store timeout, and the release goes on in the
/// background.
#[tokio::test(start_paused = true)]
async fn trap_31_f013_a_release_in_an_outage_is_told_at_the_store_timeout_and_goes_on() {
    for (outage, kind) in [(Outage::Unreachable, ErrorKind::Unavailable), (Outage::Hang, ErrorKind::Unknown)]
    {
        let world = World::new();
        let a = world.process_with("a", |settings| settings.store_timeout = millis(1_500)).await;
        let b = world.process("b").await;
        let guard = a.take("job", secs(60)).await;
        outage.set(&a, true);
        let started = world.now();
        let error = guard.release().await.unwrap_err();
        assert_about(world.now().since(started), millis(1_500));
        assert_eq!((error.kind(), error.is_retryable()), (kind, true), "{outage:?}");
        assert!(a.client.load().cleanups > 0, "it goes on in the background");
        pass(millis(500)).await;
        outage.set(&a, false);
        let ended = world.now();
        free(acquired(b.lock("job").wait(secs(3)).acquire().await)).await;
        assert!(world.now().since(ended) <= secs(2) + TICK, "{:?}", world.now().since(ended));
        a.assert_idle(format!("{outage:?}"));
        assert_eq!(a.renewals(), 0);
    }
}

/// F013: A release during a short outage succeeds.
#[tokio::test(start_paused = true)]
async fn f013_a_release_during_a_short_outage_succeeds() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(60)).await;
    a.store.unreachable(true);
    let release = tokio::spawn(guard.release());
    pass(secs(2)).await;
    a.store.unreachable(false);
    assert_eq!(release.await.unwrap().unwrap(), Released::Freed);
    a.assert_idle("after the release");
}

/// F049: Pauses of the store leave no lease and no renewal behind.
#[tokio::test(start_paused = true)]
async fn trap_13_f049_pauses_of_the_server_leave_no_lease_and_no_renewal() {
    for seed in 0..10 {
        let random = Random::new(seed);
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let lock = a.lock("job").ttl(secs(3));
        let worker = tokio::spawn(async move {
            for _ in 0..60 {
                if let Ok(leasehold_core::Attempt::Acquired(guard)) = lock.acquire().await {
                    pass(millis(100)).await;
                    drop(guard.release().await);
                }
            }
        });
        for _ in 0..10 {
            pass(random.millis(1_500)).await;
            world.freeze(true);
            pass(millis(2_500)).await;
            world.freeze(false);
        }
        worker.await.unwrap();
        pass(secs(3)).await;
        a.assert_idle(format!("seed {seed}"));
        let renewals = a.renewals();
        pass(secs(12)).await;
        assert_eq!(a.renewals(), renewals, "seed {seed}");
        free(acquired(b.lock("job").try_acquire().await)).await;
        world.assert_empty(format!("seed {seed}"));
    }
}

#[tokio::test(start_paused = true)]
async fn questions_are_asked_again_until_the_store_timeout() {
    let world = World::new();
    let a = world.process_with("a", |settings| settings.store_timeout = secs(3)).await;
    a.store.unreachable(true);
    let started = world.now();
    let error = a.client.inspect("job").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let took = world.now().since(started);
    assert!(took <= secs(3) + TICK && took >= secs(2), "it took {took:?}");
    a.store.unreachable(false);
    assert!(a.client.inspect("job").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_begins_nothing_and_waits_for_what_it_began() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(60)).await;
    a.store.delay_requests(millis(400));
    drop(guard);
    let started = world.now();
    a.client.close(secs(5)).await.unwrap();
    assert_about(world.now().since(started), millis(400));
    world.assert_empty("after the close");
    assert_eq!(a.lock("job").try_acquire().await.unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn a_close_that_takes_too_long_says_so() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(60)).await;
    a.store.hang(true);
    drop(guard);
    let started = world.now();
    let error = a.client.close(millis(700)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_about(world.now().since(started), millis(700));
}
