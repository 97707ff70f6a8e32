//! What the contract of a store asks for, one transaction each.

use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Held, Holder, Place, QueueRequest, ReleaseReply,
    ReleaseRequest, RenewReply, RenewRequest, Ticket,
};
use leasehold_core::{KeyValue, Label, LostCause, Moment, Name, OwnerToken};

use crate::database::{Database, Pace, Transaction};
use crate::environment::Micros;
use crate::failure::Failure;
use crate::fence::{self, Fence};
use crate::lease::{self, Lease};
use crate::waiters::{self, Asking, Waiter};

/// An [`AcquireRequest`] that can go to another thread.
#[derive(Clone)]
pub(crate) struct Acquire {
    name: Name,
    owner: OwnerToken,
    ttl: Duration,
    queue: Option<QueueRequest>,
    not_after: Moment,
}

impl Acquire {
    pub(crate) fn new(request: &AcquireRequest<'_>) -> Self {
        Self {
            name: request.name.clone(),
            owner: request.owner.clone(),
            ttl: request.ttl,
            queue: request.queue,
            not_after: request.not_after,
        }
    }

    fn asking(&self) -> Option<Asking<'_>> {
        let request = self.queue?;
        Some(Asking { name: self.name.as_str(), owner: &self.owner, ttl: self.ttl, request })
    }

    /// Takes the name, or queues for it.
    pub(crate) fn perform(&self, database: &Database, pace: Pace) -> Result<AcquireReply, Failure> {
        if let Some(asking) = self.asking()
            && let Some((lease, place)) = waiters::look(database, asking)?
        {
            return Ok(held(&lease, database.environment.now(), Some(place)));
        }
        database.write(pace, |tx| self.in_transaction(tx))
    }

    fn in_transaction(&self, tx: &Transaction<'_>) -> Result<AcquireReply, Failure> {
        if on(Rule::NotAfter) && tx.database.environment.has_passed(self.not_after) {
            return Err(Failure::Late);
        }
        let name = self.name.as_str();
        let (fence, queued) = fence::read_with_queue(tx, name)?;
        match lease::read(tx, name)? {
            Some(lease) if lease.value == self.owner.expose() => {
                waiters::withdraw(tx, name, self.owner.expose())?;
                self.grant(tx, &fence, Some(&lease))
            }
            None if !queued => self.grant(tx, &fence, None),
            Some(lease) => {
                let place = self.queue_up(tx)?;
                Ok(held(&lease, tx.now, place))
            }
            None => self.take_turn(tx, &fence),
        }
    }

    /// The name is free and somebody is queued, perhaps nobody alive, perhaps this owner.
    fn take_turn(&self, tx: &Transaction<'_>, fence: &Fence) -> Result<AcquireReply, Failure> {
        let name = self.name.as_str();
        let queued = self.asking().map(|asking| waiters::enqueue(tx, asking)).transpose()?;
        match waiters::first(tx, name)? {
            Some(first) if first.owner != self.owner.expose() => {
                hand_over(tx, name, &first)?;
                let place = queued.map(|ticket| place(tx, name, ticket)).transpose()?;
                Ok(AcquireReply::Held(Held {
                    holder: Holder::HandedOver,
                    remaining: Some(first.claim),
                    place,
                }))
            }
            _ => {
                waiters::withdraw(tx, name, self.owner.expose())?;
                self.grant(tx, fence, None)
            }
        }
    }

    fn queue_up(&self, tx: &Transaction<'_>) -> Result<Option<Place>, Failure> {
        let Some(asking) = self.asking() else { return Ok(None) };
        let ticket = waiters::enqueue(tx, asking)?;
        place(tx, asking.name, ticket).map(Some)
    }

    /// A lease that was this owner's already is never shortened.
    fn grant(
        &self,
        tx: &Transaction<'_>,
        fence: &Fence,
        held: Option<&Lease>,
    ) -> Result<AcquireReply, Failure> {
        let fencing_token = match held.and_then(Lease::fencing_token) {
            Some(kept) if !on(Rule::MintPerGrant) => kept,
            _ => fence.mint(tx)?,
        };
        let expires = tx.now.after(self.ttl);
        let expires = held.map_or(expires, |held| held.expires.max(expires));
        lease::put(tx, self.name.as_str(), self.owner.expose(), expires, fencing_token)?;
        Ok(AcquireReply::Granted { fencing_token })
    }
}

fn held(lease: &Lease, now: Micros, place: Option<Place>) -> AcquireReply {
    AcquireReply::Held(Held { holder: lease.holder(), remaining: lease.remaining(now), place })
}

fn place(tx: &Transaction<'_>, name: &str, ticket: Ticket) -> Result<Place, Failure> {
    let first = waiters::is_first(tx, name, ticket)?;
    Ok(Place { ticket, first, ahead: u32::from(!first), pushed: false })
}

/// Gives a waiter the name for as long as it may take to notice. Its next poll makes that the whole TTL.
fn hand_over(tx: &Transaction<'_>, name: &str, waiter: &Waiter) -> Result<(), Failure> {
    let fencing_token = fence::mint(tx)?;
    waiters::withdraw(tx, name, &waiter.owner)?;
    lease::put(tx, name, &waiter.owner, tx.now.after(waiter.claim), fencing_token)
}

/// A [`ReleaseRequest`] that can go to another thread.
#[derive(Clone)]
pub(crate) struct Release {
    name: Name,
    owner: OwnerToken,
    keep_for: Option<Duration>,
}

impl Release {
    pub(crate) fn new(request: &ReleaseRequest<'_>) -> Self {
        Self::of(request.name, request.owner, request.keep_for)
    }

    pub(crate) fn of(name: &Name, owner: &OwnerToken, keep_for: Option<Duration>) -> Self {
        let keep_for = keep_for.filter(|keep_for| on(Rule::MinHold) && !keep_for.is_zero());
        Self { name: name.clone(), owner: owner.clone(), keep_for }
    }

    /// Gives the name back as part of a larger transaction; whether a waiter has it now.
    pub(crate) fn gives_to_waiter(&self, tx: &Transaction<'_>) -> Result<bool, Failure> {
        Ok(self.in_transaction(tx)? == ReleaseReply::Freed { handed_over: true })
    }

    /// Gives the name back, and takes the owner out of the queue.
    pub(crate) fn perform(&self, database: &Database, pace: Pace) -> Result<ReleaseReply, Failure> {
        if self.keep_for.is_none() {
            let tx = Transaction { database, now: database.environment.now(), durable: false };
            if lease::delete_if_simple(&tx, self.name.as_str(), &self.owner)? {
                return Ok(ReleaseReply::Freed { handed_over: false });
            }
        }
        database.write(pace, |tx| self.in_transaction(tx))
    }

    fn in_transaction(&self, tx: &Transaction<'_>) -> Result<ReleaseReply, Failure> {
        let name = self.name.as_str();
        waiters::withdraw(tx, name, self.owner.expose())?;
        match lease::read(tx, name)? {
            Some(lease) if lease.value == self.owner.expose() || !on(Rule::CompareOnRelease) => {}
            _ => return Ok(ReleaseReply::NotHeld),
        }
        if let Some(keep_for) = self.keep_for {
            lease::keep(tx, name, &self.owner, tx.now.after(keep_for))?;
            return Ok(ReleaseReply::Freed { handed_over: false });
        }
        Ok(ReleaseReply::Freed { handed_over: serve_next(tx, name)? })
    }
}

/// The holder is gone: the first live waiter gets the name, or it is free. Whether there was a waiter.
fn serve_next(tx: &Transaction<'_>, name: &str) -> Result<bool, Failure> {
    let next = waiters::first(tx, name)?;
    match &next {
        Some(next) => hand_over(tx, name, next)?,
        None => lease::delete(tx, name)?,
    }
    Ok(next.is_some())
}

/// Prolongs leases that are still their owners', all in one transaction.
pub(crate) fn renew(
    database: &Database,
    pace: Pace,
    requests: &[RenewRequest],
) -> Result<Vec<RenewReply>, Failure> {
    database.write(pace, |tx| requests.iter().map(|request| renew_one(tx, request)).collect())
}

fn renew_one(tx: &Transaction<'_>, request: &RenewRequest) -> Result<RenewReply, Failure> {
    let (name, owner) = (request.name.as_str(), request.owner.expose());
    let wanted = tx.now.after(request.ttl);
    let Some(lease) = lease::read(tx, name)? else {
        if on(Rule::RenewOnlyExisting) {
            return Ok(RenewReply::NotHeld(LostCause::Missing));
        }
        lease::put(tx, name, owner, wanted, fence::mint(tx)?)?;
        return Ok(RenewReply::Renewed);
    };
    if lease.value != owner && on(Rule::CompareOnRenew) {
        return Ok(RenewReply::NotHeld(cause(&lease)));
    }
    if lease.expires < wanted || !on(Rule::RenewNeverShortens) {
        lease::change(tx, name, &lease.value, wanted)?;
    }
    Ok(RenewReply::Renewed)
}

fn cause(lease: &Lease) -> LostCause {
    match KeyValue::parse(&lease.value) {
        KeyValue::Broken { .. } => LostCause::Broken,
        KeyValue::Owner(_) | KeyValue::Kept { .. } | KeyValue::Foreign => LostCause::Taken,
    }
}

/// Takes the lease away from whoever holds it.
pub(crate) fn break_lease(
    database: &Database,
    pace: Pace,
    name: &Name,
    mode: BreakMode,
    by: &Label,
) -> Result<BreakReply, Failure> {
    database.write(pace, |tx| {
        let Some(lease) = lease::read(tx, name.as_str())? else { return Ok(BreakReply::Free) };
        let remaining = match (mode, lease.remaining(tx.now)) {
            (BreakMode::Notice, Some(remaining)) => {
                lease::change(tx, name.as_str(), &KeyValue::broken(by), lease.expires)?;
                remaining
            }
            // What has no end cannot be waited for, and whoever wrote it does not renew.
            (BreakMode::Notice, None) | (BreakMode::Now, _) => {
                serve_next(tx, name.as_str())?;
                Duration::ZERO
            }
        };
        Ok(BreakReply::Broken { holder: lease.holder(), remaining })
    })
}
