//! What a holder asks of its lease, dropped half-way: a renewal and an extension go on, a release completes.

use std::time::Duration;

use leasehold::core::{LeaseState, Released};

use crate::harness::{Pair, Point, SLACK, TTL, cancelled_at_every_point, free, take};

/// Less than this is left of a lease that was neither renewed nor extended.
const NOT_RENEWED: Duration = Duration::from_millis(59_000);

#[test]
fn a_renewal_goes_on() {
    cancelled_at_every_point("a_renewal_goes_on", "renewed", async |pair: Pair, point: Point| {
        let guard = take(&pair.ours, &point.name("renewed")).await;
        let done = point.cancel(guard.renew()).await;
        let completed = done.map(|renewed| renewed.unwrap()).is_some();
        assert_eq!(guard.state(), LeaseState::Held);
        free(guard).await;
        completed
    });
}

#[test]
fn an_extension_goes_on() {
    cancelled_at_every_point("an_extension_goes_on", "extended", async |pair: Pair, point: Point| {
        let name = point.name("extended");
        let lock = pair.ours.lock(&name).unwrap().ttl(SLACK);
        let guard = lock.try_acquire().await.unwrap().into_guard().unwrap();
        let done = point.cancel(guard.extend(TTL)).await;
        let completed = done.map(|extended| extended.unwrap()).is_some();
        let started = std::time::Instant::now();
        while guard.remaining() < NOT_RENEWED {
            assert!(started.elapsed() < SLACK / 2, "not extended: {:?} are left", guard.remaining());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        free(guard).await;
        completed
    });
}

#[test]
fn trap_31_a_release_completes() {
    cancelled_at_every_point("trap_31_a_release_completes", "freed", async |pair: Pair, point: Point| {
        let name = point.name("freed");
        let guard = take(&pair.ours, &name).await;
        let done = point.cancel(guard.release()).await;
        let completed = done.map(|released| assert_eq!(released.unwrap(), Released::Freed)).is_some();
        free(take(&pair.other, &name).await).await;
        completed
    });
}

#[test]
fn trap_31_a_release_to_a_waiter_completes() {
    let test = "trap_31_a_release_to_a_waiter_completes";
    cancelled_at_every_point(test, "handed", async |pair: Pair, point: Point| {
        let name = point.name("handed");
        let guard = take(&pair.ours, &name).await;
        let lock = pair.other.lock(&name).unwrap().ttl(TTL).wait(SLACK);
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap().into_guard().unwrap() });
        tokio::time::sleep(Duration::from_millis(8)).await;
        let done = point.cancel(guard.release()).await;
        let completed = done.map(|released| assert_eq!(released.unwrap(), Released::Freed)).is_some();
        free(waiter.await.unwrap()).await;
        completed
    });
}

#[test]
fn the_wait_for_a_loss_can_be_given_up_and_begun_again() {
    let test = "the_wait_for_a_loss_can_be_given_up_and_begun_again";
    cancelled_at_every_point(test, "lost", async |pair: Pair, point: Point| {
        let name = point.name("lost");
        let lock = pair.ours.lock(&name).unwrap().ttl(Duration::from_millis(100)).fixed_lease();
        let guard = lock.try_acquire().await.unwrap().into_guard().unwrap();
        let lost = async {
            // More points to be dropped at than the one of a single wait.
            for _ in 0..3 {
                let _ = tokio::time::timeout(Duration::from_millis(3), guard.lost()).await;
            }
            guard.lost().await
        };
        let completed = point.cancel(lost).await.is_some();
        assert!(tokio::time::timeout(SLACK, guard.lost()).await.is_ok(), "the loss was never told");
        drop(guard);
        completed
    });
}
