//! From a URL to a client: which store a URL means, and the settings around it. It decides nothing else.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClientSettings, Clock, Error, KeeperRuntime, Label, LockOptions, MemoryStore, MemoryWorld, Namespace,
    Store, VirtualClock,
};

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>, Error>> + Send>>;

/// Makes locks on the store of a URL.
///
/// Everything else a client can do is on [`leasehold_core::Client`], to which this one dereferences.
#[derive(Clone, Debug)]
pub struct Client(leasehold_core::Client);

impl Client {
    /// Connects to a store with default settings:
    ///
    /// | URL | store |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | a Redis or Valkey server (feature `redis`, on by default) |
    /// | `rediss://…` | the same over TLS (feature `tls`) |
    /// | `redis+unix:///path` | the same over a Unix socket |
    /// | `redis+sentinel://[user:password@]host1,host2,host3/service[/db]` | the primary of a service, as its Sentinels tell; `rediss+sentinel://…` over TLS |
    /// | `redis+cluster://[user:password@]host[:port][,host[:port]…]` | a Redis or Valkey Cluster; any node will do, several are tried in turn |
    /// | `rediss+cluster://…` | the same over TLS (feature `tls`) |
    /// | `local` | a SQLite file in the user's state directory (feature `sqlite`) |
    /// | `sqlite:PATH` | that SQLite file (feature `sqlite`) |
    /// | `memory:` | this client's own memory, for tests |
    ///
    /// Redis URLs take the parameters `namespace` (`lock:` by default), `db`, `label` (what operators read of this
    /// process), `acks` (how many replicas must confirm each grant, unless a lock says otherwise), `user` and `password`
    /// (for sockets), `sentinel_user` and `sentinel_password` (for Sentinels), `ca`, `cert` and `key` (PEM files, for
    /// TLS), and `scripting=off` with `allow_unfenced=1` (for servers that forbid scripts); special characters in them
    /// and in the password are percent-encoded. A server that cannot be reached, or whose certificate is not accepted, is
    /// tried again until `store_timeout` has passed.
    ///
    /// # Errors
    /// `Config` for a URL that cannot be used, `Denied` and `Unavailable` as the store reports them.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { settings: ClientSettings::default(), namespace: None, existing_only: false }
    }

    /// A client on a store in memory that runs on the caller's Tokio runtime, so that time can be paused: for
    /// tests of programs that use locks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Attempt, Client};
    ///
    /// let client = Client::in_memory().await?; // in a test: #[tokio::test(start_paused = true)]
    /// let Attempt::Acquired(guard) = client.lock("report:daily")?.try_acquire().await? else { panic!() };
    /// tokio::time::sleep(std::time::Duration::from_secs(3600)).await; // takes no time, and the lease is renewed
    /// assert!(!guard.remaining().is_zero());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Renewal runs on that runtime too, so a test that blocks its thread for longer than the TTL loses the
    /// lease; [`Client::connect`] with `memory:` has a thread and real time of its own.
    ///
    /// # Errors
    /// `Unavailable` when the operating system gives no random bits.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub async fn in_memory() -> Result<Self, Error> {
        let clock: Arc<dyn Clock> = Arc::new(VirtualClock::start());
        let settings = ClientSettings {
            clock: Arc::clone(&clock),
            keeper: KeeperRuntime::Current,
            ..ClientSettings::default()
        };
        start(settings, move || memory(&clock)).await
    }
}

impl std::ops::Deref for Client {
    type Target = leasehold_core::Client;

    fn deref(&self) -> &leasehold_core::Client {
        &self.0
    }
}

/// Settings of a client; made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    settings: ClientSettings,
    namespace: Option<Namespace>,
    existing_only: bool,
}

impl ClientBuilder {
    /// The prefix of every key and channel; `lock:` by default. It goes before one in the URL.
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// What operators see as the holder; `host:pid` by default.
    pub fn label(mut self, label: Label) -> Self {
        self.settings.label = Some(label);
        self
    }

    /// How long the store may give no usable answer before `Unavailable`; 10 s by default.
    pub fn store_timeout(mut self, store_timeout: Duration) -> Self {
        self.settings.store_timeout = store_timeout;
        self
    }

    /// What locks ask for unless they say otherwise.
    pub fn defaults(mut self, defaults: LockOptions) -> Self {
        self.settings.defaults = defaults;
        self
    }

    /// Do not create the file of `sqlite:PATH` if it is missing, but report `Config`: for programs that only look,
    /// to which a mistyped path would seem a store where nothing is held.
    pub fn existing_only(mut self) -> Self {
        self.existing_only = true;
        self
    }

    /// Connects to the store of this URL; see [`Client::connect`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        if url != url.trim() {
            return Err(unknown(url));
        }
        if url == "memory:" {
            let clock = Arc::clone(&self.settings.clock);
            return start(self.settings, move || memory(&clock)).await;
        }
        #[cfg(feature = "redis")]
        if leasehold_redis::ClusterConfig::is_cluster_url(url) {
            return self.connect_cluster(url).await;
        }
        #[cfg(feature = "redis")]
        if url.starts_with("redis") {
            return self.connect_redis(url).await;
        }
        #[cfg(feature = "sqlite")]
        if let Some(path) = sqlite_path(url)? {
            let namespace = self.namespace.unwrap_or_default();
            let create = !self.existing_only || url == LOCAL;
            let options = leasehold_sqlite::SqliteOptions { namespace, create, ..Default::default() };
            return start(self.settings, move || sqlite(path.clone(), options.clone())).await;
        }
        Err(unknown(url))
    }

    #[cfg(feature = "redis")]
    async fn connect_cluster(self, url: &str) -> Result<Client, Error> {
        let mut config = leasehold_redis::ClusterConfig::from_url(url)?;
        if let Some(namespace) = self.namespace {
            config = config.with_namespace(namespace)?;
        }
        let mut settings = self.settings;
        settings.label = settings.label.or_else(|| config.label().cloned());
        let cluster = config.describe();
        let client = start(settings, move || redis_cluster(config.clone())).await;
        client.map_err(
            |error| {
                if error.to_string().contains(&cluster) { error } else { error.context(cluster) }
            },
        )
    }

    #[cfg(feature = "redis")]
    async fn connect_redis(self, url: &str) -> Result<Client, Error> {
        let mut config = leasehold_redis::RedisConfig::from_url(url)?;
        if let Some(namespace) = self.namespace {
            config = config.with_namespace(namespace)?;
        }
        let mut settings = self.settings;
        settings.label = settings.label.or_else(|| config.label().cloned());
        if settings.defaults.acks == 0 {
            settings.defaults.acks = config.acks();
        }
        let server = config.describe();
        let client = start(settings, move || redis(config.clone())).await;
        // A server that gave no answer at all did not get to say which one it is.
        client
            .map_err(|error| if error.to_string().contains(&server) { error } else { error.context(server) })
    }
}

async fn start(
    settings: ClientSettings,
    connect: impl Fn() -> Connecting + Send + Sync + 'static,
) -> Result<Client, Error> {
    leasehold_core::Client::start(settings, connect).await.map(Client)
}

fn memory(clock: &Arc<dyn Clock>) -> Connecting {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::connect(&MemoryWorld::new(Arc::clone(clock))));
    Box::pin(async move { Ok(store) })
}

/// The URL of the file of this machine.
#[cfg(feature = "sqlite")]
const LOCAL: &str = "local";

#[cfg(feature = "sqlite")]
fn sqlite_path(url: &str) -> Result<Option<std::path::PathBuf>, Error> {
    if url == LOCAL {
        return leasehold_sqlite::default_path().map(Some);
    }
    let Some(path) = url.strip_prefix("sqlite:") else { return Ok(None) };
    // sqlite:///path is what other tools write for an absolute path.
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path == ":memory:" {
        return Err(Error::config(format!("{url:?} names no file: write sqlite:PATH, or memory: for tests")));
    }
    Ok(Some(path.into()))
}

#[cfg(feature = "redis")]
fn redis(config: leasehold_redis::RedisConfig) -> Connecting {
    Box::pin(async move {
        let store: Arc<dyn Store> = Arc::new(leasehold_redis::RedisStore::connect(config).await?);
        Ok(store)
    })
}

#[cfg(feature = "redis")]
fn redis_cluster(config: leasehold_redis::ClusterConfig) -> Connecting {
    Box::pin(async move {
        let store: Arc<dyn Store> = Arc::new(leasehold_redis::ClusterStore::connect(config).await?);
        Ok(store)
    })
}

#[cfg(feature = "sqlite")]
fn sqlite(path: std::path::PathBuf, options: leasehold_sqlite::SqliteOptions) -> Connecting {
    Box::pin(async move {
        let store: Arc<dyn Store> = Arc::new(leasehold_sqlite::SqliteStore::open(path, options)?);
        Ok(store)
    })
}

fn unknown(url: &str) -> Error {
    if !cfg!(feature = "sqlite") && (url == "local" || url.starts_with("sqlite:")) {
        return Error::config("local and sqlite: need the feature sqlite, which this build does not have");
    }
    if !cfg!(feature = "redis") && url.starts_with("redis") {
        return Error::config("redis URLs need the feature redis, which this build does not have");
    }
    // A URL may hold a password: only its scheme is repeated, if it has one.
    let is_scheme =
        |text: &&str| text.len() <= 20 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let scheme = url.split_once("://").map(|(scheme, _)| scheme).filter(is_scheme);
    let which = scheme.map_or_else(|| "this".to_owned(), |scheme| format!("the store {scheme}://…"));
    let what = if url != url.trim() {
        "has spaces around it: remove them".to_owned()
    } else if scheme.is_some_and(|scheme| scheme.to_ascii_lowercase().starts_with("valkey")) {
        "is written redis://… for Valkey, too".to_owned()
    } else if scheme.is_some_and(|scheme| scheme.to_ascii_lowercase().starts_with("redis")) {
        "is written in small letters: redis://…".to_owned()
    } else {
        let mut known = Vec::new();
        if cfg!(feature = "redis") {
            known.push("redis://user:password@HOST:6379/");
        }
        if cfg!(feature = "sqlite") {
            known.extend(["local (one machine)", "sqlite:PATH"]);
        }
        let what = if scheme.is_some() { "is not known" } else { "is not the URL of a store" };
        format!("{what}: write {}", known.join(", "))
    };
    Error::config(format!("{which} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn trap_57_there_is_no_store_by_default() {
        for url in ["", "nonsense", "http://user:secret@host/", "sqlite:", "secret@host:6379", ":secret@host"]
        {
            let error = Client::connect(url).await.unwrap_err();
            assert_eq!(error.kind(), leasehold_core::ErrorKind::Config, "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        for (url, word) in [
            (" redis://u:secret@h/", "spaces"),
            ("redis://u:secret@h/ ", "spaces"),
            ("REDIS://u:secret@h/", "small letters"),
            ("valkey://u:secret@h/", "redis://"),
            ("u:secret@h", "not the URL of a store"),
            ("http://u:secret@h/", "http://… is not known"),
        ] {
            let error = Client::connect(url).await.unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
