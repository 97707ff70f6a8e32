//! Who is granted a name, for how long, and who is not.

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, Holder, QueueRequest, ReleaseRequest, RenewRequest,
};

use super::actors::{LONG, POLL, Process, SHORT, must_be_held, name, owner, within};
use super::{Checked, Fixture};

/// A free name is granted, and then taken.
pub async fn a_free_name_is_granted<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    let grant = process.take(&job, &me, LONG).await;
    assert_eq!(grant.fencing_token.is_fenced(), process.store.capabilities().fencing);
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("me"));
    process.take(&name("another"), &owner("me"), LONG).await;
    Ok(())
}

/// Another process that asks learns the holder's label and how long its lease lasts.
pub async fn a_held_name_is_refused_with_the_label_of_its_holder<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    first.take(&job, &owner("web-1:42"), LONG).await;
    let held = second.refused(&job, &owner("web-2:7")).await;
    assert_eq!(held.holder, Holder::Lease { label: "web-1:42".into() });
    assert!(held.remaining.is_some_and(|left| left <= LONG && left > LONG / 2), "{held:?}");
    assert_eq!(held.place, None);
    Ok(())
}

/// Trap 1: a retry of an acquire whose reply was lost finds its own lease. Trap 54: it is a grant of its own.
pub async fn the_same_owner_is_granted_again_with_a_larger_token<F: Fixture>(fixture: &F) -> Checked {
    let (process, other, job, me) =
        (Process::start(fixture).await, Process::start(fixture).await, name("job"), owner("me"));
    let fencing = process.store.capabilities().fencing;
    let mut last = process.take(&job, &me, LONG).await.fencing_token;
    for asking in [&process, &other, &process] {
        let again = asking.take(&job, &me, LONG).await.fencing_token;
        assert!(again > last || !fencing, "{again} after {last}");
        last = again;
    }
    Ok(())
}

/// Trap 4: the lease a retry gets is not the rest of the first one.
pub async fn a_repeated_grant_prolongs_to_the_whole_ttl<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, Duration::from_secs(10)).await;
    process.take(&job, &me, LONG).await;
    assert!(process.remaining(&job).await > Duration::from_secs(15));
    Ok(())
}

/// Trap 12: a grant to the holder never takes time away.
pub async fn a_repeated_grant_never_shortens<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    process.take(&job, &me, SHORT).await;
    assert!(process.remaining(&job).await > LONG / 2);
    Ok(())
}

/// Trap 34: ownership is by the token's secret, not by who somebody says to be.
pub async fn owners_with_the_same_label_are_different<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    let (me, twin) = (owner("web-1:42"), owner("web-1:42"));
    process.take(&job, &me, LONG).await;
    process.refused(&job, &twin).await;
    process.not_renewed(&job, &twin).await;
    process.release(&job, &twin).await;
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("web-1:42"));
    process.take(&job, &me, LONG).await;
    Ok(())
}

/// A lease ends by itself, but never before its holder's deadline.
pub async fn an_ended_lease_is_free_and_not_before<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (dead, next) = (owner("dead"), owner("next"));
    let lease = first.take(&job, &dead, SHORT).await;
    within(fixture, SHORT, "the name is free again", async || {
        let reply = second.acquire(&job, &next, LONG).await;
        matches!(reply, AcquireReply::Granted { .. }).then_some(())
    })
    .await;
    assert!(second.now() >= lease.deadline(), "granted before the holder's deadline");
    assert_eq!(second.holder_label(&job).await.as_deref(), Some("next"));
    Ok(())
}

/// Asking for a name does not keep a dead holder's lease alive.
pub async fn a_refused_acquire_does_not_prolong_the_lease<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    process.take(&job, &owner("holder"), LONG).await;
    let other = owner("other");
    let reply = process.ask(&job, &other, 10 * LONG, None).await;
    must_be_held(reply.unwrap_or_else(|error| panic!("{error}")));
    assert!(process.remaining(&job).await <= LONG);
    Ok(())
}

/// Trap 3: a request that comes after its time is not executed, and says so.
pub async fn a_request_past_its_time_does_nothing<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, late) = (Process::start(fixture).await, name("job"), owner("late"));
    // A first operation lets stores learn how their clock and ours differ.
    process.inspect(&job).await;
    let not_after = process.now().before(Duration::from_secs(60));
    for queue in [None, Some(QueueRequest { ticket: None, poll_interval: POLL })] {
        let request = AcquireRequest { name: &job, owner: &late, ttl: LONG, queue, not_after };
        match process.store.acquire(request).await {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            Ok(reply) => panic!("executed a minute too late: {reply:?}"),
        }
        assert_eq!(process.inspect(&job).await, None);
    }
    Ok(())
}

/// A closed store refuses everything, one error per lease of a batch.
pub async fn operations_after_close_are_unavailable<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    process.store.close().await;
    let store = &process.store;
    let mut kinds = Vec::new();
    kinds.push(process.ask(&job, &me, LONG, None).await.err().map(|error| error.kind()));
    let release = ReleaseRequest { name: &job, owner: &me, keep_for: None };
    kinds.push(store.release(release).await.err().map(|error| error.kind()));
    kinds.push(store.inspect(&job).await.err().map(|error| error.kind()));
    kinds.push(store.list("", 10).await.err().map(|error| error.kind()));
    let renewal = RenewRequest { name: job.clone(), owner: me.clone(), ttl: LONG };
    let renewals = store.renew(&[renewal.clone(), renewal]).await;
    assert_eq!(renewals.len(), 2);
    kinds.extend(renewals.into_iter().map(|reply| reply.err().map(|error| error.kind())));
    assert!(kinds.iter().all(|kind| *kind == Some(ErrorKind::Unavailable)), "{kinds:?}");
    Ok(())
}

/// Closing a connection gives no lease back: whoever holds it may still be at work.
pub async fn closing_keeps_leases<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    first.take(&job, &owner("first"), LONG).await;
    first.store.close().await;
    let held = second.refused(&job, &owner("second")).await;
    assert_eq!(held.holder, Holder::Lease { label: "first".into() });
    Ok(())
}

/// What a store returns about others shows labels, never the secret part of a token.
pub async fn messages_show_no_owner_token<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    let (holder, other) = (owner("holder"), owner("other"));
    process.take(&job, &holder, LONG).await;
    let held = process.refused(&job, &other).await;
    let listing = process.store.list("", 10).await;
    let inspection = process.inspect(&job).await;
    let broken = process.break_lease(&job, BreakMode::Notice).await;
    let shown = format!("{held:?} {listing:?} {inspection:?} {broken:?} {}", process.store.describe());
    assert!(shown.contains("holder"), "{shown}");
    for token in [&holder, &other] {
        let secret = token.expose().split('@').next().unwrap_or_default();
        assert!(!shown.contains(secret), "a secret is shown");
    }
    assert!(!process.store.describe().is_empty());
    Ok(())
}
