//! Looking at names: one of them, or all that are taken. Changes nothing.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;

use leasehold_core::store::{Inspection, Listing};
use leasehold_core::{Error, Name};
use redis::{Cmd, Value};

use crate::failure::{Failure, Refusal};
use crate::foreign;
use crate::handshake::command;
use crate::questions::Questions;
use crate::reply;
use crate::scripted::holder_of;
use crate::shared::Shared;
use crate::wire::{self, Told, remaining_time};

/// Waiters shown of one name.
const MOST_WAITERS: usize = 1_000;
/// How many keys the server looks at per `SCAN`: a millisecond of its time.
const SCAN_COUNT: usize = 1_000;
/// A listing ends after this many `SCAN`s, so that a huge keyspace cannot keep it busy for ever.
const MOST_SCANS: usize = 100_000;
/// Names whose values are asked for together.
const NAMES_PER_BATCH: usize = 200;

/// The answers to come.
pub(crate) type Asked<'a> = Pin<Box<dyn Future<Output = Result<Vec<Value>, Failure>> + Send + 'a>>;

/// Whoever can be asked questions.
pub(crate) trait Asks: Sync {
    /// Asks questions together; a reply can be an error of its own.
    fn ask_all(&self, commands: Vec<Cmd>) -> Asked<'_>;
}

impl Asks for Questions {
    fn ask_all(&self, commands: Vec<Cmd>) -> Asked<'_> {
        let mut pipeline = redis::Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command);
        }
        Box::pin(async move { Questions::ask_all(self, &pipeline).await })
    }
}

async fn ask(questions: &dyn Asks, command: Cmd) -> Result<Value, Failure> {
    let reply = questions.ask_all(vec![command]).await?.into_iter().next().ok_or(Failure::BadReply)?;
    match Refusal::in_value(&reply) {
        Some(refusal) => Err(Failure::Refused(refusal)),
        None => Ok(reply),
    }
}

pub(crate) async fn inspect(
    shared: &Shared,
    questions: &Questions,
    name: &Name,
) -> Result<Option<Inspection>, Error> {
    look_at(shared, questions, name).await.map_err(Failure::into_error)
}

pub(crate) async fn look_at(
    shared: &Shared,
    questions: &dyn Asks,
    name: &Name,
) -> Result<Option<Inspection>, Failure> {
    let mut asked = Vec::new();
    ask_about(shared, name, &mut asked);
    let replies = questions.ask_all(asked).await?;
    let mut seen = match read(shared, name, &replies) {
        Ok(seen) => seen,
        Err(Failure::Refused(refusal)) if refusal.code == "WRONGTYPE" => {
            let keys = shared.config.keys.of(name);
            let refused = |reply: &Value| Refusal::in_value(reply).is_some();
            // GET is asked first, so if that was answered, it is the queue.
            let key = if replies.first().is_some_and(refused) { &keys.lock } else { &keys.queue };
            let kind = ask(questions, command(&["TYPE", key])).await?;
            let kind = reply::text(&kind).unwrap_or("value of another type").to_owned();
            return Err(Failure::NotSent(foreign::error(key, &kind, "another program")));
        }
        Err(failure) => return Err(failure),
    };
    if let Some((_, entries)) = &mut seen {
        only_live(shared, questions, entries, shared.config.keys.slot(name)).await?;
    }
    Ok(seen
        .map(|(inspection, entries)| with_waiters(inspection, &entries))
        .filter(|inspection| inspection.holder.is_some() || !inspection.waiters.is_empty()))
}

pub(crate) async fn list(
    shared: &Shared,
    questions: &dyn Asks,
    prefix: &str,
    limit: usize,
) -> Result<Listing, Error> {
    let (names, more) = names(shared, questions, prefix, limit).await.map_err(Failure::into_error)?;
    let mut listing = Listing { entries: Vec::with_capacity(names.len()), more };
    for batch in names.chunks(NAMES_PER_BATCH) {
        let mut asked = Vec::new();
        for name in batch {
            ask_about(shared, name, &mut asked);
        }
        let replies = questions.ask_all(asked).await.map_err(Failure::into_error)?;
        for (name, replies) in batch.iter().zip(replies.chunks(batch_questions(shared))) {
            // A name that was released meanwhile is left out, and so is one that became something else.
            match read(shared, name, replies) {
                Ok(Some((inspection, entries))) if inspection.holder.is_some() => {
                    listing.entries.push(with_waiters(inspection, &entries));
                }
                Ok(_) => {}
                Err(Failure::Refused(refusal)) if refusal.code == "WRONGTYPE" => {}
                // It has moved to another node, which lists it.
                Err(failure) if shared.config.keys.is_sharded() && failure.is_about_the_slot() => {}
                Err(failure) => return Err(failure.into_error().context(name)),
            }
        }
    }
    Ok(listing)
}

/// The smallest `limit` names of string keys under the namespace, and whether there are more.
async fn names(
    shared: &Shared,
    questions: &dyn Asks,
    prefix: &str,
    limit: usize,
) -> Result<(Vec<Name>, bool), Failure> {
    let pattern = shared.config.keys.pattern(prefix);
    let count = SCAN_COUNT.to_string();
    let mut found = BTreeSet::new();
    let (mut cursor, mut more) = ("0".to_owned(), false);
    for _ in 0..MOST_SCANS {
        let scan = command(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", &count, "TYPE", "string"]);
        let page = ask(questions, scan).await?;
        let [next, keys] = reply::array(&page)? else { return Err(Failure::BadReply) };
        for key in reply::array(keys)? {
            if let Some(name) = reply::text(key).ok().and_then(|key| shared.config.keys.name_of(key)) {
                found.insert(name);
                if found.len() > limit {
                    found.pop_last();
                    more = true;
                }
            }
        }
        reply::text(next)?.clone_into(&mut cursor);
        if cursor == "0" {
            return Ok((found.into_iter().collect(), more));
        }
    }
    Ok((found.into_iter().collect(), true))
}

fn ask_about(shared: &Shared, name: &Name, asked: &mut Vec<Cmd>) {
    let keys = shared.config.keys.of(name);
    asked.extend([command(&["GET", &keys.lock]), command(&["PTTL", &keys.lock])]);
    if shared.config.scripting {
        asked.push(command(&["ZRANGE", &keys.queue, "0", &(MOST_WAITERS - 1).to_string()]));
    }
}

fn batch_questions(shared: &Shared) -> usize {
    if shared.config.scripting { 3 } else { 2 }
}

/// What was seen, and the entries of its queue; `None` when there is neither.
fn read(
    shared: &Shared,
    name: &Name,
    replies: &[Value],
) -> Result<Option<(Inspection, Vec<Value>)>, Failure> {
    if replies.len() != batch_questions(shared) {
        return Err(Failure::BadReply);
    }
    if let Some(refusal) = replies.iter().find_map(Refusal::in_value) {
        return Err(Failure::Refused(refusal));
    }
    let holder = match &replies[0] {
        Value::Nil => None,
        value => Some(match reply::bytes(value)? {
            b"" => leasehold_core::store::Holder::Foreign,
            value => holder_of(value),
        }),
    };
    let entries = replies.get(2).map(reply::array).transpose()?.unwrap_or_default().to_vec();
    if holder.is_none() && entries.is_empty() {
        return Ok(None);
    }
    let remaining = holder.as_ref().and(remaining_time(reply::integer(&replies[1])?));
    let inspection =
        Inspection { name: name.clone(), holder, remaining, waiters: Vec::new(), fencing_token: None };
    Ok(Some((inspection, entries)))
}

fn with_waiters(mut inspection: Inspection, entries: &[Value]) -> Inspection {
    inspection.waiters = entries
        .iter()
        .map(|entry| {
            let owner = reply::bytes(entry).ok().and_then(wire::read_entry);
            owner.map_or_else(
                || "a waiter of another version".to_owned(),
                |(_, owner)| owner.label().to_owned(),
            )
        })
        .collect();
    inspection
}

/// Leaves out the waiters whose process is gone, where this user may ask who listens.
async fn only_live(
    shared: &Shared,
    questions: &dyn Asks,
    entries: &mut Vec<Value>,
    slot: u16,
) -> Result<(), Failure> {
    let keys = &shared.config.keys;
    let channel_of = |entry: &Value| match wire::read_entry(reply::bytes(entry).ok()?)? {
        (Told::ByPush(connection_id), _) if keys.is_sharded() => Some(keys.slot_channel(slot, connection_id)),
        (Told::ByPush(connection_id), _) => Some(keys.channel(connection_id)),
        (Told::ByPolling { .. }, _) => None,
    };
    let channels: Vec<_> = entries.iter().filter_map(channel_of).collect();
    if channels.is_empty() {
        return Ok(());
    }
    let mut listeners = command(&["PUBSUB", if keys.is_sharded() { "SHARDNUMSUB" } else { "NUMSUB" }]);
    listeners.arg(&channels);
    let listening = match ask(questions, listeners).await {
        Ok(listening) => listening,
        Err(Failure::Refused(_)) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    entries.retain(|entry| {
        channel_of(entry).is_none_or(|channel| {
            reply::field(&listening, &channel).is_none_or(|count| reply::number(count).is_ok_and(|n| n > 0))
        })
    });
    Ok(())
}
