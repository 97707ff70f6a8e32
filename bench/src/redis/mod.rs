//! Benchmarks of the Redis store. Each starts a server of its own.

pub(crate) mod cluster;
pub(crate) mod contention;
pub(crate) mod cost;
pub(crate) mod failover;
pub(crate) mod handover;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod renewals;
pub(crate) mod throughput;

mod loss_signal;
mod meters;
mod publish_to_all;
mod raw;

use std::error::Error;
use std::sync::Arc;

use leasehold::core::{Client, ClientSettings, KeeperRuntime, Store};
use leasehold_redis::{ClusterConfig, ClusterStore, RedisConfig, RedisStore};
use leasehold_testkit::servers::{RedisServer, ServerKind};

type AnyError = Box<dyn Error>;

/// A fresh server: `LEASEHOLD_BENCH_SERVER` names its kind (redis7, redis8 or valkey9), Redis 7 by default.
fn server() -> Result<RedisServer, AnyError> {
    Ok(RedisServer::start(kind()?)?)
}

fn kind() -> Result<ServerKind, AnyError> {
    let wanted = std::env::var("LEASEHOLD_BENCH_SERVER").unwrap_or_else(|_| "redis7".to_owned());
    let kinds = [ServerKind::Redis7, ServerKind::Redis8, ServerKind::Valkey9];
    let kind = kinds.into_iter().find(|kind| kind.name() == wanted);
    Ok(kind.ok_or_else(|| format!("LEASEHOLD_BENCH_SERVER={wanted}: redis7, redis8 or valkey9 are known"))?)
}

/// A client with a thread of its own, as every program has it.
async fn client(url: &str) -> Result<Client, AnyError> {
    start(url, KeeperRuntime::OwnThread).await
}

/// A client on the caller's runtime, so that thousands of connections need no thousands of threads.
async fn client_without_thread(url: &str) -> Result<Client, AnyError> {
    start(url, KeeperRuntime::Current).await
}

async fn start(url: &str, keeper: KeeperRuntime) -> Result<Client, AnyError> {
    let config = RedisConfig::from_url(url)?;
    let settings = ClientSettings { keeper, ..ClientSettings::default() };
    let client = Client::start(settings, move || {
        let config = config.clone();
        async move {
            let store: Arc<dyn Store> = Arc::new(RedisStore::connect(config).await?);
            Ok(store)
        }
    });
    Ok(client.await?)
}

/// As [`client`], on a cluster.
async fn client_of_cluster(url: &str) -> Result<Client, AnyError> {
    let config = ClusterConfig::from_url(url)?;
    let client = Client::start(ClientSettings::default(), move || {
        let config = config.clone();
        async move {
            let store: Arc<dyn Store> = Arc::new(ClusterStore::connect(config).await?);
            Ok(store)
        }
    });
    Ok(client.await?)
}

fn runtime() -> Result<tokio::runtime::Runtime, AnyError> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
