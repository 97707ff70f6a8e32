//! Who is next, who knows it, and who keeps a place.

use std::time::Duration;

use leasehold_core::store::{AcquireReply, Holder, Place, QueueRequest, StoreEvent};
use leasehold_core::{Name, OwnerToken};

use super::actors::{
    LONG, MAX_CLAIM, POLL, PROMISED_POLL, Process, SHORT, all, must_be_held, name, needs_push, needs_queue,
    owner, within,
};
use super::{Checked, Fixture, Skipped};

/// A name that is held, and waiters in order of arrival, each in a process of its own.
struct Line {
    job: Name,
    holder: OwnerToken,
    first: Process,
    waiters: Vec<Waiting>,
}

struct Waiting {
    process: Process,
    owner: OwnerToken,
    place: Place,
}

impl Line {
    async fn of<F: Fixture>(fixture: &F, labels: &[&str], ttl: Duration) -> Result<Self, Skipped> {
        let (first, job, holder) = (Process::start(fixture).await, name("job"), owner("holder"));
        needs_queue(&first)?;
        first.take(&job, &holder, ttl).await;
        let mut waiters = Vec::new();
        for label in labels {
            let (process, owner) = (Process::start(fixture).await, owner(label));
            let held = process.queue(&job, &owner, LONG).await;
            let place = held.place.unwrap_or_else(|| panic!("{label} is not queued"));
            waiters.push(Waiting { process, owner, place });
        }
        Ok(Self { job, holder, first, waiters })
    }

    async fn release(&self) {
        self.first.release(&self.job, &self.holder).await;
    }

    async fn assert_held_by(&self, label: &str) {
        assert_eq!(self.first.holder_label(&self.job).await.as_deref(), Some(label));
    }
}

impl Waiting {
    async fn ask_again(&self, job: &Name, with_ticket: bool) -> Place {
        let ticket = with_ticket.then_some(self.place.ticket);
        let held = self.process.queue_again(job, &self.owner, LONG, ticket).await;
        held.place.unwrap_or_else(|| panic!("{} is not queued", self.owner.label()))
    }

    fn was_granted(&self) -> bool {
        self.process.pushed_grant(&self.owner).is_some()
    }
}

/// First come, first served, over processes.
pub async fn waiters_are_served_in_order_of_arrival<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b", "c", "d", "e"], LONG).await?;
    line.release().await;
    for waiting in &line.waiters {
        line.assert_held_by(waiting.owner.label()).await;
        waiting.process.release(&line.job, &waiting.owner).await;
    }
    assert_eq!(line.first.inspect(&line.job).await, None);
    Ok(())
}

/// Trap 25: a release wakes one waiter.
pub async fn only_the_next_waiter_is_woken<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b", "c", "d"], LONG).await?;
    needs_push(&line.first)?;
    line.release().await;
    within(fixture, POLL, "the next is told", async || line.waiters[0].was_granted().then_some(())).await;
    fixture.pass(SHORT).await;
    let told = |waiting: &Waiting| waiting.process.told(&waiting.owner).len();
    let grants: Vec<_> = line.waiters.iter().map(Waiting::was_granted).collect();
    assert_eq!(grants, [true, false, false, false]);
    assert_eq!(
        line.waiters[2..].iter().map(told).sum::<usize>(),
        0,
        "those further back were told something"
    );
    Ok(())
}

/// Who becomes the first at a hand-over is told when the claim of the new holder ends.
pub async fn the_new_first_waiter_is_told<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b"], LONG).await?;
    needs_push(&line.first)?;
    line.release().await;
    let remaining = told_first(fixture, &line.job, &line.waiters[1]).await;
    assert!(remaining.is_some_and(|left| left <= MAX_CLAIM), "{remaining:?}");
    Ok(())
}

/// Who becomes the first because another gave up is told when the lease ends.
pub async fn the_next_is_told_when_the_first_withdraws<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b"], LONG).await?;
    needs_push(&line.first)?;
    let [first, second] = line.waiters.as_slice() else { panic!("two waiters") };
    first.process.release(&line.job, &first.owner).await;
    let remaining = told_first(fixture, &line.job, second).await;
    assert!(remaining.is_some_and(|left| left <= LONG && left > LONG / 2), "{remaining:?}");
    assert!(!second.was_granted());
    Ok(())
}

/// Who becomes the first because another found the name free by asking is told when that one's lease ends.
pub async fn the_next_is_told_when_the_first_takes_the_name_by_asking<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b"], SHORT).await?;
    needs_push(&line.first)?;
    let [first, second] = line.waiters.as_slice() else { panic!("two waiters") };
    let queue = Some(QueueRequest { ticket: Some(first.place.ticket), poll_interval: PROMISED_POLL });
    within(fixture, SHORT, "the first finds the name free", async || {
        let reply = first.process.ask(&line.job, &first.owner, LONG, queue).await;
        matches!(reply, Ok(AcquireReply::Granted { .. })).then_some(())
    })
    .await;
    let remaining = told_first(fixture, &line.job, second).await;
    assert!(remaining.is_some_and(|left| left <= LONG && left > LONG / 2), "{remaining:?}");
    Ok(())
}

/// `min_hold`: the first waiter is told until when the name is kept.
pub async fn the_first_is_told_how_long_a_name_is_kept<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a"], LONG).await?;
    needs_push(&line.first)?;
    let keep_for = LONG / 3;
    line.first.release_early(&line.job, &line.holder, keep_for).await;
    let remaining = told_first(fixture, &line.job, &line.waiters[0]).await;
    assert!(remaining.is_some_and(|left| left <= keep_for), "{remaining:?}");
    assert!(!line.waiters[0].was_granted());
    Ok(())
}

/// Waits until a waiter is told that it is the first; what it is told of the present lease.
async fn told_first<F: Fixture>(fixture: &F, job: &Name, waiting: &Waiting) -> Option<Duration> {
    within(fixture, POLL, "the waiter is told that it is the first", async || {
        waiting.process.told(&waiting.owner).into_iter().find_map(|event| match event {
            StoreEvent::First { name, remaining, .. } if name == *job => Some(remaining),
            _ => None,
        })
    })
    .await
}

/// A reply says whether anybody is before, and tickets grow.
pub async fn places_and_tickets_tell_the_order<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b", "c"], LONG).await?;
    let firsts: Vec<_> = line.waiters.iter().map(|waiting| waiting.place.first).collect();
    assert_eq!(firsts, [true, false, false]);
    assert!(line.waiters.is_sorted_by(|one, next| one.place.ticket < next.place.ticket));
    let pushed = line.first.store.capabilities().push;
    assert!(line.waiters.iter().all(|waiting| waiting.place.pushed == pushed));
    Ok(())
}

/// A waiter that asks again, with its ticket or without, is queued once and where it was.
pub async fn asking_again_keeps_the_place<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b", "c"], LONG).await?;
    for with_ticket in [false, true] {
        for waiting in &line.waiters {
            let place = waiting.ask_again(&line.job, with_ticket).await;
            assert_eq!(place, waiting.place, "{}", waiting.owner.label());
        }
    }
    let seen = line.first.inspect(&line.job).await.map(|seen| seen.waiters);
    assert_eq!(seen.unwrap_or_default(), ["a", "b", "c"]);
    line.release().await;
    line.assert_held_by("a").await;
    Ok(())
}

/// A waiter whose entry is gone comes back to its place with its ticket.
pub async fn a_ticket_keeps_the_place_of_a_lost_entry<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b"], LONG).await?;
    let first = &line.waiters[0];
    first.process.release(&line.job, &first.owner).await;
    assert_eq!(first.ask_again(&line.job, true).await, first.place);
    line.release().await;
    line.assert_held_by("a").await;
    Ok(())
}

/// Trap 23: after the queue was lost, tickets restore its order whoever asks first.
pub async fn a_lost_queue_is_rebuilt_in_order<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b", "c"], LONG).await?;
    fixture.lose_queue(&line.job)?;
    for waiting in line.waiters.iter().rev() {
        assert!(waiting.ask_again(&line.job, true).await.first);
    }
    line.release().await;
    for waiting in &line.waiters {
        line.assert_held_by(waiting.owner.label()).await;
        waiting.process.release(&line.job, &waiting.owner).await;
    }
    Ok(())
}

/// A name whose lease has ended goes to who waits for it, not to who comes by.
pub async fn a_newcomer_does_not_overtake_waiters_of_a_free_name<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b"], SHORT).await?;
    let newcomer = owner("newcomer");
    let held = within(fixture, SHORT, "the name is handed over", async || {
        let held = must_be_held(line.first.acquire(&line.job, &newcomer, LONG).await);
        (held.holder != Holder::Lease { label: "holder".into() }).then_some(held)
    })
    .await;
    assert_eq!(held.holder, Holder::HandedOver);
    assert_eq!(held.place, None);
    assert!(held.remaining.is_some_and(|left| left <= MAX_CLAIM), "{held:?}");
    line.assert_held_by("a").await;
    if line.first.store.capabilities().push {
        within(fixture, POLL, "the waiter is told", async || line.waiters[0].was_granted().then_some(()))
            .await;
    }
    Ok(())
}

/// A newcomer that waits comes after those who did before.
pub async fn a_newcomer_that_waits_queues_behind<F: Fixture>(fixture: &F) -> Checked {
    let line = Line::of(fixture, &["a", "b"], SHORT).await?;
    let (late, newcomer) = (Process::start(fixture).await, owner("newcomer"));
    let queue = Some(QueueRequest { ticket: None, poll_interval: PROMISED_POLL });
    let held = within(fixture, SHORT, "the name is handed over", async || {
        let reply = late.ask(&line.job, &newcomer, LONG, queue).await;
        let held = must_be_held(reply.unwrap_or_else(|error| panic!("{error}")));
        (held.holder != Holder::Lease { label: "holder".into() }).then_some(held)
    })
    .await;
    assert_eq!(held.holder, Holder::HandedOver);
    assert!(held.place.is_some_and(|place| !place.first), "{held:?}");
    for waiting in &line.waiters {
        line.assert_held_by(waiting.owner.label()).await;
        waiting.process.release(&line.job, &waiting.owner).await;
    }
    line.assert_held_by("newcomer").await;
    Ok(())
}

/// Trap 22: trying and queueing are one step, so a release between them is impossible.
pub async fn releases_and_waiters_never_miss_each_other<F: Fixture>(fixture: &F) -> Checked {
    let (first, second, job) = (Process::start(fixture).await, Process::start(fixture).await, name("job"));
    needs_queue(&first)?;
    for round in 0..40 {
        let (holder, waiter) = (owner("holder"), owner("waiter"));
        first.take(&job, &holder, LONG).await;
        let queue = Some(QueueRequest { ticket: None, poll_interval: PROMISED_POLL });
        let release = async || {
            first.release(&job, &holder).await;
        };
        let wait = async || {
            let reply = second.ask(&job, &waiter, LONG, queue).await;
            assert!(matches!(reply, Ok(AcquireReply::Granted { .. } | AcquireReply::Held(_))), "{reply:?}");
        };
        let both: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [Box::pin(release()), Box::pin(wait())];
        let mut both = Vec::from(both);
        if round % 2 == 0 {
            both.reverse();
        }
        all(both).await;
        assert_eq!(first.holder_label(&job).await.as_deref(), Some("waiter"), "round {round}");
        second.release(&job, &waiter).await;
    }
    Ok(())
}
