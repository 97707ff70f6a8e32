//! Renewal: when it happens, what it costs, that one lease's trouble is not another's, and when it stops.

use std::time::Duration;

use leasehold_core::memory::{Operation, Recorded};
use leasehold_core::{ErrorKind, LeaseState, LostCause, Moment, Released};

use crate::support::{
    Process, TICK, World, acquired, advance, assert_about, free, millis, name, pass, secs, waiting, within,
};

/// What the process sent of this kind, in order.
fn sent(process: &Process, operation: Operation) -> Vec<Recorded> {
    process.store.recorded().into_iter().filter(|line| line.operation == operation).collect()
}

fn times(process: &Process, since: Moment) -> Vec<Duration> {
    sent(process, Operation::Renew).iter().map(|line| line.at.since(since)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_third_of_its_ttl_and_to_no_more_than_its_ttl() {
    for ttl in [millis(10), millis(60), secs(3), secs(30), secs(24 * 3600)] {
        let world = World::new();
        let a = world.process("a").await;
        a.store.start_record();
        let started = world.now();
        let guard = a.take("job", ttl).await;
        for _ in 0..20 {
            pass(ttl / 6).await;
            assert_eq!(guard.state(), LeaseState::Held, "{ttl:?}");
            // F099: what is left never adds up.
            assert!(world.lease_left("job").await <= ttl, "{ttl:?}");
        }
        let mut before = Duration::ZERO;
        let renewed = times(&a, started);
        assert!(renewed.len() >= 7, "{ttl:?}: {renewed:?}");
        for at in renewed {
            assert_about(at - before, ttl / 3);
            before = at;
        }
        free(guard).await;
    }
}

/// F058: The fencing token stays over renewals and grows with every grant.
#[tokio::test(start_paused = true)]
async fn trap_54_f058_the_fencing_token_stays_over_renewals_and_grows_over_grants() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let first = a.take("job", secs(3)).await;
    let token = first.fencing_token();
    pass(secs(30)).await;
    first.renew().await.unwrap();
    first.extend(secs(5)).await.unwrap();
    assert_eq!(first.fencing_token(), token);
    assert_eq!(world.inspect("job").await.unwrap().fencing_token, Some(token));
    free(first).await;
    let second = b.take("job", secs(3)).await;
    assert!(second.fencing_token() > token);
    free(second).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_makes_the_lease_uncertain_and_is_retried_until_it_succeeds() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    a.store.unreachable(true);
    pass(millis(1_010)).await;
    assert_eq!(guard.state(), LeaseState::Uncertain);
    let left = guard.remaining();
    pass(millis(900)).await;
    assert_eq!(guard.state(), LeaseState::Uncertain);
    assert!(guard.remaining() <= left - millis(900), "what is unknown prolongs nothing");
    a.store.unreachable(false);
    pass(millis(510)).await;
    assert_eq!(guard.state(), LeaseState::Held);
    pass(secs(30)).await;
    assert_eq!(guard.state(), LeaseState::Held);
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn lost_requests_replies_and_hanging_of_renewals_are_survived_inside_the_lease() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    a.store.lose_next_request(Operation::Renew);
    a.store.lose_next_reply(Operation::Renew);
    a.store.late_request(Operation::Renew, millis(300));
    pass(secs(10)).await;
    assert_eq!(guard.state(), LeaseState::Held);
    pass(millis(900)).await;
    a.store.hang(true);
    pass(millis(1_300)).await;
    a.store.hang(false);
    pass(secs(10)).await;
    assert_eq!(guard.state(), LeaseState::Held);
    free(guard).await;
}

/// F039: What goes wrong with one lease does not stop the renewal of others, nor of the next lease of its
/// name.
#[tokio::test(start_paused = true)]
async fn trap_16_f039_the_trouble_of_one_lease_is_not_that_of_others() {
    let world = World::new();
    let a = world.process("a").await;
    let bad = a.take("bad", secs(3)).await;
    let good = a.take("good", secs(3)).await;
    a.store.refuse(&name("bad"), Some(ErrorKind::Unavailable));
    for _ in 0..100 {
        pass(millis(100)).await;
        assert_eq!(good.state(), LeaseState::Held);
    }
    assert_eq!(bad.state(), LeaseState::Lost(LostCause::Unreachable));
    // Later leases of the name that failed are renewed again.
    a.store.refuse(&name("bad"), None);
    drop(bad);
    pass(millis(10)).await;
    let again = a.take("bad", secs(3)).await;
    pass(secs(30)).await;
    assert_eq!((again.state(), good.state()), (LeaseState::Held, LeaseState::Held));
    free(again).await;
    free(good).await;
}

#[tokio::test(start_paused = true)]
async fn trap_17_renewals_that_are_due_together_go_out_in_the_order_of_their_deadlines() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.start_record();
    let mut guards = Vec::new();
    for number in [3, 1, 4, 0, 2] {
        guards.push(a.take(&format!("job:{number}"), secs(30)).await);
        pass(millis(10)).await;
    }
    // All of them become due in one leap of time.
    advance(secs(12)).await;
    pass(millis(1)).await;
    let renewed: Vec<_> =
        sent(&a, Operation::Renew).iter().map(|line| line.name.as_str().to_owned()).collect();
    assert_eq!(renewed, ["job:3", "job:1", "job:4", "job:0", "job:2"]);
    assert_eq!(a.renewals(), 1, "in one round trip");
}

/// F036: Very many leases are renewed in batches, in the order of their deadlines, and none is lost.
#[tokio::test(start_paused = true)]
async fn trap_17_f036_very_many_leases_are_renewed_in_batches_and_none_is_lost() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.delay_requests(millis(1));
    a.store.delay_replies(millis(1));
    let mut taken = Vec::new();
    for number in 0..2_000 {
        let lock = a.lock(&format!("job:{number}")).ttl(secs(6));
        taken.push(waiting(lock));
    }
    let mut guards = Vec::new();
    for task in taken {
        guards.push(acquired(task.await.unwrap()));
    }
    pass(millis(2_100)).await;
    let batches = a.renewals();
    assert!((8..=20).contains(&batches), "{batches} round trips for 2,000 renewals");
    pass(secs(60)).await;
    assert!(guards.iter().all(|guard| guard.state() == LeaseState::Held));
    drop(guards);
    pass(secs(2)).await;
    world.assert_empty("after the drop");
    a.assert_idle("after the drop");
}

#[tokio::test(start_paused = true)]
async fn trap_16_a_slow_round_trip_of_long_leases_does_not_hold_up_short_ones() {
    let world = World::new();
    let a = world.process("a").await;
    let long = a.take("long", secs(30)).await;
    pass(secs(9)).await;
    let short = a.take("short", millis(900)).await;
    pass(millis(10)).await;
    // The renewal of the long lease hangs for its whole second, those of the short one only for their own.
    a.store.late_request(Operation::Renew, secs(5));
    for _ in 0..30 {
        pass(millis(100)).await;
        assert_ne!(long.state(), LeaseState::Lost(LostCause::Unreachable));
        assert!(matches!(short.state(), LeaseState::Held | LeaseState::Uncertain), "{:?}", short.state());
    }
    free(short).await;
    free(long).await;
}

#[tokio::test(start_paused = true)]
async fn trap_13_no_renewal_is_sent_after_the_release() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(1)).await;
    a.store.start_record();
    // The release takes longer than a third of the TTL to be answered.
    a.store.delay_requests(millis(900));
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    pass(secs(5)).await;
    assert_eq!(sent(&a, Operation::Renew), []);
    assert_eq!(sent(&a, Operation::Release).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn trap_14_a_renewal_that_is_overtaken_by_the_release_reports_no_loss() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    let view = guard.lease().clone();
    a.store.delay_requests(millis(200));
    pass(millis(1_050)).await;
    assert_eq!(a.renewals(), 1, "on its way");
    a.store.delay_requests(millis(0));
    drop(guard);
    pass(millis(500)).await;
    world.assert_empty("the renewal did not bring it back");
    assert_eq!(view.state(), LeaseState::Released);
    assert!(within(secs(60), view.lost()).await.is_none(), "released is not lost");
}

#[tokio::test(start_paused = true)]
async fn trap_14_a_release_during_a_renewal_frees_the_name() {
    let world = World::new();
    let a = world.process("a").await;
    for offset in [995, 1_000, 1_001, 1_020, 1_099, 1_101, 1_199, 1_201] {
        a.store.delay_requests(millis(0));
        a.store.delay_replies(millis(0));
        let guard = a.take("job", secs(3)).await;
        a.store.delay_requests(millis(100));
        a.store.delay_replies(millis(100));
        pass(millis(offset)).await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed, "after {offset} ms");
        pass(secs(1)).await;
        world.assert_empty(offset);
    }
}

#[tokio::test(start_paused = true)]
async fn trap_15_the_end_of_a_lost_lease_leaves_the_next_lease_of_its_name_renewed() {
    let world = World::new();
    let a = world.process("a").await;
    let old = acquired(a.lock("job").ttl(secs(2)).fixed_lease().try_acquire().await);
    pass(secs(3)).await;
    let new = a.take("job", secs(3)).await;
    drop(old);
    for _ in 0..100 {
        pass(millis(100)).await;
        assert_eq!(new.state(), LeaseState::Held);
    }
    free(new).await;
    a.assert_idle("after both");
}

/// F040: A renewal does not bring back a missing lease: its holder is told.
#[tokio::test(start_paused = true)]
async fn trap_11_f040_a_renewal_does_not_bring_back_a_missing_lease() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    world.evict(&name("job"));
    assert_eq!(within(secs(2), guard.lost()).await, Some(LostCause::Missing));
    assert_eq!(world.raw_get(&name("job")), None);
    let renewals = a.renewals();
    pass(secs(10)).await;
    assert_eq!(a.renewals(), renewals, "a lost lease is not renewed");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

/// F102: A renewal compares the owner and does not prolong the lease of another.
#[tokio::test(start_paused = true)]
async fn trap_10_f102_a_renewal_does_not_prolong_the_lease_of_another() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let old = a.take("job", secs(3)).await;
    world.evict(&name("job"));
    let new = acquired(b.lock("job").ttl(secs(2)).fixed_lease().try_acquire().await);
    assert_eq!(within(secs(2), old.lost()).await, Some(LostCause::Taken));
    assert!(world.lease_left("job").await <= secs(1), "b's lease ends on its own time");
    drop((old, new));
}

#[tokio::test(start_paused = true)]
async fn trap_12_a_renewal_never_shortens_what_is_left() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(60)).await;
    guard.extend(secs(2)).await.unwrap();
    assert!(world.lease_left("job").await > secs(59));
    assert!(guard.remaining() > secs(58));
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_extended_to_a_shorter_ttl_is_held_beyond_its_old_end() {
    for shorter in [millis(50), millis(700), secs(2), secs(20)] {
        let world = World::new();
        let a = world.process("a").await;
        let guard = a.take("job", secs(30)).await;
        guard.extend(shorter).await.unwrap();
        for _ in 0..90 {
            pass(secs(1)).await;
            assert_eq!(guard.state(), LeaseState::Held, "{shorter:?}");
        }
        assert!(world.lease_left("job").await <= shorter, "{shorter:?}");
        free(guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_extension_counts_at_once_and_for_later_renewals() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    pass(millis(500)).await;
    guard.extend(secs(60)).await.unwrap();
    assert_about(world.lease_left("job").await, secs(60));
    let renewals = a.renewals();
    pass(secs(19)).await;
    assert_eq!(a.renewals(), renewals, "renewed every third of the new TTL");
    pass(secs(2)).await;
    assert_eq!(a.renewals(), renewals + 1);
    assert!(world.lease_left("job").await > secs(58));
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn trap_8_an_extension_outside_the_limits_is_refused_before_anything_is_sent() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(3)).await;
    for ttl in [Duration::ZERO, millis(9), secs(24 * 3600 + 1), Duration::MAX] {
        let error = guard.extend(ttl).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false), "{ttl:?}");
    }
    assert_eq!((a.renewals(), guard.state()), (0, LeaseState::Held));
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_by_hand_tells_the_truth_about_its_outcome() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(30)).await;
    pass(secs(5)).await;
    guard.renew().await.unwrap();
    assert_about(world.lease_left("job").await, secs(30));
    a.store.lose_next_reply(Operation::Renew);
    let error = guard.renew().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unknown, true));
    assert_eq!(guard.state(), LeaseState::Uncertain);
    guard.renew().await.unwrap();
    assert_eq!(guard.state(), LeaseState::Held);
    world.evict(&name("job"));
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost(LostCause::Missing));
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost(LostCause::Missing));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn renewals_by_hand_at_the_same_time_all_get_an_answer() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.delay_requests(millis(20));
    let guard = a.take("job", secs(30)).await;
    let calls = async {
        let (first, second, third) = tokio::join!(guard.renew(), guard.extend(secs(60)), guard.renew());
        first.and(second).and(third)
    };
    within(secs(1), calls).await.expect("an answer").unwrap();
    assert!(world.lease_left("job").await > secs(58));
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn a_handed_over_lease_is_confirmed_after_a_third_of_its_claim_but_not_if_released_before() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    for works in [millis(900), millis(1_100)] {
        let guard = a.take("job", secs(30)).await;
        let waiter = waiting(b.lock("job").ttl(secs(30)).wait_forever());
        pass(millis(10)).await;
        free(guard).await;
        let before = b.renewals();
        let guard = acquired(waiter.await.unwrap());
        assert_about(world.lease_left("job").await, secs(3));
        pass(works).await;
        let confirmed = works > secs(1);
        assert_eq!(b.renewals() - before, u64::from(confirmed));
        if confirmed {
            assert!(world.lease_left("job").await > secs(29));
        }
        free(guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_27_a_waiter_that_dies_with_its_claim_delays_the_next_by_the_claim_only() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let guard = a.take("job", secs(30)).await;
    let dying = waiting(b.lock("job").ttl(secs(30)).wait_forever());
    pass(millis(10)).await;
    let next = waiting(c.lock("job").ttl(secs(30)).wait_forever());
    pass(millis(10)).await;
    free(guard).await;
    let released = world.now();
    let _claimed = acquired(dying.await.unwrap());
    b.store.kill();
    free(acquired(next.await.unwrap())).await;
    let took = world.now().since(released);
    assert!(took <= secs(3) + TICK, "it took {took:?}");
}
