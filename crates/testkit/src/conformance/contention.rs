//! Many who want one name at the same time: never two holders.

use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::store::AcquireReply;
use leasehold_core::{FencingToken, Moment, OwnerToken};

use super::actors::{Grant, LONG, Process, all, name, owner};
use super::{Checked, Fixture};
use crate::lock;

/// What any observer may see of one name's holders.
#[derive(Default)]
struct Watch {
    /// Until when the present holder relies on its lease.
    until: Moment,
    holder: Option<OwnerToken>,
    last_token: Option<FencingToken>,
    holds: usize,
}

impl Watch {
    /// Somebody believes to hold the name now.
    fn enter(&mut self, grant: &Grant, owner: &OwnerToken, now: Moment) {
        if grant.deadline() <= now {
            return; // It knows that its lease is over already.
        }
        assert!(
            now >= self.until,
            "two holders at {now:?}: the other one relies on it until {:?}",
            self.until
        );
        if grant.fencing_token.is_fenced() {
            let (token, last) = (grant.fencing_token, self.last_token.replace(grant.fencing_token));
            assert!(last.is_none_or(|last| token > last), "{token:?} after {last:?}");
        }
        self.until = grant.deadline();
        self.holder = Some(owner.clone());
        self.holds += 1;
    }

    /// It does no more, and is about to give it back.
    fn leave(&mut self, owner: &OwnerToken) {
        if self.holder.as_ref() == Some(owner) {
            self.until = Moment::default();
        }
    }
}

/// One winner, however many ask.
pub async fn of_many_concurrent_acquires_exactly_one_is_granted<F: Fixture>(fixture: &F) -> Checked {
    let mut processes = Vec::new();
    for _ in 0..8 {
        processes.push(Process::start(fixture).await);
    }
    for round in 0..3 {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..200 {
            let process = processes[number % processes.len()].clone();
            tasks.spawn(async move {
                let me = owner(&format!("owner-{number}"));
                let reply = process.acquire(&name(&format!("job-{round}")), &me, LONG).await;
                matches!(reply, AcquireReply::Granted { .. }).then(|| me.label().to_owned())
            });
        }
        let winners: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        let seen = processes[0].holder_label(&name(&format!("job-{round}"))).await;
        assert_eq!(seen.as_ref(), winners.first());
    }
    Ok(())
}

/// Many rounds of taking, working and giving back.
pub async fn holders_never_overlap_and_tokens_grow<F: Fixture>(fixture: &F) -> Checked {
    const ACTORS: usize = 6;
    const ROUNDS: usize = 10;
    let watch = contend(fixture, ACTORS, ROUNDS, LONG, |_| false).await;
    assert!(watch.holds > 0, "nobody ever held the name");
    Ok(())
}

/// Holders that die: the next one gets in when their lease has ended, never while they may rely on it.
pub async fn leases_that_end_never_overlap<F: Fixture>(fixture: &F) -> Checked {
    let ttl = Duration::from_millis(200);
    let watch = contend(fixture, 4, 4, ttl, |round| round % 2 == 0).await;
    assert!(watch.holds > 0, "nobody ever held the name");
    Ok(())
}

/// Actors that take a name in turn; in some rounds they die while they hold it.
async fn contend<F: Fixture>(
    fixture: &F,
    actors: usize,
    rounds: usize,
    ttl: Duration,
    dies: impl Fn(usize) -> bool,
) -> Watch {
    let watch = Mutex::new(Watch::default());
    let (watch_ref, dies) = (&watch, &dies);
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for number in 0..actors {
        let process = Process::start(fixture).await;
        tasks.push(Box::pin(async move {
            let job = name("job");
            for round in 0..rounds {
                let me = owner(&format!("actor-{number}"));
                let patience = LONG.max(ttl * 20);
                let grant = process.wait_for_grant(fixture, &job, &me, ttl, patience).await;
                lock(watch_ref).enter(&grant, &me, process.now());
                fixture.pass(Duration::from_millis(1)).await;
                if !dies(round + number) {
                    lock(watch_ref).leave(&me);
                    process.release(&job, &me).await;
                }
            }
        }));
    }
    all(tasks).await;
    watch.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
