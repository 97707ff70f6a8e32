//! The suite every store passes, on a real server of each kind.

#![cfg(test)]

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{Clock, Name, Namespace, Store, SystemClock};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_testkit::conformance::{Fixture, Skipped};
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{RedisServer, SentinelTrio, ServerKind};

/// What stays for ever, and is one key in all.
const FENCE: &str = "lock:~fence";

/// A server of its own, with a user who may not use channels.
struct Server {
    server: RedisServer,
    parameters: &'static str,
}

impl Server {
    fn start(kind: ServerKind) -> Self {
        let server =
            RedisServer::start(kind).unwrap_or_else(|error| panic!("{kind} does not start: {error}"));
        let rights = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "resetchannels", "+@all"];
        server.command(&rights).unwrap();
        Self { server, parameters: "" }
    }

    fn without_scripts(self) -> Self {
        Self { parameters: "?scripting=off&allow_unfenced=1", ..self }
    }

    async fn connect_to(&self, url: &str) -> Arc<dyn Store> {
        let url = &format!("{url}{}", self.parameters);
        let store = RedisStore::connect(RedisConfig::from_url(url).unwrap()).await;
        Arc::new(store.unwrap_or_else(|error| panic!("{url}: {error}")))
    }
}

/// What a fixture needs to know of a place on a server.
trait Database: Send + Sync + 'static {
    fn command(&self, words: &[&str]) -> RespValue;

    fn connect(&self) -> impl Future<Output = Arc<dyn Store>> + Send;

    /// As a user who may not use channels.
    fn connect_mute(&self) -> impl Future<Output = Arc<dyn Store>> + Send;

    fn keys(&self) -> Vec<String> {
        let RespValue::Array(keys) = self.command(&["KEYS", "*"]) else { panic!("no keys") };
        keys.iter().map(|key| key.text().unwrap()).collect()
    }
}

impl Database for Server {
    fn command(&self, words: &[&str]) -> RespValue {
        self.server.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    async fn connect(&self) -> Arc<dyn Store> {
        self.connect_to(&self.server.url()).await
    }

    async fn connect_mute(&self) -> Arc<dyn Store> {
        self.connect_to(&format!("redis://mute:secret@{}/", self.server.address())).await
    }
}

fn key(name: &Name) -> String {
    Namespace::default().key(name)
}

/// A database as the suite sees it.
struct Place<D>(D);

impl<D: Database> Fixture for Place<D> {
    async fn connect(&self) -> Arc<dyn Store> {
        self.0.connect().await
    }

    async fn connect_without_push(&self) -> Result<Arc<dyn Store>, Skipped> {
        Ok(self.0.connect_mute().await)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn raw_set(&self, name: &Name, value: &str, ttl: Option<Duration>) -> Result<(), Skipped> {
        let key = key(name);
        match ttl {
            Some(ttl) => self.0.command(&["SET", &key, value, "PX", &ttl.as_millis().to_string()]),
            None => self.0.command(&["SET", &key, value]),
        };
        Ok(())
    }

    fn raw_get(&self, name: &Name) -> Result<Option<String>, Skipped> {
        Ok(self.0.command(&["GET", &key(name)]).text())
    }

    fn evict(&self, name: &Name) -> Result<(), Skipped> {
        self.0.command(&["DEL", &key(name)]);
        Ok(())
    }

    fn corrupt(&self, name: &Name) -> Result<(), Skipped> {
        self.0.command(&["DEL", &key(name)]);
        self.0.command(&["HSET", &key(name), "field", "value"]);
        Ok(())
    }

    fn is_corrupt(&self, name: &Name) -> Result<bool, Skipped> {
        Ok(self.0.command(&["HGET", &key(name), "field"]).text().as_deref() == Some("value"))
    }

    fn corrupt_record(&self, name: &Name) -> Result<(), Skipped> {
        let is_record = |key: &String| key.starts_with("lock:~once:") && key.ends_with(&format!("}}:{name}"));
        let record = self.0.keys().into_iter().find(is_record).expect("there is a record");
        self.0.command(&["DEL", &record]);
        self.0.command(&["HSET", &record, "field", "value"]);
        Ok(())
    }

    fn flush(&self) -> Result<(), Skipped> {
        self.0.command(&["FLUSHDB"]);
        Ok(())
    }

    fn lose_queue(&self, name: &Name) -> Result<(), Skipped> {
        for key in self.0.keys() {
            if key.starts_with("lock:~queue:") && key.ends_with(&format!("}}:{name}")) {
                self.0.command(&["DEL", &key]);
            }
        }
        Ok(())
    }

    /// A server's clock cannot be set here. What a grant sees of a clock that was put back is a last token that is
    /// ahead of it.
    fn step_clock_back(&self, by: Duration) -> Result<(), Skipped> {
        let RespValue::Array(time) = self.0.command(&["TIME"]) else { panic!("no time") };
        let seconds: u64 = time[0].text().unwrap().parse().unwrap();
        let ahead = Duration::from_secs(seconds) + by;
        self.0.command(&["SET", FENCE, &ahead.as_micros().to_string()]);
        Ok(())
    }

    fn stored_entries(&self) -> Result<usize, Skipped> {
        Ok(self.0.keys().len())
    }

    fn endless_keys(&self) -> Result<Vec<String>, Skipped> {
        let endless = |key: &String| self.0.command(&["PTTL", key]).integer() == Some(-1);
        Ok(self.0.keys().into_iter().filter(|key| key != FENCE && endless(key)).collect())
    }
}

/// A database of its own on a trio that the tests share: the primary is found through Sentinels.
struct OnSentinels {
    trio: Arc<SentinelTrio>,
    db: u32,
}

const DATABASES: u32 = 400;

impl OnSentinels {
    fn start(kind: ServerKind) -> Self {
        static SHARED: Mutex<(Weak<SentinelTrio>, u32)> = Mutex::new((Weak::new(), 0));
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let trio = shared.0.upgrade().unwrap_or_else(|| {
            let settings = SentinelTrio::builder(kind)
                .configure(|_, settings| settings.config("databases", &DATABASES.to_string()));
            Arc::new(settings.start().unwrap_or_else(|error| panic!("{kind}: {error}")))
        });
        shared.0 = Arc::downgrade(&trio);
        shared.1 = (shared.1 + 1) % DATABASES;
        let on = Self { trio, db: shared.1 };
        on.command(&["FLUSHDB"]);
        on.command(&["ACL", "SETUSER", "mute", "on", ">secret", "~*", "resetchannels", "+@all"]);
        on
    }

    async fn connect_as(&self, login: &str) -> Arc<dyn Store> {
        let url = self.trio.url().replace("://", &format!("://{login}"));
        let url = format!("{url}/{}", self.db);
        let store = RedisStore::connect(RedisConfig::from_url(&url).unwrap()).await;
        Arc::new(store.unwrap_or_else(|error| panic!("{url}: {error}")))
    }
}

impl Database for OnSentinels {
    fn command(&self, words: &[&str]) -> RespValue {
        let mut connection = self.trio.node(0).connect().unwrap();
        connection.command(&["SELECT", &self.db.to_string()]).unwrap();
        connection.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    async fn connect(&self) -> Arc<dyn Store> {
        self.connect_as("").await
    }

    async fn connect_mute(&self) -> Arc<dyn Store> {
        self.connect_as("mute:secret@").await
    }
}

mod redis7 {
    use super::{Place, Server, ServerKind};
    leasehold_testkit::conformance_tests!(Place(Server::start(ServerKind::Redis7)));
}

mod redis8 {
    use super::{Place, Server, ServerKind};
    leasehold_testkit::conformance_tests!(Place(Server::start(ServerKind::Redis8)));
}

mod valkey9 {
    use super::{Place, Server, ServerKind};
    leasehold_testkit::conformance_tests!(Place(Server::start(ServerKind::Valkey9)));
}

mod redis8_without_scripts {
    use super::{Place, Server, ServerKind};
    leasehold_testkit::conformance_tests!(Place(Server::start(ServerKind::Redis8).without_scripts()));
}

mod valkey9_without_scripts {
    use super::{Place, Server, ServerKind};
    leasehold_testkit::conformance_tests!(Place(Server::start(ServerKind::Valkey9).without_scripts()));
}

mod sentinel {
    use super::{OnSentinels, Place, ServerKind};
    leasehold_testkit::conformance_tests!(Place(OnSentinels::start(ServerKind::Redis7)));
}
