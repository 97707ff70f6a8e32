//! Clients of other kinds on the same keys, and keys that hold no lock at all.

use std::time::Duration;

use leasehold_core::store::{BreakMode, BreakReply, Holder, QueueRequest, ReleaseReply, ReleaseRequest};
use leasehold_core::{ErrorKind, LostCause, Name};

use super::actors::{LONG, POLL, Process, SHORT, name, needs_queue, owner, relied_on};
use super::{Checked, Fixture};

const THEIRS: &str = "3b241101-e2bb-4255-8caf-4136c566a962";

/// The key of a name holds the owner token and nothing else, so others can respect it.
pub async fn a_lease_is_kept_as_the_documented_pattern_says<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("order:1001"), owner("me"));
    process.take(&job, &me, LONG).await;
    assert_eq!(fixture.raw_get(&job)?.as_deref(), Some(me.expose()));
    process.release(&job, &me).await;
    assert_eq!(fixture.raw_get(&job)?, None);
    Ok(())
}

/// No operation of ours touches what another client holds.
async fn assert_respected<F: Fixture>(fixture: &F, process: &Process, job: &Name) -> Checked {
    let me = owner("me");
    assert_eq!(process.not_renewed(job, &me).await, LostCause::Taken);
    assert_eq!(process.release(job, &me).await, ReleaseReply::NotHeld);
    process.release_stale_early(job, &me).await;
    if process.store.capabilities().queue {
        assert_eq!(process.queue(job, &me, LONG).await.holder, Holder::Foreign);
        assert_eq!(process.release(job, &me).await, ReleaseReply::NotHeld);
    }
    assert_eq!(process.inspect(job).await.and_then(|seen| seen.holder), Some(Holder::Foreign));
    assert_eq!(fixture.raw_get(job)?.as_deref(), Some(THEIRS));
    Ok(())
}

/// Another client's lease keeps us out until it ends.
pub async fn a_foreign_holder_is_respected<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    fixture.raw_set(&job, THEIRS, Some(LONG))?;
    let held = process.refused(&job, &owner("me")).await;
    assert_eq!(held.holder, Holder::Foreign);
    assert!(held.remaining.is_some_and(|left| left <= LONG && left > LONG / 2), "{held:?}");
    assert_respected(fixture, &process, &job).await
}

/// Trap 9: a client that forgot the TTL keeps us out too, and we say that it has no end.
pub async fn a_foreign_holder_without_an_end_is_respected<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    fixture.raw_set(&job, THEIRS, None)?;
    let held = process.refused(&job, &owner("me")).await;
    assert_eq!((held.holder, held.remaining), (Holder::Foreign, None));
    assert_eq!(process.inspect(&job).await.map(|seen| seen.remaining), Some(None));
    assert_respected(fixture, &process, &job).await
}

/// Other clients tell nobody when they release or end: a waiter finds out by asking.
pub async fn a_waiter_follows_a_foreign_holder<F: Fixture>(fixture: &F) -> Checked {
    let process = Process::start(fixture).await;
    needs_queue(&process)?;
    let (ends, waiter) = (name("ends"), owner("waiter"));
    let set = process.now();
    fixture.raw_set(&ends, THEIRS, Some(SHORT))?;
    process.wait_for_grant(fixture, &ends, &waiter, LONG, SHORT).await;
    assert!(process.now() >= relied_on(set, SHORT), "granted before the foreign lease ended");
    let (released, waiter) = (name("released"), owner("waiter"));
    fixture.raw_set(&released, THEIRS, None)?;
    process.queue(&released, &waiter, LONG).await;
    fixture.evict(&released)?;
    process.wait_for_grant(fixture, &released, &waiter, LONG, POLL).await;
    Ok(())
}

/// An operator can take a name away from another client.
pub async fn a_foreign_holder_can_be_broken<F: Fixture>(fixture: &F) -> Checked {
    let process = Process::start(fixture).await;
    for (job, ttl) in [(name("with-an-end"), Some(LONG)), (name("without"), None)] {
        fixture.raw_set(&job, THEIRS, ttl)?;
        let broken = BreakReply::Broken { holder: Holder::Foreign, remaining: Duration::ZERO };
        assert_eq!(process.break_lease(&job, BreakMode::Now).await, broken);
        process.take(&job, &owner("me"), LONG).await;
    }
    Ok(())
}

/// Trap 46: data that is no lock is an error that says so, and stays as it is.
pub async fn data_that_is_no_lock_is_left_untouched<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    fixture.corrupt(&job)?;
    for queue in [None, Some(QueueRequest { ticket: None, poll_interval: POLL })] {
        match process.ask(&job, &me, LONG, queue).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Foreign, "{error}"),
            Ok(reply) => panic!("{reply:?}"),
        }
    }
    for keep_for in [None, Some(LONG)] {
        match process.store.release(ReleaseRequest { name: &job, owner: &me, keep_for }).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Foreign, "{error}"),
            Ok(reply) => assert_eq!(reply, ReleaseReply::NotHeld),
        }
    }
    let by = leasehold_core::Label::new("operator").unwrap_or_else(|error| panic!("{error}"));
    for mode in [BreakMode::Notice, BreakMode::Now] {
        match process.store.break_lease(&job, mode, &by).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Foreign, "{error}"),
            Ok(reply) => panic!("{reply:?}"),
        }
    }
    match process.store.inspect(&job).await {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Foreign, "{error}"),
        Ok(seen) => assert_eq!(seen.and_then(|seen| seen.holder), Some(Holder::Foreign)),
    }
    assert!(fixture.is_corrupt(&job)?);
    Ok(())
}

/// One unusable key does not hide the others.
pub async fn a_list_survives_data_that_is_no_lock<F: Fixture>(fixture: &F) -> Checked {
    let process = Process::start(fixture).await;
    fixture.corrupt(&name("job-2"))?;
    for each in ["job-1", "job-3"] {
        process.take(&name(each), &owner("me"), LONG).await;
    }
    let listing = process.store.list("job-", 10).await.unwrap_or_else(|error| panic!("{error}"));
    for each in ["job-1", "job-3"] {
        assert!(listing.entries.iter().any(|entry| entry.name.as_str() == each), "{listing:?}");
    }
    Ok(())
}
