//! Prolonging leases: only existing ones, only one's own, never to less, each by itself.

use std::time::Duration;

use leasehold_core::store::{AcquireReply, BreakMode, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LostCause};

use super::actors::{LONG, POLL, Process, SHORT, name, owner, relied_on, within};
use super::{Checked, Fixture};

/// A renewal makes the lease last for the whole TTL from now on.
pub async fn a_renewal_lasts_for_the_whole_ttl<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, Duration::from_secs(10)).await;
    assert_eq!(process.renew(&job, &me, LONG).await, RenewReply::Renewed);
    let left = process.remaining(&job).await;
    // Exactly the TTL: added to what was left it would be more.
    assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    Ok(())
}

/// Trap 12: a renewal with a shorter TTL leaves what is left.
pub async fn a_renewal_never_shortens<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    assert_eq!(process.renew(&job, &me, SHORT).await, RenewReply::Renewed);
    assert!(process.remaining(&job).await > LONG / 2);
    Ok(())
}

/// Trap 11: a renewal of what is not there creates nothing.
pub async fn a_renewal_never_recreates_a_lease<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    assert_eq!(process.not_renewed(&job, &me).await, LostCause::Missing);
    assert_eq!(process.inspect(&job).await, None);
    process.take(&job, &me, SHORT).await;
    within(fixture, SHORT, "the lease ends", async || process.inspect(&job).await.is_none().then_some(()))
        .await;
    assert_eq!(process.not_renewed(&job, &me).await, LostCause::Missing);
    assert_eq!(process.inspect(&job).await, None);
    process.take(&job, &owner("next"), LONG).await;
    Ok(())
}

/// Traps 13 and 14: a renewal that overtakes nothing and comes after the release does not bring the lease back.
pub async fn a_renewal_after_the_release_finds_nothing<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    process.release(&job, &me).await;
    assert_eq!(process.not_renewed(&job, &me).await, LostCause::Missing);
    assert_eq!(process.inspect(&job).await, None);
    Ok(())
}

/// Traps 10 and 34: a renewal never carries over to another owner.
pub async fn a_renewal_by_another_owner_is_refused<F: Fixture>(fixture: &F) -> Checked {
    let (process, other, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (holder, stranger) = (owner("holder"), owner("stranger"));
    process.take(&job, &holder, Duration::from_secs(10)).await;
    assert_eq!(other.not_renewed(&job, &stranger).await, LostCause::Taken);
    assert!(process.remaining(&job).await <= Duration::from_secs(10));
    assert_eq!(process.holder_label(&job).await.as_deref(), Some("holder"));
    Ok(())
}

/// Traps 35 and 37: a lease the store has lost is noticed at the next renewal, whoever came next.
pub async fn a_lease_lost_by_the_store_is_missing<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    process.take(&job, &me, LONG).await;
    fixture.evict(&job)?;
    assert_eq!(process.not_renewed(&job, &me).await, LostCause::Missing);
    process.take(&job, &owner("next"), LONG).await;
    assert_eq!(process.not_renewed(&job, &me).await, LostCause::Taken);
    fixture.flush()?;
    assert_eq!(process.not_renewed(&job, &me).await, LostCause::Missing);
    Ok(())
}

/// A lease that is renewed in time is never given away.
pub async fn a_renewed_lease_outlives_its_ttl<F: Fixture>(fixture: &F) -> Checked {
    let (process, other, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    let (me, rival, ttl) = (owner("me"), owner("rival"), Duration::from_secs(1));
    let mut deadline = process.take(&job, &me, ttl).await.deadline();
    let until = process.now().after(3 * ttl);
    while process.now() < until {
        let sent = process.now();
        match process.renew(&job, &me, ttl).await {
            RenewReply::Renewed => deadline = relied_on(sent, ttl),
            // Only if this machine stood still for too long.
            RenewReply::NotHeld(cause) => {
                assert!(process.now() >= deadline, "lost before its deadline: {cause}");
                return Ok(());
            }
        }
        if let AcquireReply::Granted { .. } = other.acquire(&job, &rival, ttl).await {
            assert!(process.now() >= deadline, "given away before its deadline");
            return Ok(());
        }
        fixture.pass(POLL).await;
    }
    Ok(())
}

/// Trap 16: replies come in order, one per request, each about its own lease.
pub async fn each_lease_of_a_batch_has_its_own_verdict<F: Fixture>(fixture: &F) -> Checked {
    let process = Process::start(fixture).await;
    let (me, other) = (owner("me"), owner("other"));
    for mine in ["first", "broken", "last"] {
        process.take(&name(mine), &me, Duration::from_secs(10)).await;
    }
    process.take(&name("taken"), &other, Duration::from_secs(10)).await;
    process.break_lease(&name("broken"), BreakMode::Notice).await;
    let batch = ["first", "missing", "taken", "broken", "last"].map(|each| RenewRequest {
        name: name(each),
        owner: me.clone(),
        ttl: LONG,
    });
    let replies: Vec<_> = process.store.renew(&batch).await.into_iter().map(Result::ok).collect();
    let lost = |cause| Some(RenewReply::NotHeld(cause));
    let expected = [
        Some(RenewReply::Renewed),
        lost(LostCause::Missing),
        lost(LostCause::Taken),
        lost(LostCause::Broken),
        Some(RenewReply::Renewed),
    ];
    assert_eq!(replies, expected);
    for renewed in ["first", "last"] {
        assert!(process.remaining(&name(renewed)).await > LONG / 2, "{renewed} was not prolonged");
    }
    assert!(process.remaining(&name("taken")).await <= Duration::from_secs(10));
    assert_eq!(process.inspect(&name("missing")).await, None);
    Ok(())
}

/// Trap 16: a key that is no lock is an error of its own lease only.
pub async fn one_unusable_key_spoils_no_batch<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    for each in ["a", "b", "c"] {
        process.take(&name(each), &me, Duration::from_secs(10)).await;
    }
    fixture.corrupt(&name("b"))?;
    let batch = ["a", "b", "c"].map(|each| RenewRequest { name: name(each), owner: me.clone(), ttl: LONG });
    let replies = process.store.renew(&batch).await;
    let [Ok(RenewReply::Renewed), unusable, Ok(RenewReply::Renewed)] = replies.as_slice() else {
        panic!("{replies:?}");
    };
    match unusable {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Foreign, "{error}"),
        Ok(reply) => assert_eq!(*reply, RenewReply::NotHeld(LostCause::Taken)),
    }
    assert!(fixture.is_corrupt(&name("b"))?);
    Ok(())
}

/// Trap 17: many leases in one call.
pub async fn large_batches_are_answered_in_order<F: Fixture>(fixture: &F) -> Checked {
    let (process, me) = (Process::start(fixture).await, owner("me"));
    let named = |number: usize| name(&format!("job-{number}"));
    for number in (0..300).filter(|number| number % 3 == 0) {
        process.take(&named(number), &me, LONG).await;
    }
    let request = |number| RenewRequest { name: named(number), owner: me.clone(), ttl: LONG };
    let batch: Vec<_> = (0..300).map(request).collect();
    let replies = process.store.renew(&batch).await;
    assert_eq!(replies.len(), batch.len());
    for (number, reply) in replies.into_iter().enumerate() {
        let expected = match number % 3 {
            0 => RenewReply::Renewed,
            _ => RenewReply::NotHeld(LostCause::Missing),
        };
        assert_eq!(reply.ok(), Some(expected), "job-{number}");
    }
    Ok(())
}

/// No requests, no replies.
pub async fn an_empty_batch_has_no_replies<F: Fixture>(fixture: &F) -> Checked {
    assert!(Process::start(fixture).await.store.renew(&[]).await.is_empty());
    Ok(())
}
