//! Memory stays flat over any number of names and waiters, in the client and on the server.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use crate::support::{World, acquired, busy, free, millis, pass, secs};

/// F112: Names that were used once leave nothing in memory and nothing in the store.
#[tokio::test(start_paused = true)]
async fn trap_59_f112_a_hundred_thousand_names_used_once_leave_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    for number in 0..100_000 {
        let guard = a.take(&format!("request:{number}"), secs(30)).await;
        if number % 2 == 0 {
            free(guard).await;
        } else {
            drop(guard);
        }
        if number % 1_000 == 0 {
            pass(millis(1)).await;
            assert!(world.stored_names() <= 1, "{} after {number}", world.stored_names());
        }
    }
    pass(millis(10)).await;
    world.assert_empty("after all");
    a.assert_idle("after all");
}

#[tokio::test(start_paused = true)]
async fn trap_59_names_that_were_waited_for_leave_nothing() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    for number in 0..2_000 {
        let name = format!("request:{number}");
        let guard = a.take(&name, secs(30)).await;
        busy(b.lock(&name).wait(millis(5)).acquire().await);
        let lock = b.lock(&name).wait_forever();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        pass(millis(2)).await;
        free(guard).await;
        free(acquired(waiter.await.unwrap())).await;
    }
    pass(secs(2)).await;
    world.assert_empty("after all");
    a.assert_idle("after all");
    b.assert_idle("after all");
}

#[tokio::test(start_paused = true)]
async fn trap_30_trap_59_a_hundred_thousand_cancelled_waits_leave_nothing() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(30)).await;
    for round in 0..100 {
        let lock = b.lock("job").wait_forever();
        let mut waiters: Vec<_> = (0..1_000).map(|_| Box::pin(lock.acquire())).collect();
        let mut context = Context::from_waker(Waker::noop());
        for waiter in &mut waiters {
            assert!(pin!(waiter).poll(&mut context).is_pending());
        }
        assert_eq!(b.client.load().names, 1);
        drop(waiters);
        pass(millis(5)).await;
        assert!(world.inspect("job").await.unwrap().waiters.is_empty(), "round {round}");
        b.assert_idle(round);
    }
    assert!(b.acquires() <= 100, "only the first of each thousand asked: {}", b.acquires());
    free(guard).await;
    world.assert_empty("after all");
}

#[tokio::test(start_paused = true)]
async fn trap_59_leases_that_ended_by_themselves_are_swept() {
    let world = World::new();
    for round in 0..50 {
        let process = world.process(&format!("p{round}")).await;
        for number in 0..100 {
            let lock = process.lock(&format!("job:{round}:{number}")).ttl(secs(1)).fixed_lease();
            std::mem::forget(acquired(lock.try_acquire().await));
        }
        process.store.kill();
        pass(secs(2)).await;
    }
    assert!(world.stored_names() <= 300, "{} names are kept", world.stored_names());
}
