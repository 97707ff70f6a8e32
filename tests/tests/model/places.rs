//! The stores the model is compared with, and what can be done to each behind its clients' backs.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::core::memory::{MemoryStore, MemoryWorld, Operation};
use leasehold::core::{Client, ClientSettings, Clock, KeeperRuntime, Label, Name, Store, VirtualClock};
use leasehold_testkit::proxy::{AfterDrop, Proxy};
use leasehold_testkit::servers::{RedisServer, kinds_to_test};

/// A time of day, and how far a server's clock is stepped from it.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);
const HOUR: Duration = Duration::from_secs(3_600);
/// How long a store does nothing when it stalls.
const STALL: Duration = Duration::from_millis(40);

/// Makes a new place for each case.
pub(crate) enum Places {
    Memory,
    Sqlite(tempfile::TempDir),
    Redis(RedisServer),
}

/// Where one case happens.
pub(crate) enum Place {
    Memory {
        world: Arc<MemoryWorld>,
        clock: Arc<VirtualClock>,
        stores: Mutex<Vec<Arc<MemoryStore>>>,
        /// Whether the server has lost its fencing counter: from then on its clock is not put back.
        lost: AtomicBool,
    },
    Sqlite(PathBuf),
    Redis {
        url: String,
        control: Control,
        proxy: Proxy,
    },
}

/// Commands for the server of a case.
pub(crate) type Control = Box<dyn Fn(&[&str]) -> String + Send + Sync>;

impl Places {
    pub(crate) fn memory() -> Self {
        Self::Memory
    }

    /// Real stores, each several times.
    pub(crate) fn real(test: &str, times: usize) -> Vec<Self> {
        let mut places = Vec::new();
        for _ in 0..times {
            places.push(Self::Sqlite(tempfile::tempdir().unwrap()));
        }
        for kind in kinds_to_test(test) {
            places.extend((0..times).map(|_| Self::Redis(RedisServer::start(kind).unwrap())));
        }
        places
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Sqlite(_) => "sqlite".to_owned(),
            Self::Redis(server) => server.kind().to_string(),
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// Runs one case in a place of its own; a panic in it is an error.
    pub(crate) fn run<F>(&self, case: impl FnOnce(Place) -> F) -> Result<(), String>
    where
        F: Future<Output = Result<(), String>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(self.is_virtual())
            .build()
            .unwrap();
        let run = || runtime.block_on(async { case(self.place()).await });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err("it panicked".into()))
    }

    fn place(&self) -> Place {
        match self {
            Self::Memory => {
                let clock = Arc::new(VirtualClock::start());
                let world = MemoryWorld::new(Arc::clone(&clock) as Arc<dyn Clock>);
                Place::Memory { world, clock, stores: Mutex::default(), lost: AtomicBool::new(false) }
            }
            Self::Sqlite(folder) => {
                let file = tempfile::Builder::new().suffix(".db").tempfile_in(folder.path()).unwrap();
                let path = file.path().to_owned();
                file.close().unwrap();
                Place::Sqlite(path)
            }
            Self::Redis(server) => {
                server.cli(&["FLUSHALL"]).unwrap();
                let proxy = Proxy::before(server).unwrap();
                let address = server.address();
                let control = move |command: &[&str]| {
                    let mut connection = leasehold_testkit::resp::Connection::open(address).unwrap();
                    connection.command(command).unwrap().text().unwrap_or_default()
                };
                Place::Redis { url: server.url_through(&proxy), control: Box::new(control), proxy }
            }
        }
    }
}

impl Place {
    /// A process of its own.
    pub(crate) async fn connect(&self, label: &str) -> Client {
        let label = Label::new(label).unwrap();
        let url = match self {
            Self::Memory { world, clock, stores, .. } => {
                let store = Arc::new(MemoryStore::connect(world));
                let way = Duration::from_millis(1);
                store.delay_requests(way);
                store.delay_replies(way);
                store.delay_pushes(way);
                stores.lock().unwrap().push(Arc::clone(&store));
                let settings = ClientSettings {
                    label: Some(label),
                    clock: Arc::clone(clock) as Arc<dyn Clock>,
                    keeper: KeeperRuntime::Current,
                    ..ClientSettings::default()
                };
                let connect = move || {
                    let store = Arc::clone(&store) as Arc<dyn Store>;
                    async move { Ok(store) }
                };
                return Client::start(settings, connect).await.unwrap();
            }
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Redis { url, .. } => url.clone(),
        };
        (*leasehold::Client::builder().label(label).connect(&url).await.unwrap()).clone()
    }

    /// Sets the server's time of day an hour ahead of what it would be, or back. Leases and waiters go by another
    /// clock, and fencing tokens keep growing.
    pub(crate) fn step_clock(&self, ahead: bool, now: Duration) {
        let Self::Memory { world, lost, .. } = self else { return };
        let ahead = ahead || lost.load(Ordering::Relaxed);
        world.set_wall_time(if ahead { EPOCH + HOUR + now } else { EPOCH + now });
    }

    /// The lease of the name is gone.
    pub(crate) fn lose_lease(&self, name: &Name) {
        match self {
            Self::Memory { world, .. } => world.evict(name),
            Self::Sqlite(path) => sql(path, &format!("DELETE FROM lease WHERE name = '{name}'")),
            Self::Redis { control, .. } => drop(control(&["DEL", &format!("lock:{name}")])),
        }
    }

    /// Everything is gone.
    pub(crate) fn lose_all(&self, now: Duration) {
        match self {
            // A server that has lost its counter must not be behind the clock of the one before.
            Self::Memory { world, lost, .. } => {
                lost.store(true, Ordering::Relaxed);
                self.step_clock(true, now);
                world.flush();
            }
            Self::Sqlite(path) => sql(path, "DELETE FROM lease; DELETE FROM waiter"),
            Self::Redis { control, .. } => drop(control(&["FLUSHALL"])),
        }
    }

    /// Every connection breaks and is made anew; false where there are none.
    pub(crate) fn break_connections(&self) -> bool {
        match self {
            Self::Memory { stores, .. } => stores.lock().unwrap().iter().for_each(|store| store.reconnect()),
            Self::Sqlite(_) => return false,
            Self::Redis { proxy, .. } => proxy.cut(),
        }
        true
    }

    /// The reply to a coming request is lost; false where none can be.
    pub(crate) fn lose_reply(&self, client: usize) -> bool {
        match self {
            Self::Memory { stores, .. } => {
                for operation in [Operation::Acquire, Operation::Release, Operation::Renew, Operation::Break]
                {
                    stores.lock().unwrap()[client].lose_next_reply(operation);
                }
            }
            Self::Sqlite(_) => return false,
            Self::Redis { proxy, .. } => {
                // It may happen to any client, now or later.
                let _whenever = proxy.drop_reply_to("EVALSHA", AfterDrop::Cut);
            }
        }
        true
    }

    /// The store does nothing for a moment, and whoever asks it waits.
    pub(crate) async fn stall(&self) {
        match self {
            Self::Memory { world, .. } => {
                world.freeze(true);
                let world = Arc::clone(world);
                tokio::spawn(async move {
                    tokio::time::sleep(STALL).await;
                    world.freeze(false);
                });
            }
            Self::Sqlite(path) => {
                let path = path.clone();
                let (begun, begins) = tokio::sync::oneshot::channel();
                std::thread::spawn(move || {
                    let connection = rusqlite::Connection::open(path).unwrap();
                    connection.busy_timeout(crate::SLACK).unwrap();
                    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                    begun.send(()).unwrap();
                    std::thread::sleep(STALL);
                    connection.execute_batch("COMMIT").unwrap();
                });
                begins.await.unwrap();
            }
            Self::Redis { control, .. } => drop(control(&["CLIENT", "PAUSE", "40", "ALL"])),
        }
    }
}

fn sql(path: &PathBuf, statements: &str) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(crate::SLACK).unwrap();
    connection.execute_batch(statements).unwrap();
}
