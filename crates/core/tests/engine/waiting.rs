//! Waiting and hand-over: who is served next, how soon, at what cost, and for how long one waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{Attempt, ErrorKind};

use crate::support::{
    Random, TICK, World, acquired, assert_about, busy, free, millis, name, pass, secs, waiting,
};

#[tokio::test(start_paused = true)]
async fn a_free_name_costs_one_request_to_take_and_one_to_give_back() {
    let world = World::new();
    let a = world.process("a").await;
    free(a.take("job", secs(30)).await).await;
    assert_eq!((a.acquires(), a.releases(), a.renewals()), (1, 1, 0));
    world.assert_empty("after the release");
    a.assert_idle("after the release");
}

#[tokio::test(start_paused = true)]
async fn busy_names_the_holder_by_label_and_says_how_long_its_lease_lasts() {
    let world = World::new();
    let (a, b) = (world.process("web-1").await, world.process("web-2").await);
    let guard = a.take("job", secs(30)).await;
    pass(secs(5)).await;
    let seen = busy(b.lock("job").try_acquire().await);
    assert_eq!(seen.holder.as_deref(), Some("web-1"));
    assert_about(seen.remaining.unwrap(), secs(25));
    assert!(seen.to_string().starts_with("job is held by web-1 for another "), "{seen}");
    let secret = guard.owner_token().expose().split('@').next().unwrap();
    assert!(!format!("{seen:?} {seen}").contains(secret), "the token is not shown");
    assert_eq!(b.releases(), 0, "one that does not wait leaves nothing to withdraw");
}

#[tokio::test(start_paused = true)]
async fn on_waiting_is_called_with_the_label_of_each_holder_and_never_with_a_token() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let first = a.take("job", secs(30)).await;
    let reports = Arc::new(Mutex::new(Vec::new()));
    let second = waiting(b.lock("job").wait_forever());
    pass(millis(1)).await;
    let log = Arc::clone(&reports);
    let lock =
        c.lock("job").wait_forever().on_waiting(move |busy| log.lock().unwrap().push(format!("{busy:?}")));
    let third = waiting(lock);
    pass(millis(1)).await;
    let tokens = [first.owner_token().clone()];
    free(first).await;
    let second = acquired(second.await.unwrap());
    pass(secs(2)).await;
    free(second).await;
    free(acquired(third.await.unwrap())).await;
    let reports = reports.lock().unwrap();
    let holders: Vec<_> = ["Some(\"a\")", "Some(\"b\")"].into();
    assert_eq!(reports.len(), 2, "once per holder: {reports:?}");
    assert!(reports.iter().zip(holders).all(|(report, holder)| report.contains(holder)), "{reports:?}");
    assert!(!tokens.iter().any(|token| reports[0].contains(&token.expose()[..22])));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_several_processes_are_served_in_the_order_of_their_arrival() {
    let world = World::new();
    let holder = world.process("holder").await;
    let guard = holder.take("job", secs(30)).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..10 {
        let process = world.process(&format!("p{number}")).await;
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = acquired(process.lock("job").wait_forever().acquire().await);
            order.lock().unwrap().push(number);
            pass(millis(20)).await;
            free(guard).await;
        }));
        pass(millis(1)).await;
    }
    free(guard).await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    world.assert_empty("after all");
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_are_first_in_first_out_and_only_one_is_in_the_store() {
    let world = World::new();
    let (holder, many) = (world.process("holder").await, world.process("many").await);
    let guard = holder.take("job", secs(30)).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..50 {
        let (lock, order) = (many.lock("job").wait_forever(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = acquired(lock.acquire().await);
            order.lock().unwrap().push(number);
            free(guard).await;
        }));
    }
    pass(millis(500)).await;
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["many"]);
    assert_eq!(many.acquires(), 1, "the others wait without a request");
    free(guard).await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
    assert!(many.acquires() <= 50, "each asks once: {}", many.acquires());
    many.assert_idle("after all");
    world.assert_empty("after all");
}

#[tokio::test(start_paused = true)]
async fn a_local_waiter_that_gives_up_costs_no_request() {
    let world = World::new();
    let (holder, many) = (world.process("holder").await, world.process("many").await);
    let _guard = holder.take("job", secs(30)).await;
    let _first = waiting(many.lock("job").wait_forever());
    pass(millis(1)).await;
    let started = world.now();
    for _ in 0..20 {
        busy(many.lock("job").wait(millis(30)).acquire().await);
    }
    assert_about(world.now().since(started), millis(600));
    assert_eq!((many.acquires(), many.releases()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn trying_neither_waits_nor_overtakes_who_waits() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.lock("job").ttl(millis(2_300)).fixed_lease().try_acquire().await;
    let _guard = acquired(guard);
    let waiter = waiting(b.lock("job").wait_forever());
    pass(millis(2_300)).await;
    // The lease is over and b has not asked again yet: whoever asks serves the queue first.
    let started = world.now();
    let seen = busy(c.lock("job").try_acquire().await);
    assert_eq!((seen.holder, world.now()), (None, started));
    assert_eq!(world.holder("job").await.as_deref(), Some("b"));
    free(acquired(waiter.await.unwrap())).await;
    assert!(matches!(c.lock("job").try_acquire().await, Ok(Attempt::Acquired(_))));
}

/// F007, F046: Queueing and trying are one step, so a release at any moment of the wait hands over at once.
#[tokio::test(start_paused = true)]
async fn trap_22_f007_f046_a_release_at_any_moment_of_the_wait_hands_over_at_once() {
    let random = Random::new(7);
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    for round in 0..500 {
        let guard = a.take("job", secs(30)).await;
        b.store.delay_requests(random.millis(3));
        b.store.delay_replies(random.millis(20));
        b.store.delay_pushes(random.millis(3));
        let waiter = waiting(b.lock("job").wait(secs(60)));
        pass(random.millis(6)).await;
        free(guard).await;
        let released = world.now();
        let guard = acquired(waiter.await.unwrap());
        let took = world.now().since(released);
        assert!(took <= millis(60), "round {round}: hand-over took {took:?}");
        free(guard).await;
        pass(secs(2)).await;
        world.assert_empty(round);
    }
}

/// F043: The first waiter is served when the lease of a dead holder ends.
#[tokio::test(start_paused = true)]
async fn trap_24_f043_the_first_waiter_is_served_when_the_lease_of_a_dead_holder_ends() {
    for waiters in [1_u64, 50] {
        let world = World::new();
        let holder = world.process("holder").await;
        let _guard = holder.take("job", millis(2_300)).await;
        let died = world.now();
        holder.store.kill();
        pass(millis(100)).await;
        let mut tasks = Vec::new();
        for number in 0..waiters {
            let process = world.process(&format!("p{number}")).await;
            tasks.push(tokio::spawn(async move {
                free(acquired(process.lock("job").wait(secs(20)).acquire().await)).await;
            }));
            tokio::task::yield_now().await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_about(world.now().since(died), millis(2_300));
        assert!(world.inspect("job").await.is_none(), "an empty queue vanishes");
    }
}

#[tokio::test(start_paused = true)]
async fn trap_25_a_release_wakes_exactly_the_next_waiter() {
    let world = World::new();
    let holder = world.process("holder").await;
    let guard = holder.take("job", secs(30)).await;
    let mut all = Vec::new();
    for number in 0..20 {
        let process = world.process(&format!("p{number}")).await;
        let task = waiting(process.lock("job").wait_forever());
        pass(millis(1)).await;
        all.push((process, task));
    }
    let asked: u64 = all.iter().map(|(process, _)| process.acquires()).sum();
    free(guard).await;
    pass(millis(200)).await;
    let asked_now: u64 = all.iter().map(|(process, _)| process.acquires()).sum();
    assert_eq!(asked_now, asked, "nobody needs to ask: the grant was pushed");
    assert_eq!(all.iter().filter(|(_, task)| task.is_finished()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn trap_23_a_lost_grant_is_found_by_asking_again_within_a_second() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(30)).await;
    let waiter = waiting(b.lock("job").wait_forever());
    pass(millis(300)).await;
    b.store.lose_pushes(true);
    free(guard).await;
    let released = world.now();
    free(acquired(waiter.await.unwrap())).await;
    let took = world.now().since(released);
    assert!(took <= secs(1) + TICK, "it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn trap_23_after_a_reconnect_every_waiter_asks_again_at_once() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.take("job", secs(60)).await;
    let second = waiting(b.lock("job").wait_forever());
    pass(millis(1)).await;
    let third = waiting(c.lock("job").wait_forever());
    pass(millis(1_500)).await;
    let asked = c.acquires();
    // To the server the waiter behind is dead now; by itself it would ask after 10 s or more.
    c.store.reconnect();
    pass(millis(5)).await;
    assert_eq!(c.acquires(), asked + 1);
    free(guard).await;
    free(acquired(second.await.unwrap())).await;
    let released = world.now();
    free(acquired(third.await.unwrap())).await;
    assert_about(world.now().since(released), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn trap_27_dead_waiters_are_skipped_in_the_release() {
    let world = World::new();
    let holder = world.process("holder").await;
    let guard = holder.take("job", secs(30)).await;
    let mut dead = Vec::new();
    for number in 0..5 {
        let process = world.process(&format!("dead-{number}")).await;
        dead.push(waiting(process.lock("job").wait_forever()));
        pass(millis(1)).await;
        process.store.kill();
    }
    let live = world.process("live").await;
    let waiter = waiting(live.lock("job").wait_forever());
    pass(millis(1)).await;
    free(guard).await;
    let released = world.now();
    free(acquired(waiter.await.unwrap())).await;
    assert_about(world.now().since(released), Duration::ZERO);
}

/// F019: A dead first waiter, after many that gave up, delays nobody.
#[tokio::test(start_paused = true)]
async fn trap_27_f019_a_dead_head_after_many_that_gave_up_delays_nobody() {
    let world = World::new();
    let holder = world.process("holder").await;
    let _guard = holder.take("job", secs(2)).await;
    let mut impatient = Vec::new();
    for number in 0..20 {
        let process = world.process(&format!("p{number}")).await;
        impatient.push(tokio::spawn(async move {
            for _ in 0..60 {
                busy(process.lock("job").wait(secs(1)).acquire().await);
            }
            process
        }));
    }
    pass(millis(59_500)).await;
    let head = world.process("head").await;
    let _head = waiting(head.lock("job").wait_forever());
    for task in impatient {
        task.await.unwrap().assert_idle("after giving up");
    }
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["head"]);
    head.store.kill();
    holder.store.kill();
    let died = world.now();
    let fresh = world.process("fresh").await;
    free(acquired(fresh.lock("job").wait(secs(10)).acquire().await)).await;
    let took = world.now().since(died);
    assert!(took <= secs(2) + TICK, "it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn trap_24_a_holder_and_the_first_waiter_that_die_together_delay_those_behind_by_seconds_only() {
    for ttl in [secs(1), secs(30)] {
        let world = World::new();
        let (holder, head) = (world.process("holder").await, world.process("head").await);
        let _guard = holder.take("job", ttl).await;
        let _head = waiting(head.lock("job").wait_forever());
        pass(millis(1)).await;
        let mut behind = Vec::new();
        for number in 0..10 {
            let process = world.process(&format!("p{number}")).await;
            behind.push(tokio::spawn(async move {
                free(acquired(process.lock("job").wait_forever().acquire().await)).await;
            }));
            pass(millis(1)).await;
        }
        // Renewed for a while, so that nobody has seen the lease that matters.
        pass(secs(100)).await;
        holder.store.kill();
        head.store.kill();
        let died = world.now();
        for task in behind {
            task.await.unwrap();
        }
        let took = world.now().since(died);
        assert!(took <= ttl + secs(3), "a TTL of {ttl:?}: it took {took:?}");
    }
}

/// F042: A live waiter keeps its place however long it waits.
#[tokio::test(start_paused = true)]
async fn trap_27_f042_a_live_waiter_keeps_its_place_however_long_it_waits() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.take("job", secs(3)).await;
    let second = waiting(b.lock("job").wait_forever());
    pass(secs(10)).await;
    let third = waiting(c.lock("job").wait_forever());
    pass(secs(3_000)).await;
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["b", "c"]);
    free(guard).await;
    let released = world.now();
    let second = acquired(second.await.unwrap());
    assert!(!third.is_finished());
    free(second).await;
    free(acquired(third.await.unwrap())).await;
    assert_about(world.now().since(released), Duration::ZERO);
}

/// F045: Waiters that leave take nothing from those that stay.
#[tokio::test(start_paused = true)]
async fn f045_waiters_that_leave_take_nothing_from_those_that_stay() {
    let world = World::new();
    let (a, many) = (world.process("a").await, world.process("many").await);
    let random = Random::new(45);
    let guard = a.take("job", secs(30)).await;
    let mut tasks = Vec::new();
    for number in 0..100 {
        let stays = number % 4 == 0;
        let lock = many.lock("job");
        let lock = if stays { lock.wait_forever() } else { lock.wait(millis(50) + random.millis(450)) };
        tasks.push(tokio::spawn(async move {
            match lock.acquire().await.unwrap() {
                Attempt::Acquired(guard) => free(guard).await,
                Attempt::Busy(_) => assert!(!stays, "one without a limit gave up"),
            }
        }));
    }
    let mut guard = guard;
    for _ in 0..30 {
        pass(millis(20)).await;
        free(guard).await;
        guard = acquired(a.lock("job").wait_forever().acquire().await);
    }
    free(guard).await;
    for task in tasks {
        task.await.unwrap();
    }
    pass(secs(2)).await;
    many.assert_idle("after all");
    world.assert_empty("after all");
}

/// F129: A waiter whose queue entry is lost takes its old place again.
#[tokio::test(start_paused = true)]
async fn f129_a_waiter_whose_queue_entry_is_lost_takes_its_old_place_again() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.take("job", secs(60)).await;
    let second = waiting(b.lock("job").wait_forever());
    pass(millis(10)).await;
    let third = waiting(c.lock("job").wait_forever());
    pass(secs(2)).await;
    world.lose_queue(&name("job"));
    pass(secs(25)).await;
    assert_eq!(world.inspect("job").await.unwrap().waiters, ["b", "c"]);
    free(guard).await;
    let released = world.now();
    free(acquired(second.await.unwrap())).await;
    free(acquired(third.await.unwrap())).await;
    assert_about(world.now().since(released), Duration::ZERO);
}

/// F027: A waiter to which nothing can be pushed polls.
#[tokio::test(start_paused = true)]
async fn trap_28_f027_a_waiter_to_which_nothing_can_be_pushed_polls() {
    let world = World::new();
    let (a, deaf) = (world.process("a").await, world.process_without_push("deaf").await);
    for round in 0..10 {
        let guard = a.take("job", secs(30)).await;
        let waiter = waiting(deaf.lock("job").wait_forever());
        pass(millis(700 + 13 * round)).await;
        free(guard).await;
        let released = world.now();
        let guard = acquired(waiter.await.unwrap());
        let took = world.now().since(released);
        assert!(took <= millis(100) + TICK, "it took {took:?}");
        free(guard).await;
    }
    deaf.assert_idle("after all");
    world.assert_empty("after all");
}

#[tokio::test(start_paused = true)]
async fn a_holder_of_another_kind_is_polled_for_often_and_its_key_is_left_alone() {
    let world = World::new();
    let b = world.process("b").await;
    world.raw_set(&name("job"), "token-of-another-library", None);
    let waiter = waiting(b.lock("job").wait_forever());
    pass(secs(20)).await;
    assert!(b.acquires() >= 40, "asked {} times in 20 s", b.acquires());
    assert_eq!(world.raw_get(&name("job")).as_deref(), Some("token-of-another-library"));
    world.evict(&name("job"));
    let released = world.now();
    free(acquired(waiter.await.unwrap())).await;
    let took = world.now().since(released);
    assert!(took <= millis(500) + TICK, "it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn trap_46_data_that_is_no_lock_is_refused_at_once_and_left_untouched() {
    let world = World::new();
    let b = world.process("b").await;
    world.corrupt(&name("job"));
    let started = world.now();
    let error = b.lock("job").wait(secs(60)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Foreign, false));
    assert_eq!(world.now(), started);
    assert!(world.is_corrupt(&name("job")));
    b.assert_idle("after the refusal");
}

/// F127: Short sections follow each other without a pause.
#[tokio::test(start_paused = true)]
async fn f127_short_sections_follow_each_other_without_a_pause() {
    let world = World::new();
    let started = world.now();
    let mut jobs = Vec::new();
    for number in 0..8 {
        let process = world.process(&format!("p{number}")).await;
        jobs.push(tokio::spawn(async move {
            let lock = process.lock("job").wait(secs(60));
            lock.run(|_| async { Ok::<_, std::convert::Infallible>(()) }).await.unwrap();
        }));
    }
    for job in jobs {
        job.await.unwrap();
    }
    assert_about(world.now().since(started), Duration::ZERO);
}
