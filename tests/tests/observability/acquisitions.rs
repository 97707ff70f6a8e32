//! Metrics of acquiring, waiting and handing over.

use leasehold::core::memory::{GrantBound, Operation};
use leasehold::{Attempt, ErrorKind, Name};

use crate::support::{Seen, World, about, guard, pass, secs, take, wait_for};

/// F069: An acquisition is counted once, by how it ended, with the time it took.
#[tokio::test(start_paused = true)]
async fn f069_an_acquisition_is_counted_once_by_how_it_ended_with_its_time() {
    let seen = Seen::start();
    let world = World::new();
    let (one, other) = (world.process("one").await, world.process("other").await);
    let held = take(&one.client, "job").await;
    assert_eq!(seen.figures().times("leasehold_acquire_seconds{outcome=granted}").len(), 1);

    let busy = other.client.lock("job").unwrap().try_acquire().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(_)));
    let busy = other.client.lock("job").unwrap().wait(secs(3)).acquire().await.unwrap();
    assert!(matches!(busy, Attempt::Busy(_)));
    let figures = seen.figures();
    let waited = figures.times("leasehold_acquire_seconds{outcome=busy}");
    assert!(waited.len() == 2 && about(waited[0], 0.0) && about(waited[1], 3.0), "{waited:?}");

    let lock = other.client.lock("job").unwrap().wait_forever();
    assert!(tokio::time::timeout(secs(2), lock.acquire()).await.is_err());
    let waited = seen.figures().times("leasehold_acquire_seconds{outcome=cancelled}");
    assert!(waited.len() == 1 && about(waited[0], 2.0), "{waited:?}");

    other.store.refuse(&Name::new("forbidden").unwrap(), Some(ErrorKind::Denied));
    assert!(other.client.lock("forbidden").unwrap().try_acquire().await.is_err());
    let figures = seen.figures();
    assert_eq!(figures.times("leasehold_acquire_seconds{outcome=failed}").len(), 1);
    assert_eq!(figures.times("leasehold_acquire_seconds{outcome=granted}").len(), 0);
    let _ = held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_is_counted_on_both_sides() {
    let seen = Seen::start();
    let world = World::new();
    let (one, other) = (world.process("one").await, world.process("other").await);
    let held = take(&one.client, "job").await;
    let waiter = wait_for(&other.client, "job");
    pass(secs(1)).await;
    let _ = seen.figures();
    let _ = held.release().await.unwrap();
    let held = waiter.await.unwrap();
    let figures = seen.figures();
    assert_eq!(figures.count("leasehold_handovers_total{side=given}"), 1);
    assert_eq!(figures.count("leasehold_handovers_total{side=received}"), 1);
    let _ = held.release().await.unwrap();
    assert_eq!(seen.figures().count("leasehold_handovers_total{side=given}"), 0, "nobody waited");
}

#[tokio::test(start_paused = true)]
async fn each_reason_to_ask_again_is_counted_by_itself() {
    let seen = Seen::start();
    let world = World::new();
    let (one, other) = (world.process("one").await, world.process("other").await);
    let asked = |reason: &str| format!("leasehold_asked_again_total{{reason={reason}}}");
    let held = take(&one.client, "job").await;
    let waiter = wait_for(&other.client, "job");
    pass(secs(4)).await;
    let figures = seen.figures();
    assert!((2..=4).contains(&figures.count(&asked("poll"))), "once a second: {figures:?}");
    for reason in ["confirm", "reconnect", "trouble"] {
        assert_eq!(figures.count(&asked(reason)), 0, "{reason}");
    }

    other.store.reconnect();
    pass(secs(1) / 10).await;
    assert_eq!(seen.figures().count(&asked("reconnect")), 1);

    other.store.unreachable(true);
    pass(secs(3)).await;
    other.store.unreachable(false);
    pass(secs(2)).await;
    assert!(seen.figures().count(&asked("trouble")) >= 2);

    other.store.set_grant_bound(GrantBound::Unknown);
    let _ = held.release().await.unwrap();
    let held = waiter.await.unwrap();
    let figures = seen.figures();
    assert_eq!(figures.count(&asked("confirm")), 1, "{figures:?}");
    assert_eq!(figures.count("leasehold_handovers_total{side=received}"), 0, "it was asked for");
    let _ = held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_must_poll_is_counted_once() {
    let seen = Seen::start();
    let world = World::new();
    let (one, other) = (world.process("one").await, world.process_without_push("other").await);
    let held = take(&one.client, "job").await;
    let waiter = wait_for(&other.client, "job");
    pass(secs(5)).await;
    let _ = held.release().await.unwrap();
    let held = waiter.await.unwrap();
    let figures = seen.figures();
    assert_eq!(figures.count("leasehold_polling_fallbacks_total"), 1);
    let waiter = wait_for(&one.client, "job");
    pass(secs(5)).await;
    let _ = held.release().await.unwrap();
    let _ = waiter.await.unwrap().release().await.unwrap();
    assert_eq!(seen.figures().count("leasehold_polling_fallbacks_total"), 0, "this one has a channel");
}

#[tokio::test(start_paused = true)]
async fn clean_ups_are_counted_by_how_they_ended() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    drop(take(&process.client, "dropped").await);
    pass(secs(1)).await;
    assert_eq!(seen.figures().count("leasehold_cleanups_total{outcome=done}"), 1);

    let held = take(&process.client, "refused").await;
    process.store.refuse(&Name::new("refused").unwrap(), Some(ErrorKind::Denied));
    drop(held);
    pass(secs(1)).await;
    assert_eq!(seen.figures().count("leasehold_cleanups_total{outcome=refused}"), 1);
    assert_eq!(seen.told_once("could not clean up").fields["name"], "refused");

    let held = take(&process.client, "unreachable").await;
    process.store.unreachable(true);
    drop(held);
    pass(secs(60)).await;
    assert_eq!(seen.figures().count("leasehold_cleanups_total{outcome=expired}"), 1);
    assert_eq!(seen.told_once("gave up cleaning up").fields["name"], "unreachable");
}

/// F070: No metric carries a name, so ten thousand names make no more series than one.
#[tokio::test(start_paused = true)]
async fn f070_ten_thousand_names_make_no_more_series_than_one() {
    let seen = Seen::start();
    let world = World::new();
    let (one, other) = (world.process("one").await, world.process("other").await);
    let mut made = Vec::new();
    for number in 0..10_000 {
        let name = format!("order:{number}");
        let held = take(&one.client, &name).await;
        if number % 100 == 0 {
            one.store.lose_next_reply(Operation::Renew);
            let waiter = wait_for(&other.client, &name);
            pass(secs(15)).await;
            let _ = held.release().await.unwrap();
            drop(guard(Ok(Attempt::Acquired(waiter.await.unwrap()))));
        } else {
            let _ = held.release().await.unwrap();
        }
        if number == 99 || number == 9_999 {
            made.push(seen.figures().series().len());
        }
    }
    assert_eq!(made[0], made[1], "series after 100 and after 10,000 names");
    assert!(made[1] <= 40, "{}", made[1]);
    for series in seen.figures().series() {
        assert!(!series.contains("order:"), "{series}");
    }
}
