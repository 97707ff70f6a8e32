//! Run once across processes: a thousand events, each delivered twice and again whenever a worker died, three workers
//! that are killed and frozen at random, and a carrier that sometimes ships without answering.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod carrier;
#[path = "../common/mod.rs"]
mod common;
mod queue;

use std::sync::atomic::Ordering;
use std::time::Duration;

use carrier::Carrier;
use leasehold::{Name, Namespace, idempotency_key};
use leasehold_testkit::servers::{RedisServer, kinds_to_test};
use queue::Queue;

const WORKERS: usize = 3;
const ORDERS: usize = 1_000;
const TTL: Duration = Duration::from_millis(700);

/// Every order is shipped once, however often its event comes; every request for it has its one key; and everybody
/// who asks gets the tracking number of the parcel that went out.
fn ships_each_order_once(store: &str, seed: u64) {
    let carrier = Carrier::start(seed);
    let mut queue = Queue::new(store, &carrier.address.to_string(), TTL, ORDERS, seed);
    queue.run(WORKERS);
    let books = &carrier.books;
    let (keys, parcels) = (books.keys.lock().unwrap(), books.parcels.lock().unwrap());
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let repeats: u32 = queue.ran.values().map(|ran| ran.saturating_sub(1)).sum();
    println!(
        "{ORDERS} orders, {} requests, {} timeouts after acting, {} refusals, {} kills, {} stops, {} parcels, {repeats} \
         results that came twice; again: {:?}",
        count(&books.requests),
        count(&books.timeouts),
        count(&books.refusals),
        queue.kills,
        queue.stops,
        parcels.len(),
        queue.again
    );
    assert_eq!((keys.len(), parcels.len(), queue.tracking.len()), (ORDERS, ORDERS, ORDERS));
    for (order, keys) in &*keys {
        let name = Name::new(format!("ship:{order}")).unwrap();
        let key = idempotency_key(&Namespace::default(), &name).to_string();
        assert_eq!(Vec::from_iter(keys), [&key], "{order}");
        let (shipped, tracking) = &parcels[&key];
        assert_eq!((shipped, Vec::from_iter(&queue.tracking[order])), (order, vec![tracking]));
    }
    assert_eq!(repeats, 0, "a result was kept, and the operation ran again");
    assert!(queue.kills >= 3 && queue.stops >= 3, "too quiet to say anything");
    assert!(count(&books.timeouts) > 20 && count(&books.refusals) > 20, "too quiet to say anything");
    assert!(
        count(&books.requests) < 2 * u64::try_from(ORDERS).unwrap(),
        "later deliveries are not asked for again"
    );
}

#[test]
fn trap_56_each_order_is_shipped_once_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    ships_each_order_once(&format!("sqlite:{}", folder.path().join("locks.db").display()), 1);
}

#[test]
fn trap_56_each_order_is_shipped_once_on_redis() {
    // One kind is enough here: what the scripts do on the others is in the conformance suite.
    if let Some(kind) = kinds_to_test("trap_56_each_order_is_shipped_once_on_redis").into_iter().next() {
        let server = RedisServer::start(kind).unwrap();
        ships_each_order_once(&server.url(), 2);
    }
}
