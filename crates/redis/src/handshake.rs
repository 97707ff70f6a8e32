//! Makes a connection ready for use: greeting, who the server is, the wake channel, and what this user may do.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Clock, Error, ErrorKind, SystemClock};
use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo, RedisError};
use tokio::task::JoinHandle;

use crate::config::{Address, Login, RedisConfig};
use crate::connection::{Connection, Health};
use crate::events::PushReader;
use crate::failure::{Failure, Refusal};
use crate::health;
use crate::primary::named_by_sentinels;
use crate::random;
use crate::reply;
use crate::rights::{self, Rights};
use crate::shared::Shared;
use crate::transport::{self, Stream};

/// Opening, greeting and trying rights together may take this long: a few round trips to anywhere.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The oldest Redis whose scripts and subscriptions work as needed. Every Valkey is newer.
const OLDEST_REDIS: (u64, u64) = (6, 2);
/// The oldest Redis with sharded channels. Every Valkey is newer.
const OLDEST_CLUSTER: (u64, u64) = (7, 0);
/// Commands that wait to be written before callers wait themselves.
const PIPELINE_BUFFER: usize = 1_024;

/// The task that reads and writes a connection; the connection ends when it is dropped.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection, and the task that must run for it.
pub(crate) struct Established {
    pub(crate) connection: Arc<Connection>,
    pub(crate) driver: DriverTask,
    pub(crate) rights: Rights,
}

/// Connects, subscribes to a new wake channel and tries what the user may do.
pub(crate) async fn establish(shared: &Arc<Shared>) -> Result<Established, Error> {
    within(CONNECT_TIMEOUT, establish_without_limit(shared)).await
}

/// Opens a connection to a server on which nothing is subscribed.
pub(crate) async fn open_plain(
    config: &RedisConfig,
    address: &Address,
) -> Result<(MultiplexedConnection, Driver), Error> {
    within(CONNECT_TIMEOUT, greet(config, address, None)).await
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("the server gave no answer within {limit:?} of connecting");
        Err(Error::new(ErrorKind::Unavailable, message))
    })
}

async fn establish_without_limit(shared: &Arc<Shared>) -> Result<Established, Error> {
    let address = shared.primary.find(&shared.config).await?;
    establish_at(shared, &address).await.map_err(|error| named_by_sentinels(&shared.config, &address, error))
}

async fn establish_at(shared: &Arc<Shared>, address: &Address) -> Result<Established, Error> {
    let id = random::connection_id()?;
    let health = Arc::new(Health::default());
    let channel = shared.config.keys.channel(&id);
    let reader = PushReader {
        channel: channel.clone(),
        health: Arc::clone(&health),
        waiters: Arc::clone(&shared.waiters),
        events: Arc::clone(&shared.events),
    };
    let (mut link, driver) = greet(&shared.config, address, Some(reader)).await?;
    let driver = DriverTask(shared.handle.spawn({
        let noticed = NoticesEnd(Arc::clone(&health));
        async move {
            driver.await;
            drop(noticed);
        }
    }));
    let connection = Connection::new(id, link.clone(), health);
    // All at once, so that connecting to a server far away takes one round trip less for each.
    let (server, subscribed, rights) = tokio::join!(
        who_is_there(&connection, shared),
        subscribe(&mut link, &channel, shared),
        rights::find_out(&connection, shared),
    );
    // What the server is explains best why something else failed.
    server?;
    let (subscribed, rights) = (subscribed?, rights?);
    Ok(Established { connection: Arc::new(connection.with_subscription(subscribed)), driver, rights })
}

/// Opens the connection and says hello, with user and password.
async fn greet(
    config: &RedisConfig,
    address: &Address,
    pushes: Option<PushReader>,
) -> Result<(MultiplexedConnection, Driver), Error> {
    let stream = transport::open(address).await?;
    say_hello(stream, &config.login, config.db, pushes).await
}

/// Says hello on an open connection, with user and password.
pub(crate) async fn say_hello(
    stream: Pin<Box<dyn Stream>>,
    login: &Login,
    db: u32,
    pushes: Option<impl AsyncPushSender>,
) -> Result<(MultiplexedConnection, Driver), Error> {
    let mut info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(i64::from(db))
        // A user with few rights would leave a refusal in the server's ACL log for every connection.
        .set_skip_set_lib_name();
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &login.password {
        info = info.set_password(password.expose());
    }
    // Whoever waits for a reply limits the time: the engine for operations, we for everything else.
    let mut settings = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER);
    if let Some(pushes) = pushes {
        settings = settings.set_push_sender(pushes);
    }
    let (link, driver) = MultiplexedConnection::new_with_config(&info, stream, settings)
        .await
        .map_err(|error| greeting_refused(&error))?;
    Ok((link, Box::pin(driver)))
}

fn greeting_refused(error: &RedisError) -> Error {
    if error.kind() == redis::ErrorKind::RESP3NotSupported {
        return too_old("a version before 6");
    }
    match Refusal::of(error) {
        // A Sentinel and a server before 6 do not know HELLO with a protocol version.
        Some(refusal) if refusal.is_unknown_command() || refusal.code == "NOPROTO" => {
            too_old("a server without the command HELLO 3 (a Redis before 6, or an old Sentinel)")
        }
        Some(refusal) if refusal.text.contains("DB index") => {
            Error::config("the server has no database of that number: lower db, or raise databases on it")
        }
        Some(refusal) if refusal.text.contains("max number of clients") => Error::new(
            ErrorKind::Unavailable,
            "the server has reached its maxclients: close idle connections or raise maxclients",
        ),
        Some(refusal) => refusal.into_error(),
        // With TLS 1.3 the server judges the client's certificate only after the handshake.
        None if error.to_string().contains("fatal alert") => Error::new(
            ErrorKind::Unavailable,
            format!(
                "the server refuses this client's TLS certificate ({error}): are cert=… and key=… those it wants, and \
                 still valid?"
            ),
        ),
        None => Error::new(
            ErrorKind::Unavailable,
            format!(
                "the connection was closed during the greeting ({error}): is this a Redis or Valkey server? One that \
                 speaks TLS there needs rediss://"
            ),
        ),
    }
}

fn too_old(what: &str) -> Error {
    Error::config(format!("the server is {what}: Redis 6.2 or Valkey 7.2 is the oldest that works"))
}

/// Asks the server what it is, and what time it is.
async fn who_is_there(connection: &Connection, shared: &Shared) -> Result<(), Error> {
    let mut questions = redis::pipe();
    questions.cmd("HELLO").cmd("TIME");
    if shared.was_never_live() {
        questions.add_command(command(&health::QUESTION));
    }
    let sent_at = SystemClock.now();
    let replies = connection.call_all(&questions).await.map_err(Failure::into_error)?;
    let [hello, time, memory @ ..] = replies.as_slice() else { return Err(Failure::BadReply.into_error()) };
    check_server(hello, shared.config.keys.is_sharded())?;
    if let [memory] = memory {
        health::warn_about(memory, shared);
    }
    // A user who may not ask is told by the probe.
    if let Ok(micros) = reply::time_micros(time) {
        shared.server_clock.learn(micros, sent_at, SystemClock.now());
    }
    Ok(())
}

/// Refuses what is not one primary server, alone or in a cluster as it should be, of a version that works.
pub(crate) fn check_server(hello: &redis::Value, in_cluster: bool) -> Result<(), Error> {
    if let Some(refusal) = Refusal::in_value(hello) {
        return Err(refusal.into_error());
    }
    let field =
        |name| reply::field(hello, name).and_then(|value| reply::text(value).ok()).unwrap_or_default();
    match field("mode") {
        "cluster" if !in_cluster => {
            return Err(Error::config(
                "the server is a node of a cluster: connect with redis+cluster:// instead",
            ));
        }
        "standalone" if in_cluster => {
            return Err(Error::config("the server is not part of a cluster: connect with redis:// instead"));
        }
        "sentinel" => {
            return Err(Error::config(
                "the server is a Sentinel: connect with redis+sentinel://host:port/service-name instead",
            ));
        }
        _ => {}
    }
    let version = field("version");
    let mut numbers = version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    let version_number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // A server that does not say its version may be any; the probe finds out what it lacks.
    if in_cluster && !version.is_empty() && version_number < OLDEST_CLUSTER {
        return Err(Error::config(format!(
            "the node is {} {version}: in a cluster Redis 7.0 or Valkey 7.2 is the oldest that works",
            field("server")
        )));
    }
    if !version.is_empty() && version_number < OLDEST_REDIS {
        return Err(too_old(&format!("{} {version}", field("server"))));
    }
    if matches!(field("role"), "replica" | "slave") {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "the server is a replica: connect to its primary, since locks are never read from a replica",
        ));
    }
    Ok(())
}

/// Subscribes and waits for the confirmation. A user without the right polls instead.
async fn subscribe(link: &mut MultiplexedConnection, channel: &str, shared: &Shared) -> Result<bool, Error> {
    // Waiters in a cluster are told on a connection of their own.
    if !shared.config.scripting || shared.config.keys.is_sharded() {
        return Ok(false);
    }
    match link.subscribe(channel).await {
        Ok(()) => Ok(true),
        Err(error) => match Refusal::of(&error) {
            Some(refusal) if refusal.is_denied() || refusal.is_unknown_command() => {
                shared.warn_once_about_polling(&refusal);
                Ok(false)
            }
            // Redis 8 refuses it when it is full; releases and renewals work, so the connection must.
            Some(refusal) if refusal.code == "OOM" => {
                let refused = refusal.shown();
                tracing::warn!(
                    store = shared.config.describe(),
                    refused,
                    "waiters poll until the next connection"
                );
                Ok(false)
            }
            Some(refusal) => Err(refusal.into_error()),
            None => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the connection was lost while subscribing ({error})"),
            )),
        },
    }
}

/// The first words of a call, for messages.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command
}

/// Notes the end of a connection, also when its task is ended or its runtime shut down.
struct NoticesEnd(Arc<Health>);

impl Drop for NoticesEnd {
    fn drop(&mut self) {
        self.0.died();
    }
}

/// The task that reads and writes a connection. Ends with its owner, and the connection with it.
pub(crate) struct DriverTask(JoinHandle<()>);

impl DriverTask {
    pub(crate) fn new(task: JoinHandle<()>) -> Self {
        Self(task)
    }

    /// Closes the connection.
    pub(crate) fn end(&self) {
        self.0.abort();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn refusal(fields: &[(&str, &str)]) -> Option<Error> {
        refusal_in(fields, false)
    }

    fn refusal_in(fields: &[(&str, &str)], in_cluster: bool) -> Option<Error> {
        let text = |text: &str| Value::SimpleString(text.to_owned());
        let fields = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
        check_server(&Value::Map(fields), in_cluster).err()
    }

    #[test]
    fn only_a_primary_of_its_own_and_of_a_version_that_works_is_accepted() {
        for version in ["6.2.0", "7.0.15", "7.2.4", "9.1.2", "10.0.0", ""] {
            assert!(refusal(&[("version", version), ("mode", "standalone"), ("role", "master")]).is_none());
        }
        for (fields, kind, word) in [
            ([("mode", "cluster"), ("version", "7.0.0")], ErrorKind::Config, "redis+cluster://"),
            ([("mode", "sentinel"), ("version", "7.0.0")], ErrorKind::Config, "redis+sentinel://"),
            ([("mode", "standalone"), ("version", "6.0.16")], ErrorKind::Config, "6.2"),
            ([("mode", "standalone"), ("version", "5.0.1")], ErrorKind::Config, "6.2"),
            ([("role", "replica"), ("version", "7.0.0")], ErrorKind::Unavailable, "primary"),
        ] {
            let error = refusal(&fields).unwrap();
            assert!(error.kind() == kind && error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn in_a_cluster_only_a_primary_of_a_cluster_with_sharded_channels_is_accepted() {
        let node = [("version", "7.0.15"), ("mode", "cluster"), ("role", "master")];
        assert!(refusal_in(&node, true).is_none());
        for (fields, kind, word) in [
            ([("mode", "standalone"), ("version", "7.0.0")], ErrorKind::Config, "redis://"),
            ([("mode", "cluster"), ("version", "6.2.14")], ErrorKind::Config, "7.0"),
            ([("role", "replica"), ("version", "7.0.0")], ErrorKind::Unavailable, "primary"),
        ] {
            let error = refusal_in(&fields, true).unwrap();
            assert!(error.kind() == kind && error.to_string().contains(word), "{error}");
        }
    }
}
