//! Keeps one connection alive: notices when it is dead, makes another with back-off, and tells the engine.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::store::StoreEvent;
use leasehold_core::{COMMAND_TIMEOUT, Clock, SystemClock};

use crate::config::Target;
use crate::connection::Connection;
use crate::failure::{Failure, Refusal};
use crate::handshake::{Established, check_server, command, establish};
use crate::random::jittered;
use crate::releases;
use crate::reply;
use crate::rights::Rights;
use crate::sentinel;
use crate::shared::Shared;

/// A connection on which nothing was answered for this long is asked whether it is alive: with its timeout, a
/// dead one is noticed within four seconds.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// The first pause before connecting again …
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// … doubles up to this one. Both are jittered, so that a fleet does not come back as one.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// With Sentinels up to this one: they end every outage of one server, and asking them costs the servers nothing.
const LONGEST_PAUSE_WITH_SENTINELS: Duration = Duration::from_millis(500);

const CLOSING: &str = "the store is closing";
const MOVED: &str = "Sentinels name another primary";

/// Runs until the store is closed.
pub(crate) async fn run(shared: Arc<Shared>, first: Established) {
    let mut live = first;
    let _listeners = match &shared.config.target {
        Target::Server(_) => None,
        Target::Sentinel(sentinels) => Some(sentinel::listen(&shared, sentinels)),
    };
    loop {
        let reason = watch(&shared, &live).await;
        // Whoever still waits for a reply on it is told at once.
        live.connection.health().died();
        live.driver.end();
        if shared.is_closed() {
            return;
        }
        tracing::warn!(store = shared.config.describe(), reason, "the connection to the server is lost");
        shared.went_down(
            leasehold_core::ErrorKind::Unavailable,
            format!("the connection is lost ({reason}) and is being made anew"),
        );
        let (lost_at, left) = (SystemClock.now(), shared.primary.used());
        let Some(again) = reconnect(&shared).await else { return };
        live = again;
        if shared.primary.used() != left && matches!(live.rights, Rights::Scripts { .. }) {
            releases::repeat(&shared, &live.connection, lost_at).await;
        }
        shared.went_live(Arc::clone(&live.connection), live.rights);
        tracing::info!(store = shared.config.describe(), "connected to the server again");
        // In a cluster messages come on a connection of their own.
        if !shared.config.keys.is_sharded() {
            shared.events.deliver(StoreEvent::Reconnected);
        }
    }
}

/// Returns why the connection is to be given up.
async fn watch(shared: &Shared, live: &Established) -> &'static str {
    let connection = Arc::clone(&live.connection);
    let mut last_heartbeat = SystemClock.now();
    loop {
        let heartbeat_due = HEARTBEAT.saturating_sub(SystemClock.now().since(last_heartbeat));
        // Without a channel on it no push comes, and its bound does not matter.
        let interval = connection.subscribed.then(|| shared.waiters.bound_interval()).flatten();
        let bound_due = interval.map(|interval| {
            let age = connection.health().bound().map_or(interval, |bound| SystemClock.now().since(bound));
            interval.saturating_sub(age)
        });
        let pause = bound_due.map_or(heartbeat_due, |bound_due| bound_due.min(heartbeat_due));
        tokio::select! {
            reason = connection.health().given_up() => return reason,
            () = shared.closing.notified() => return CLOSING,
            () = shared.primary.has_moved() => return MOVED,
            () = shared.waiters.hurry.notified() => continue,
            () = tokio::time::sleep(pause) => {}
        }
        let is_heartbeat = heartbeat_due <= pause;
        if is_heartbeat {
            last_heartbeat = SystemClock.now();
            shared.waiters.sweep(last_heartbeat);
        }
        let asking = async {
            if is_heartbeat { heartbeat(shared, &connection).await } else { ping(&connection).await }
        };
        // A server that does not answer must not hold up what else is known of it.
        tokio::select! {
            answer = asking => {
                if let Err(reason) = answer {
                    return reason;
                }
            }
            reason = connection.health().given_up() => return reason,
            () = shared.closing.notified() => return CLOSING,
            () = shared.primary.has_moved() => return MOVED,
        }
    }
}

/// Asks a connection that was idle who is there and what time it is. One that was not has answered already.
async fn heartbeat(shared: &Shared, connection: &Connection) -> Result<(), &'static str> {
    let idle = connection.health().bound().is_none_or(|bound| SystemClock.now().since(bound) >= HEARTBEAT);
    if !idle {
        return Ok(());
    }
    let mut questions = redis::pipe();
    questions.cmd("HELLO").cmd("TIME");
    let sent_at = SystemClock.now();
    // A second try at once: the connection is given up after two without an answer.
    for _ in 0..2 {
        match tokio::time::timeout(COMMAND_TIMEOUT, connection.call_all(&questions)).await {
            Err(_) => {}
            Ok(Ok(replies)) => return judge(shared, &replies, sent_at),
            Ok(Err(Failure::ReplyLost(_) | Failure::NotSent(_))) => return Err("the server closed it"),
            Ok(Err(_)) => return Ok(()),
        }
    }
    Err("the server gives no answers")
}

/// A primary that has become a replica is left: it would answer from old data.
fn judge(
    shared: &Shared,
    replies: &[redis::Value],
    sent_at: leasehold_core::Moment,
) -> Result<(), &'static str> {
    let [hello, time] = replies else { return Ok(()) };
    if Refusal::in_value(hello).is_none() && check_server(hello, shared.config.keys.is_sharded()).is_err() {
        return Err("the server is no primary any more");
    }
    if let Ok(micros) = reply::time_micros(time) {
        shared.server_clock.learn(micros, sent_at, SystemClock.now());
    }
    Ok(())
}

/// Refreshes the bound of grants. A reply that does not come is noticed by the heartbeat.
async fn ping(connection: &Connection) -> Result<(), &'static str> {
    match tokio::time::timeout(COMMAND_TIMEOUT, connection.call(&command(&["PING"]))).await {
        Ok(Err(Failure::ReplyLost(_) | Failure::NotSent(_))) => Err("the server closed it"),
        _ => Ok(()),
    }
}

/// Tries until it is connected again; `None` when the store is closed meanwhile.
pub(crate) async fn reconnect(shared: &Arc<Shared>) -> Option<Established> {
    let mut pause = FIRST_PAUSE;
    let longest = match &shared.config.target {
        Target::Server(_) => LONGEST_PAUSE,
        Target::Sentinel(_) => LONGEST_PAUSE_WITH_SENTINELS,
    };
    loop {
        tokio::select! {
            () = tokio::time::sleep(jittered(pause)) => {}
            () = shared.primary.has_moved() => {}
            () = shared.closing.notified() => return None,
        }
        let result = tokio::select! {
            result = establish(shared) => result,
            // The server that is being connected to is not the primary any more, and may not even answer.
            () = shared.primary.has_moved() => continue,
            () = shared.closing.notified() => return None,
        };
        match result {
            Ok(established) => return Some(established),
            Err(error) => {
                tracing::debug!(store = shared.config.describe(), %error, "connecting again failed");
                shared.went_down(error.kind(), error.to_string());
            }
        }
        pause = (pause * 2).min(longest);
    }
}
