//! Releases that the old primary confirmed shortly before a failover: replicas may not have heard of them, and then a
//! name that was given back is held by nobody on the new primary until its TTL ends. So they are repeated there,
//! before anything else is asked. Owns no connection and decides nothing about leases.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::{COMMAND_TIMEOUT, Clock, Moment, Name, OwnerToken, SystemClock};

use crate::connection::Connection;
use crate::shared::Shared;

/// A replica that is further behind than this is not promoted, or its data is lost in any case.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// More are forgotten, oldest first: their names are free again once their TTL ends.
const MOST: usize = 5_000;
/// So many go out together.
const PER_BATCH: usize = 500;

/// What was released lately, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    recent: Mutex<VecDeque<(Moment, Name, OwnerToken)>>,
}

impl Releases {
    /// Notes a release that the server has confirmed.
    pub(crate) fn confirmed(&self, name: &Name, owner: &OwnerToken, now: Moment) {
        let mut recent = self.recent();
        while recent.len() >= MOST || recent.front().is_some_and(|(at, ..)| now.since(*at) > KEPT_FOR) {
            recent.pop_front();
        }
        recent.push_back((now, name.clone(), owner.clone()));
    }

    /// Takes out what was released within the time before `lost_at`.
    fn before(&self, lost_at: Moment) -> Vec<(Name, OwnerToken)> {
        let recent = self.recent().drain(..).collect::<Vec<_>>();
        let late = recent.into_iter().filter(|(at, ..)| lost_at.since(*at) <= KEPT_FOR);
        late.map(|(_, name, owner)| (name, owner)).collect()
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(Moment, Name, OwnerToken)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repeats on this connection, which leads to another primary, what was released before the last one was lost. They
/// compare the owner, so one that had arrived does nothing. What is refused is left to the TTL.
pub(crate) async fn repeat(shared: &Shared, connection: &Connection, lost_at: Moment) {
    let released = shared.releases.before(lost_at);
    if !on(Rule::RepeatReleases) || released.is_empty() {
        return;
    }
    tracing::debug!(store = shared.config.describe(), releases = released.len(), "repeating releases");
    let ends = SystemClock.now().after(COMMAND_TIMEOUT);
    for batch in released.chunks(PER_BATCH) {
        let mut calls = redis::pipe();
        for (number, (name, owner)) in batch.iter().enumerate() {
            let keys = shared.config.keys.of(name);
            let script = &shared.scripts.release;
            let mut call = script.by_hash(3);
            call.arg(&keys.lock).arg(&keys.queue).arg(&*keys.fence);
            call.arg(owner.expose()).arg(&*keys.channel_prefix).arg(0).arg("");
            // The whole text goes out once; the rest of the batch finds it there.
            calls.add_command(if number == 0 { script.by_text(&call) } else { call });
        }
        let left = ends.since(SystemClock.now());
        let answered = tokio::time::timeout(left, connection.call_all(&calls)).await;
        if !matches!(answered, Ok(Ok(_))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Label, SystemEntropy};

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn only_what_was_released_shortly_before_the_loss_is_repeated_and_only_once() {
        let releases = Releases::default();
        let owner = OwnerToken::generate(&SystemEntropy, &Label::new("me").unwrap()).unwrap();
        let name = |number: u64| Name::new(format!("job-{number}")).unwrap();
        for second in 0..20 {
            releases.confirmed(&name(second), &owner, at(second * 1_000));
        }
        let names: Vec<_> = releases.before(at(19_500)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, (15..20).map(name).collect::<Vec<_>>());
        assert!(releases.before(at(19_500)).is_empty());
    }

    #[test]
    fn trap_59_what_is_remembered_is_bounded() {
        let releases = Releases::default();
        let owner = OwnerToken::generate(&SystemEntropy, &Label::new("me").unwrap()).unwrap();
        for _ in 0..MOST * 2 {
            releases.confirmed(&Name::new("job").unwrap(), &owner, at(1));
        }
        assert_eq!(releases.before(at(2)).len(), MOST);
    }
}
