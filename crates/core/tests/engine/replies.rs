//! Requests and replies that get lost or come late: what the caller is told, and that nothing is left behind.

use leasehold_core::memory::Operation;
use leasehold_core::store::BreakMode;
use leasehold_core::{ErrorKind, LeaseState, Released};

use crate::support::{
    TICK, World, acquired, assert_about, busy, free, millis, name, pass, polled, secs, waiting,
};

/// F001: After a lost reply the retry recognises its own lease.
#[tokio::test(start_paused = true)]
async fn trap_1_f001_after_a_lost_reply_the_retry_recognises_its_own_lease() {
    for wait in [None, Some(secs(3))] {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        a.store.lose_next_reply(Operation::Acquire);
        let lock = a.lock("job").ttl(secs(10));
        let lock = if let Some(wait) = wait { lock.wait(wait) } else { lock };
        let started = world.now();
        let guard = acquired(lock.acquire().await);
        assert!(world.now().since(started) <= millis(100), "the retry came at {:?}", world.now());
        assert_eq!(a.acquires(), 2);
        assert!(guard.remaining() <= world.lease_left("job").await, "it counts from a send");
        free(guard).await;
        free(acquired(b.lock("job").try_acquire().await)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_1_many_lost_replies_in_a_row_are_survived_within_the_store_timeout() {
    let world = World::new();
    let a = world.process("a").await;
    for _ in 0..8 {
        a.store.lose_next_reply(Operation::Acquire);
    }
    free(a.take("job", secs(10)).await).await;
    pass(secs(2)).await;
    world.assert_empty("after the release");
    a.assert_idle("after the release");
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_sent_again() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.lose_next_request(Operation::Acquire);
    a.store.lose_next_request(Operation::Acquire);
    free(a.take("job", secs(10)).await).await;
    assert_eq!(a.acquires(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_reply_is_lost_stays_in_its_place() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.take("job", secs(30)).await;
    b.store.lose_next_reply(Operation::Acquire);
    let second = waiting(b.lock("job").wait_forever());
    pass(millis(1)).await;
    let third = waiting(c.lock("job").wait_forever());
    pass(millis(100)).await;
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["b", "c"]);
    free(guard).await;
    free(acquired(second.await.unwrap())).await;
    free(acquired(third.await.unwrap())).await;
}

/// F082: Giving up after lost replies frees the name at once.
#[tokio::test(start_paused = true)]
async fn trap_2_f082_giving_up_after_lost_replies_frees_the_name_at_once() {
    let world = World::new();
    let a = world.process_with("a", |settings| settings.store_timeout = secs(3)).await;
    let b = world.process("b").await;
    // Each request is executed, each reply comes too late.
    a.store.delay_replies(millis(1_500));
    let started = world.now();
    let error = a.lock("job").ttl(secs(60)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unknown, true));
    assert_about(world.now().since(started), secs(3));
    assert!(error.to_string().contains("job"), "{error}");
    a.store.delay_replies(millis(0));
    free(acquired(b.lock("job").wait(millis(500)).acquire().await)).await;
    pass(secs(3)).await;
    world.assert_empty("after giving up");
    a.assert_idle("after giving up");
}

/// F082: A lease that is over when its grant arrives is given back.
#[tokio::test(start_paused = true)]
async fn trap_2_f082_a_lease_that_is_over_when_its_grant_arrives_is_given_back() {
    let world = World::new();
    let a = world.process_with("a", |settings| settings.store_timeout = millis(500)).await;
    a.store.delay_replies(millis(190));
    let started = world.now();
    let error = a.lock("job").ttl(millis(200)).acquire().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_about(world.now().since(started), millis(500));
    a.store.delay_replies(millis(0));
    pass(millis(5)).await;
    assert!(world.inspect("job").await.is_none(), "given back, not left to end by itself");
    assert_eq!(a.renewals(), 0);
    pass(secs(2)).await;
    a.assert_idle("after giving up");
}

#[tokio::test(start_paused = true)]
async fn trap_3_an_acquire_that_arrives_after_the_clean_up_is_cleaned_up_again() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.late_request(Operation::Acquire, millis(600));
    let taken = polled(1, a.lock("job").ttl(secs(60)).acquire()).await;
    assert!(taken.is_none(), "abandoned while the first request is on its way");
    pass(millis(300)).await;
    assert!(a.releases() >= 1, "cleaned up at once");
    pass(millis(350)).await;
    assert_eq!(world.holder("job").await.as_deref(), Some("a"), "the late request took the name");
    pass(millis(500)).await;
    world.assert_empty("after the second clean-up");
    a.assert_idle("after the second clean-up");
    assert_eq!(a.renewals(), 0);
}

#[tokio::test(start_paused = true)]
async fn trap_3_an_acquire_that_arrives_after_a_second_does_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.late_request(Operation::Acquire, millis(1_500));
    assert!(polled(1, a.lock("job").ttl(secs(60)).acquire()).await.is_none());
    pass(millis(1_499)).await;
    world.assert_empty("before it arrives");
    pass(secs(1)).await;
    world.assert_empty("after it arrived");
}

#[tokio::test(start_paused = true)]
async fn trap_3_a_late_acquire_of_a_lease_already_released_is_cleaned_up() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.late_request(Operation::Acquire, millis(700));
    let guard = a.take("job", secs(60)).await;
    free(guard).await;
    world.assert_empty("after the release");
    pass(millis(720)).await;
    assert_eq!(world.holder("job").await.as_deref(), Some("a"), "the late request took the name");
    pass(millis(600)).await;
    world.assert_empty("after the clean-up");
    a.assert_idle("after the clean-up");
}

#[tokio::test(start_paused = true)]
async fn trap_4_a_retried_acquire_grants_the_whole_time_again() {
    let world = World::new();
    let a = world.process("a").await;
    // The first request is executed at once, the reply of the second is what the lease counts from.
    a.store.delay_replies(millis(950));
    a.store.lose_next_reply(Operation::Acquire);
    let guard = a.take("job", secs(2)).await;
    assert!(guard.remaining() >= millis(1_000), "{:?} are left", guard.remaining());
    assert!(guard.remaining() <= world.lease_left("job").await);
    a.store.delay_replies(millis(0));
    free(guard).await;
}

/// F013: A release whose request is lost is repeated until the name is free.
#[tokio::test(start_paused = true)]
async fn f013_a_release_whose_request_is_lost_is_repeated_until_the_name_is_free() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(60)).await;
    a.store.lose_next_request(Operation::Release);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    free(acquired(b.lock("job").try_acquire().await)).await;
}

/// F013: A release whose reply is lost is told as unknown, and the name is free.
#[tokio::test(start_paused = true)]
async fn f013_a_release_whose_reply_is_lost_is_unknown_and_the_name_is_free() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(60)).await;
    a.store.lose_next_reply(Operation::Release);
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unknown, true));
    free(acquired(b.lock("job").try_acquire().await)).await;
    free(acquired(a.lock("job").try_acquire().await)).await;
    a.assert_idle("after the release");
}

#[tokio::test(start_paused = true)]
async fn trap_10_a_stale_release_is_already_lost_and_touches_nobody() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let stale = acquired(a.lock("job").ttl(secs(1)).fixed_lease().try_acquire().await);
    pass(secs(2)).await;
    let newer = b.take("job", secs(30)).await;
    assert_eq!(stale.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(newer.state(), LeaseState::Held);
    assert_eq!(world.holder("job").await.as_deref(), Some("b"));
    free(newer).await;
}

/// F085: Each acquisition gives a guard with an owner token of its own, so a late release cannot free the
/// lease of another task.
#[tokio::test(start_paused = true)]
async fn trap_34_f085_each_acquisition_has_an_owner_token_of_its_own() {
    let world = World::new();
    let a = world.process("a").await;
    let lock = a.lock("job").ttl(secs(1)).fixed_lease();
    let stale = acquired(lock.try_acquire().await);
    busy(lock.try_acquire().await);
    pass(secs(2)).await;
    // The same lock value in the same task: still another holder.
    let newer = acquired(lock.try_acquire().await);
    assert_ne!(stale.owner_token(), newer.owner_token());
    assert!(newer.fencing_token() > stale.fencing_token());
    assert_eq!(stale.release().await.unwrap(), Released::AlreadyLost);
    busy(lock.try_acquire().await);
    free(newer).await;
}

#[tokio::test(start_paused = true)]
async fn a_break_whose_reply_is_lost_is_not_repeated_on_the_next_holder() {
    let world = World::new();
    let (a, b, ops) = (world.process("a").await, world.process("b").await, world.process("ops").await);
    let _broken = a.take("job", secs(30)).await;
    let waiter = waiting(b.lock("job").ttl(secs(30)).wait_forever());
    pass(millis(10)).await;
    ops.store.lose_next_reply(Operation::Break);
    let error = ops.client.break_lease("job", BreakMode::Now).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    let next = acquired(waiter.await.unwrap());
    pass(secs(20)).await;
    assert_eq!(next.state(), LeaseState::Held);
    free(next).await;
}

#[tokio::test(start_paused = true)]
async fn trap_45_a_refusal_is_told_at_once_and_is_not_worth_a_retry() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.refuse(&name("job"), Some(ErrorKind::Denied));
    let started = world.now();
    let error = a.lock("job").wait(secs(60)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Denied, false));
    assert_eq!(world.now(), started);
    a.store.refuse(&name("job"), None);
    let guard = a.take("job", secs(30)).await;
    a.store.refuse(&name("job"), Some(ErrorKind::Denied));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Denied);
    pass(millis(5)).await;
    a.assert_idle("after refusals");
}

#[tokio::test(start_paused = true)]
async fn trap_27_a_grant_that_nobody_waits_for_any_more_is_given_back_at_once() {
    let world = World::new();
    let (a, gone, c) = (world.process("a").await, world.process("gone").await, world.process("c").await);
    let guard = a.take("job", secs(30)).await;
    // It gives up but may not withdraw, so its queue entry stays.
    assert!(polled(1, gone.lock("job").wait_forever().acquire()).await.is_none());
    gone.store.refuse(&name("job"), Some(ErrorKind::Denied));
    pass(millis(10)).await;
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["gone"]);
    gone.store.refuse(&name("job"), None);
    let third = waiting(c.lock("job").wait_forever());
    pass(millis(10)).await;
    free(guard).await;
    let released = world.now();
    free(acquired(third.await.unwrap())).await;
    assert!(world.now().since(released) <= TICK, "it took {:?}", world.now().since(released));
    gone.assert_idle("after the grant was given back");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_pushed_late_does_not_end_the_lease_found_by_asking() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(30)).await;
    let waiter = waiting(b.lock("job").ttl(secs(30)).wait_forever());
    pass(millis(900)).await;
    b.store.delay_pushes(secs(2));
    free(guard).await;
    let guard = acquired(waiter.await.unwrap());
    pass(secs(5)).await;
    assert_eq!(world.holder("job").await.as_deref(), Some("b"));
    assert_eq!(guard.state(), LeaseState::Held);
    free(guard).await;
    b.assert_idle("after the release");
}
