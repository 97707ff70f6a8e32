//! How long a name is held: fixed leases, the longest and the shortest hold.

use std::time::Duration;

use leasehold_core::{LeaseState, LostCause, Released, RunError};

use crate::support::{TICK, World, acquired, assert_about, busy, free, millis, pass, secs, waiting, within};

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_not_renewed_and_ends_on_time() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = acquired(a.lock("job").ttl(secs(5)).fixed_lease().try_acquire().await);
    let started = world.now();
    let waiter = waiting(b.lock("job").wait_forever());
    assert_eq!(guard.lost().await, LostCause::Expired);
    assert!(world.now().since(started) < secs(5));
    assert!(!waiter.is_finished(), "it is told before the next holder follows");
    let next = acquired(waiter.await.unwrap());
    assert_about(world.now().since(started), secs(5));
    assert_eq!(a.renewals(), 0);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.state(), LeaseState::Held);
    free(next).await;
}

/// F094, F100: A lease has its time from its first moment, in milliseconds, and lasts all of it but for the
/// stated margin.
#[tokio::test(start_paused = true)]
async fn trap_9_f094_f100_a_lease_has_its_time_from_its_first_moment_and_lasts_but_for_the_margin() {
    let world = World::new();
    let a = world.process("a").await;
    for micros in [0, 100, 333, 500, 900, 999] {
        crate::support::advance(Duration::from_micros(micros)).await;
        let guard = acquired(a.lock("job").ttl(secs(1)).fixed_lease().try_acquire().await);
        let started = world.now();
        assert_eq!(world.lease_left("job").await, secs(1));
        guard.lost().await;
        let lasted = world.now().since(started);
        assert!(lasted >= millis(888) - TICK && lasted <= millis(888) + TICK, "{lasted:?}");
        drop(guard);
        pass(millis(5)).await;
    }
}

/// F096: With `max_hold`, hung work is told and the next one gets in.
#[tokio::test(start_paused = true)]
async fn trap_18_f096_hung_work_is_told_at_max_hold_and_the_next_one_gets_in() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = acquired(a.lock("job").ttl(secs(3)).max_hold(secs(5)).try_acquire().await);
    let started = world.now();
    let waiter = waiting(b.lock("job").wait(secs(20)));
    assert_eq!(within(secs(10), guard.lost()).await, Some(LostCause::MaxHold));
    assert_about(world.now().since(started), secs(5));
    // The hung holder never gives it back; the lease ends by itself.
    free(acquired(waiter.await.unwrap())).await;
    assert!(world.now().since(started) <= secs(8), "{:?}", world.now().since(started));
    assert_eq!(guard.state(), LeaseState::Lost(LostCause::MaxHold));
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

/// F096: With `max_hold`, a hung body is cancelled and its name free at once.
#[tokio::test(start_paused = true)]
async fn trap_18_f096_a_hung_body_is_cancelled_at_max_hold_and_the_name_is_free_at_once() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let started = world.now();
    let body = async |_| std::future::pending::<Result<(), std::convert::Infallible>>().await;
    let run = a.lock("job").ttl(secs(3)).max_hold(secs(5)).run(body);
    let outcome = within(secs(10), run).await.expect("it ends");
    assert!(matches!(outcome, Err(RunError::Lost { cause: LostCause::MaxHold, .. })), "{outcome:?}");
    free(acquired(b.lock("job").wait(millis(100)).acquire().await)).await;
    assert_about(world.now().since(started), secs(5));
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_name_taken_after_an_early_release_and_then_serves_the_waiter() {
    for dropped in [false, true] {
        let world = World::new();
        let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
        let guard = acquired(a.lock("job").ttl(secs(30)).min_hold(secs(5)).try_acquire().await);
        let started = world.now();
        let waiter = waiting(b.lock("job").wait_forever());
        pass(millis(300)).await;
        if dropped {
            drop(guard);
            pass(millis(5)).await;
        } else {
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
        }
        a.assert_idle("after the release");
        let seen = busy(c.lock("job").try_acquire().await);
        assert_eq!(seen.holder.as_deref(), Some("min_hold of a"));
        assert!(!seen.renewable && !seen.to_string().contains("unless renewed"), "{seen}");
        assert!(seen.remaining.unwrap() <= millis(4_700), "{:?}", seen.remaining);
        free(acquired(waiter.await.unwrap())).await;
        assert_about(world.now().since(started), secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn min_hold_that_has_passed_changes_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = acquired(a.lock("job").ttl(secs(30)).min_hold(secs(5)).try_acquire().await);
    pass(secs(6)).await;
    free(guard).await;
    world.assert_empty("after the release");
}

/// F108: With `min_hold`, a job that is faster than the clocks differ runs once per period.
#[tokio::test(start_paused = true)]
async fn f108_a_fast_job_runs_once_per_period_on_servers_whose_clocks_differ() {
    let world = World::new();
    let mut runs = 0;
    for period in 0..5 {
        let begins = world.now();
        for server in 0..4 {
            let process = world.process(&format!("server-{server}")).await;
            let lock = process.lock("report").ttl(secs(30)).min_hold(secs(10));
            match lock.run(async |_| Ok::<_, std::convert::Infallible>(())).await {
                Ok(_) => runs += 1,
                Err(RunError::Busy(_)) => {}
                other => panic!("{other:?}"),
            }
            // The next server's clock is two seconds late.
            pass(secs(2)).await;
        }
        assert_eq!(runs, period + 1);
        pass(secs(60) - world.now().since(begins)).await;
    }
}
