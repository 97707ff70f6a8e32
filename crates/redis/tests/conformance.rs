//! The suite every store passes, on a real server of each kind.

#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Clock, Name, Namespace, Store, SystemClock};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_testkit::conformance::{Fixture, Skipped};
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{RedisServer, ServerKind};

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

    fn command(&self, words: &[&str]) -> RespValue {
        self.server.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn keys(&self) -> Vec<String> {
        let RespValue::Array(keys) = self.command(&["KEYS", "*"]) else { panic!("no keys") };
        keys.iter().map(|key| key.text().unwrap()).collect()
    }
}

fn key(name: &Name) -> String {
    Namespace::default().key(name)
}

impl Fixture for Server {
    async fn connect(&self) -> Arc<dyn Store> {
        self.connect_to(&self.server.url()).await
    }

    async fn connect_without_push(&self) -> Result<Arc<dyn Store>, Skipped> {
        Ok(self.connect_to(&format!("redis://mute:secret@{}/", self.server.address())).await)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn raw_set(&self, name: &Name, value: &str, ttl: Option<Duration>) -> Result<(), Skipped> {
        let key = key(name);
        match ttl {
            Some(ttl) => self.command(&["SET", &key, value, "PX", &ttl.as_millis().to_string()]),
            None => self.command(&["SET", &key, value]),
        };
        Ok(())
    }

    fn raw_get(&self, name: &Name) -> Result<Option<String>, Skipped> {
        Ok(self.command(&["GET", &key(name)]).text())
    }

    fn evict(&self, name: &Name) -> Result<(), Skipped> {
        self.command(&["DEL", &key(name)]);
        Ok(())
    }

    fn corrupt(&self, name: &Name) -> Result<(), Skipped> {
        self.command(&["DEL", &key(name)]);
        self.command(&["HSET", &key(name), "field", "value"]);
        Ok(())
    }

    fn is_corrupt(&self, name: &Name) -> Result<bool, Skipped> {
        Ok(self.command(&["HGET", &key(name), "field"]).text().as_deref() == Some("value"))
    }

    fn corrupt_record(&self, name: &Name) -> Result<(), Skipped> {
        let is_record = |key: &String| key.starts_with("lock:~once:") && key.ends_with(&format!("}}:{name}"));
        let record = self.keys().into_iter().find(is_record).expect("there is a record");
        self.command(&["DEL", &record]);
        self.command(&["HSET", &record, "field", "value"]);
        Ok(())
    }

    fn flush(&self) -> Result<(), Skipped> {
        self.command(&["FLUSHALL"]);
        Ok(())
    }

    fn lose_queue(&self, name: &Name) -> Result<(), Skipped> {
        for key in self.keys() {
            if key.starts_with("lock:~queue:") && key.ends_with(&format!("}}:{name}")) {
                self.command(&["DEL", &key]);
            }
        }
        Ok(())
    }

    /// A server's clock cannot be set here. What a grant sees of a clock that was put back is a last token that is
    /// ahead of it.
    fn step_clock_back(&self, by: Duration) -> Result<(), Skipped> {
        let RespValue::Array(time) = self.command(&["TIME"]) else { panic!("no time") };
        let seconds: u64 = time[0].text().unwrap().parse().unwrap();
        let ahead = Duration::from_secs(seconds) + by;
        self.command(&["SET", FENCE, &ahead.as_micros().to_string()]);
        Ok(())
    }

    fn stored_entries(&self) -> Result<usize, Skipped> {
        Ok(self.keys().len())
    }

    fn endless_keys(&self) -> Result<Vec<String>, Skipped> {
        let endless = |key: &String| self.command(&["PTTL", key]).integer() == Some(-1);
        Ok(self.keys().into_iter().filter(|key| key != FENCE && endless(key)).collect())
    }
}

mod redis7 {
    use super::{Server, ServerKind};
    leasehold_testkit::conformance_tests!(Server::start(ServerKind::Redis7));
}

mod redis8 {
    use super::{Server, ServerKind};
    leasehold_testkit::conformance_tests!(Server::start(ServerKind::Redis8));
}

mod valkey9 {
    use super::{Server, ServerKind};
    leasehold_testkit::conformance_tests!(Server::start(ServerKind::Valkey9));
}

mod redis8_without_scripts {
    use super::{Server, ServerKind};
    leasehold_testkit::conformance_tests!(Server::start(ServerKind::Redis8).without_scripts());
}

mod valkey9_without_scripts {
    use super::{Server, ServerKind};
    leasehold_testkit::conformance_tests!(Server::start(ServerKind::Valkey9).without_scripts());
}
