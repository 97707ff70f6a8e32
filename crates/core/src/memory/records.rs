//! Records of operations (see [`crate::Once`]): one per name, until its time is over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entry::Now;
use super::server::Server;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::owner::OwnerToken;
use crate::store::{ReleaseReply, SwapReply, SwapRequest, Then};

/// Below this many records looking for ended ones is not worth it.
const SWEEP_FROM: usize = 64;

/// All records of a server.
#[derive(Default)]
pub(super) struct Records {
    kept: BTreeMap<Name, Kept>,
    sweep_at: usize,
}

struct Kept {
    /// `None` for data that is no record.
    bytes: Option<Vec<u8>>,
    ends: Moment,
}

impl Records {
    pub(super) fn read(&self, name: &Name, now: Now) -> Result<Option<Vec<u8>>, Error> {
        match self.kept.get(name).filter(|kept| kept.ends > now.moment) {
            None => Ok(None),
            Some(Kept { bytes: Some(bytes), .. }) => Ok(Some(bytes.clone())),
            Some(Kept { bytes: None, .. }) => Err(Error::new(
                ErrorKind::Foreign,
                format!(
                    "the record of {name} is no record of ours; it was left untouched: choose another namespace"
                ),
            )),
        }
    }

    pub(super) fn set_raw(&mut self, name: &Name, record: Option<&[u8]>) {
        match record {
            Some(bytes) => self.put(name, Some(bytes.to_vec()), Moment::NEVER),
            None => drop(self.kept.remove(name)),
        }
    }

    pub(super) fn corrupt(&mut self, name: &Name) {
        self.put(name, None, Moment::NEVER);
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    fn put(&mut self, name: &Name, bytes: Option<Vec<u8>>, ends: Moment) {
        self.kept.insert(name.clone(), Kept { bytes, ends });
    }

    /// Forgets ended records, at a constant cost per write.
    fn sweep(&mut self, now: Now) {
        if self.kept.len() >= self.sweep_at.max(SWEEP_FROM) && on(Rule::ForgetNames) {
            self.kept.retain(|_, kept| kept.ends > now.moment);
            self.sweep_at = 2 * self.kept.len();
        }
    }
}

/// A [`SwapRequest`] that can be carried out later than its caller waits.
pub(super) struct Swap {
    name: Name,
    owner: OwnerToken,
    expected: Option<Vec<u8>>,
    record: Vec<u8>,
    retain: Duration,
    then: Then,
}

impl Swap {
    pub(super) fn new(request: &SwapRequest<'_>) -> Self {
        Self {
            name: request.name.clone(),
            owner: request.owner.clone(),
            expected: request.expected.map(<[u8]>::to_vec),
            record: request.record.to_vec(),
            retain: request.retain,
            then: request.then,
        }
    }

    pub(super) fn perform(self, server: &mut Server, now: Now) -> Result<SwapReply, Error> {
        let current = server.records.read(&self.name, now)?;
        if !server.is_held_by(&self.name, &self.owner, now) && on(Rule::RecordUnderLease) {
            return Ok(SwapReply::NotHeld { current });
        }
        if current != self.expected && on(Rule::RecordCompare) {
            return Ok(SwapReply::Differs { current });
        }
        server.records.put(&self.name, Some(self.record), now.moment.after(self.retain));
        server.records.sweep(now);
        let Then::Release { keep_for } = self.then else {
            return Ok(SwapReply::Swapped { handed_over: false });
        };
        let released = server.release(&self.name, &self.owner, keep_for, now)?;
        Ok(SwapReply::Swapped { handed_over: released == ReleaseReply::Freed { handed_over: true } })
    }
}
