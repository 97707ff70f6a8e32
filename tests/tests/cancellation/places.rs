//! The stores the futures are cancelled on, each slow enough that there is something to be cancelled.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold::blocking::block_on;
use leasehold::core::memory::{MemoryStore, MemoryWorld};
use leasehold::core::{Client, ClientSettings, Error, Store, SystemClock};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, kinds_to_test};

/// On the way to the store, and on the way back.
pub(crate) const EACH_WAY: Duration = Duration::from_millis(2);

/// A store of a test's own.
pub(crate) enum Place {
    Memory(Arc<MemoryWorld>),
    Sqlite(Busy),
    Redis(Box<(RedisServer, Proxy)>),
}

impl Place {
    /// Every store this machine has.
    fn all(test: &str) -> Vec<Self> {
        let mut places =
            vec![Self::Memory(MemoryWorld::new(Arc::new(SystemClock))), Self::Sqlite(Busy::start())];
        for kind in kinds_to_test(test) {
            let server = RedisServer::start(kind).unwrap();
            let proxy = Proxy::before(&server).unwrap();
            proxy.set_delay(EACH_WAY, EACH_WAY);
            places.push(Self::Redis(Box::new((server, proxy))));
        }
        places
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory(_) => "memory".to_owned(),
            Self::Sqlite(_) => "sqlite".to_owned(),
            Self::Redis(server) => server.0.kind().to_string(),
        }
    }

    /// A client, as a process of its own would have it.
    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        let url = match self {
            Self::Memory(world) => {
                let world = Arc::clone(world);
                let connect = move || {
                    let store = MemoryStore::connect(&world);
                    store.delay_requests(EACH_WAY);
                    store.delay_replies(EACH_WAY);
                    store.delay_pushes(EACH_WAY);
                    let store: Arc<dyn Store> = Arc::new(store);
                    async move { Ok(store) }
                };
                return Client::start(ClientSettings::default(), connect).await;
            }
            Self::Sqlite(busy) => format!("sqlite:{}", busy.file.display()),
            Self::Redis(server) => server.0.url_through(&server.1),
        };
        Ok((*leasehold::Client::connect(&url).await?).clone())
    }

    /// What the store itself keeps besides its fencing counter, as far as it can be asked behind the client's back.
    pub(crate) fn left(&self) -> Vec<String> {
        match self {
            Self::Memory(world) => (0..world.stored_names()).map(|number| format!("name {number}")).collect(),
            // The clients' own questions about each name tell.
            Self::Sqlite(_) => Vec::new(),
            Self::Redis(server) => {
                let reply = server.0.command(&["KEYS", "*"]).unwrap();
                let keys = reply.items().unwrap().iter().map(|key| key.text().unwrap());
                keys.filter(|key| key != "lock:~fence").collect()
            }
        }
    }
}

/// A SQLite file that somebody else writes to most of the time: otherwise nothing would ever have to wait for it.
pub(crate) struct Busy {
    file: PathBuf,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Busy {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, stop) = (folder.path().join("locks.db"), Arc::new(AtomicBool::new(false)));
        // Made by ours: a file that somebody else began is left alone.
        let url = format!("sqlite:{}", file.display());
        drop(block_on(leasehold::Client::connect(&url)).unwrap());
        let (path, stopped) = (file.clone(), Arc::clone(&stop));
        let writer = std::thread::spawn(move || {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.busy_timeout(Duration::from_secs(10)).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                std::thread::sleep(EACH_WAY);
                connection.execute_batch("COMMIT").unwrap();
                std::thread::sleep(EACH_WAY / 2);
            }
        });
        Self { file, stop, writer: Some(writer), _folder: folder }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            // Its panic has been reported where it happened.
            let _ = writer.join();
        }
    }
}

/// Runs a test on every store, on all of them at the same time: most of a test is waiting.
pub(crate) fn on_each_place<F: Future<Output = ()>>(test: &str, body: impl Fn(Arc<Place>) -> F + Sync) {
    std::thread::scope(|scope| {
        for place in Place::all(test) {
            let (body, place) = (&body, Arc::new(place));
            // The name is what a panic shows.
            let thread = std::thread::Builder::new().name(format!("{test} on {}", place.name()));
            let run = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(body(place));
            };
            thread.spawn_scoped(scope, run).unwrap();
        }
    });
}
