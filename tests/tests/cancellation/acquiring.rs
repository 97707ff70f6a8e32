//! Acquisitions that are dropped half-way: of a free name, of a taken one, waiting for a hand-over, waiting behind
//! another waiter of the same process, and as a scope.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::core::{Attempt, Released};

use crate::harness::{Pair, Point, TTL, cancelled_at_every_point, free, take, until_nobody_waits};

#[test]
fn trap_30_a_free_name() {
    cancelled_at_every_point("trap_30_a_free_name", "free", async |pair: Pair, point: Point| {
        let name = point.name("free");
        let lock = pair.ours.lock(&name).unwrap().ttl(TTL);
        let done = point.cancel(lock.try_acquire()).await;
        let completed = done.map(|attempt| drop(attempt.unwrap().into_guard().unwrap())).is_some();
        // Nobody is kept out by the one that left.
        free(take(&pair.other, &name).await).await;
        completed
    });
}

#[test]
fn trap_30_a_name_that_is_taken() {
    cancelled_at_every_point("trap_30_a_name_that_is_taken", "taken", async |pair: Pair, point: Point| {
        let guard = take(&pair.other, &point.name("taken")).await;
        let lock = pair.ours.lock(point.name("taken")).unwrap().ttl(TTL).wait(Duration::from_millis(12));
        let done = point.cancel(lock.acquire()).await;
        let completed = done.map(|attempt| assert!(matches!(attempt, Ok(Attempt::Busy(_))))).is_some();
        until_nobody_waits(&pair.other, &point.name("taken")).await;
        free(guard).await;
        completed
    });
}

#[test]
fn trap_27_trap_30_a_wait_that_ends_with_a_hand_over() {
    let test = "trap_27_trap_30_a_wait_that_ends_with_a_hand_over";
    cancelled_at_every_point(test, "waited", async |pair: Pair, point: Point| {
        let name = point.name("waited");
        let guard = take(&pair.other, &name).await;
        let freed = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(15)).await;
            free(guard).await;
        });
        let lock = pair.ours.lock(&name).unwrap().ttl(TTL).wait_forever();
        let done = point.cancel(lock.acquire()).await;
        let completed = done.map(|attempt| drop(attempt.unwrap().into_guard().unwrap())).is_some();
        freed.await.unwrap();
        free(take(&pair.other, &name).await).await;
        completed
    });
}

#[test]
fn trap_30_a_wait_behind_another_waiter_of_the_same_process() {
    let test = "trap_30_a_wait_behind_another_waiter_of_the_same_process";
    cancelled_at_every_point(test, "behind", async |pair: Pair, point: Point| {
        let name = point.name("behind");
        let guard = take(&pair.other, &name).await;
        let first = pair.ours.lock(&name).unwrap().ttl(TTL).wait_forever();
        let first = tokio::spawn(async move {
            let guard = first.acquire().await.unwrap().into_guard().unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            free(guard).await;
        });
        tokio::time::sleep(Duration::from_millis(8)).await;
        let second = pair.ours.lock(&name).unwrap().ttl(TTL).wait_forever();
        let freed = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            free(guard).await;
        });
        let done = point.cancel(second.acquire()).await;
        let completed = done.map(|attempt| drop(attempt.unwrap().into_guard().unwrap())).is_some();
        freed.await.unwrap();
        first.await.unwrap();
        free(take(&pair.other, &name).await).await;
        completed
    });
}

#[test]
fn trap_30_a_scope_drops_its_body_and_frees_the_name() {
    struct Work(Arc<AtomicBool>);
    impl Drop for Work {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let test = "trap_30_a_scope_drops_its_body_and_frees_the_name";
    cancelled_at_every_point(test, "run", async |pair: Pair, point: Point| {
        let name = point.name("run");
        let ended = Arc::new(AtomicBool::new(false));
        let work = Work(Arc::clone(&ended));
        let body = async move |_| {
            let _work = work;
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok::<_, Infallible>("done")
        };
        let done = point.cancel(pair.ours.lock(&name).unwrap().ttl(TTL).run(body)).await;
        assert!(ended.load(Ordering::Relaxed), "the body is gone");
        let completed = done.map(|done| {
            let done = done.unwrap();
            assert_eq!((done.value, done.released.unwrap()), ("done", Released::Freed));
        });
        free(take(&pair.other, &name).await).await;
        completed.is_some()
    });
}
