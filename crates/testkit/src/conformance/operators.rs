//! What operators see and do: inspection, breaking leases, diagnosis.

use std::time::Duration;

use leasehold_core::LostCause;
use leasehold_core::store::{AcquireReply, BreakMode, BreakReply, Holder, Listing, ReleaseReply};

use super::actors::{LONG, MAX_CLAIM, Process, SHORT, name, needs_queue, owner, within};
use super::{Checked, Fixture};

/// Nothing to see where nobody is.
pub async fn inspection_of_a_free_name_finds_nothing<F: Fixture>(fixture: &F) -> Checked {
    let process = Process::start(fixture).await;
    assert_eq!(process.inspect(&name("job")).await, None);
    Ok(())
}

/// Looking shows the holder and prolongs nothing.
pub async fn inspection_shows_the_holder_and_changes_nothing<F: Fixture>(fixture: &F) -> Checked {
    let (process, other, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let lease = process.take(&job, &owner("web-1:42"), SHORT).await;
    let seen = within(fixture, SHORT, "the lease has ended", async || {
        let Some(seen) = other.inspect(&job).await else { return Some(()) };
        assert_eq!(seen.name, job);
        assert_eq!(seen.holder, Some(Holder::Lease { label: "web-1:42".into() }));
        assert!(seen.remaining.is_some_and(|left| left <= SHORT), "{seen:?}");
        assert!(seen.waiters.is_empty(), "{seen:?}");
        assert!(seen.fencing_token.is_none_or(|token| token == lease.fencing_token), "{seen:?}");
        None
    });
    seen.await;
    assert!(other.now() >= lease.deadline(), "shown as free before its holder's deadline");
    Ok(())
}

/// Who waits, in order, by label.
pub async fn inspection_shows_waiters_in_order<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let labels = ["zebra", "ant", "mole"];
    first.take(&job, &owner("holder"), LONG).await;
    for label in labels {
        second.queue(&job, &owner(label), LONG).await;
    }
    let seen = first.inspect(&job).await.map(|seen| seen.waiters).unwrap_or_default();
    assert_eq!(seen, labels);
    Ok(())
}

/// A name whose lease has ended is not taken, though somebody waits for it.
pub async fn a_free_name_that_is_waited_for_shows_its_waiters_only<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    first.take(&job, &owner("holder"), SHORT).await;
    second.queue(&job, &owner("waiter"), LONG).await;
    let seen = within(fixture, SHORT, "the lease ends", async || {
        let seen = first.inspect(&job).await.unwrap_or_else(|| panic!("the waiter is not seen"));
        seen.holder.is_none().then_some(seen)
    })
    .await;
    assert_eq!(seen.waiters, ["waiter"]);
    assert_eq!((seen.remaining, seen.fencing_token), (None, None));
    let listing = first.store.list("", 10).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(listing, Listing::default());
    assert_eq!(first.break_lease(&job, BreakMode::Now).await, BreakReply::Free);
    Ok(())
}

/// A break with notice: the holder is told, the name stays taken until its lease would have ended.
pub async fn a_broken_holder_is_told_before_anybody_gets_in<F: Fixture>(fixture: &F) -> Checked {
    let (process, other, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (holder, next, ttl) = (owner("holder"), owner("next"), Duration::from_secs(2));
    let lease = process.take(&job, &holder, ttl).await;
    match other.break_lease(&job, BreakMode::Notice).await {
        BreakReply::Broken { holder, remaining } => {
            assert_eq!(holder, Holder::Lease { label: "holder".into() });
            assert!(remaining <= ttl, "{remaining:?}");
        }
        BreakReply::Free => panic!("the lease was not found"),
    }
    let cause = process.not_renewed(&job, &holder).await;
    assert!(cause == LostCause::Broken || process.now() >= lease.deadline(), "{cause}");
    assert_eq!(process.release(&job, &holder).await, ReleaseReply::NotHeld);
    within(fixture, ttl, "the broken lease ends", async || match other.acquire(&job, &next, LONG).await {
        AcquireReply::Granted { .. } => Some(()),
        AcquireReply::Held(held) => {
            assert_eq!(held.holder, Holder::Broken { by: "operator".into() });
            assert!(held.remaining.is_some_and(|left| left <= ttl), "{held:?}");
            None
        }
    })
    .await;
    assert!(other.now() >= lease.deadline(), "granted before the broken holder's deadline");
    Ok(())
}

/// A break at once: the name is free, the holder learns of it at its next renewal.
pub async fn a_lease_broken_at_once_is_free<F: Fixture>(fixture: &F) -> Checked {
    let (process, other) = (Process::start(fixture).await, Process::start(fixture).await);
    let (holder, next) = (owner("holder"), owner("next"));
    let broken =
        BreakReply::Broken { holder: Holder::Lease { label: "holder".into() }, remaining: Duration::ZERO };
    for job in [name("left"), name("taken")] {
        process.take(&job, &holder, LONG).await;
        assert_eq!(other.break_lease(&job, BreakMode::Now).await, broken);
        assert_eq!(other.inspect(&job).await, None);
    }
    other.take(&name("taken"), &next, LONG).await;
    assert_eq!(process.not_renewed(&name("left"), &holder).await, LostCause::Missing);
    assert_eq!(process.not_renewed(&name("taken"), &holder).await, LostCause::Taken);
    Ok(())
}

/// Both ways, whoever waits is served.
pub async fn a_broken_lease_goes_to_the_waiter<F: Fixture>(fixture: &F) -> Checked {
    let (first, second) = (Process::start(fixture).await, Process::start(fixture).await);
    needs_queue(&first)?;
    for (job, mode, ttl) in
        [(name("now"), BreakMode::Now, LONG), (name("notice"), BreakMode::Notice, Duration::from_secs(1))]
    {
        let waiter = owner("waiter");
        first.take(&job, &owner("holder"), ttl).await;
        second.queue(&job, &waiter, LONG).await;
        first.break_lease(&job, mode).await;
        second.wait_for_grant(fixture, &job, &waiter, LONG, MAX_CLAIM).await;
        assert_eq!(first.holder_label(&job).await.as_deref(), Some("waiter"));
    }
    Ok(())
}

/// Nothing to break, nothing created.
pub async fn breaking_a_free_name_does_nothing<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    for mode in [BreakMode::Notice, BreakMode::Now] {
        assert_eq!(process.break_lease(&job, mode).await, BreakReply::Free);
        assert_eq!(process.inspect(&job).await, None);
    }
    Ok(())
}

/// An operator who does not want to wait for a broken lease's end breaks it again.
pub async fn a_broken_lease_can_be_broken_at_once<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    process.take(&job, &owner("holder"), LONG).await;
    process.break_lease(&job, BreakMode::Notice).await;
    let seen = process.inspect(&job).await.and_then(|seen| seen.holder);
    assert_eq!(seen, Some(Holder::Broken { by: "operator".into() }));
    let again = process.break_lease(&job, BreakMode::Now).await;
    assert!(matches!(again, BreakReply::Broken { holder: Holder::Broken { .. }, .. }), "{again:?}");
    process.take(&job, &owner("next"), LONG).await;
    Ok(())
}

/// A diagnosis says what was looked at and found.
pub async fn a_diagnosis_has_subjects_and_messages<F: Fixture>(fixture: &F) -> Checked {
    let findings = Process::start(fixture).await.store.diagnose().await;
    for finding in findings.unwrap_or_else(|error| panic!("{error}")) {
        assert!(!finding.subject.is_empty() && !finding.message.is_empty(), "{finding:?}");
    }
    Ok(())
}
