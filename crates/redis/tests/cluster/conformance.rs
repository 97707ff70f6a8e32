//! The suite every store passes, on a cluster of Redis 7 and one of Valkey 9; what a cluster adds is tested on Redis 8,
//! too. The tests of one kind share a cluster, each under a namespace of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{Clock, Name, Namespace, Store, SystemClock};
use leasehold_redis::{ClusterConfig, ClusterStore};
use leasehold_testkit::conformance::{Fixture, Skipped};
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{RedisCluster, ServerKind};

/// A namespace in a cluster, and a user who may not use channels.
struct Part {
    cluster: &'static RedisCluster,
    namespace: Namespace,
}

impl Part {
    fn of(kind: ServerKind) -> Self {
        static CLUSTERS: [OnceLock<RedisCluster>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        static PARTS: AtomicU32 = AtomicU32::new(0);
        let cluster =
            CLUSTERS[ServerKind::ALL.iter().position(|known| *known == kind).unwrap()].get_or_init(|| {
                let cluster = RedisCluster::builder(kind).replicas(0).start();
                let cluster = cluster.unwrap_or_else(|error| panic!("{kind} forms no cluster: {error}"));
                let rights = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "resetchannels", "+@all"];
                for node in 0..cluster.len() {
                    cluster.node(node).command(&rights).unwrap();
                }
                cluster
            });
        let namespace = format!("part-{}:", PARTS.fetch_add(1, Ordering::Relaxed));
        Self { cluster, namespace: Namespace::new(&namespace).unwrap() }
    }

    async fn connect_to(&self, url: &str) -> Arc<dyn Store> {
        let config = ClusterConfig::from_url(url).unwrap().with_namespace(self.namespace.clone()).unwrap();
        let store = ClusterStore::connect(config).await;
        Arc::new(store.unwrap_or_else(|error| panic!("{url}: {error}")))
    }

    fn command(&self, words: &[&str]) -> RespValue {
        self.cluster.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn keys(&self) -> Vec<String> {
        self.cluster.keys(&format!("{}*", self.namespace.as_str())).unwrap()
    }

    fn key(&self, name: &Name) -> String {
        self.namespace.key(name)
    }

    /// One for each slot that was ever used.
    fn is_fence(&self, key: &str) -> bool {
        key.starts_with(&format!("{}~fence:", self.namespace.as_str()))
    }
}

impl Fixture for Part {
    async fn connect(&self) -> Arc<dyn Store> {
        self.connect_to(&self.cluster.url()).await
    }

    async fn connect_without_push(&self) -> Result<Arc<dyn Store>, Skipped> {
        Ok(self.connect_to(&self.cluster.url().replace("://", "://mute:secret@")).await)
    }

    /// Each slot has its own counter.
    fn counted_together(&self, number: usize) -> String {
        format!("{{job}}-{number}")
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn raw_set(&self, name: &Name, value: &str, ttl: Option<Duration>) -> Result<(), Skipped> {
        let key = self.key(name);
        match ttl {
            Some(ttl) => self.command(&["SET", &key, value, "PX", &ttl.as_millis().to_string()]),
            None => self.command(&["SET", &key, value]),
        };
        Ok(())
    }

    fn raw_get(&self, name: &Name) -> Result<Option<String>, Skipped> {
        Ok(self.command(&["GET", &self.key(name)]).text())
    }

    fn evict(&self, name: &Name) -> Result<(), Skipped> {
        self.command(&["DEL", &self.key(name)]);
        Ok(())
    }

    fn corrupt(&self, name: &Name) -> Result<(), Skipped> {
        self.command(&["DEL", &self.key(name)]);
        self.command(&["HSET", &self.key(name), "field", "value"]);
        Ok(())
    }

    fn is_corrupt(&self, name: &Name) -> Result<bool, Skipped> {
        Ok(self.command(&["HGET", &self.key(name), "field"]).text().as_deref() == Some("value"))
    }

    fn flush(&self) -> Result<(), Skipped> {
        for key in self.keys() {
            self.command(&["DEL", &key]);
        }
        Ok(())
    }

    fn lose_queue(&self, name: &Name) -> Result<(), Skipped> {
        let queue = format!("{}~queue:", self.namespace.as_str());
        for key in self.keys() {
            if key.starts_with(&queue) && key.ends_with(&format!("}}:{name}")) {
                self.command(&["DEL", &key]);
            }
        }
        Ok(())
    }

    /// A server's clock cannot be set here. What a grant sees of a clock that was put back is a last token that is
    /// ahead of it.
    fn step_clock_back(&self, by: Duration) -> Result<(), Skipped> {
        let RespValue::Array(time) = self.cluster.node(0).command(&["TIME"]).unwrap() else {
            panic!("no time")
        };
        let seconds: u64 = time[0].text().unwrap().parse().unwrap();
        let ahead = Duration::from_secs(seconds) + by;
        for key in self.keys().iter().filter(|key| self.is_fence(key)) {
            self.command(&["SET", key, &ahead.as_micros().to_string()]);
        }
        Ok(())
    }

    fn stored_entries(&self) -> Result<usize, Skipped> {
        Ok(self.keys().iter().filter(|key| !self.is_fence(key)).count())
    }

    fn endless_keys(&self) -> Result<Vec<String>, Skipped> {
        let endless = |key: &String| self.command(&["PTTL", key]).integer() == Some(-1);
        Ok(self.keys().into_iter().filter(|key| !self.is_fence(key) && endless(key)).collect())
    }
}

mod redis7 {
    use super::{Part, ServerKind};
    leasehold_testkit::conformance_tests!(Part::of(ServerKind::Redis7));
}

mod valkey9 {
    use super::{Part, ServerKind};
    leasehold_testkit::conformance_tests!(Part::of(ServerKind::Valkey9));
}
