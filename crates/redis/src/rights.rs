//! What this user may do on the server, tried out when a connection is made, so that a missing right is known
//! then and not first at a release.

use leasehold_core::{Error, ErrorKind};

use crate::connection::Connection;
use crate::failure::{Failure, Refusal};
use crate::reply;
use crate::shared::Shared;
use crate::unscripted;

/// What the user may do beyond what is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Scripts run, and grants can be pushed to waiters.
    Scripts {
        /// Whether this user may publish and ask who listens. If not, its releases only delete.
        may_push: bool,
    },
    /// Scripts are switched off; these commands take their place.
    Commands(unscripted::Dialect),
}

/// Tries everything. Changes nothing on the server.
pub(crate) async fn find_out(connection: &Connection, shared: &Shared) -> Result<Rights, Error> {
    if !shared.config.scripting {
        return unscripted::find_dialect(connection, &shared.config.keys).await.map(Rights::Commands);
    }
    let refused = match probe(connection, shared).await {
        // The slot that was tried has moved to another node: rights are tried there.
        Err(failure) if shared.config.keys.is_sharded() && failure.is_about_the_slot() => Vec::new(),
        probed => probed.map_err(|failure| whole_call_denied(failure, shared))?,
    };
    let may_push = may_push(&refused, shared);
    missing(&refused).map_or(Ok(Rights::Scripts { may_push }), Err)
}

/// The error that names what is denied, after the server has refused something without saying what.
pub(crate) async fn name_what_is_denied(connection: &Connection, shared: &Shared) -> Option<Error> {
    match probe(connection, shared).await {
        Ok(refused) => missing(&refused),
        Err(failure @ Failure::Refused(_)) => Some(whole_call_denied(failure, shared)),
        Err(_) => None,
    }
}

/// The commands that are refused inside scripts, with the server's words.
async fn probe(connection: &Connection, shared: &Shared) -> Result<Vec<(String, Refusal)>, Failure> {
    let keys = shared.config.keys.of_probe();
    let channel = format!("{}{}", keys.channel_prefix, connection.id);
    let mut call = shared.scripts.probe.by_hash(3);
    call.arg(&keys.lock).arg(&keys.queue).arg(&*keys.fence).arg(channel);
    let refused = connection.call_script(&shared.scripts.probe, &call).await?.accepted()?;
    read(&refused)
}

/// When the server refuses the whole call, it may be for one of the keys.
fn whole_call_denied(failure: Failure, shared: &Shared) -> Error {
    let prefix = shared.config.namespace().as_str();
    match failure {
        Failure::Refused(refusal) if refusal.is_denied() && refusal.text.contains("key") => Error::new(
            ErrorKind::Denied,
            format!(
                "the server denies this user keys under the namespace ({}): allow ~{prefix}* to it",
                refusal.shown()
            ),
        ),
        other => other.into_error(),
    }
}

/// Pairs of a command and the server's answer.
fn read(refused: &redis::Value) -> Result<Vec<(String, Refusal)>, Failure> {
    reply::array(refused)?
        .chunks_exact(2)
        .map(|pair| Ok((reply::text(&pair[0])?.to_owned(), Refusal::from_line(reply::text(&pair[1])?))))
        .collect()
}

/// A server that has no memory, or is still loading, says nothing about rights.
fn is_about_rights(refusal: &Refusal) -> bool {
    refusal.is_denied() || refusal.is_unknown_command()
}

fn is_for_pushes(command: &str) -> bool {
    matches!(command, "PUBLISH" | "SPUBLISH" | "PUBSUB|NUMSUB" | "PUBSUB|SHARDNUMSUB")
}

/// Whether this user may tell waiters; says so once if not.
fn may_push(refused: &[(String, Refusal)], shared: &Shared) -> bool {
    match refused.iter().find(|(command, refusal)| is_for_pushes(command) && is_about_rights(refusal)) {
        Some((_, refusal)) => {
            shared.warn_once_about_polling(refusal);
            false
        }
        None => true,
    }
}

/// The error that names the commands without which no lock works.
fn missing(refused: &[(String, Refusal)]) -> Option<Error> {
    let needed =
        || refused.iter().filter(|(command, refusal)| !is_for_pushes(command) && is_about_rights(refusal));
    let (_, first) = needed().next()?;
    let mut names: Vec<_> = needed().map(|(command, _)| command.as_str()).collect();
    names.dedup();
    Some(Error::new(
        ErrorKind::Denied,
        format!(
            "the server denies this user {} inside scripts ({}): leasehold doctor --acl prints the rights that are \
             needed",
            names.join(", "),
            first.shown()
        ),
    ))
}
