//! Events and spans of the engine that belong to no loss.

use leasehold::core::memory::Operation;
use tracing::Level;

use crate::support::{Seen, World, pass, secs, take, wait_for};

#[tokio::test(start_paused = true)]
async fn an_acquisition_runs_in_a_span_that_names_it() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    let held = take(&process.client, "job").await;
    let span = seen.told_once("span leasehold.acquire");
    assert_eq!((span.level, span.fields["name"].as_str()), (Level::DEBUG, "job"));
    let _ = held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_wait_is_told() {
    let seen = Seen::start();
    let world = World::new();
    let (one, other) = (world.process("one").await, world.process("other").await);
    let held = take(&one.client, "job").await;
    let waiter = wait_for(&other.client, "job");
    pass(secs(2)).await;
    waiter.abort();
    pass(secs(1)).await;
    let told = seen.told_once("acquisition abandoned");
    assert_eq!((told.level, told.fields["name"].as_str()), (Level::DEBUG, "job"));
    assert!(told.fields["waited"].starts_with('2'), "{told:?}");
    assert_eq!(told.inside, "leasehold.acquire");
    let _ = held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_told_and_a_quiet_life_is_not() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    let held = take(&process.client, "job").await;
    pass(secs(25)).await;
    assert_eq!(seen.told().len(), 1, "only the span: {:#?}", seen.told());
    process.store.unreachable(true);
    pass(secs(6)).await;
    process.store.unreachable(false);
    pass(secs(6)).await;
    let told: Vec<_> = seen.told().into_iter().filter(|event| event.message == "renewal failed").collect();
    assert!(!told.is_empty());
    assert!(told.iter().all(|event| event.level == Level::DEBUG && event.fields["name"] == "job"));
    process.store.lose_next_reply(Operation::Release);
    let secret = held.owner_token().expose().to_owned();
    drop(held);
    pass(secs(3)).await;
    assert!(!format!("{:?}", seen.told()).contains(&secret));
}

/// F123: A task that waits for the guard it keeps by hand is not told apart from others, but after a TTL the log warns
/// of it, once.
#[tokio::test(start_paused = true)]
async fn f123_waiting_for_a_lease_of_the_own_client_is_warned_of_after_a_ttl() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    let held = take(&process.client, "job").await;
    let waiter = wait_for(&process.client, "job");
    let words = "waiting for a name that this client holds itself";
    let warned =
        || seen.told().into_iter().filter(|told| told.message.starts_with(words)).collect::<Vec<_>>();
    pass(secs(25)).await;
    assert!(warned().is_empty(), "{:?}", warned());
    pass(secs(200)).await;
    let [told] = warned().try_into().unwrap();
    assert_eq!((told.level, told.fields["name"].as_str()), (Level::WARN, "job"));
    let _ = held.release().await.unwrap();
    let _ = waiter.await.unwrap().release().await.unwrap();
    // Waiting as long for somebody else is no mistake.
    let other = world.process("other").await;
    let held = take(&other.client, "theirs").await;
    let waiter = wait_for(&process.client, "theirs");
    pass(secs(200)).await;
    let _ = held.release().await.unwrap();
    let _ = waiter.await.unwrap().release().await.unwrap();
    assert_eq!(warned().len(), 1);
}
