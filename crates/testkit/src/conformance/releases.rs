//! Giving names back, and giving back what one does not hold.

use std::time::Duration;

use leasehold_core::store::{AcquireReply, Holder, ReleaseReply, RenewReply};

use super::actors::{LONG, POLL, Process, SHORT, name, needs_queue, owner, relied_on, within};
use super::{Checked, Fixture};

const FREED: ReleaseReply = ReleaseReply::Freed { handed_over: false };

/// After a release the next one gets the name.
pub async fn a_released_name_is_free<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (me, next) = (owner("me"), owner("next"));
    first.take(&job, &me, LONG).await;
    assert_eq!(first.release(&job, &me).await, FREED);
    assert_eq!(second.inspect(&job).await, None);
    second.take(&job, &next, LONG).await;
    Ok(())
}

/// Trap 10: a release compares the owner.
pub async fn a_name_is_released_by_its_owner_only<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    let (holder, other) = (owner("holder"), owner("other"));
    process.take(&job, &holder, LONG).await;
    assert_eq!(process.release(&job, &other).await, ReleaseReply::NotHeld);
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("holder"));
    assert_eq!(process.renew(&job, &holder, LONG).await, RenewReply::Renewed);
    Ok(())
}

/// Traps 10 and 15: a holder whose lease has ended does not disturb the next one.
pub async fn a_stale_release_leaves_the_next_holder_alone<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (stale, next) = (owner("stale"), owner("next"));
    first.take(&job, &stale, SHORT).await;
    within(fixture, SHORT, "the next one gets the name", async || {
        let reply = second.acquire(&job, &next, LONG).await;
        matches!(reply, AcquireReply::Granted { .. }).then_some(())
    })
    .await;
    assert_eq!(first.release(&job, &stale).await, ReleaseReply::NotHeld);
    first.release_stale_early(&job, &stale).await;
    assert_eq!(second.holder_label(&job).await.as_deref(), Some("next"));
    assert_eq!(second.renew(&job, &next, LONG).await, RenewReply::Renewed);
    Ok(())
}

/// A second release, as after a lost reply, finds nothing.
pub async fn releasing_again_finds_nothing<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    assert_eq!(process.release(&job, &me).await, ReleaseReply::NotHeld);
    process.take(&job, &me, LONG).await;
    assert_eq!(process.release(&job, &me).await, FREED);
    assert_eq!(process.release(&job, &me).await, ReleaseReply::NotHeld);
    assert_eq!(process.inspect(&job).await, None);
    Ok(())
}

/// A lease that has ended is not there to be given back.
pub async fn an_ended_lease_is_not_released<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, SHORT).await;
    within(fixture, SHORT, "the lease ends", async || process.inspect(&job).await.is_none().then_some(()))
        .await;
    assert_eq!(process.release(&job, &me).await, ReleaseReply::NotHeld);
    Ok(())
}

/// `min_hold`: the name stays taken by nobody, for the time asked for and no longer.
pub async fn an_early_release_keeps_the_name_taken<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (me, next, keep_for) = (owner("me"), owner("next"), Duration::from_secs(1));
    first.take(&job, &me, LONG).await;
    let released = first.now();
    first.release_early(&job, &me, keep_for).await;
    match second.acquire(&job, &next, LONG).await {
        AcquireReply::Held(held) => {
            assert_eq!(held.holder, Holder::Kept { by: "me".into() });
            assert!(held.remaining.is_some_and(|left| left <= keep_for), "{held:?}");
        }
        AcquireReply::Granted { .. } => assert!(
            second.now() >= relied_on(released, keep_for),
            "granted before the name was kept long enough"
        ),
    }
    // It holds no more: it can neither renew nor release what is kept.
    if second.inspect(&job).await.is_some_and(|seen| matches!(seen.holder, Some(Holder::Kept { .. }))) {
        first.not_renewed(&job, &me).await;
        assert_eq!(first.release(&job, &me).await, ReleaseReply::NotHeld);
    }
    within(fixture, keep_for, "the kept name is free", async || {
        let reply = second.acquire(&job, &next, LONG).await;
        matches!(reply, AcquireReply::Granted { .. }).then_some(())
    })
    .await;
    assert!(second.now() >= relied_on(released, keep_for), "the name was not kept long enough");
    Ok(())
}

/// A `min_hold` that has passed changes nothing.
pub async fn a_release_that_keeps_for_no_time_frees_the_name<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    process.release_early(&job, &me, Duration::ZERO).await;
    process.take(&job, &owner("next"), LONG).await;
    Ok(())
}

/// `min_hold` with a waiter: it is served when the time has passed, not before.
pub async fn a_kept_name_goes_to_the_waiter_when_its_time_has_passed<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let (me, waiter, keep_for) = (owner("me"), owner("waiter"), Duration::from_secs(1));
    first.take(&job, &me, LONG).await;
    second.queue(&job, &waiter, LONG).await;
    let released = first.now();
    first.release_early(&job, &me, keep_for).await;
    second.wait_for_grant(fixture, &job, &waiter, LONG, keep_for).await;
    assert!(second.now() >= relied_on(released, keep_for), "the name was not kept long enough");
    Ok(())
}

/// Trap 59: what was used and is free takes no room in the store.
pub async fn names_that_are_free_again_leave_nothing<F: Fixture>(fixture: &F) -> Checked {
    let (process, waiting) = (Process::start(fixture).await, Process::start(fixture).await);
    let (first, me, waiter) = (name("first"), owner("me"), owner("waiter"));
    process.take(&first, &me, LONG).await;
    process.release(&first, &me).await;
    let baseline = fixture.stored_entries()?;
    for number in 0..200 {
        let job = name(&format!("job-{number}"));
        process.take(&job, &me, LONG).await;
        if process.store.capabilities().queue && number % 4 == 0 {
            waiting.queue(&job, &waiter, LONG).await;
        }
        process.release(&job, &me).await;
        // Withdraws it, or gives back what it was handed.
        waiting.release(&job, &waiter).await;
        process.not_renewed(&job, &me).await;
    }
    within(fixture, POLL, "nothing is left", async || {
        (fixture.stored_entries().ok()? <= baseline).then_some(())
    })
    .await;
    Ok(())
}
