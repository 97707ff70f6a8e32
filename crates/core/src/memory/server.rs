//! What the server does in one step: leases, queues, hand-over, fencing tokens. No waiting, no faults.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Content, Entry, Lease, Now, Waiter};
use super::link::{ConnectionId, Link};
use super::records::Records;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, LostCause};
use crate::fencing::FencingToken;
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::owner::{KeyValue, Label, OwnerToken};
use crate::store::{
    AcquireReply, BreakMode, BreakReply, Held, Holder, Inspection, Listing, Place, QueueRequest,
    ReleaseReply, RenewReply, RenewRequest, StoreEvent, Ticket,
};

/// The longest claim: time for a waiter to begin and confirm, short enough to wait for if it died just then.
const MAX_CLAIM: Duration = Duration::from_secs(3);
/// A waiter that polls is dead after this many of its intervals without a sign of it.
const MISSED_POLLS: u32 = 3;
/// The most waiters shown by `inspect`.
const SHOWN_WAITERS: usize = 1_000;
/// Below this many names looking for ended leases is not worth it.
const SWEEP_FROM: usize = 64;

/// An acquire that can be carried out later than its caller waits.
pub(super) struct Acquire {
    pub(super) name: Name,
    pub(super) owner: OwnerToken,
    pub(super) ttl: Duration,
    pub(super) queue: Option<QueueRequest>,
    pub(super) connection: Option<ConnectionId>,
}

enum Served {
    /// The caller of the acquire is the first itself.
    Caller,
    /// The first live waiter has the name now.
    HandedOver,
    /// Nobody alive was waiting.
    Nobody,
}

pub(super) struct Server {
    names: BTreeMap<Name, Entry>,
    links: HashMap<ConnectionId, Arc<Link>>,
    last_connection: u64,
    last_fencing_token: u64,
    last_ticket: u64,
    /// What the wall clock showed at a moment of the server's clock.
    wall_set: (Moment, Duration),
    sweep_at: usize,
    receivers: Vec<Arc<Link>>,
    pub(super) records: Records,
}

impl Server {
    pub(super) fn new(epoch: Duration) -> Self {
        Self {
            names: BTreeMap::new(),
            links: HashMap::new(),
            last_connection: 0,
            last_fencing_token: 0,
            last_ticket: 0,
            wall_set: (Moment::default(), epoch),
            sweep_at: SWEEP_FROM,
            receivers: Vec::new(),
            records: Records::default(),
        }
    }

    pub(super) fn now(&self, moment: Moment) -> Now {
        let (set_at, shown) = self.wall_set;
        Now { moment, wall: shown + moment.since(set_at) }
    }

    pub(super) fn connect(&mut self, link: &Arc<Link>) -> ConnectionId {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        self.links.insert(id, Arc::clone(link));
        id
    }

    pub(super) fn disconnect(&mut self, id: ConnectionId) {
        self.links.remove(&id);
    }

    pub(super) fn acquire(&mut self, request: &Acquire, now: Now) -> Result<AcquireReply, Error> {
        self.visit(&request.name, now, |server, entry| {
            if entry.is_held_by(&request.owner) {
                return server.grant_again(entry, request, now);
            }
            match &entry.lease {
                Some(Lease { content: Content::NotALock, .. }) => Err(not_a_lock(&request.name)),
                Some(lease) => {
                    let (holder, remaining) = (lease.holder(), lease.remaining(now));
                    server.enqueue(entry, request, now);
                    let place = server.place(entry, request, now);
                    Ok(AcquireReply::Held(Held { holder, remaining, place }))
                }
                None => server.acquire_free(entry, request, now),
            }
        })
    }

    /// A retry, a poll after a missed push, a confirmation, a resume.
    fn grant_again(&mut self, entry: &mut Entry, request: &Acquire, now: Now) -> Result<AcquireReply, Error> {
        let before = entry.lease.as_ref().and_then(|lease| lease.fencing_token);
        let fencing_token = match before {
            Some(token) if !on(Rule::MintPerGrant) => token,
            _ => self.mint(now)?,
        };
        if let Some(lease) = &mut entry.lease {
            lease.ends = lease.ends.max(now.moment.after(request.ttl));
            lease.fencing_token = Some(fencing_token);
        }
        Ok(AcquireReply::Granted { fencing_token })
    }

    fn acquire_free(
        &mut self,
        entry: &mut Entry,
        request: &Acquire,
        now: Now,
    ) -> Result<AcquireReply, Error> {
        // With its ticket the caller may well be the first.
        self.enqueue(entry, request, now);
        if matches!(self.serve(&request.name, entry, Some(&request.owner), now), Served::HandedOver) {
            let remaining = entry.lease.as_ref().and_then(|lease| lease.remaining(now));
            let place = self.place(entry, request, now);
            return Ok(AcquireReply::Held(Held { holder: Holder::HandedOver, remaining, place }));
        }
        let fencing_token = self.mint(now)?;
        entry.lease = Some(Lease::of(&request.owner, now.moment.after(request.ttl), fencing_token));
        self.tell_first(&request.name, entry, now);
        Ok(AcquireReply::Granted { fencing_token })
    }

    pub(super) fn release(
        &mut self,
        name: &Name,
        owner: &OwnerToken,
        keep_for: Option<Duration>,
        now: Now,
    ) -> Result<ReleaseReply, Error> {
        self.visit(name, now, |server, entry| {
            if entry.withdraw(owner) && !entry.is_held_by(owner) {
                // The next one must know that it is the first now.
                server.tell_first(name, entry, now);
            }
            let Some(lease) = &mut entry.lease else { return Ok(ReleaseReply::NotHeld) };
            if matches!(lease.content, Content::NotALock) {
                return Err(not_a_lock(name));
            }
            if !lease.is_of(owner) && on(Rule::CompareOnRelease) {
                return Ok(ReleaseReply::NotHeld);
            }
            if let Some(keep_for) = keep_for.filter(|keep_for| on(Rule::MinHold) && !keep_for.is_zero()) {
                lease.content = Content::Text(KeyValue::kept(owner));
                lease.ends = now.moment.after(keep_for);
                lease.fencing_token = None;
                server.tell_first(name, entry, now);
                return Ok(ReleaseReply::Freed { handed_over: false });
            }
            entry.lease = None;
            let served = server.serve(name, entry, None, now);
            Ok(ReleaseReply::Freed { handed_over: matches!(served, Served::HandedOver) })
        })
    }

    pub(super) fn renew(&mut self, request: &RenewRequest, now: Now) -> RenewReply {
        let ends = now.moment.after(request.ttl);
        self.visit(&request.name, now, |_, entry| {
            let Some(lease) = &mut entry.lease else {
                if on(Rule::RenewOnlyExisting) {
                    return RenewReply::NotHeld(LostCause::Missing);
                }
                entry.lease = Some(Lease::of(&request.owner, ends, FencingToken::UNFENCED));
                return RenewReply::Renewed;
            };
            if !lease.is_of(&request.owner) && on(Rule::CompareOnRenew) {
                let broken = matches!(lease.holder(), Holder::Broken { .. });
                return RenewReply::NotHeld(if broken { LostCause::Broken } else { LostCause::Taken });
            }
            if ends > lease.ends || !on(Rule::RenewNeverShortens) {
                lease.ends = ends;
            }
            RenewReply::Renewed
        })
    }

    pub(super) fn inspect(&self, name: &Name, now: Now) -> Result<Option<Inspection>, Error> {
        let Some(entry) = self.names.get(name) else { return Ok(None) };
        if matches!(entry.lease, Some(Lease { content: Content::NotALock, .. })) {
            return Err(not_a_lock(name));
        }
        let inspection = self.inspection(name, entry, now);
        Ok((inspection.holder.is_some() || !inspection.waiters.is_empty()).then_some(inspection))
    }

    pub(super) fn list(&self, prefix: &str, limit: usize, now: Now) -> Listing {
        let mut taken = self
            .names
            .iter()
            .skip_while(|(name, _)| name.as_str() < prefix)
            .take_while(|(name, _)| name.as_str().starts_with(prefix))
            .filter(|(_, entry)| entry.live_lease(now).is_some());
        let entries = taken.by_ref().take(limit).map(|(name, entry)| self.inspection(name, entry, now));
        Listing { entries: entries.collect(), more: taken.next().is_some() }
    }

    pub(super) fn break_lease(
        &mut self,
        name: &Name,
        mode: BreakMode,
        by: &Label,
        now: Now,
    ) -> Result<BreakReply, Error> {
        self.visit(name, now, |server, entry| {
            let Some(lease) = &mut entry.lease else { return Ok(BreakReply::Free) };
            if matches!(lease.content, Content::NotALock) {
                return Err(not_a_lock(name));
            }
            let holder = lease.holder();
            match (mode, lease.remaining(now)) {
                (BreakMode::Notice, Some(remaining)) => {
                    lease.content = Content::Text(KeyValue::broken(by));
                    Ok(BreakReply::Broken { holder, remaining })
                }
                // What has no end cannot be waited for, and whoever wrote it does not renew.
                (BreakMode::Notice, None) | (BreakMode::Now, _) => {
                    entry.lease = None;
                    server.serve(name, entry, None, now);
                    Ok(BreakReply::Broken { holder, remaining: Duration::ZERO })
                }
            }
        })
    }

    /// Gives the free name to the first live waiter; an acquire gives it to itself if it is that one.
    fn serve(&mut self, name: &Name, entry: &mut Entry, caller: Option<&OwnerToken>, now: Now) -> Served {
        while let Some(first) = entry.pop_first() {
            if Some(&first.owner) == caller {
                return Served::Caller;
            }
            if !self.is_alive(&first, now) && on(Rule::SkipDeadWaiters) {
                continue;
            }
            // Without a token nothing can be granted; whoever acquires next is told so.
            let Ok(fencing_token) = self.mint(now) else { return Served::Nobody };
            let ends = now.moment.after(first.claim);
            entry.lease = Some(Lease::of(&first.owner, ends, fencing_token));
            if let Some(link) = first.connection.and_then(|id| self.links.get(&id)).map(Arc::clone) {
                link.push(StoreEvent::Granted {
                    name: name.clone(),
                    owner: first.owner,
                    fencing_token,
                    claim: first.claim,
                    granted_after: link.grant_bound(),
                });
                self.receivers.push(link);
            }
            self.tell_first(name, entry, now);
            return Served::HandedOver;
        }
        Served::Nobody
    }

    /// Tells the first waiter that it is the first, and when the present lease ends.
    fn tell_first(&mut self, name: &Name, entry: &Entry, now: Now) {
        let Some(first) = entry.queue.first() else { return };
        let Some(link) = first.connection.and_then(|id| self.links.get(&id)) else { return };
        link.push(StoreEvent::First {
            name: name.clone(),
            owner: first.owner.clone(),
            remaining: entry.lease.as_ref().map_or(Some(Duration::ZERO), |lease| lease.remaining(now)),
        });
        self.receivers.push(Arc::clone(link));
    }

    /// Puts the caller into the queue, in its old place if it had one.
    fn enqueue(&mut self, entry: &mut Entry, request: &Acquire, now: Now) {
        let Some(queue) = request.queue else { return };
        let known = entry.queue.iter().find(|waiter| waiter.owner == request.owner);
        let ticket = known.map(|waiter| waiter.ticket).or(queue.ticket).unwrap_or_else(|| {
            let micros = u64::try_from(now.wall.as_micros()).unwrap_or(u64::MAX);
            // Never two alike, so that those who come within one microsecond keep their order.
            self.last_ticket = micros.max(self.last_ticket.saturating_add(1));
            Ticket(self.last_ticket)
        });
        entry.withdraw(&request.owner);
        let claim = request.ttl.min(MAX_CLAIM);
        let waiter = Waiter {
            ticket,
            owner: request.owner.clone(),
            connection: request.connection,
            // One that polls must still find its grant when it comes.
            claim: if request.connection.is_some() { claim } else { claim.max(2 * queue.poll_interval) },
            poll_interval: queue.poll_interval,
            refreshed: now.moment,
        };
        let place = entry.queue.partition_point(|other| other.ticket <= ticket);
        entry.queue.insert(place, waiter);
    }

    fn place(&self, entry: &Entry, request: &Acquire, now: Now) -> Option<Place> {
        request.queue?;
        let at = entry.queue.iter().position(|waiter| waiter.owner == request.owner)?;
        let (before, from_here) = entry.queue.split_at(at);
        Some(Place {
            ticket: from_here.first()?.ticket,
            first: !before.iter().any(|waiter| self.is_alive(waiter, now)),
            ahead: u32::try_from(before.len()).unwrap_or(u32::MAX),
            pushed: request.connection.is_some(),
        })
    }

    fn is_alive(&self, waiter: &Waiter, now: Now) -> bool {
        match waiter.connection {
            Some(id) => self.links.contains_key(&id),
            None => now.moment.since(waiter.refreshed) <= MISSED_POLLS * waiter.poll_interval,
        }
    }

    fn mint(&mut self, now: Now) -> Result<FencingToken, Error> {
        let floor = if on(Rule::ClockFloor) { now.wall } else { Duration::ZERO };
        let token = FencingToken::mint(self.last_fencing_token, floor).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "fencing tokens are used up: the store's clock or its last token is beyond 2^53 microseconds",
            )
        })?;
        self.last_fencing_token = token.get();
        Ok(token)
    }

    fn inspection(&self, name: &Name, entry: &Entry, now: Now) -> Inspection {
        let lease = entry.live_lease(now);
        let waiting = entry.live_queue(now).iter().filter(|waiter| self.is_alive(waiter, now));
        Inspection {
            name: name.clone(),
            holder: lease.map(Lease::holder),
            remaining: lease.and_then(|lease| lease.remaining(now)),
            waiters: waiting.take(SHOWN_WAITERS).map(|waiter| waiter.owner.label().to_owned()).collect(),
            fencing_token: lease.and_then(|lease| lease.fencing_token),
        }
    }

    /// Works on one name's entry: ended leases are gone before, empty entries after.
    fn visit<T>(&mut self, name: &Name, now: Now, step: impl FnOnce(&mut Self, &mut Entry) -> T) -> T {
        let mut entry = self.names.remove(name).unwrap_or_default();
        entry.forget_ended(now);
        let result = step(self, &mut entry);
        if !entry.is_empty() || !on(Rule::ForgetNames) {
            self.names.insert(name.clone(), entry);
        }
        self.sweep(now);
        result
    }

    /// Forgets ended leases of names nobody asks about any more, at a constant cost per operation.
    fn sweep(&mut self, now: Now) {
        if self.names.len() >= self.sweep_at && on(Rule::ForgetNames) {
            self.names.retain(|_, entry| {
                entry.forget_ended(now);
                !entry.is_empty()
            });
            self.sweep_at = SWEEP_FROM.max(2 * self.names.len());
        }
    }
}

/// What a server does that no client asked for.
impl Server {
    pub(super) fn set_wall_time(&mut self, since_epoch: Duration, now: Now) {
        self.wall_set = (now.moment, since_epoch);
    }

    pub(super) fn flush(&mut self) {
        self.names.clear();
        self.records = Records::default();
        self.last_fencing_token = 0;
        self.last_ticket = 0;
    }

    pub(super) fn set_content(
        &mut self,
        name: &Name,
        content: Option<(Content, Option<Duration>)>,
        now: Now,
    ) {
        self.visit(name, now, |_, entry| {
            entry.lease = content.map(|(content, ttl)| Lease {
                content,
                ends: ttl.map_or(Moment::NEVER, |ttl| now.moment.after(ttl)),
                fencing_token: None,
            });
        });
    }

    pub(super) fn lose_queue(&mut self, name: &Name, now: Now) {
        self.visit(name, now, |_, entry| entry.queue.clear());
    }

    pub(super) fn text(&self, name: &Name, now: Now) -> Option<String> {
        match &self.names.get(name)?.live_lease(now)?.content {
            Content::Text(text) => Some(text.clone()),
            Content::NotALock => None,
        }
    }

    pub(super) fn is_corrupt(&self, name: &Name, now: Now) -> bool {
        let lease = self.names.get(name).and_then(|entry| entry.live_lease(now));
        lease.is_some_and(|lease| matches!(lease.content, Content::NotALock))
    }

    pub(super) fn stored_names(&self) -> usize {
        self.names.len()
    }

    /// Whether this owner holds the name.
    pub(super) fn is_held_by(&self, name: &Name, owner: &OwnerToken, now: Now) -> bool {
        self.names.get(name).and_then(|entry| entry.live_lease(now)).is_some_and(|lease| lease.is_of(owner))
    }

    pub(super) fn take_receivers(&mut self) -> Vec<Arc<Link>> {
        std::mem::take(&mut self.receivers)
    }

    /// Tells one process something that no client's request led to.
    pub(super) fn push_to(&mut self, link: &Arc<Link>, event: StoreEvent) {
        link.push(event);
        self.receivers.push(Arc::clone(link));
    }
}

fn not_a_lock(name: &Name) -> Error {
    Error::new(
        ErrorKind::Foreign,
        format!(
            "the key of {name} holds data that is not a lock; it was left untouched: choose another namespace"
        ),
    )
}
