//! The operations on a name where scripts are forbidden: one command each, without a queue and without fencing
//! tokens. Nothing here can refuse a request that arrives late; the TTL bounds what one does.

use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Held, Holder, ReleaseReply, ReleaseRequest,
    RenewReply, RenewRequest,
};
use leasehold_core::{Clock, Error, ErrorKind, FencingToken, KeyValue, Label, LostCause, SystemClock};
use redis::{Cmd, Value};

use crate::connection::Connection;
use crate::failure::{Failure, Refusal};
use crate::foreign;
use crate::handshake::command;
use crate::keys::Keys;
use crate::reply;
use crate::scripted::{fail_all, holder_of, loss_of, millis, whole_millis_above};
use crate::shared::Shared;
use crate::wire::remaining_time;

/// A lease can end between two commands; asked again this often, then the caller is told that it is taken.
const MOST_ROUNDS: usize = 3;

/// How the server deletes a key only if it has a certain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `DELEX key IFEQ value`: Redis from 8.4 on.
    Delex,
    /// `DELIFEQ key value`: Valkey from 9 on.
    Delifeq,
}

impl Dialect {
    fn delete_if(self, key: &str, value: &[u8]) -> Cmd {
        match self {
            Self::Delex => {
                let mut delete = command(&["DELEX", key, "IFEQ"]);
                delete.arg(value);
                delete
            }
            Self::Delifeq => {
                let mut delete = command(&["DELIFEQ", key]);
                delete.arg(value);
                delete
            }
        }
    }
}

/// Tries which commands the server has, on a key that does not exist.
pub(crate) async fn find_dialect(connection: &Connection, keys: &Keys) -> Result<Dialect, Error> {
    let key = keys.of_probe().lock;
    let mut questions = redis::pipe();
    questions.add_command(Dialect::Delex.delete_if(&key, b"probe"));
    questions.add_command(Dialect::Delifeq.delete_if(&key, b"probe"));
    questions.add_command(set_if(&key, "probe", b"probe", 1));
    let replies = connection.call_all(&questions).await.map_err(Failure::into_error)?;
    let [delex, delifeq, set] = replies.as_slice() else { return Err(Failure::BadReply.into_error()) };
    for reply in [delex, delifeq, set] {
        if let Some(refusal) = Refusal::in_value(reply).filter(Refusal::is_denied) {
            return Err(refusal.into_error());
        }
    }
    let works = |reply: &Value| Refusal::in_value(reply).is_none();
    match (works(delex), works(delifeq), works(set)) {
        (true, _, true) => Ok(Dialect::Delex),
        (_, true, true) => Ok(Dialect::Delifeq),
        _ => Err(Error::config(
            "without scripts, a lock needs commands that compare before they change: SET … IFEQ with DELEX (Redis \
             8.4 or newer) or DELIFEQ (Valkey 9 or newer). This server has neither: allow scripts, or upgrade it",
        )),
    }
}

/// `SET key value IFEQ expected PX ttl`: never creates a key.
fn set_if(key: &str, value: &str, expected: &[u8], ttl_ms: u64) -> Cmd {
    let mut set = command(&["SET", key, value, "IFEQ"]);
    set.arg(expected).arg("PX").arg(ttl_ms);
    set
}

/// What a key holds and for how long.
struct Seen {
    value: Option<Vec<u8>>,
    pttl: i64,
}

fn add_look(questions: &mut redis::Pipeline, key: &str) {
    questions.cmd("GET").arg(key).cmd("PTTL").arg(key);
}

fn read_look(replies: &[Value]) -> Result<Seen, Failure> {
    let [value, pttl] = replies else { return Err(Failure::BadReply) };
    if let Some(refusal) = Refusal::in_value(value).or_else(|| Refusal::in_value(pttl)) {
        return Err(Failure::Refused(refusal));
    }
    let value = match value {
        Value::Nil => None,
        other => Some(reply::bytes(other)?.to_vec()),
    };
    Ok(Seen { value, pttl: reply::integer(pttl)? })
}

async fn look(connection: &Connection, key: &str) -> Result<Seen, Failure> {
    let mut questions = redis::pipe();
    add_look(&mut questions, key);
    read_look(&connection.call_all(&questions).await?)
}

/// Whether a conditional command did it: `OK` or 1, as opposed to nothing or 0.
async fn did(connection: &Connection, conditional: &Cmd) -> Result<bool, Failure> {
    Ok(match connection.call(conditional).await?.accepted()? {
        Value::Okay => true,
        Value::Nil => false,
        other => reply::integer(&other)? == 1,
    })
}

pub(crate) async fn acquire(
    shared: &Shared,
    connection: &Connection,
    request: AcquireRequest<'_>,
) -> Result<AcquireReply, Error> {
    if SystemClock.now() > request.not_after {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!("{:?}: it was too late to ask", request.name),
        ));
    }
    let key = shared.config.namespace().key(request.name);
    let mut last = Held { holder: Holder::Foreign, remaining: Some(std::time::Duration::ZERO), place: None };
    for _ in 0..MOST_ROUNDS {
        match acquire_once(connection, &request, &key).await {
            Ok(Ok(granted)) => return Ok(granted),
            Ok(Err(Some(held))) => {
                last = held;
                break;
            }
            Ok(Err(None)) => {}
            Err(failure) => return Err(explain(connection, &key, failure).await),
        }
    }
    Ok(AcquireReply::Held(last))
}

/// Granted, or held, or gone between two looks.
async fn acquire_once(
    connection: &Connection,
    request: &AcquireRequest<'_>,
    key: &str,
) -> Result<Result<AcquireReply, Option<Held>>, Failure> {
    let granted = AcquireReply::Granted { fencing_token: FencingToken::UNFENCED };
    let (owner, ttl) = (request.owner.expose(), millis(request.ttl));
    let mut commands = redis::pipe();
    commands.cmd("SET").arg(key).arg(owner).arg("NX").arg("PX").arg(ttl);
    add_look(&mut commands, key);
    let replies = connection.call_all(&commands).await?;
    let (set, seen) = replies.split_first().ok_or(Failure::BadReply)?;
    if let Some(refusal) = Refusal::in_value(set) {
        return Err(Failure::Refused(refusal));
    }
    if *set == Value::Okay {
        return Ok(Ok(granted));
    }
    let Seen { value: Some(holder), pttl } = read_look(seen)? else { return Ok(Err(None)) };
    if holder == owner.as_bytes() {
        let lasts = u64::try_from(pttl).is_ok_and(|pttl| pttl >= ttl);
        let prolonged = lasts || did(connection, &set_if(key, owner, owner.as_bytes(), ttl)).await?;
        return Ok(if prolonged { Ok(granted) } else { Err(None) });
    }
    Ok(Err(Some(Held { holder: holder_of(&holder), remaining: remaining_time(pttl), place: None })))
}

pub(crate) async fn release(
    shared: &Shared,
    connection: &Connection,
    dialect: Dialect,
    request: ReleaseRequest<'_>,
) -> Result<ReleaseReply, Error> {
    let key = shared.config.namespace().key(request.name);
    let owner = request.owner.expose().as_bytes();
    let give_back = match request.keep_for {
        Some(keep_for) if !keep_for.is_zero() => {
            set_if(&key, &KeyValue::kept(request.owner), owner, whole_millis_above(keep_for))
        }
        _ => dialect.delete_if(&key, owner),
    };
    match did(connection, &give_back).await {
        Ok(true) => Ok(ReleaseReply::Freed { handed_over: false }),
        Ok(false) => Ok(ReleaseReply::NotHeld),
        // The key is no string, so it is not this owner's lease.
        Err(failure) if failure.code() == Some("WRONGTYPE") => Ok(ReleaseReply::NotHeld),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Looks at all leases together, then prolongs those that need it together. A lease that was prolonged beyond
/// its TTL is left alone: a conditional `SET` would shorten it.
pub(crate) async fn renew(
    shared: &Shared,
    connection: &Connection,
    requests: &[RenewRequest],
) -> Vec<Result<RenewReply, Error>> {
    let keys: Vec<_> = requests.iter().map(|request| shared.config.namespace().key(&request.name)).collect();
    let mut looks = redis::pipe();
    for key in &keys {
        add_look(&mut looks, key);
    }
    let seen = match connection.call_all(&looks).await {
        Ok(seen) => seen,
        Err(failure) => return fail_all(requests, failure),
    };
    let mut sets = redis::pipe();
    let replies: Vec<Option<Result<RenewReply, Failure>>> = requests
        .iter()
        .enumerate()
        .map(|(i, request)| {
            let owner = request.owner.expose().as_bytes();
            match seen.get(2 * i..2 * i + 2).ok_or(Failure::BadReply).and_then(read_look) {
                Ok(seen) if seen.value.as_deref() != Some(owner) => {
                    Some(Ok(RenewReply::NotHeld(loss_of(&seen.value.unwrap_or_default()))))
                }
                Ok(seen) if u64::try_from(seen.pttl).is_ok_and(|left| left >= millis(request.ttl)) => {
                    Some(Ok(RenewReply::Renewed))
                }
                Ok(_) => {
                    sets.add_command(set_if(&keys[i], request.owner.expose(), owner, millis(request.ttl)));
                    None
                }
                // The key is no string: somebody else has it.
                Err(failure) if failure.code() == Some("WRONGTYPE") => {
                    Some(Ok(RenewReply::NotHeld(LostCause::Taken)))
                }
                Err(failure) => Some(Err(failure)),
            }
        })
        .collect();
    let mut set = Vec::new().into_iter();
    if !sets.is_empty() {
        match connection.call_all(&sets).await {
            Ok(replies) => set = replies.into_iter(),
            Err(failure) => return fail_all(requests, failure),
        }
    }
    replies
        .into_iter()
        .map(|reply| reply.unwrap_or_else(|| read_set(set.next())).map_err(Failure::into_error))
        .collect()
}

fn read_set(reply: Option<Value>) -> Result<RenewReply, Failure> {
    let reply = reply.ok_or(Failure::BadReply)?;
    match Refusal::in_value(&reply) {
        Some(refusal) => Err(Failure::Refused(refusal)),
        None if reply == Value::Okay => Ok(RenewReply::Renewed),
        // It changed hands or ended since it was looked at.
        None => Ok(RenewReply::NotHeld(loss_of(b""))),
    }
}

pub(crate) async fn break_lease(
    connection: &Connection,
    dialect: Dialect,
    key: &str,
    mode: BreakMode,
    by: &Label,
) -> Result<BreakReply, Error> {
    for _ in 0..MOST_ROUNDS {
        match break_once(connection, dialect, key, mode, by).await {
            Ok(Some(reply)) => return Ok(reply),
            Ok(None) => {}
            Err(failure) => return Err(explain(connection, key, failure).await),
        }
    }
    Ok(BreakReply::Free)
}

/// `None` when it changed hands meanwhile.
async fn break_once(
    connection: &Connection,
    dialect: Dialect,
    key: &str,
    mode: BreakMode,
    by: &Label,
) -> Result<Option<BreakReply>, Failure> {
    const ENDLESS_MS: i64 = 30_000;
    let Seen { value: Some(holder), pttl } = look(connection, key).await? else {
        return Ok(Some(BreakReply::Free));
    };
    let (conditional, remaining) = match mode {
        BreakMode::Now => (dialect.delete_if(key, &holder), 0),
        BreakMode::Notice => {
            let remaining = u64::try_from(if pttl < 0 { ENDLESS_MS } else { pttl.max(1) }).unwrap_or(1);
            (set_if(key, &KeyValue::broken(by), &holder, remaining), remaining)
        }
    };
    Ok(did(connection, &conditional).await?.then(|| BreakReply::Broken {
        holder: holder_of(&holder),
        remaining: std::time::Duration::from_millis(remaining),
    }))
}

async fn explain(connection: &Connection, key: &str, failure: Failure) -> Error {
    if failure.code() == Some("WRONGTYPE") {
        let lock = key.to_owned();
        let (queue, fence, channel_prefix) = (String::new(), "".into(), "".into());
        let keys = crate::keys::NameKeys { lock, queue, fence, channel_prefix, slot: 0 };
        return foreign::describe(connection, &keys).await.unwrap_or_else(Failure::into_error);
    }
    failure.into_error()
}
