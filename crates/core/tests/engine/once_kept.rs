//! Run once: how long it is known that an attempt has begun, and what is kept, looked at and forgotten.

use leasehold_core::{ErrorKind, Failed, Forgot, IfUnknown, Progress};

use crate::once::claimed;
use crate::support::{World, millis, name, pass, secs};

#[tokio::test(start_paused = true)]
async fn trap_56_that_an_attempt_has_begun_is_known_longer_than_the_attempt_lasts() {
    let world = World::new();
    let a = world.process("a").await;
    let long = secs(48 * 3_600);
    for (max_hold, known_for) in [(None, secs(24 * 3_600)), (Some(long), long)] {
        let mut once = a.once("ship:1").retain(secs(1));
        if let Some(max_hold) = max_hold {
            once = once.max_hold(max_hold);
        }
        let dies = claimed(once.clone()).await;
        pass(secs(60)).await;
        drop(dies);
        for passed in [secs(1), known_for - secs(70)] {
            pass(passed).await;
            let error = once.clone().if_unknown(IfUnknown::Refuse).claim().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        pass(secs(60)).await;
        let next = claimed(once.clone().if_unknown(IfUnknown::Refuse)).await;
        assert_eq!(next.attempt().number(), 1, "a new operation");
        next.complete("JD1").await.unwrap();
        pass(secs(2)).await;
        assert_eq!(
            a.once("ship:1").recorded().await.unwrap(),
            None,
            "a result is kept as long as was asked for"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_can_be_looked_at_and_forgotten() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let once = a.once("ship:1").fingerprint("3 EUR");
    let careful = || b.once("ship:1").fingerprint("5 EUR").if_unknown(IfUnknown::Refuse);
    assert_eq!((once.recorded().await.unwrap(), once.forget().await.unwrap()), (None, Forgot::Nothing));
    let progress = || async { b.once("ship:1").recorded().await.unwrap().map(|kept| kept.progress) };
    for end in [Progress::Done { bytes: 3 }, Progress::Unknown, Progress::Retryable, Progress::Started] {
        let at_it = claimed(once.clone()).await;
        assert_eq!(progress().await, Some(Progress::Started));
        assert!(matches!(b.once("ship:1").forget().await.unwrap(), Forgot::InProgress(_)));
        match end {
            Progress::Done { .. } => at_it.complete("JD1").await.unwrap(),
            Progress::Unknown => at_it.fail(Failed::Unknown).await.unwrap(),
            Progress::Retryable => at_it.fail(Failed::Retryable).await.unwrap(),
            _ => drop(at_it),
        }
        pass(millis(10)).await;
        assert_eq!(progress().await, Some(end));
        let Forgot::Forgotten(kept) = b.once("ship:1").forget().await.unwrap() else {
            panic!("not forgotten")
        };
        assert_eq!((kept.progress, kept.attempt), (end, 1));
        world.assert_empty("no lease is left");
        // At once, with another request, and by those who refuse what may have been done.
        claimed(careful()).await.fail(Failed::Retryable).await.unwrap();
        assert!(matches!(b.once("ship:1").forget().await.unwrap(), Forgot::Forgotten(_)));
        pass(secs(2)).await;
        assert_eq!(progress().await, None);
    }
    world.raw_record(&name("ship:1"), Some(b"not ours"));
    assert_eq!(a.once("ship:1").forget().await.unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(a.once("ship:1").recorded().await.unwrap_err().kind(), ErrorKind::Foreign);
}
