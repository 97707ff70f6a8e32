//! Says what a key holds that is not ours, so that users find the program that wrote it. Changes nothing.

use leasehold_core::{Error, ErrorKind};
use redis::Value;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::handshake::command;
use crate::keys::NameKeys;
use crate::reply;

/// Whether it is the lock key that holds something else than a string.
pub(crate) async fn is_lock_key(connection: &Connection, keys: &NameKeys<'_>) -> bool {
    match type_of(connection, &keys.lock).await {
        Ok(kind) => !matches!(kind.as_str(), "string" | "none"),
        Err(_) => false,
    }
}

/// The error for a key of the wrong type.
pub(crate) async fn describe(connection: &Connection, keys: &NameKeys<'_>) -> Result<Error, Failure> {
    for (key, expected) in [(&*keys.lock, "string"), (&*keys.queue, "zset"), (&*keys.fence, "string")] {
        let kind = type_of(connection, key).await?;
        if kind != expected && kind != "none" {
            let writer =
                if kind == "hash" { writer_of_hash(connection, key).await } else { "another program" };
            return Ok(error(key, &kind, writer));
        }
    }
    Ok(Error::new(
        ErrorKind::Unavailable,
        "a key held something that is not a lock a moment ago, and does not any more: try again",
    ))
}

/// The error for a key of this type.
pub(crate) fn error(key: &str, kind: &str, writer: &str) -> Error {
    Error::new(
        ErrorKind::Foreign,
        format!(
            "the key {key:?} holds a {kind}, as written by {writer}, and not a lock of ours; it was left untouched. Use \
             another namespace or name, or move every client of this lock over at the same time"
        ),
    )
}

pub(crate) async fn type_of(connection: &Connection, key: &str) -> Result<String, Failure> {
    let value = connection.call(&command(&["TYPE", key])).await?.accepted()?;
    Ok(reply::text(&value)?.to_owned())
}

/// Redisson keeps a lock as a hash with one field for each holder: a UUID, a colon and a thread id.
async fn writer_of_hash(connection: &Connection, key: &str) -> &'static str {
    let scan = command(&["HSCAN", key, "0", "COUNT", "10"]);
    let fields = match connection.call(&scan).await {
        Ok(answered) => answered.value,
        Err(_) => return "another program",
    };
    let Value::Array(reply) = fields else { return "another program" };
    let is_holder = |field: &Value| {
        reply::text(field).is_ok_and(|field| {
            let (uuid, thread) = field.split_once(':').unwrap_or_default();
            uuid.len() == 36 && uuid.matches('-').count() == 4 && thread.parse::<u64>().is_ok()
        })
    };
    match reply.get(1).and_then(|fields| reply::array(fields).ok()) {
        Some(fields) if fields.iter().step_by(2).any(is_holder) => "Redisson",
        _ => "another program",
    }
}
