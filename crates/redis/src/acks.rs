//! Grants that replicas must confirm: the acquire, then WAIT on the same connection, which covers no writes but its
//! own. WAIT holds up everything behind it, so these connections are used for nothing else, and each by one
//! acquisition at a time. Knows nothing of renewals and releases of leases that are held.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::mutation::{Rule, on};
use leasehold_core::store::{AcquireReply, AcquireRequest, ReleaseRequest};
use leasehold_core::{Clock, Error, ErrorKind, Moment, SystemClock};
use tokio::sync::Semaphore;

use crate::config::Address;
use crate::connection::{Connection, Health};
use crate::failure::Failure;
use crate::handshake::{DriverTask, command, open_plain};
use crate::reply;
use crate::scripted::{self, millis};
use crate::shared::Shared;

/// Acquisitions that wait for replicas at the same time; the others wait for their turn.
const MOST_CONNECTIONS: usize = 16;
/// What remains of the time of a request for giving back what too few replicas have confirmed.
const TIME_TO_GIVE_BACK: Duration = Duration::from_millis(200);

/// Connections on which nobody waits at present.
pub(crate) struct AckConnections {
    idle: Mutex<Vec<Opened>>,
    free: Semaphore,
}

impl Default for AckConnections {
    fn default() -> Self {
        Self { idle: Mutex::default(), free: Semaphore::new(MOST_CONNECTIONS) }
    }
}

/// A connection, and where it leads.
struct Opened {
    connection: Connection,
    driver: DriverTask,
    address: Address,
}

/// Acquires, and counts the grant only if so many replicas have confirmed it in time; else gives it back.
///
/// Dropping the future closes the connection it was using.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    main: &Connection,
    request: AcquireRequest<'_>,
    acks: u32,
) -> Result<AcquireReply, Error> {
    if !on(Rule::AcksApart) {
        return acquire_on(shared, main, main, request, acks).await;
    }
    let _turn = shared.acks.free.acquire().await.map_err(|_| closed(shared))?;
    let opened = open(shared, main).await?;
    let reply = acquire_on(shared, &opened.connection, main, request, acks).await;
    if opened.connection.health().has_given_up() {
        // It is the same server.
        main.health().give_up("the server is no primary any more");
    } else if !shared.is_closed() {
        shared.acks.idle().push(opened);
    }
    reply
}

async fn acquire_on(
    shared: &Shared,
    own: &Connection,
    main: &Connection,
    request: AcquireRequest<'_>,
    acks: u32,
) -> Result<AcquireReply, Error> {
    let granted = match scripted::acquire(shared, own, request).await? {
        granted @ AcquireReply::Granted { .. } => granted,
        held @ AcquireReply::Held(_) => return Ok(held),
    };
    let patience = patience(&request, SystemClock.now());
    let confirmed = confirmed(own, acks, patience).await;
    match confirmed {
        Ok(confirmed) if confirmed >= u64::from(acks) || !on(Rule::CountAcks) => Ok(granted),
        // The engine gives it back, too; here at once, so that whoever tries again does not find it taken.
        confirmed => {
            let release = ReleaseRequest { name: request.name, owner: request.owner, keep_for: None };
            let given_back = scripted::release(shared, main, release).await;
            if let Err(error) = given_back {
                tracing::debug!(name = %request.name, %error, "not given back yet");
            }
            let confirmed = confirmed.map_err(Failure::into_error)?;
            Err(Error::new(
                ErrorKind::NotReplicated,
                format!(
                    "{confirmed} of {acks} replicas confirmed the grant within {patience:?}, so it was given back: \
                     leasehold doctor tells which replica is missing or behind"
                ),
            ))
        }
    }
}

/// How long replicas may take: half the lease must be left, and time to give it back.
fn patience(request: &AcquireRequest<'_>, now: Moment) -> Duration {
    let left = request.not_after.since(now).saturating_sub(TIME_TO_GIVE_BACK);
    // 0 would mean for ever.
    left.min(request.ttl / 2).max(Duration::from_millis(1))
}

/// How many replicas have everything that was written on this connection.
async fn confirmed(connection: &Connection, acks: u32, patience: Duration) -> Result<u64, Failure> {
    let question = command(&["WAIT", &acks.to_string(), &millis(patience).to_string()]);
    Ok(reply::number(&connection.call(&question).await?.accepted()?)?)
}

/// An idle connection to the server in use, or another one.
async fn open(shared: &Arc<Shared>, main: &Connection) -> Result<Opened, Error> {
    let address = shared.primary.used().ok_or_else(|| closed(shared))?;
    let idle = {
        let mut idle = shared.acks.idle();
        idle.retain(|opened| opened.address == address && !opened.driver.has_ended());
        idle.pop()
    };
    // Waiters are told on the wake channel of the main connection, which may have changed since.
    let as_main = |connection: Connection| connection.with_wake_channel_of(main);
    if let Some(Opened { connection, driver, address }) = idle {
        return Ok(Opened { connection: as_main(connection), driver, address });
    }
    // Sockets belong to the runtime on which they are opened, and the caller may have none.
    let opening = Arc::clone(shared);
    let opened = shared.handle.spawn(async move {
        let (link, driver) = open_plain(&opening.config, &address).await?;
        let driver = DriverTask::new(tokio::spawn(driver));
        let connection = Connection::new(String::new(), link, Arc::new(Health::default()));
        Ok(Opened { connection, driver, address })
    });
    let opened: Result<Opened, Error> = opened.await.map_err(|_| closed(shared))?;
    let Opened { connection, driver, address } =
        opened.map_err(|error| error.context(shared.config.describe()))?;
    Ok(Opened { connection: as_main(connection), driver, address })
}

fn closed(shared: &Shared) -> Error {
    Error::new(ErrorKind::Unavailable, shared.at_server("the store was closed"))
}

impl AckConnections {
    /// Closes those that are not in use.
    pub(crate) fn close(&self) {
        self.idle().clear();
        self.free.close();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Opened>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Label, Name, OwnerToken, SystemEntropy};

    use super::*;

    #[test]
    fn replicas_are_never_waited_for_without_an_end() {
        let owner = OwnerToken::generate(&SystemEntropy, &Label::new("me").unwrap()).unwrap();
        let name = Name::new("job").unwrap();
        let at = |millis| Moment::from_origin(Duration::from_millis(millis));
        let wait = |ttl, now| {
            let ttl = Duration::from_millis(ttl);
            let request =
                AcquireRequest { name: &name, owner: &owner, ttl, queue: None, not_after: at(1_000) };
            patience(&request, at(now)).as_millis()
        };
        assert_eq!(wait(30_000, 0), 800);
        assert_eq!(wait(30_000, 500), 300);
        assert_eq!(wait(100, 0), 50);
        assert_eq!(wait(30_000, 2_000), 1);
    }
}
