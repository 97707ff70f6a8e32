//! The mailboxes of queued acquisitions: what the store tells without being asked reaches the right waiter
//! here, or is known to be unwanted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::fencing::FencingToken;
use crate::owner::OwnerToken;

/// A grant that arrived by push.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedGrant {
    pub(crate) fencing_token: FencingToken,
    pub(crate) claim: Duration,
    pub(crate) granted_after: Option<Moment>,
}

/// What a waiter finds in its mailbox.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mail {
    pub(crate) grant: Option<PushedGrant>,
    /// It is first now, and the present lease ends at this moment (or `NEVER`) if it is not renewed.
    pub(crate) first: Option<Moment>,
    /// Messages may have been missed.
    pub(crate) recheck: bool,
}

/// The mailbox of one waiter.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Notify,
}

impl Mailbox {
    /// Waits for mail and takes it out.
    pub(crate) async fn receive(&self) -> Mail {
        loop {
            let arrived = self.arrived.notified();
            let mail = self.take();
            if mail.grant.is_some() || mail.first.is_some() || mail.recheck {
                return mail;
            }
            arrived.await;
        }
    }

    /// Takes out what is there.
    pub(crate) fn take(&self) -> Mail {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.lock());
        self.arrived.notify_one();
    }
}

/// All mailboxes of a client, by owner token. An owner that was granted the name keeps its entry until it gives
/// the name back, without a mailbox: a grant pushed to it is not unwanted.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<HashMap<OwnerToken, Option<Arc<Mailbox>>>>);

impl Waiters {
    /// Opens a mailbox; `None` if this owner has one already.
    pub(crate) fn open(&self, owner: &OwnerToken) -> Option<Arc<Mailbox>> {
        match self.lock().entry(owner.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(place) => {
                let mailbox = Arc::<Mailbox>::default();
                place.insert(Some(Arc::clone(&mailbox)));
                Some(mailbox)
            }
        }
    }

    /// Notes that this owner holds the name now and needs no mail.
    pub(crate) fn holds(&self, owner: &OwnerToken) {
        if let Some(mailbox) = self.lock().get_mut(owner) {
            *mailbox = None;
        }
    }

    /// Forgets an owner: from now on a grant for this owner is unwanted.
    pub(crate) fn close(&self, owner: &OwnerToken) {
        self.lock().remove(owner);
    }

    /// Delivers a grant; false if this owner neither waits for the name nor holds it.
    pub(crate) fn granted(&self, owner: &OwnerToken, grant: PushedGrant) -> bool {
        self.deliver(owner, |mail| mail.grant = Some(grant))
    }

    /// Tells a waiter that it is first now.
    pub(crate) fn first(&self, owner: &OwnerToken, ends: Moment) {
        self.deliver(owner, |mail| mail.first = Some(ends));
    }

    /// Tells every waiter that messages may have been missed.
    pub(crate) fn recheck_all(&self) {
        for mailbox in self.lock().values().flatten() {
            mailbox.put(|mail| mail.recheck = true);
        }
    }

    /// Tells a waiter that messages to it may have been missed.
    pub(crate) fn recheck(&self, owner: &OwnerToken) {
        self.deliver(owner, |mail| mail.recheck = true);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn deliver(&self, owner: &OwnerToken, change: impl FnOnce(&mut Mail)) -> bool {
        let waiters = self.lock();
        let Some(entry) = waiters.get(owner) else { return false };
        if let Some(mailbox) = entry {
            mailbox.put(change);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OwnerToken, Option<Arc<Mailbox>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
