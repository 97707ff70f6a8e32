//! Run once: who runs, who gets the result, what a failure leaves, and what it costs.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::memory::Operation;
use leasehold_core::{
    Claim, ErrorKind, Failed, IfUnknown, LostCause, MAX_RESULT_BYTES, Once, OnceError, OnceOutcome, Previous,
};

use crate::support::{Process, World, advance, free, millis, name, pass, polled, secs, within};

pub(crate) type Outcome = Result<OnceOutcome<Vec<u8>>, OnceError<Vec<u8>, &'static str>>;

impl Process {
    pub(crate) fn once(&self, name: &str) -> Once {
        self.client.once(name).unwrap()
    }

    fn sent(&self) -> u64 {
        use Operation::{Acquire, Inspect, ReadRecord, Release, Renew, SwapRecord};
        [Acquire, Release, Renew, Inspect, ReadRecord, SwapRecord]
            .into_iter()
            .map(|operation| self.store.requests(operation))
            .sum()
    }
}

/// Runs an operation that takes this long and returns its label; counts how often it ran.
pub(crate) async fn ship(once: Once, takes: Duration, ran: &AtomicU64) -> Outcome {
    once.run(|attempt| async move {
        ran.fetch_add(1, Ordering::Relaxed);
        pass(takes).await;
        Ok(attempt.idempotency_key().as_str().as_bytes().to_vec())
    })
    .await
}

/// Claims an operation that must be free.
pub(crate) async fn claimed(once: Once) -> leasehold_core::Claimed {
    match once.claim().await {
        Ok(Claim::Claimed(claimed)) => claimed,
        other => panic!("not claimed: {other:?}"),
    }
}

fn already_done(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Ok(OnceOutcome::AlreadyDone(result)) => result,
        other => panic!("not done before: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_call_costs_two_requests_more_than_a_lock_and_later_calls_cost_one() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    free(a.take("ship:1", secs(30)).await).await;
    let lock = a.sent();
    assert_eq!(lock, 2);
    let ran = AtomicU64::new(0);
    let outcome = ship(a.once("ship:1"), Duration::ZERO, &ran).await.unwrap();
    assert_eq!(a.sent() - lock, lock + 2);
    let OnceOutcome::Ran(result) = outcome else { panic!("{outcome:?}") };
    for process in [&a, &b, &b] {
        let before = process.sent();
        assert_eq!(already_done(ship(process.once("ship:1"), Duration::ZERO, &ran).await), result);
        assert_eq!(process.sent() - before, 1);
    }
    assert_eq!(ran.into_inner(), 1);
    a.assert_idle("after the call");
    world.assert_empty("no lease and no queue");
    assert_eq!(world.stored_records(), 1);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_get_the_result_and_others_are_told_who_is_at_it() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let ran = AtomicU64::new(0);
    let first = ship(a.once("ship:1"), secs(40), &ran);
    let waits = async {
        pass(secs(1)).await;
        (ship(b.once("ship:1").wait_forever(), secs(40), &ran).await, world.now())
    };
    let does_not = async {
        pass(secs(2)).await;
        let started = world.now();
        let told = ship(c.once("ship:1"), secs(40), &ran).await;
        assert_eq!(world.now(), started);
        told
    };
    let gives_up = async { ship(c.once("ship:1").wait(secs(9)), secs(40), &ran).await };
    let begun = world.now();
    let (first, (waited, at), told, gave_up) = tokio::join!(first, waits, does_not, gives_up);
    let Ok(OnceOutcome::Ran(result)) = first else { panic!("{first:?}") };
    assert_eq!(already_done(waited), result);
    assert!(at.since(begun) < secs(41), "the result is handed over, not polled for: {:?}", at.since(begun));
    for told in [told, gave_up] {
        let Err(OnceError::InProgress(busy)) = told else { panic!("{told:?}") };
        assert_eq!(busy.holder.as_deref(), Some("a"));
    }
    assert_eq!(ran.into_inner(), 1);
    world.assert_empty("after all of them");
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_the_same_key_and_a_fencing_token_of_its_own() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let first = claimed(a.once("ship:1")).await;
    let (key, token) = (first.attempt().idempotency_key().clone(), first.attempt().fencing_token());
    assert_eq!((first.attempt().number(), first.attempt().previous()), (1, None));
    assert_eq!(a.once("ship:1").idempotency_key(), key);
    assert_ne!(a.once("ship:2").idempotency_key(), key);
    drop(first);
    pass(millis(1)).await;
    let second = claimed(b.once("ship:1")).await;
    assert_eq!(second.attempt().idempotency_key(), &key);
    assert!(second.attempt().fencing_token() > token);
    assert_eq!(second.attempt().number(), 2);
}

/// A timeout that is seen here may follow an act there.
#[tokio::test(start_paused = true)]
async fn trap_56_a_failure_leaves_unknown_unless_it_says_that_it_has_not_acted() {
    let world = World::new();
    let a = world.process("a").await;
    for (says_so, left) in [(false, Previous::Unknown), (true, Previous::Retryable)] {
        let job = format!("ship:{says_so}");
        let failed = a
            .once(&job)
            .run(|attempt| async move {
                if says_so {
                    attempt.has_not_acted();
                }
                Err::<Vec<u8>, _>("timed out")
            })
            .await;
        assert!(matches!(failed, Err(OnceError::Body("timed out"))), "{failed:?}");
        world.assert_empty("after the failure");
        let refusing = a.once(&job).if_unknown(IfUnknown::Refuse).claim().await;
        match left {
            Previous::Unknown => assert_eq!(refusing.unwrap_err().kind(), ErrorKind::OutcomeUnknown),
            Previous::Retryable => assert!(matches!({ refusing }, Ok(Claim::Claimed(_)))),
        }
        pass(millis(1)).await;
        world.assert_empty("a refusal leaves nothing");
    }
    let again = claimed(a.once("ship:false")).await;
    assert_eq!((again.attempt().number(), again.attempt().previous()), (2, Some(Previous::Unknown)));
    again.fail(Failed::Retryable).await.unwrap();
    let again = claimed(a.once("ship:false").if_unknown(IfUnknown::Refuse)).await;
    assert_eq!((again.attempt().number(), again.attempt().previous()), (3, Some(Previous::Retryable)));
    again.fail(Failed::Unknown).await.unwrap();
    let outcome = a
        .once("ship:false")
        .if_unknown(IfUnknown::Refuse)
        .run(|_| async { Ok::<_, Infallible>("not run") })
        .await;
    assert!(matches!(outcome, Err(OnceError::OutcomeUnknown(_))), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn trap_56_the_same_operation_with_another_request_is_refused_in_every_state() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let refused = async |what: &str| {
        let other = b.once("pay:1").fingerprint("5 EUR").wait(secs(60));
        let outcome = within(secs(61), ship(other, Duration::ZERO, &AtomicU64::new(0))).await;
        let Some(Err(OnceError::DifferentRequest(error))) = outcome else { panic!("{what}: {outcome:?}") };
        assert!(!error.is_retryable() && error.to_string().contains("pay:1"), "{error}");
    };
    let first = claimed(a.once("pay:1").fingerprint("3 EUR")).await;
    refused("started").await;
    first.fail(Failed::Retryable).await.unwrap();
    refused("retryable").await;
    let again = claimed(a.once("pay:1")).await;
    refused("started without one: the first one is kept").await;
    again.complete("paid").await.unwrap();
    refused("done").await;
    for once in [b.once("pay:1").fingerprint("3 EUR"), b.once("pay:1")] {
        assert_eq!(already_done(ship(once, Duration::ZERO, &AtomicU64::new(0)).await), b"paid");
    }
    world.assert_empty("after the refusals");
    b.assert_idle("after the refusals");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_differs_from_one_that_comes_first_while_it_waits_is_refused() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let lock = a.take("pay:1", secs(30)).await;
    let late = async {
        let once = b.once("pay:1").fingerprint("5 EUR").wait_forever();
        ship(once, Duration::ZERO, &AtomicU64::new(0)).await
    };
    let first = async {
        pass(secs(1)).await;
        let early = a.once("pay:1").fingerprint("3 EUR").claim().await;
        assert!(matches!(early, Ok(Claim::InProgress(_))), "a lock of the same name excludes it");
        world.raw_record(&name("pay:1"), Some(b"1 retryable 1 5 3d5c90a4-6d0f-4c5b-9f0e-7f2f5c1b88e1"));
        free(lock).await;
    };
    let (late, ()) = tokio::join!(late, first);
    assert!(matches!(late, Err(OnceError::DifferentRequest(_))), "{late:?}");
    pass(millis(1)).await;
    world.assert_empty("after the refusal");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_a_typed_error_and_nothing_is_half_kept() {
    let world = World::new();
    let a = world.process("a").await;
    let large = vec![b'x'; MAX_RESULT_BYTES + 1];
    let outcome = a.once("ship:1").run(|_| async { Ok::<_, Infallible>(large.clone()) }).await;
    let Err(OnceError::TooLarge { value, error }) = outcome else { panic!("{outcome:?}") };
    assert!(value == large, "the caller has its result");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TooLarge, false));
    world.assert_empty("after the refusal");
    a.assert_idle("after the refusal");
    let again = claimed(a.once("ship:1")).await;
    assert_eq!(
        again.attempt().previous(),
        Some(Previous::Unknown),
        "it has acted, and its result is not kept"
    );
    again.complete(&large[1..]).await.unwrap();
    assert!(already_done(ship(a.once("ship:1"), Duration::ZERO, &AtomicU64::new(0)).await) == large[1..]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_or_request_changes_nothing() {
    for lose_reply in [true, false] {
        for (operation, skip) in [
            (Operation::ReadRecord, 0),
            (Operation::Acquire, 0),
            (Operation::SwapRecord, 0),
            (Operation::SwapRecord, 1),
        ] {
            let world = World::new();
            let a = world.process("a").await;
            let ran = AtomicU64::new(0);
            let lose = || {
                if lose_reply {
                    a.store.lose_next_reply(operation);
                } else {
                    a.store.lose_next_request(operation);
                }
            };
            if skip == 0 {
                lose();
            }
            let outcome = a
                .once("ship:1")
                .run(|attempt| {
                    assert_eq!(attempt.number(), 1, "{operation:?}");
                    ran.fetch_add(1, Ordering::Relaxed);
                    if skip == 1 {
                        lose();
                    }
                    std::future::ready(Ok::<_, Infallible>("JD1"))
                })
                .await;
            assert!(matches!(outcome, Ok(OnceOutcome::Ran("JD1"))), "{operation:?} {skip}: {outcome:?}");
            assert_eq!(already_done(ship(a.once("ship:1"), Duration::ZERO, &ran).await), b"JD1");
            assert_eq!(ran.into_inner(), 1);
            pass(secs(2)).await;
            world.assert_empty(format!("{operation:?} {skip}"));
            a.assert_idle("after the call");
        }
    }
}

/// Whatever the moment, a caller that goes away blocks nobody, and its late requests change nothing.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_point_leaves_no_lease() {
    for most in 0..40 {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        a.store.delay_requests(millis(5));
        a.store.delay_replies(millis(5));
        let ran = AtomicU64::new(0);
        let outcome = polled(most, ship(a.once("ship:1"), millis(5), &ran)).await;
        pass(secs(3)).await;
        world.assert_empty(format!("dropped after {most} polls"));
        a.assert_idle(format!("dropped after {most} polls"));
        let before = ran.load(Ordering::Relaxed);
        let next = ship(b.once("ship:1"), Duration::ZERO, &ran).await;
        match (outcome, next) {
            (Some(Ok(OnceOutcome::Ran(_))), next) => drop(already_done(next)),
            (None, Ok(OnceOutcome::Ran(_))) => assert_eq!(ran.load(Ordering::Relaxed), before + 1),
            // The last request was under way: its result is kept all the same.
            (None, Ok(OnceOutcome::AlreadyDone(_))) => assert_eq!(before, 1),
            other => panic!("after {most} polls: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_cancels_the_body_and_its_result_is_not_kept() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let ran = AtomicU64::new(0);
    let cut_off = async {
        pass(secs(1)).await;
        a.store.unreachable(true);
    };
    let (lost, ()) = tokio::join!(ship(a.once("ship:1").ttl(secs(3)), secs(60), &ran), cut_off);
    let Err(OnceError::Lost { cause: LostCause::Unreachable, value: None, .. }) = lost else {
        panic!("{lost:?}")
    };
    a.store.unreachable(false);
    let again = claimed(b.once("ship:1").wait(secs(5))).await;
    assert_eq!(again.attempt().previous(), Some(Previous::Unknown));
    again.complete("JD2").await.unwrap();
    assert_eq!(already_done(ship(a.once("ship:1"), secs(1), &ran).await), b"JD2");
}

#[tokio::test(start_paused = true)]
async fn trap_56_one_that_slept_past_its_lease_does_not_write_over_its_successor() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    for done_before in [true, false] {
        let job = format!("ship:{done_before}");
        let first = claimed(a.once(&job).ttl(secs(3))).await;
        a.store.unreachable(true);
        advance(secs(10)).await;
        let second = claimed(b.once(&job)).await;
        a.store.unreachable(false);
        if done_before {
            second.complete("second").await.unwrap();
            let error = first.complete("first").await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
        } else {
            let error = first.complete("first").await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
            second.complete("second").await.unwrap();
        }
        assert_eq!(already_done(ship(a.once(&job), secs(1), &AtomicU64::new(0)).await), b"second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_is_kept_though_the_record_was_lost_meanwhile() {
    let world = World::new();
    let a = world.process("a").await;
    let first = claimed(a.once("ship:1")).await;
    world.raw_record(&name("ship:1"), None);
    first.complete("JD1").await.unwrap();
    // Its time may be over before the work is.
    let second = claimed(a.once("ship:2").retain(secs(1))).await;
    pass(secs(90)).await;
    second.complete("JD2").await.unwrap();
    for (job, result) in [("ship:1", b"JD1"), ("ship:2", b"JD2")] {
        assert_eq!(already_done(ship(a.once(job), secs(1), &AtomicU64::new(0)).await), result);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_while_the_result_is_to_be_kept_is_waited_out() {
    let world = World::new();
    let a = world.process("a").await;
    let first = claimed(a.once("ship:1")).await;
    a.store.refuse(&name("ship:1"), Some(ErrorKind::Unavailable));
    let comes_back = async {
        pass(secs(5)).await;
        a.store.refuse(&name("ship:1"), None);
    };
    let (kept, ()) = tokio::join!(first.complete("JD1"), comes_back);
    kept.unwrap();
    let second = claimed(a.once("ship:2")).await;
    a.store.refuse(&name("ship:2"), Some(ErrorKind::Unavailable));
    let started = world.now();
    let outcome = second.complete("JD2").await.unwrap_err();
    assert_eq!((outcome.kind(), world.now().since(started)), (ErrorKind::Unknown, secs(10)));
    pass(secs(5)).await;
    a.store.refuse(&name("ship:2"), None);
    pass(secs(2)).await;
    world.assert_empty("the lease is given back");
    let kept = a.once("ship:2").claim().await.unwrap();
    assert!(matches!(&kept, Claim::Done(result) if result == b"JD2"), "tried on with: {kept:?}");
    a.assert_idle("after all");
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_leaves_the_operation_unknown() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let first = claimed(a.once("ship:1")).await;
    a.store.refuse(&name("ship:1"), Some(ErrorKind::Unavailable));
    assert_eq!(first.complete("JD1").await.unwrap_err().kind(), ErrorKind::Unknown);
    pass(secs(40)).await;
    let second = claimed(b.once("ship:1")).await;
    assert_eq!(second.attempt().previous(), Some(Previous::Unknown));
    // What comes late does not overwrite the next attempt.
    a.store.refuse(&name("ship:1"), None);
    pass(secs(40)).await;
    second.complete("JD2").await.unwrap();
    let kept = a.once("ship:1").claim().await.unwrap();
    assert!(matches!(&kept, Claim::Done(result) if result == b"JD2"), "{kept:?}");
    a.assert_idle("after all");
}

#[tokio::test(start_paused = true)]
async fn records_that_are_not_ours_or_newer_are_typed_errors_and_stay_as_they_are() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let job = name("ship:1");
    for (record, kind) in
        [(&b"2 started 1 5 - more"[..], ErrorKind::Config), (b"{\"shipped\":true}", ErrorKind::Foreign)]
    {
        world.raw_record(&job, Some(record));
        let acquires = a.acquires();
        let error = a.once("ship:1").claim().await.unwrap_err();
        assert_eq!((error.kind(), a.acquires()), (kind, acquires), "before the name is taken: {error}");
        world.raw_record(&job, None);
        // One that comes while the name is waited for, and one that comes while the work is done.
        let lock = b.take("ship:1", secs(30)).await;
        let ran = AtomicU64::new(0);
        let waits = ship(a.once("ship:1").wait_forever(), secs(1), &ran);
        let comes = async {
            pass(secs(1)).await;
            world.raw_record(&job, Some(record));
            free(lock).await;
        };
        let (outcome, ()) = tokio::join!(waits, comes);
        assert!(matches!(&outcome, Err(OnceError::Store(error)) if error.kind() == kind), "{outcome:?}");
        world.raw_record(&job, None);
        let at_it = claimed(b.once("ship:1")).await;
        world.raw_record(&job, Some(record));
        assert_eq!(at_it.complete("JD1").await.unwrap_err().kind(), ErrorKind::Foreign);
        pass(secs(2)).await;
        world.assert_empty("nothing is left");
        let error = a.once("ship:1").claim().await.unwrap_err();
        assert_eq!(error.kind(), kind, "and the record is still there");
        world.raw_record(&job, None);
    }
}

#[tokio::test(start_paused = true)]
async fn retain_is_checked_before_anything_is_sent_and_ends_what_is_known() {
    let world = World::new();
    let a = world.process("a").await;
    for retain in [Duration::ZERO, millis(999), secs(366 * 24 * 3_600), Duration::MAX] {
        let error = a.once("ship:1").retain(retain).claim().await.unwrap_err();
        assert_eq!((error.kind(), a.sent()), (ErrorKind::Config, 0), "{error}");
        assert!(error.to_string().contains("1s to 365 days"), "{error}");
    }
    let error = a.once("ship:1").ttl(Duration::ZERO).claim().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let ran = AtomicU64::new(0);
    for (passed, runs) in [(secs(0), 1), (secs(59), 1), (secs(2), 2)] {
        pass(passed).await;
        let outcome = ship(a.once("ship:1").retain(secs(60)), Duration::ZERO, &ran).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(ran.load(Ordering::Relaxed), runs);
    }
    let first = claimed(a.once("ship:2").retain(secs(60))).await;
    first.fail(Failed::Unknown).await.unwrap();
    pass(secs(61)).await;
    assert_eq!(claimed(a.once("ship:2")).await.attempt().number(), 1, "a new operation");
}

#[tokio::test(start_paused = true)]
async fn ended_records_take_up_no_memory() {
    let world = World::new();
    let a = world.process("a").await;
    for order in 0..2_000 {
        let once = a.once(&format!("ship:{order}")).retain(secs(1));
        assert!(ship(once, Duration::ZERO, &AtomicU64::new(0)).await.is_ok());
        pass(millis(20)).await;
    }
    assert!(world.stored_records() < 250, "{}", world.stored_records());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_begins_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    a.client.close(secs(1)).await.unwrap();
    let error = a.once("ship:1").claim().await.unwrap_err();
    assert_eq!((error.kind(), a.sent()), (ErrorKind::Config, 0), "{error}");
}

#[tokio::test(start_paused = true)]
async fn many_callers_of_many_processes_run_each_operation_once() {
    let world = World::new();
    let ran: Arc<Vec<AtomicU64>> = Arc::new((0..20).map(|_| AtomicU64::new(0)).collect());
    let mut calls = Vec::new();
    let mut processes = Vec::new();
    for number in 0..4_u64 {
        let process = world.process(&format!("p{number}")).await;
        for (order, _) in ran.iter().enumerate() {
            for _ in 0..3 {
                let (once, ran) = (process.once(&format!("ship:{order}")).wait_forever(), Arc::clone(&ran));
                calls.push(tokio::spawn(async move { ship(once, millis(20 + number), &ran[order]).await }));
            }
        }
        processes.push(process);
    }
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
    assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1), "{ran:?}");
    world.assert_empty("after all of them");
}
