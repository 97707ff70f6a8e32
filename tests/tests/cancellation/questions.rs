//! Questions dropped half-way change nothing; a break that is dropped breaks the lease or does not, and leaves
//! nothing else.

use std::time::Duration;

use leasehold::core::store::BreakMode;

use crate::harness::{Pair, Point, cancelled_at_every_point, free, take};

#[test]
fn looking_at_a_name() {
    cancelled_at_every_point("looking_at_a_name", "seen", async |pair: Pair, point: Point| {
        let name = point.name("seen");
        let guard = take(&pair.other, &name).await;
        let done = point.cancel(pair.ours.inspect(&name)).await;
        let completed = done.map(|seen| assert!(seen.unwrap().is_some())).is_some();
        free(guard).await;
        completed
    });
}

#[test]
fn listing_names() {
    cancelled_at_every_point("listing_names", "listed", async |pair: Pair, point: Point| {
        let name = point.name("listed");
        let guard = take(&pair.other, &name).await;
        let done = point.cancel(pair.ours.list(&name, 10)).await;
        let completed = done.map(|listing| assert!(!listing.unwrap().entries.is_empty())).is_some();
        free(guard).await;
        completed
    });
}

#[test]
fn diagnosing_the_store() {
    cancelled_at_every_point("diagnosing_the_store", "asked", async |pair: Pair, point: Point| {
        point.cancel(pair.ours.diagnose()).await.map(|findings| drop(findings.unwrap())).is_some()
    });
}

#[test]
fn breaking_a_lease_at_once() {
    cancelled_at_every_point("breaking_a_lease_at_once", "broken", async |pair: Pair, point: Point| {
        let name = point.name("broken");
        let guard = take(&pair.other, &name).await;
        let done = point.cancel(pair.ours.break_lease(&name, BreakMode::Now)).await;
        // Whether it was broken or not, its holder gives back what it has.
        drop(guard.release().await);
        done.map(|broken| drop(broken.unwrap())).is_some()
    });
}

#[test]
fn breaking_a_lease_with_notice() {
    cancelled_at_every_point("breaking_a_lease_with_notice", "noticed", async |pair: Pair, point: Point| {
        let name = point.name("noticed");
        // A broken name stays taken for as long as the lease would have lasted.
        let lock = pair.other.lock(&name).unwrap().ttl(Duration::from_secs(1));
        let guard = lock.try_acquire().await.unwrap().into_guard().unwrap();
        let done = point.cancel(pair.ours.break_lease(&name, BreakMode::Notice)).await;
        drop(guard.release().await);
        free(take(&pair.other, &name).await).await;
        done.map(|broken| drop(broken.unwrap())).is_some()
    });
}
