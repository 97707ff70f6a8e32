//! How long one waits: one budget from the start to the end, kept to the letter, and how often one asks meanwhile.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::memory::Operation;
use leasehold_core::store::Holder;

use crate::support::{World, acquired, assert_about, busy, free, millis, name, pass, secs, waiting};

/// F126: The wait is one budget from the start; however often a waiter wakes, it gives up neither early nor
/// late.
#[tokio::test(start_paused = true)]
async fn trap_29_f126_the_budget_to_wait_is_one_and_kept_to_the_letter() {
    let world = World::new();
    let mut all = Vec::new();
    world.raw_set(&name("job"), "another", Some(millis(250)));
    let started = world.now();
    for number in 0..8 {
        let process = world.process(&format!("p{number}")).await;
        let task = waiting(process.lock("job").wait(secs(10)));
        let clock = Arc::clone(&world.clock);
        all.push(tokio::spawn(async move {
            let seen = busy(task.await.unwrap());
            (leasehold_core::Clock::now(&*clock), seen, process)
        }));
    }
    // The name changes hands all the time, so every waiter is woken again and again.
    for round in 0..75 {
        pass(millis(200)).await;
        world.raw_set(&name("job"), &format!("another-{round}"), Some(millis(250)));
    }
    for task in all {
        assert!(task.is_finished(), "still waiting after 15 s");
        let (gave_up, seen, process) = task.await.unwrap();
        assert_about(gave_up.since(started), secs(10));
        assert_eq!(seen.holder, Some(Holder::Foreign.to_string()));
        process.assert_idle("after giving up");
    }
}

#[tokio::test(start_paused = true)]
async fn trap_29_the_budget_may_be_shorter_or_longer_than_the_ttl() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let _guard = a.take("job", secs(2)).await;
    for wait in [millis(1), millis(10), millis(777), secs(2), secs(7), secs(120)] {
        let started = world.now();
        let seen = busy(b.lock("job").ttl(millis(500)).wait(wait).acquire().await);
        assert_about(world.now().since(started), wait);
        assert_eq!(seen.holder.as_deref(), Some("a"));
        pass(millis(1)).await;
        assert!(world.inspect("job").await.unwrap().waiters.is_empty(), "withdrawn");
        b.assert_idle("after giving up");
    }
}

/// F037: Waiting for ever really waits, and the longest wait does not overflow.
#[tokio::test(start_paused = true)]
async fn f037_waiting_for_ever_lasts_for_hours_and_the_longest_wait_does_not_overflow() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.take("job", secs(600)).await;
    let second = waiting(b.lock("job").wait_forever());
    pass(millis(1)).await;
    let third = waiting(c.lock("job").wait(Duration::MAX));
    pass(secs(2 * 3600)).await;
    assert!(!second.is_finished() && !third.is_finished());
    free(guard).await;
    free(acquired(second.await.unwrap())).await;
    free(acquired(third.await.unwrap())).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_process_asks_about_once_a_second_at_most() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let _guard = a.take("job", secs(30)).await;
    let _second = waiting(b.lock("job").wait_forever());
    pass(millis(1)).await;
    let _third = waiting(c.lock("job").wait_forever());
    pass(secs(600)).await;
    assert!((590..=602).contains(&b.acquires()), "the first asked {} times", b.acquires());
    assert!((30..=61).contains(&c.acquires()), "the second asked {} times", c.acquires());
    assert_eq!(c.store.requests(Operation::Release), 0);
}
