//! Failures that users met elsewhere and that need no fault of the network: the name of a test begins with the
//! case's number.

use leasehold_core::{Attempt, Name};

use crate::support::*;

/// F099: However often a lease is renewed, its holder's death frees the name within one TTL.
#[tokio::test(start_paused = true)]
async fn f099_renewing_often_never_makes_a_lease_longer_than_its_ttl() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(10)).await;
    for _ in 0..20 {
        pass(secs(1)).await;
        guard.renew().await.unwrap();
        assert!(world.lease_left("job").await <= secs(10));
    }
    a.store.kill();
    let died = world.now();
    free(acquired(b.lock("job").wait(secs(20)).acquire().await)).await;
    assert!(world.now().since(died) <= secs(10) + TICK);
}

/// F124: A second acquire through the same lock object is refused like anybody else's; prolonging is a call
/// of its own.
#[tokio::test(start_paused = true)]
async fn f124_a_lock_acquired_twice_is_refused_the_second_time() {
    let world = World::new();
    let a = world.process("a").await;
    let lock = a.lock("job");
    let guard = acquired(lock.try_acquire().await);
    let Attempt::Busy(busy) = lock.try_acquire().await.unwrap() else {
        panic!("the same lock was granted twice")
    };
    assert_eq!(busy.holder.as_deref(), Some("a"));
    free(guard).await;
}

/// F090: Nothing is forgotten because many other names were used: there is no cache of locks that evicts.
#[tokio::test(start_paused = true)]
async fn f090_touching_many_other_names_takes_nothing_from_a_holder_or_a_waiter() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(5)).await;
    let waiter = {
        let lock = a.lock("job").wait_forever();
        tokio::spawn(async move { acquired(lock.acquire().await).fencing_token() })
    };
    for number in 0..1_000 {
        free(acquired(a.lock(&format!("other:{number}")).try_acquire().await)).await;
    }
    assert!(matches!(a.lock("job").try_acquire().await, Ok(Attempt::Busy(_))));
    let token = guard.fencing_token();
    free(guard).await;
    assert!(waiter.await.unwrap() > token);
}

/// F109: Acquiring is one atomic step, so contenders never enter together however a release and their tries
/// interleave.
#[tokio::test(start_paused = true)]
async fn f109_fifty_contenders_never_enter_together_over_thousands_of_rounds() {
    let world = World::new();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = Vec::new();
    for number in 0..50 {
        let process = world.process(&format!("p{number}")).await;
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..200_u64 {
                // Half of them wait, half of them try again by themselves.
                let lock = process.lock("job");
                let attempt = if round % 2 == 0 {
                    lock.wait_forever().acquire().await.unwrap()
                } else {
                    lock.try_acquire().await.unwrap()
                };
                let Attempt::Acquired(guard) = attempt else {
                    pass(millis(round % 7)).await;
                    continue;
                };
                let before = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(before, 0, "two are inside");
                pass(millis(round % 3)).await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                free(guard).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// F144: Names up to 512 bytes are used verbatim and stay distinct; longer ones and control characters are
/// refused.
#[tokio::test(start_paused = true)]
async fn f144_long_names_that_differ_in_one_place_are_different_and_too_long_ones_are_refused() {
    let world = World::new();
    let a = world.process("a").await;
    let names = ["x", "y", "X"].map(|last| format!("{}{last}", "n".repeat(511)));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(acquired(a.lock(name).try_acquire().await));
    }
    for guard in guards {
        free(guard).await;
    }
    for bad in ["n".repeat(513), "n".repeat(64 * 1024), "a\0b".into(), "a\nb".into()] {
        assert!(Name::new(&bad).is_err());
        assert!(a.client.lock(&bad).is_err());
    }
}

/// F114: Rounds without a waiter, and waiters that give up, leave nothing in client or store.
#[tokio::test(start_paused = true)]
async fn f114_a_hundred_thousand_rounds_without_a_waiter_leave_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    for _ in 0..100_000 {
        free(acquired(a.lock("job").try_acquire().await)).await;
    }
    world.assert_empty("after the rounds");
    let holder = a.take("job", secs(60)).await;
    let b = world.process("b").await;
    for _ in 0..1_000 {
        assert!(matches!(b.lock("job").wait(millis(5)).acquire().await, Ok(Attempt::Busy(_))));
    }
    free(holder).await;
    pass(secs(1)).await;
    world.assert_empty("after waiters that gave up");
}
