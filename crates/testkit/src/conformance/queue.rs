//! Waiting: hand-over, claims, withdrawal, the dead, and those who poll.

use std::time::Duration;

use leasehold_core::store::{AcquireReply, QueueRequest, ReleaseReply, RenewReply};

use super::actors::{
    LONG, MAX_CLAIM, POLL, Process, SHORT, SILENT_AFTER, name, needs_push, needs_queue, owner, within,
};
use super::{Checked, Fixture};

const HANDED_OVER: ReleaseReply = ReleaseReply::Freed { handed_over: true };

/// The release itself gives the name to the waiter, and tells it.
pub async fn a_waiter_is_served_when_the_holder_releases<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let (holder, waiter) = (owner("holder"), owner("waiter"));
    let held = first.take(&job, &holder, LONG).await;
    second.queue(&job, &waiter, LONG).await;
    assert_eq!(first.release(&job, &holder).await, HANDED_OVER);
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("waiter"));
    if first.store.capabilities().push {
        let grant = within(fixture, POLL, "the grant is pushed", async || second.pushed_grant(&waiter)).await;
        assert!(grant.fencing_token > held.fencing_token || !first.store.capabilities().fencing);
        assert!(first.pushed_grant(&waiter).is_none(), "told to the wrong process");
    }
    Ok(())
}

/// Trap 24: the end of a lease tells nobody, so the first waiter asks then; never does it get the name earlier.
pub async fn a_waiter_is_served_when_the_lease_ends<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let waiter = owner("waiter");
    let lease = first.take(&job, &owner("dead"), SHORT).await;
    let left = second.queue(&job, &waiter, LONG).await.remaining;
    assert!(left.is_some_and(|left| left <= SHORT), "{left:?}");
    second.wait_for_grant(fixture, &job, &waiter, LONG, SHORT).await;
    assert!(second.now() >= lease.deadline(), "served before the holder's deadline");
    Ok(())
}

/// Trap 27: what is handed over lasts for a claim only, until its new holder shows that it is there.
pub async fn a_served_waiter_holds_for_a_claim_and_confirms_by_a_renewal<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let (holder, waiter) = (owner("holder"), owner("waiter"));
    first.take(&job, &holder, LONG).await;
    second.queue(&job, &waiter, LONG).await;
    first.release(&job, &holder).await;
    assert!(first.remaining(&job).await <= MAX_CLAIM);
    if first.store.capabilities().push {
        let grant = within(fixture, POLL, "the grant", async || second.pushed_grant(&waiter)).await;
        assert!(grant.lasts <= MAX_CLAIM && !grant.lasts.is_zero(), "{grant:?}");
    }
    assert_eq!(second.renew(&job, &waiter, LONG).await, RenewReply::Renewed);
    assert!(first.remaining(&job).await > LONG / 2);
    Ok(())
}

/// Trap 27: a waiter that died at the hand-over costs the next one a claim, no more.
pub async fn a_claim_that_nobody_confirms_ends_and_the_next_is_served<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, third) =
        (Process::start(fixture).await, Process::start(fixture).await, Process::start(fixture).await);
    needs_queue(&first)?;
    let (job, holder, dead, next) = (name("job"), owner("holder"), owner("dead"), owner("next"));
    first.take(&job, &holder, LONG).await;
    second.queue(&job, &dead, LONG).await;
    let ticket = third.queue(&job, &next, LONG).await.place.map(|place| place.ticket);
    first.release(&job, &holder).await;
    let held = third.queue_again(&job, &next, LONG, ticket).await;
    assert!(held.place.is_some_and(|place| place.first), "{held:?}");
    assert!(held.remaining.is_some_and(|left| left <= MAX_CLAIM), "{held:?}");
    third.wait_for_grant(fixture, &job, &next, LONG, MAX_CLAIM).await;
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("next"));
    Ok(())
}

/// Traps 5 and 26: counted from its bound, a pushed grant ends before anybody else gets the name.
pub async fn a_pushed_grant_is_bounded_by_the_moment_it_came_after<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, third) =
        (Process::start(fixture).await, Process::start(fixture).await, Process::start(fixture).await);
    needs_push(&first)?;
    let (job, holder, waiter, next) = (name("job"), owner("holder"), owner("waiter"), owner("next"));
    first.take(&job, &holder, LONG).await;
    second.queue(&job, &waiter, SHORT).await;
    third.queue(&job, &next, LONG).await;
    first.release(&job, &holder).await;
    let released = first.now();
    let grant = within(fixture, POLL, "the grant", async || second.pushed_grant(&waiter)).await;
    assert!(grant.lasts <= SHORT, "{grant:?}");
    assert!(grant.after <= released, "the bound is later than the grant");
    third.wait_for_grant(fixture, &job, &next, LONG, SHORT).await;
    assert!(third.now() >= grant.deadline(), "the next one got the name before the grant's deadline");
    Ok(())
}

/// Trap 23: pushes are sent at most once; asking again is a grant, of the whole TTL.
pub async fn a_missed_push_is_found_by_asking_again<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let (holder, waiter) = (owner("holder"), owner("waiter"));
    let mut last = first.take(&job, &holder, LONG).await.fencing_token;
    let ticket = second.queue(&job, &waiter, LONG).await.place.map(|place| place.ticket);
    first.release(&job, &holder).await;
    if first.store.capabilities().push {
        let pushed = within(fixture, POLL, "the grant", async || second.pushed_grant(&waiter)).await;
        last = pushed.fencing_token;
    }
    let queue = Some(QueueRequest { ticket, poll_interval: POLL });
    let reply = second.ask(&job, &waiter, LONG, queue).await;
    let Ok(AcquireReply::Granted { fencing_token }) = reply else { panic!("{reply:?}") };
    assert!(fencing_token > last || !first.store.capabilities().fencing, "{fencing_token} after {last}");
    assert!(first.remaining(&job).await > LONG / 2);
    Ok(())
}

/// Trap 27: a waiter that gave up is not given the name, and leaves no trace.
pub async fn a_waiter_that_withdraws_is_not_served<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let (holder, gone, next) = (owner("holder"), owner("gone"), owner("next"));
    first.take(&job, &holder, LONG).await;
    second.queue(&job, &gone, LONG).await;
    second.queue(&job, &next, LONG).await;
    assert_eq!(second.release(&job, &gone).await, ReleaseReply::NotHeld);
    assert_eq!(first.release(&job, &holder).await, HANDED_OVER);
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("next"));
    second.release(&job, &next).await;
    assert_eq!(first.inspect(&job).await, None);
    assert!(second.pushed_grant(&gone).is_none());
    Ok(())
}

/// Withdrawing touches nobody else's lease and queue entry.
pub async fn withdrawing_leaves_the_holder_alone<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    let (holder, gone) = (owner("holder"), owner("gone"));
    first.take(&job, &holder, LONG).await;
    second.queue(&job, &gone, LONG).await;
    second.release(&job, &gone).await;
    let seen = first.inspect(&job).await.unwrap_or_else(|| panic!("the lease is gone"));
    assert_eq!(seen.waiters, Vec::<String>::new());
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("holder"));
    assert_eq!(first.release(&job, &holder).await, ReleaseReply::Freed { handed_over: false });
    Ok(())
}

/// Trap 27: the release passes over a waiter whose process is gone.
pub async fn a_dead_waiter_is_skipped<F: Fixture>(fixture: &F) -> Checked {
    let (first, doomed, third) =
        (Process::start(fixture).await, Process::start(fixture).await, Process::start(fixture).await);
    needs_queue(&first)?;
    let (job, holder, dead, live) = (name("job"), owner("holder"), owner("dead"), owner("live"));
    first.take(&job, &holder, LONG).await;
    doomed.queue(&job, &dead, LONG).await;
    let ticket = third.queue(&job, &live, LONG).await.place.map(|place| place.ticket);
    doomed.die(fixture).await;
    third.queue_again(&job, &live, LONG, ticket).await;
    assert_eq!(first.release(&job, &holder).await, HANDED_OVER);
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("live"));
    Ok(())
}

/// Trap 70: however many are dead, the live one behind them is served soon.
pub async fn many_dead_waiters_are_skipped<F: Fixture>(fixture: &F) -> Checked {
    let (first, doomed, third) =
        (Process::start(fixture).await, Process::start(fixture).await, Process::start(fixture).await);
    needs_queue(&first)?;
    let (job, holder, live) = (name("job"), owner("holder"), owner("live"));
    first.take(&job, &holder, LONG).await;
    for _ in 0..120 {
        doomed.queue(&job, &owner("dead"), LONG).await;
    }
    third.queue(&job, &live, LONG).await;
    doomed.die(fixture).await;
    first.release(&job, &holder).await;
    third.wait_for_grant(fixture, &job, &live, LONG, POLL).await;
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("live"));
    Ok(())
}

/// Trap 27: a waiter that polls is alive while it does.
pub async fn a_waiter_that_stopped_polling_is_skipped<F: Fixture>(fixture: &F) -> Checked {
    let (first, polling) = (Process::start(fixture).await, Process::start_without_push(fixture).await?);
    needs_queue(&first)?;
    let (job, holder, silent, live) = (name("job"), owner("holder"), owner("silent"), owner("live"));
    first.take(&job, &holder, LONG).await;
    polling.queue(&job, &silent, LONG).await;
    let place = polling.queue(&job, &live, LONG).await.place;
    assert!(place.is_some_and(|place| !place.pushed), "{place:?}");
    fixture.pass(SILENT_AFTER).await;
    polling.queue_again(&job, &live, LONG, place.map(|place| place.ticket)).await;
    assert_eq!(first.release(&job, &holder).await, HANDED_OVER);
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("live"));
    Ok(())
}

/// Trap 68: a waiter without pushes is served like others, with a claim it cannot miss.
pub async fn a_polling_waiter_has_time_to_find_its_grant<F: Fixture>(fixture: &F) -> Checked {
    let (first, polling) = (Process::start(fixture).await, Process::start_without_push(fixture).await?);
    needs_queue(&first)?;
    let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
    let poll_interval = Duration::from_secs(10);
    let before = first.take(&job, &holder, LONG).await.fencing_token;
    let queue = Some(QueueRequest { ticket: None, poll_interval });
    let reply = polling.ask(&job, &waiter, SHORT, queue).await;
    let Ok(AcquireReply::Held(held)) = reply else { panic!("{reply:?}") };
    assert!(held.place.is_some_and(|place| place.first && !place.pushed), "{held:?}");
    assert_eq!(first.release(&job, &holder).await, HANDED_OVER);
    assert!(first.remaining(&job).await > poll_interval);
    assert!(polling.told(&waiter).is_empty());
    let granted = polling.take(&job, &waiter, SHORT).await.fencing_token;
    assert!(granted > before || !first.store.capabilities().fencing, "{granted} after {before}");
    Ok(())
}

/// After a reconnect a waiter has its place, and grants reach the new connection.
pub async fn a_waiter_that_moves_to_another_connection_is_served_there<F: Fixture>(fixture: &F) -> Checked {
    let (first, old, new) =
        (Process::start(fixture).await, Process::start(fixture).await, Process::start(fixture).await);
    needs_queue(&first)?;
    let (job, holder, moving, other) = (name("job"), owner("holder"), owner("moving"), owner("other"));
    first.take(&job, &holder, LONG).await;
    let ticket = old.queue(&job, &moving, LONG).await.place.map(|place| place.ticket);
    new.queue(&job, &other, LONG).await;
    old.store.close().await;
    if first.store.capabilities().push {
        // A server learns only a moment later that a connection is closed; until then a grant may go there.
        let is_there = async || first.inspect(&job).await.is_some_and(|seen| seen.waiters[0] == "moving");
        within(fixture, POLL, "the old connection is gone", async || (!is_there().await).then_some(())).await;
    }
    let held = new.queue_again(&job, &moving, LONG, ticket).await;
    assert!(held.place.is_some_and(|place| Some(place.ticket) == ticket), "{held:?}");
    assert_eq!(first.release(&job, &holder).await, HANDED_OVER);
    assert_eq!(first.holder_label(&job).await.as_deref(), Some("moving"));
    if first.store.capabilities().push {
        within(fixture, POLL, "the new connection is told", async || new.pushed_grant(&moving)).await;
    }
    Ok(())
}

/// Who does not wait is not queued, whatever the reply.
pub async fn an_acquire_that_does_not_wait_leaves_nothing_in_the_queue<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let holder = owner("holder");
    first.take(&job, &holder, LONG).await;
    assert_eq!(second.refused(&job, &owner("other")).await.place, None);
    let waiters = first.inspect(&job).await.map(|seen| seen.waiters);
    assert_eq!(waiters, Some(Vec::new()));
    assert_eq!(first.release(&job, &holder).await, ReleaseReply::Freed { handed_over: false });
    assert_eq!(first.inspect(&job).await, None);
    Ok(())
}

/// Trap 69: whatever waiters leave behind has an end.
pub async fn queues_do_not_outlive_their_waiters<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    first.take(&job, &owner("holder"), LONG).await;
    let waiter = owner("waiter");
    for _ in 0..2 {
        second.queue(&job, &waiter, LONG).await;
        assert_eq!(fixture.endless_keys()?, Vec::<String>::new());
    }
    Ok(())
}
