//! What users of other de-duplication libraries met, by the numbers of the field cases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Claim, OnceError, OnceOutcome, Previous};

use crate::once::{claimed, ship};
use crate::support::{Random, World, millis, pass, polled, secs, within};

/// F150: a claim lives as long as its lease, renewed while the work goes on; another caller runs only when that is over.
#[tokio::test(start_paused = true)]
async fn f150_a_second_caller_runs_only_when_the_claim_of_a_dead_one_is_over() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let ran = AtomicU64::new(0);
    let second = async {
        pass(secs(1)).await;
        ship(b.once("r"), secs(5), &ran).await
    };
    let (first, second) = tokio::join!(ship(a.once("r"), secs(5), &ran), second);
    assert!(matches!(first, Ok(OnceOutcome::Ran(_))), "{first:?}");
    assert!(matches!(second, Err(OnceError::InProgress(_))), "{second:?}");
    assert_eq!(ran.load(Ordering::Relaxed), 1);

    // The variant: the first one dies.
    let at_it = claimed(a.once("s")).await;
    let key = at_it.attempt().idempotency_key().clone();
    pass(secs(1)).await;
    a.store.kill();
    std::mem::forget(at_it);
    for _ in 0..28 {
        let told = b.once("s").claim().await;
        assert!(matches!(told, Ok(Claim::InProgress(_))), "{told:?}");
        pass(secs(1)).await;
    }
    pass(secs(2)).await;
    let next = claimed(b.once("s")).await;
    assert_eq!(next.attempt().previous(), Some(Previous::Unknown), "it may have acted");
    assert_eq!(next.attempt().idempotency_key(), &key);
}

/// F151: the name travels with the message as plain text, so a payload that cannot be read frees its operation.
#[tokio::test(start_paused = true)]
async fn f151_a_payload_that_cannot_be_decoded_frees_its_operation() {
    let world = World::new();
    let (first, second) = (world.process("first").await, world.process("second").await);
    let run = async |worker: &crate::support::Process, payload: &'static [u8]| {
        worker
            .once("job:j")
            .run(|attempt| async move {
                let order = std::str::from_utf8(payload).map_err(|_| {
                    attempt.has_not_acted();
                    "cannot be decoded"
                })?;
                Ok::<_, &str>(format!("done {order}"))
            })
            .await
    };
    let failed = run(&first, b"\xff").await;
    assert!(matches!(failed, Err(OnceError::Body("cannot be decoded"))), "{failed:?}");
    world.assert_empty("no lease is left, with or without a TTL");
    let done = run(&second, b"order 1").await;
    assert!(matches!(done, Ok(OnceOutcome::Ran(_))), "{done:?}");
}

/// F153: a call that is cancelled before or while it runs gives its claim up, and later calls run.
#[tokio::test(start_paused = true)]
async fn f153_a_call_that_is_cancelled_before_it_starts_does_not_block_later_ones() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let ran = AtomicU64::new(0);
    for (job, takes) in [("waiting", None), ("claimed", Some(secs(5)))] {
        let blocker = if takes.is_none() { Some(b.take(job, secs(30)).await) } else { None };
        let task = within(secs(1), ship(a.once(job).wait_forever(), secs(5), &ran)).await;
        assert!(task.is_none(), "it was cancelled: {task:?}");
        drop(blocker);
        pass(millis(10)).await;
        for call in 1..=3 {
            let outcome = within(secs(6), ship(b.once(job), secs(1), &ran)).await;
            match (call, outcome) {
                (1, Some(Ok(OnceOutcome::Ran(_)))) | (2 | 3, Some(Ok(OnceOutcome::AlreadyDone(_)))) => {}
                other => panic!("{job}: {other:?}"),
            }
        }
    }
    a.assert_idle("after the cancelled calls");
}

/// F154: of 500 callers that die anywhere between claim and result, none blocks the operation past its TTL.
#[tokio::test(start_paused = true)]
async fn f154_a_claim_whose_process_died_anywhere_lapses_within_its_ttl() {
    let random = Random::new(154);
    let mut blocked = 0;
    for round in 0..500 {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        a.store.delay_requests(millis(3));
        a.store.delay_replies(millis(3));
        let ran = AtomicU64::new(0);
        {
            let call = ship(a.once("job").ttl(secs(2)), millis(10), &ran);
            let mut call = Box::pin(call);
            polled(usize::try_from(random.below(30)).unwrap(), call.as_mut()).await;
            a.store.kill();
            // A process that is killed cleans nothing up.
            std::mem::forget(call);
        }
        let early = b.once("job").claim().await.unwrap();
        blocked += u64::from(matches!(early, Claim::InProgress(_)));
        drop(early);
        pass(secs(3)).await;
        let later = b.once("job").claim().await.unwrap();
        assert!(!matches!(later, Claim::InProgress(_)), "round {round}: refused although nobody is at it");
    }
    assert!(blocked > 50, "too few died under a claim to say anything: {blocked}");
}

/// F156: each request has a name, a record and a key of its own, so a hundred run at the same time.
#[tokio::test(start_paused = true)]
async fn f156_requests_with_different_keys_run_at_the_same_time() {
    let world = World::new();
    let a = world.process("a").await;
    let ran = Arc::new(AtomicU64::new(0));
    let started = world.now();
    let calls: Vec<_> = (0..100)
        .map(|request| {
            let (once, ran) = (a.once(&format!("request:{request}")), Arc::clone(&ran));
            tokio::spawn(async move { ship(once, millis(100), &ran).await })
        })
        .collect();
    let mut keys = Vec::new();
    for call in calls {
        let Ok(OnceOutcome::Ran(key)) = call.await.unwrap() else { panic!("it did not run") };
        keys.push(key);
    }
    assert!(world.now().since(started) < Duration::from_millis(150), "{:?}", world.now().since(started));
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), world.stored_records()), (100, 100), "each has a key and a record of its own");
}
