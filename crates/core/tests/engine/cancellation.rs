//! Futures that are dropped half-way, at every point where they can wait: nothing is left of them, neither on
//! the server nor in the client, and nothing is renewed afterwards.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::memory::Operation;
use leasehold_core::{LeaseState, Released};

use crate::support::{
    Process, Random, World, acquired, free, millis, name, pass, polled, secs, waiting, within,
};

/// Long enough that whatever is gone was removed and did not end by itself.
const TTL: Duration = Duration::from_secs(60);
/// Long enough for clean-ups, requests that come late included.
const CLEANED_UP: Duration = Duration::from_secs(3);
/// No future here waits more often than this.
const MOST_POLLS: usize = 60;

/// A world in which requests, replies and pushes take their time, so that each is a point to be cancelled at.
async fn slow_world() -> (World, Process, Process) {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    for process in [&a, &b] {
        process.store.delay_requests(millis(5));
        process.store.delay_replies(millis(5));
        process.store.delay_pushes(millis(3));
    }
    (world, a, b)
}

/// Lets clean-ups end, then demands that nothing is left of the name and of the process.
async fn assert_nothing_left(world: &World, process: &Process, context: &str) {
    pass(CLEANED_UP).await;
    world.assert_empty(context);
    process.assert_idle(context);
    let renewals = process.renewals();
    pass(TTL).await;
    assert_eq!(process.renewals(), renewals, "renewed after all: {context}");
}

/// Runs the attempt again and again, dropped after one poll, two polls and so on, until it completes; `check`
/// looks at what is left each time.
async fn cancelled_at_every_point<T, A: Future<Output = Option<T>>>(mut attempt: impl FnMut(usize) -> A) {
    for polls in 1..=MOST_POLLS {
        if attempt(polls).await.is_some() {
            assert!(polls > 1, "there was no point to cancel at");
            return;
        }
    }
    panic!("not completed after {MOST_POLLS} polls");
}

#[tokio::test(start_paused = true)]
async fn trap_30_a_free_name_acquired_and_cancelled_at_every_point() {
    cancelled_at_every_point(async |polls| {
        let (world, a, _b) = slow_world().await;
        let got = polled(polls, a.lock("job").ttl(TTL).acquire()).await.map(acquired);
        let completed = got.is_some();
        drop(got);
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        completed.then_some(())
    })
    .await;
}

/// F033: A waiting acquire that is dropped at any point leaves no queue entry, and the next waiter is served.
#[tokio::test(start_paused = true)]
async fn trap_27_trap_30_f033_a_waiting_acquire_cancelled_at_every_point() {
    cancelled_at_every_point(async |polls| {
        let (world, a, b) = slow_world().await;
        let guard = a.take("job", TTL).await;
        let freed = tokio::spawn(async move {
            pass(millis(1_515)).await;
            free(guard).await;
        });
        let got = polled(polls, b.lock("job").ttl(TTL).wait_forever().acquire()).await.map(acquired);
        let completed = got.is_some();
        drop(got);
        freed.await.unwrap();
        // Nobody is kept waiting by the one that left.
        let next = within(secs(1), a.lock("job").wait_forever().acquire()).await;
        free(acquired(next.expect("blocked by a cancelled waiter"))).await;
        assert_nothing_left(&world, &b, &format!("{polls} polls")).await;
        completed.then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn trap_30_an_acquire_with_lost_replies_cancelled_at_every_point() {
    cancelled_at_every_point(async |polls| {
        let (world, a, _b) = slow_world().await;
        a.store.lose_next_reply(Operation::Acquire);
        a.store.late_request(Operation::Acquire, millis(300));
        let got = polled(polls, a.lock("job").ttl(TTL).wait(secs(5)).acquire()).await.map(acquired);
        let completed = got.is_some();
        drop(got);
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        completed.then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn trap_30_run_cancelled_at_every_point_drops_the_body_and_frees_the_name() {
    struct Work(Arc<AtomicBool>);
    impl Drop for Work {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    cancelled_at_every_point(async |polls| {
        let (world, a, _b) = slow_world().await;
        let ended = Arc::new(AtomicBool::new(false));
        let work = Work(Arc::clone(&ended));
        let body = async move |_| {
            let _work = work;
            for _ in 0..5 {
                pass(millis(10)).await;
            }
            Ok::<_, Infallible>("done")
        };
        let done = polled(polls, a.lock("job").ttl(TTL).run(body)).await;
        assert!(ended.load(Ordering::Relaxed), "the body is gone");
        let completed = done.map(|done| {
            let done = done.unwrap();
            assert_eq!((done.value, done.released.unwrap()), ("done", Released::Freed));
        });
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        completed
    })
    .await;
}

/// F009, F130: A release that is cancelled at any point, once or again, still completes: clean-up is not the
/// caller's to cancel.
#[tokio::test(start_paused = true)]
async fn trap_31_f009_f130_a_release_cancelled_at_every_point_still_completes() {
    cancelled_at_every_point(async |polls| {
        let (world, a, b) = slow_world().await;
        let guard = a.take("job", TTL).await;
        a.store.lose_next_request(Operation::Release);
        let released = polled(polls, guard.release()).await;
        let next = within(secs(2), b.lock("job").wait_forever().acquire()).await;
        free(acquired(next.expect("not released"))).await;
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        released.map(|released| assert_eq!(released.unwrap(), Released::Freed))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn trap_14_a_release_during_a_renewal_cancelled_at_every_point_still_completes() {
    cancelled_at_every_point(async |polls| {
        let (world, a, b) = slow_world().await;
        let guard = a.take("job", secs(3)).await;
        a.store.delay_requests(millis(100));
        pass(millis(1_040)).await;
        assert_eq!(a.renewals(), 1, "a renewal is on its way");
        let released = polled(polls, guard.release()).await;
        let next = within(secs(2), b.lock("job").wait_forever().acquire()).await;
        free(acquired(next.expect("not released"))).await;
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        assert_eq!(a.renewals(), 1);
        released.map(|released| assert_eq!(released.unwrap(), Released::Freed))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_cancelled_at_every_point_goes_on_and_the_lease_is_held() {
    cancelled_at_every_point(async |polls| {
        let (world, a, _b) = slow_world().await;
        let guard = a.take("job", TTL).await;
        pass(secs(15)).await;
        let renewed = polled(polls, guard.renew()).await;
        pass(millis(20)).await;
        assert_eq!(guard.state(), LeaseState::Held);
        assert_eq!(a.renewals(), 1, "it goes on");
        assert!(guard.remaining() > secs(58));
        free(guard).await;
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        renewed.map(|renewed| renewed.unwrap())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_extension_cancelled_at_every_point_goes_on_and_the_lease_is_held() {
    cancelled_at_every_point(async |polls| {
        let (world, a, _b) = slow_world().await;
        let guard = a.take("job", secs(6)).await;
        let extended = polled(polls, guard.extend(TTL)).await;
        pass(millis(20)).await;
        assert!(guard.remaining() > secs(58), "it goes on");
        free(guard).await;
        assert_nothing_left(&world, &a, &format!("{polls} polls")).await;
        extended.map(|extended| extended.unwrap())
    })
    .await;
}

/// F003: An acquire that is dropped at any time leaves the name free and nothing that renews it.
#[tokio::test(start_paused = true)]
async fn f003_an_acquire_dropped_at_any_time_leaves_the_name_free() {
    let random = Random::new(3);
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    a.store.delay_replies(millis(50));
    for round in 0..200 {
        drop(within(random.millis(100), a.lock("job").ttl(TTL).acquire()).await);
        let next = b.lock("job").wait(secs(1)).acquire().await;
        free(acquired(next)).await;
        pass(secs(3)).await;
        world.assert_empty(round);
        a.assert_idle(round);
    }
    assert_eq!(a.renewals(), 0);
}

/// F004: No renewal is sent once a release was called, in whatever order replies come in.
#[tokio::test(start_paused = true)]
async fn trap_13_f004_nothing_is_renewed_once_the_release_was_called() {
    let random = Random::new(4);
    let world = World::new();
    let a = world.process("a").await;
    for round in 0..1_000 {
        a.store.delay_requests(random.millis(5));
        a.store.delay_replies(random.millis(5));
        let lock = a.lock("job").ttl(secs(1));
        if random.one_in(4) {
            drop(within(random.millis(12), lock.acquire()).await);
        } else {
            let guard = acquired(lock.wait(secs(5)).acquire().await);
            pass(random.millis(400)).await;
            let renewals = a.renewals();
            if random.one_in(2) {
                assert_eq!(guard.release().await.unwrap(), Released::Freed, "round {round}");
            } else {
                drop(guard);
            }
            pass(millis(20)).await;
            assert_eq!(a.renewals(), renewals, "round {round}");
        }
    }
    pass(secs(5)).await;
    world.assert_empty("after all");
    a.assert_idle("after all");
}

/// F010: A guard that is dropped, for whatever reason, frees its name in about a round trip.
#[tokio::test(start_paused = true)]
async fn trap_32_f010_a_dropped_guard_frees_the_name_in_a_round_trip() {
    let (world, a, b) = slow_world().await;
    let guard = a.take("job", TTL).await;
    let waiter = waiting(b.lock("job").wait_forever());
    pass(millis(50)).await;
    drop(guard);
    let dropped = world.now();
    free(acquired(waiter.await.unwrap())).await;
    assert!(world.now().since(dropped) <= millis(30), "{:?}", world.now().since(dropped));
    assert_nothing_left(&world, &a, "after the drop").await;
}

#[tokio::test(start_paused = true)]
async fn trap_32_guards_dropped_in_an_outage_are_released_when_it_ends() {
    let world = World::new();
    let a = world.process("a").await;
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(a.take(&format!("job:{number}"), TTL).await);
    }
    a.store.unreachable(true);
    drop(guards);
    assert_eq!(a.client.load().cleanups, 50);
    pass(secs(20)).await;
    assert_eq!(world.stored_names(), 50);
    a.store.unreachable(false);
    pass(millis(1_010)).await;
    world.assert_empty("after the outage");
    a.assert_idle("after the outage");
}

/// F067: A lease that has ended blocks nobody in its own process, even while its guard is kept.
#[tokio::test(start_paused = true)]
async fn f067_a_lease_that_ended_blocks_nobody_in_its_own_process() {
    for released in [true, false] {
        let world = World::new();
        let a = world.process("a").await;
        let lock = a.lock("job").ttl(secs(1)).fixed_lease();
        let guard = acquired(lock.try_acquire().await);
        let second = waiting(lock.clone().wait(secs(3)));
        pass(secs(2)).await;
        assert!(matches!(guard.state(), LeaseState::Lost(_)));
        let kept = if released {
            assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
            None
        } else {
            Some(guard)
        };
        let second = second.await.unwrap();
        drop((acquired(second), kept));
        pass(secs(2)).await;
        world.assert_empty("after both");
        a.assert_idle("after both");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_in_a_process_that_cancels_leaves_its_turn_to_the_next() {
    let (world, a, b) = slow_world().await;
    let guard = a.take("job", TTL).await;
    let mut waiters: Vec<_> = (0..5).map(|_| waiting(b.lock("job").ttl(TTL).wait_forever())).collect();
    pass(millis(50)).await;
    for waiter in waiters.drain(..4) {
        waiter.abort();
        pass(millis(30)).await;
    }
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["b"]);
    free(guard).await;
    let released = world.now();
    free(acquired(waiters.remove(0).await.unwrap())).await;
    assert!(world.now().since(released) <= millis(40));
    assert_nothing_left(&world, &b, "after all").await;
    assert_eq!(world.raw_get(&name("job")), None);
}

#[tokio::test(start_paused = true)]
async fn trap_27_a_waiter_cancelled_in_an_outage_longer_than_its_ttl_is_withdrawn_after_it() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", TTL).await;
    let waiter = waiting(b.lock("job").ttl(millis(200)).wait_forever());
    pass(millis(100)).await;
    b.store.unreachable(true);
    waiter.abort();
    pass(secs(10)).await;
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["b"]);
    b.store.unreachable(false);
    pass(secs(2)).await;
    assert!(world.inspect("job").await.unwrap().waiters.is_empty(), "a queue entry outlives the TTL");
    b.assert_idle("after the outage");
    free(guard).await;
}
