//! Time: from when a lease counts, clocks that run apart, step or stand still, and fencing tokens through it all.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::memory::GrantBound;
use leasehold_core::{Clock, LeaseState, LostCause};

use crate::support::{
    MovableClock, SkewedClock, World, acquired, assert_about, free, millis, name, pass, secs, waiting,
};

#[tokio::test(start_paused = true)]
async fn trap_5_a_lease_counts_from_just_before_the_request_that_won() {
    let world = World::new();
    let a = world.process("a").await;
    for (request, reply) in [(0, 0), (0, 500), (500, 0), (400, 400)] {
        a.store.delay_requests(millis(request));
        a.store.delay_replies(millis(reply));
        let started = world.now();
        let guard = a.take("job", secs(3)).await;
        let certain = world.now().since(started) + guard.remaining();
        assert!(certain <= secs(3) - millis(32), "{certain:?} from the send");
        assert!(guard.remaining() + millis(32) <= world.lease_left("job").await);
        free(guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_5_a_long_wait_takes_nothing_from_the_lease() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(30)).await;
    let waiter = waiting(b.lock("job").ttl(secs(2)).wait_forever());
    pass(secs(60)).await;
    free(guard).await;
    let guard = acquired(waiter.await.unwrap());
    assert!(guard.remaining() >= millis(1_970), "{:?}", guard.remaining());
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn trap_5_a_renewal_counts_from_its_send_as_well() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    a.store.delay_requests(millis(300));
    a.store.delay_replies(millis(300));
    for _ in 0..200 {
        pass(millis(50)).await;
        assert_eq!(guard.state(), LeaseState::Held);
        assert!(guard.remaining() <= world.lease_left("job").await);
    }
    free(guard).await;
}

/// F051: A pushed grant of unknown age is confirmed by asking again before it counts.
#[tokio::test(start_paused = true)]
async fn trap_26_f051_a_pushed_grant_of_unknown_age_is_confirmed_before_it_counts() {
    for bound in [GrantBound::Unknown, GrantBound::Age(secs(2)), GrantBound::Age(secs(60))] {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let guard = a.take("job", secs(30)).await;
        let waiter = waiting(b.lock("job").ttl(secs(30)).wait_forever());
        pass(millis(100)).await;
        b.store.set_grant_bound(bound);
        b.store.delay_pushes(millis(700));
        let asked = b.acquires();
        let before = guard.fencing_token();
        free(guard).await;
        let guard = acquired(waiter.await.unwrap());
        assert_eq!(b.acquires(), asked + 1, "{bound:?}: asked once more");
        let seen = world.inspect("job").await.unwrap();
        assert!(guard.remaining() <= seen.remaining.unwrap(), "{bound:?}");
        // Trap 64: confirmed by an acquire, with the token that it brought.
        assert_eq!(seen.fencing_token, Some(guard.fencing_token()));
        assert!(guard.fencing_token() > before);
        free(guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_26_a_young_pushed_grant_counts_from_its_bound_without_another_request() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    for age in [0, 100, 999] {
        let guard = a.take("job", secs(30)).await;
        let waiter = waiting(b.lock("job").ttl(secs(30)).wait_forever());
        pass(millis(10)).await;
        b.store.set_grant_bound(GrantBound::Age(millis(age)));
        let asked = b.acquires();
        free(guard).await;
        let guard = acquired(waiter.await.unwrap());
        assert_eq!(b.acquires(), asked);
        assert_about(guard.remaining(), secs(3) - millis(32) - millis(age));
        free(guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_6_clocks_that_run_apart_by_one_percent_let_nobody_overlap() {
    for (holder, waiter) in [(990, 1_000), (1_010, 1_000), (990, 1_010), (1_000, 990)] {
        let world = World::new();
        let a = world.process_with_clock("a", SkewedClock::start(holder)).await;
        let b = world.process_with_clock("b", SkewedClock::start(waiter)).await;
        for ttl in [millis(200), secs(3), secs(30)] {
            let guard = acquired(a.lock("job").ttl(ttl).fixed_lease().try_acquire().await);
            let next = waiting(b.lock("job").ttl(ttl).wait_forever());
            while guard.state() == LeaseState::Held {
                assert_eq!(world.holder("job").await.as_deref(), Some("a"), "{holder} {waiter} {ttl:?}");
                // Without any margin for the work either, the time that is left is certain.
                assert!(guard.remaining() <= world.lease_left("job").await, "{holder} {waiter} {ttl:?}");
                pass(ttl / 200).await;
            }
            drop(guard);
            free(acquired(next.await.unwrap())).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trap_6_a_stepped_wall_clock_changes_no_lease() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(3)).await;
    for wall in [secs(4_000_000_000), secs(1), secs(1_800_000_000)] {
        world.set_wall_time(wall);
        for _ in 0..50 {
            pass(millis(100)).await;
            assert_eq!(guard.state(), LeaseState::Held);
        }
        assert!(b.lock("job").try_acquire().await.unwrap().into_guard().is_err());
    }
    free(guard).await;
}

/// F120: A flush is noticed by the holder as a loss, and fencing tokens keep growing.
#[tokio::test(start_paused = true)]
async fn trap_37_f120_a_flush_is_noticed_and_fencing_tokens_keep_growing() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let mut newest = None;
    for round in 0..10 {
        let guard = a.take("job", secs(3)).await;
        assert!(Some(guard.fencing_token()) > newest, "round {round}");
        pass(millis(1)).await;
        world.flush();
        let next = b.take("job", secs(30)).await;
        assert!(next.fencing_token() > guard.fencing_token(), "round {round}");
        newest = Some(next.fencing_token());
        let cause = guard.lost().await;
        assert_eq!(cause, LostCause::Taken, "round {round}");
        drop(guard);
        free(next).await;
        pass(millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_37_a_server_whose_clock_went_back_keeps_minting_larger_tokens_while_it_remembers() {
    let world = World::new();
    let a = world.process("a").await;
    let first = a.take("job", secs(3)).await;
    let token = first.fencing_token();
    free(first).await;
    world.set_wall_time(secs(10));
    let second = a.take("job", secs(3)).await;
    assert!(second.fencing_token() > token);
    free(second).await;
}

#[tokio::test(start_paused = true)]
async fn trap_7_a_process_whose_clock_stands_still_is_only_stopped_by_its_fencing_token() {
    let world = World::new();
    let clock = MovableClock::start();
    let frozen: Arc<dyn Clock> = clock.clone();
    let a = world.process_with_clock("a", frozen).await;
    let b = world.process("b").await;
    let stale = a.take("job", secs(3)).await;
    // Its virtual machine is paused, and the time in it with it.
    clock.stop();
    a.store.hang(true);
    let next = acquired(b.lock("job").ttl(secs(30)).wait(secs(10)).acquire().await);
    // No clock of its own can tell it; what it writes to can, by the older token.
    assert_eq!(stale.state(), LeaseState::Held);
    assert!(stale.fencing_token() < next.fencing_token());
    free(next).await;
    world.evict(&name("job"));
    drop(stale);
}

#[tokio::test(start_paused = true)]
async fn the_world_and_its_processes_may_be_old() {
    // Deadlines are sums on a 64-bit clock: no overflow after many years of uptime.
    let world = World::new();
    world.clock.put_forward(Duration::from_secs(200 * 365 * 24 * 3600));
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(24 * 3600)).await;
    let waiter = waiting(b.lock("job").wait(Duration::MAX));
    pass(secs(3600)).await;
    free(guard).await;
    free(acquired(waiter.await.unwrap())).await;
}
