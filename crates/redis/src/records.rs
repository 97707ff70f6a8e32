//! Records of operations: reading one, and replacing it under the lease of its name. What the scripts do is written
//! in `scripts/swap.lua` and `scripts/settle.lua`; what a record says is the engine's business.

use leasehold_core::store::{SwapReply, SwapRequest, Then};
use leasehold_core::{Clock, ErrorKind};
use leasehold_core::{Error, KeyValue, Name, SystemClock};
use redis::{Cmd, Value};

use crate::connection::{Answered, Connection};
use crate::failure::Failure;
use crate::foreign;
use crate::handshake::command;
use crate::keys::NameKeys;
use crate::reply;
use crate::script::Script;
use crate::scripted::{explain, millis, whole_millis_above};
use crate::shared::Shared;

pub(crate) async fn read(
    shared: &Shared,
    connection: &Connection,
    name: &Name,
) -> Result<Option<Vec<u8>>, Error> {
    let record = shared.config.keys.record_of(name);
    match read_at(connection, &record).await {
        Ok(found) => Ok(found),
        Err(failure) => Err(explain_record(shared, connection, name, &record, failure).await),
    }
}

pub(crate) async fn read_at(connection: &Connection, record: &str) -> Result<Option<Vec<u8>>, Failure> {
    read_found(connection.call(&command(&["GET", record])).await?)
}

pub(crate) fn read_found(answered: Answered) -> Result<Option<Vec<u8>>, Failure> {
    match answered.accepted()? {
        Value::Nil => Ok(None),
        value => Ok(Some(reply::bytes(&value)?.to_vec())),
    }
}

pub(crate) async fn swap(
    shared: &Shared,
    connection: &Connection,
    request: SwapRequest<'_>,
) -> Result<SwapReply, Error> {
    match swap_at(shared, connection, &request).await {
        Ok(reply) => Ok(reply),
        Err(failure) => {
            let record = shared.config.keys.record_of(request.name);
            Err(explain_record(shared, connection, request.name, &record, failure).await)
        }
    }
}

pub(crate) async fn swap_at(
    shared: &Shared,
    connection: &Connection,
    request: &SwapRequest<'_>,
) -> Result<SwapReply, Failure> {
    let (keys, record) = (shared.config.keys.of(request.name), shared.config.keys.record_of(request.name));
    let (script, call) = match request.then {
        Then::Hold => (&shared.scripts.swap, swap_call(&shared.scripts.swap, &keys, &record, request)),
        Then::Release { keep_for } => {
            let call = settle_call(shared, &keys, &record, request, keep_for);
            (&shared.scripts.settle, call)
        }
    };
    let reply = read_swap(shared, connection.call_script(script, &call).await?)?;
    if matches!((&reply, request.then), (SwapReply::Swapped { .. }, Then::Release { .. })) {
        shared.waiters.released(request.owner, SystemClock.now());
    }
    Ok(reply)
}

fn swap_call(script: &Script, keys: &NameKeys<'_>, record: &str, request: &SwapRequest<'_>) -> Cmd {
    let mut call = script.by_hash(2);
    call.arg(&keys.lock).arg(record);
    call.arg(request.owner.expose());
    call.arg(request.expected.unwrap_or_default()).arg(request.record).arg(millis(request.retain));
    call
}

fn settle_call(
    shared: &Shared,
    keys: &NameKeys<'_>,
    record: &str,
    request: &SwapRequest<'_>,
    keep_for: Option<std::time::Duration>,
) -> Cmd {
    let mut call = shared.scripts.settle.by_hash(4);
    call.arg(&keys.lock).arg(&keys.queue).arg(&*keys.fence).arg(record);
    call.arg(request.owner.expose()).arg(&*keys.channel_prefix);
    match keep_for {
        Some(keep_for) => call.arg(whole_millis_above(keep_for)).arg(KeyValue::kept(request.owner)),
        None => call.arg(0).arg(""),
    };
    call.arg(shared.waiters.entries_of(request.owner));
    call.arg(request.expected.unwrap_or_default()).arg(request.record).arg(millis(request.retain));
    call
}

fn read_swap(shared: &Shared, answered: Answered) -> Result<SwapReply, Failure> {
    let sent_at = answered.sent_at;
    let value = answered.accepted()?;
    if let Value::Int(1) = value {
        return Ok(SwapReply::Swapped { handed_over: false });
    }
    let record = |value: &Value| -> Result<Option<Vec<u8>>, Failure> {
        let bytes = reply::bytes(value)?;
        Ok((!bytes.is_empty()).then(|| bytes.to_vec()))
    };
    match reply::array(&value)? {
        [kind, current] if reply::bytes(kind)? == b"not-held" => {
            Ok(SwapReply::NotHeld { current: record(current)? })
        }
        [kind, current] if reply::bytes(kind)? == b"differs" => {
            Ok(SwapReply::Differs { current: record(current)? })
        }
        [_freed, now, handed] => {
            shared.server_clock.learn(reply::number(now)?, sent_at, SystemClock.now());
            Ok(SwapReply::Swapped { handed_over: reply::integer(handed)? == 1 })
        }
        _ => Err(Failure::BadReply),
    }
}

/// The error for users; says which key holds what it should not.
pub(crate) async fn explain_record(
    shared: &Shared,
    connection: &Connection,
    name: &Name,
    record: &str,
    failure: Failure,
) -> Error {
    if failure.code() == Some("WRONGTYPE")
        && let Ok(kind) = foreign::type_of(connection, record).await
        && !matches!(kind.as_str(), "string" | "none")
    {
        return Error::new(
            ErrorKind::Foreign,
            format!(
                "the key {record:?} holds a {kind}, as written by another program, and not the record of an operation; \
                 it was left untouched. Use another namespace or name"
            ),
        );
    }
    explain(shared, connection, &shared.config.keys.of(name), failure).await
}

/// What is said where records cannot be written.
pub(crate) fn without_scripts() -> Error {
    Error::config(
        "records of operations are changed by scripts, and they are switched off here (scripting=off): take that out of \
         the URL",
    )
}
