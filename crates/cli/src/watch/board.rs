//! What is held and what became of it: each listing is compared with the one before. Pure: time comes in.
//!
//! A listing shows labels and times, not owner tokens, so how a lease ended is concluded: one that went before
//! its time was given back, one whose time ran out without a renewal expired. What ended and began again
//! between two listings is not seen.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use leasehold::{FencingToken, Holder, Inspection, Listing};

/// Endings that are remembered; more than any terminal shows.
const MOST_ENDINGS: usize = 500;
/// Clocks and replies are this inexact.
const SLACK: Duration = Duration::from_millis(50);

/// The present state, and what ended lately.
#[derive(Debug, Default)]
pub(crate) struct Board {
    held: BTreeMap<String, Held>,
    endings: VecDeque<Ending>,
    read_at: Option<Instant>,
    more: bool,
}

/// A name that is taken.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) name: String,
    pub(crate) holder: Holder,
    pub(crate) waiters: Vec<String>,
    fencing_token: Option<FencingToken>,
    since: Since,
    seen_at: Instant,
    /// `None` when the lease has no end.
    ends_at: Option<Instant>,
    /// The most that was ever left of it: about its TTL.
    longest: Duration,
}

/// Since when a lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// It began while it was watched.
    Seen(Instant),
    /// It was held already when the watch began.
    Before(Instant),
}

impl Since {
    fn moment(self) -> Instant {
        match self {
            Self::Seen(at) | Self::Before(at) => at,
        }
    }
}

/// A lease that ended while it was watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) name: String,
    pub(crate) holder: String,
    pub(crate) held: HeldFor,
    pub(crate) how: How,
    /// Who has the name now.
    pub(crate) next: Option<String>,
    pub(crate) at: Instant,
}

/// How long a lease was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldFor {
    pub(crate) time: Duration,
    /// It began before the watch, so it was held for longer.
    pub(crate) at_least: bool,
}

/// How a lease ended, as far as can be seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Gone before its time: given back, or removed with `break --now`, a flush or by eviction.
    Released,
    /// Gone before its time, and a waiter has it.
    HandedOver,
    /// Its time ran out, and nobody had renewed it.
    Expired,
    /// It was too short to tell.
    ReleasedOrExpired,
    /// An operator broke it.
    Broken,
}

impl How {
    /// Whether the holder lost the lease, rather than gave it back.
    pub(crate) fn is_loss(self) -> bool {
        matches!(self, Self::Expired | Self::Broken)
    }
}

impl Board {
    /// Takes what the store showed at this moment.
    pub(crate) fn update(&mut self, listing: Listing, now: Instant) {
        let first = self.read_at.is_none();
        let mut before = std::mem::take(&mut self.held);
        let last_listed = listing.entries.iter().map(|entry| entry.name.as_str()).max().map(str::to_owned);
        for entry in listing.entries {
            let Some(seen) = Held::of(entry, now, first) else { continue };
            let old = before.remove(&seen.name);
            let seen = match old {
                Some(old) if old.is_same_lease(&seen) => old.continued(seen),
                Some(old) => {
                    self.ended(&old, Some(&seen), now);
                    seen
                }
                None => seen,
            };
            self.held.insert(seen.name.clone(), seen);
        }
        for (name, old) in before {
            // Behind the end of a cut listing nothing is known.
            if !listing.more || last_listed.as_ref().is_some_and(|last| name < *last) {
                self.ended(&old, None, now);
            }
        }
        self.more = listing.more;
        self.read_at = Some(now);
    }

    /// What is taken, by name.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// What ended, newest first.
    pub(crate) fn endings(&self) -> impl Iterator<Item = &Ending> {
        self.endings.iter()
    }

    /// When the store was last read.
    pub(crate) fn read_at(&self) -> Option<Instant> {
        self.read_at
    }

    /// Whether there are more names than were listed.
    pub(crate) fn more(&self) -> bool {
        self.more
    }

    fn ended(&mut self, old: &Held, next: Option<&Held>, now: Instant) {
        let holder = match &old.holder {
            // Nobody worked under these, so nobody's lease ended.
            Holder::Kept { .. } | Holder::Broken { .. } | Holder::HandedOver => return,
            holder => holder.to_string(),
        };
        let since = old.since.moment();
        let (how, next) = match next.map(|next| &next.holder) {
            Some(Holder::Broken { by }) => (How::Broken, Some(by.clone())),
            Some(Holder::Kept { .. } | Holder::HandedOver) => (How::Released, None),
            next => (old.ending_at(now, next), next.map(Holder::to_string)),
        };
        let held =
            HeldFor { time: now.duration_since(since), at_least: matches!(old.since, Since::Before(_)) };
        self.endings.push_front(Ending { name: old.name.clone(), holder, held, how, next, at: now });
        self.endings.truncate(MOST_ENDINGS);
    }
}

impl Held {
    fn of(entry: Inspection, now: Instant, first: bool) -> Option<Self> {
        Some(Self {
            name: entry.name.to_string(),
            holder: entry.holder?,
            waiters: entry.waiters,
            fencing_token: entry.fencing_token,
            since: if first { Since::Before(now) } else { Since::Seen(now) },
            seen_at: now,
            ends_at: entry.remaining.and_then(|remaining| now.checked_add(remaining)),
            longest: entry.remaining.unwrap_or(Duration::MAX),
        })
    }

    /// How long it has been held.
    pub(crate) fn held(&self, now: Instant) -> HeldFor {
        let at_least = matches!(self.since, Since::Before(_));
        HeldFor { time: now.saturating_duration_since(self.since.moment()), at_least }
    }

    /// What is left of the lease if it is not renewed; `None` when it has no end.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        self.ends_at.map(|end| end.saturating_duration_since(now))
    }

    /// Less is left than a lease that is renewed in time ever has.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.remaining(now).is_some_and(|remaining| remaining < self.longest / 2)
    }

    fn is_same_lease(&self, other: &Self) -> bool {
        self.holder == other.holder
            && match (self.fencing_token, other.fencing_token) {
                (Some(before), Some(now)) => before == now,
                _ => true,
            }
    }

    fn continued(&self, seen: Self) -> Self {
        Self { since: self.since, longest: self.longest.max(seen.longest), ..seen }
    }

    /// How it ended, if it is gone now and this holder follows.
    fn ending_at(&self, now: Instant, next: Option<&Holder>) -> How {
        let gone_early = self.ends_at.is_none_or(|end| end > now + SLACK);
        let to_a_waiter =
            matches!(next, Some(Holder::Lease { label }) if self.waiters.iter().any(|one| one == label));
        match (gone_early, to_a_waiter) {
            (true, true) => How::HandedOver,
            (true, false) => How::Released,
            (false, _) if self.is_overdue(self.seen_at) => How::Expired,
            (false, _) => How::ReleasedOrExpired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::Name;

    const TTL_MS: u64 = 30_000;

    /// A listing of `name holder remaining_ms [waiter…]`.
    fn listing(lines: &[&str]) -> Listing {
        let entries = lines.iter().map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let by = || words[1][1..].to_owned();
            let holder = match &words[1][..1] {
                "!" => Holder::Broken { by: by() },
                "~" => Holder::Kept { by: by() },
                "?" => Holder::Foreign,
                _ => Holder::Lease { label: words[1].to_owned() },
            };
            Inspection {
                name: Name::new(words[0]).unwrap(),
                holder: Some(holder),
                remaining: words[2].parse().ok().map(Duration::from_millis),
                waiters: words[3..].iter().map(|&waiter| waiter.to_owned()).collect(),
                fencing_token: None,
            }
        });
        Listing { entries: entries.collect(), more: false }
    }

    /// How the lease of the first name ended, from two listings a second apart.
    fn ending(before: &str, after: &[&str]) -> Option<(How, Option<String>)> {
        let (mut board, start) = (Board::default(), Instant::now());
        board.update(listing(&[before]), start);
        board.update(listing(after), start + Duration::from_secs(1));
        let ending = board.endings().next().cloned();
        ending.map(|ending| (ending.how, ending.next))
    }

    #[test]
    fn how_a_lease_ended_is_concluded_from_its_time_and_from_who_follows() {
        let next = |how, next: &str| Some((how, Some(next.to_owned())));
        assert_eq!(ending("job a:1 25000", &[]), Some((How::Released, None)));
        assert_eq!(ending("job a:1 25000", &["job b:2 3000"]), next(How::Released, "b:2"));
        assert_eq!(ending("job a:1 25000 b:2 c:3", &["job b:2 3000 c:3"]), next(How::HandedOver, "b:2"));
        assert_eq!(ending("job a:1 25000", &["job !ops:9 24000"]), next(How::Broken, "ops:9"));
        assert_eq!(ending("job a:1 25000", &["job ~a:1 5000"]), Some((How::Released, None)));
        assert_eq!(
            ending("job a:1 25000", &["job ? 5000"]),
            next(How::Released, "a client that is not Leasehold")
        );
        assert_eq!(ending("job a:1 none", &[]), Some((How::Released, None)));
        assert_eq!(ending("job a:1 900", &[]), Some((How::ReleasedOrExpired, None)));
        assert_eq!(ending("job a:1 25000", &["job a:1 24000"]), None);
    }

    #[test]
    fn a_lease_that_ran_down_without_a_renewal_expired() {
        let (mut board, start) = (Board::default(), Instant::now());
        for (second, left) in [(0, TTL_MS), (20, 10_000), (29, 900)] {
            let seen = format!("job a:1 {left} b:2");
            board.update(listing(&[&seen]), start + Duration::from_secs(second));
        }
        board.update(listing(&["job b:2 30000"]), start + Duration::from_secs(30));
        let ending = board.endings().next().unwrap();
        assert_eq!((ending.how, ending.next.as_deref()), (How::Expired, Some("b:2")));
        assert!(ending.how.is_loss());
        assert_eq!(ending.held, HeldFor { time: Duration::from_secs(30), at_least: true });
    }

    #[test]
    fn nobody_loses_a_name_that_nobody_worked_under() {
        assert_eq!(ending("job !ops:9 25000", &["job a:1 30000"]), None);
        assert_eq!(ending("job ~a:1 25000", &[]), None);
    }

    #[test]
    fn the_same_holder_with_another_fencing_token_is_another_lease() {
        let (mut board, start) = (Board::default(), Instant::now());
        for (second, token) in [(0, 7), (1, 7), (2, 8)] {
            let mut seen = listing(&["job a:1 25000"]);
            seen.entries[0].fencing_token = FencingToken::new(token);
            board.update(seen, start + Duration::from_secs(second));
        }
        let ending = board.endings().next().unwrap();
        assert_eq!((ending.how, ending.next.as_deref()), (How::Released, Some("a:1")));
        assert_eq!(board.endings().count(), 1);
        let held = board.held().next().unwrap();
        assert!(!held.held(start + Duration::from_secs(5)).at_least, "its beginning was seen");
    }

    #[test]
    fn names_cut_off_a_listing_have_not_ended() {
        let (mut board, start) = (Board::default(), Instant::now());
        board.update(listing(&["a x:1 25000", "b x:1 25000", "z x:1 25000"]), start);
        let mut cut = listing(&["b x:1 24000", "c x:1 25000"]);
        cut.more = true;
        board.update(cut, start + Duration::from_secs(1));
        let ended: Vec<_> = board.endings().map(|ending| ending.name.as_str()).collect();
        assert_eq!(ended, ["a"]);
        assert!(board.more());
    }

    #[test]
    fn endings_are_bounded() {
        let (mut board, start) = (Board::default(), Instant::now());
        for second in 0..2_000 {
            let seen = format!("job:{second} a:1 25000");
            board.update(listing(&[&seen]), start + Duration::from_secs(second));
        }
        assert_eq!((board.held().count(), board.endings().count()), (1, MOST_ENDINGS));
    }
}
