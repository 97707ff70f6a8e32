//! Entrances for fuzzing to what reads the texts of other processes. Not part of the library: built with the feature
//! `fuzzing` only.

use std::time::Duration;

use leasehold_core::OwnerToken;
use redis::Value;

use crate::failure::Refusal;
use crate::handshake::check_server;
use crate::reply;
use crate::scripted::{holder_of, loss_of};
use crate::wire::{Message, Told, entry, read_entry};

/// A message on a wake channel, from whoever may publish there: whether it was understood.
pub fn push(payload: &[u8]) -> bool {
    match Message::read(payload) {
        Some(Message::Grant { owner, .. } | Message::Next { owner, .. }) => is_owner(&owner),
        None => false,
    }
}

/// An entry of a queue, from whoever may write there: whether it was understood.
///
/// # Panics
/// When what was read is written in another way than it is read.
pub fn queue_entry(text: &[u8]) -> bool {
    let Some((told, owner)) = read_entry(text) else { return false };
    if let Told::ByPush(connection_id) = told {
        assert!(!connection_id.contains(' '), "a channel of several words");
    }
    let written = entry(told, Duration::from_secs(3), &owner);
    assert_eq!(read_entry(written.as_bytes()), Some((told, owner.clone())));
    is_owner(&owner)
}

/// A reply as it comes from the server, read as each of the things it may be; what would be said about it.
pub fn reply(resp: &[u8]) -> Vec<String> {
    let Ok(value) = redis::parse_redis_value(resp) else { return Vec::new() };
    let mut said = Vec::new();
    let _ = (reply::integer(&value), reply::number(&value), reply::time_micros(&value));
    if let Ok(bytes) = reply::bytes(&value) {
        said.push(holder_of(bytes).to_string());
        said.push(loss_of(bytes).to_string());
    }
    said.extend(check_server(&value, false).err().map(|error| error.to_string()));
    said.extend(refusals(&value).map(|refusal| refusal.into_error().to_string()));
    said
}

fn refusals(value: &Value) -> impl Iterator<Item = Refusal> {
    let line = reply::text(value).ok().map(Refusal::from_line);
    Refusal::in_value(value).into_iter().chain(line)
}

fn is_owner(owner: &OwnerToken) -> bool {
    OwnerToken::parse(owner.expose()).is_ok_and(|again| again == *owner)
}
