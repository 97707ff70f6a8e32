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
    let keys = shared.config.keys.of_probe();
    let channel = shared.config.keys.channel(&connection.id);
    let mut call = shared.scripts.probe.by_hash(3);
    call.arg(&keys.lock).arg(&keys.queue).arg(shared.config.keys.fence()).arg(channel);
    let refused = connection
        .call_script(&shared.scripts.probe, &call)
        .await
        .and_then(super::connection::Answered::accepted)
        .map_err(|failure| whole_call_denied(failure, shared))?;
    let refused = read(&refused).map_err(Failure::into_error)?;
    judge(&refused, shared)
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

fn judge(refused: &[(String, Refusal)], shared: &Shared) -> Result<Rights, Error> {
    let mut missing = Vec::new();
    let mut may_push = true;
    for (command, refusal) in refused {
        // A server that has no memory, or is still loading, says nothing about rights.
        if !refusal.is_denied() && !refusal.is_unknown_command() {
            continue;
        }
        if matches!(command.as_str(), "PUBLISH" | "PUBSUB|NUMSUB") {
            may_push = false;
            shared.warn_once_about_polling(refusal);
        } else if !missing.contains(command) {
            missing.push(command.clone());
        }
    }
    if missing.is_empty() {
        return Ok(Rights::Scripts { may_push });
    }
    let first =
        refused.iter().find(|(command, _)| *command == missing[0]).map(|(_, refusal)| refusal.shown());
    Err(Error::new(
        ErrorKind::Denied,
        format!(
            "the server denies this user {} inside scripts ({}): leasehold doctor --acl prints the rights that are \
             needed",
            missing.join(", "),
            first.unwrap_or_default()
        ),
    ))
}
