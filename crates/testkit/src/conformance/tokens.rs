//! Fencing tokens: they grow with every grant, whatever happens.

use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::store::RenewReply;

use super::actors::{LONG, Process, name, needs_fencing, owner};
use super::{Checked, Fixture};

/// The first of January 2020 in microseconds since 1970: every store's clock shows a later time.
const IN_2020: u64 = 1_577_836_800_000_000;

/// One sequence for all names, owners and connections.
pub async fn tokens_grow_over_owners_names_and_connections<F: Fixture>(fixture: &F) -> Checked {
    let processes = [Process::start(fixture).await, Process::start(fixture).await];
    needs_fencing(&processes[0])?;
    let mut last = FencingToken::UNFENCED;
    for round in 0..40 {
        let process = &processes[round % 2];
        let (job, me) = (name(&fixture.counted_together(round % 5)), owner("me"));
        let token = process.take(&job, &me, LONG).await.fencing_token;
        assert!(token > last, "{token} after {last}");
        last = token;
        process.release(&job, &me).await;
    }
    Ok(())
}

/// Grants at the same time have tokens of their own.
pub async fn concurrent_grants_have_different_tokens<F: Fixture>(fixture: &F) -> Checked {
    let processes = [Process::start(fixture).await, Process::start(fixture).await];
    needs_fencing(&processes[0])?;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..60 {
        let (process, job) = (processes[number % 2].clone(), name(&fixture.counted_together(number)));
        tasks.spawn(async move { process.take(&job, &owner("me"), LONG).await.fencing_token });
    }
    let mut tokens = tasks.join_all().await;
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 60);
    Ok(())
}

/// Trap 38, and the clock floor: tokens are microseconds of the store's time of day or more, exact in JSON.
pub async fn tokens_grow_with_the_time_of_day_below_two_to_the_fifty_three<F: Fixture>(
    fixture: &F,
) -> Checked {
    let process = Process::start(fixture).await;
    needs_fencing(&process)?;
    let token = process.take(&name("job"), &owner("me"), LONG).await.fencing_token;
    assert!(token.get() > IN_2020, "{token} is not past the store's clock");
    assert!(token <= FencingToken::MAX, "{token}");
    Ok(())
}

/// Trap 37: the clock keeps tokens growing when the last one was lost.
pub async fn tokens_grow_after_all_data_is_lost<F: Fixture>(fixture: &F) -> Checked {
    let (process, job) = (Process::start(fixture).await, name("job"));
    needs_fencing(&process)?;
    let mut before = FencingToken::UNFENCED;
    for _ in 0..5 {
        before = process.take(&job, &owner("before"), LONG).await.fencing_token;
        fixture.evict(&job)?;
    }
    fixture.flush()?;
    // A clock that moves at all is past the handful of grants after a few milliseconds.
    fixture.pass(Duration::from_millis(20)).await;
    let after = process.take(&job, &owner("after"), LONG).await.fencing_token;
    assert!(after > before, "{after} after {before}");
    Ok(())
}

/// Tokens grow although the store's time of day went back.
pub async fn tokens_grow_after_the_clock_stepped_back<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_fencing(&process)?;
    let mut last = process.take(&job, &me, LONG).await.fencing_token;
    fixture.step_clock_back(Duration::from_secs(3600))?;
    for _ in 0..3 {
        process.release(&job, &me).await;
        let token = process.take(&job, &me, LONG).await.fencing_token;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    Ok(())
}

/// Trap 54: renewals mint nothing, and the token an operator sees is the one the holder has.
pub async fn a_renewal_keeps_the_token<F: Fixture>(fixture: &F) -> Checked {
    let (process, job, me) = (Process::start(fixture).await, name("job"), owner("me"));
    needs_fencing(&process)?;
    let token = process.take(&job, &me, LONG).await.fencing_token;
    for _ in 0..3 {
        assert_eq!(process.renew(&job, &me, LONG).await, RenewReply::Renewed);
    }
    let seen = process.inspect(&job).await.and_then(|inspection| inspection.fencing_token);
    assert!(seen.is_none_or(|seen| seen == token), "{seen:?} instead of {token}");
    Ok(())
}
