//! The raw limit: the plain scripts of the documented pattern through the client library alone.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult};

const ACQUIRE: &str =
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end";
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Two loaded scripts and a connection.
#[derive(Clone)]
pub(super) struct Raw {
    connection: MultiplexedConnection,
    acquire: String,
    release: String,
}

impl Raw {
    /// Connects; the connection's driver runs on the runtime this is called in.
    pub(super) async fn connect(url: &str) -> RedisResult<Self> {
        let url =
            if url.contains('?') { format!("{url}&protocol=resp3") } else { format!("{url}?protocol=resp3") };
        let client = redis::Client::open(url)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut load = async |text: &str| -> RedisResult<String> {
            let hash: String =
                redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
            Ok(hash)
        };
        let (acquire, release) = (load(ACQUIRE).await?, load(RELEASE).await?);
        Ok(Self { connection, acquire, release })
    }

    /// The hashes of both scripts, for other clients.
    pub(super) fn hashes(&self) -> (&str, &str) {
        (&self.acquire, &self.release)
    }

    /// Takes and gives back a name; whether both did what they should.
    pub(super) async fn pair(&mut self, key: &str, token: &str) -> RedisResult<bool> {
        let acquired: u8 =
            evalsha(&self.acquire, key).arg(token).arg(30_000).query_async(&mut self.connection).await?;
        let freed: u8 = evalsha(&self.release, key).arg(token).query_async(&mut self.connection).await?;
        Ok(acquired == 1 && freed == 1)
    }
}

fn evalsha(hash: &str, key: &str) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(hash).arg(1).arg(key);
    command
}
