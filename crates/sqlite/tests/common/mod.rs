//! What the tests of this crate share: a store of a test's own, a clock that stands until it is moved, and this
//! test program started again as another process.
#![allow(dead_code, reason = "every test program uses another part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::blocking::block_on;
use leasehold_core::store::{
    AcquireReply, AcquireRequest, Held, QueueRequest, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest,
    SwapReply, SwapRequest, Then, Ticket,
};
use leasehold_core::{Clock, Error, FencingToken, Label, Moment, Name, OwnerToken, Store, SystemEntropy};
use leasehold_sqlite::{BootId, Environment, SqliteOptions, SqliteStore};

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// As late as anything may be on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(5);
pub(crate) const POLL: Duration = Duration::from_millis(50);

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn owner(label: &str) -> OwnerToken {
    OwnerToken::generate(&SystemEntropy, &Label::new(label).unwrap()).unwrap()
}

pub(crate) fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, SqliteOptions::default()).unwrap()
}

pub(crate) fn ask(store: &SqliteStore, name: &Name, owner: &OwnerToken) -> Result<AcquireReply, Error> {
    block_on(store.acquire(AcquireRequest { name, owner, ttl: TTL, queue: None, not_after: Moment::NEVER }))
}

/// Takes the name, keeps a record of it for this long, and gives it back.
pub(crate) fn keep_record(store: &SqliteStore, name: &Name, retain: Duration) {
    let me = owner("recorder");
    take(store, name, &me);
    let current = record(store, name);
    let (expected, then) = (current.as_deref(), Then::Release { keep_for: None });
    let swap = SwapRequest { name, owner: &me, expected, record: b"record", retain, then };
    assert_eq!(block_on(store.swap_record(swap)).unwrap(), SwapReply::Swapped { handed_over: false });
}

pub(crate) fn record(store: &SqliteStore, name: &Name) -> Option<Vec<u8>> {
    block_on(store.read_record(name)).unwrap()
}

pub(crate) fn take(store: &SqliteStore, name: &Name, owner: &OwnerToken) -> FencingToken {
    match ask(store, name, owner) {
        Ok(AcquireReply::Granted { fencing_token }) => fencing_token,
        other => panic!("{name} was not granted: {other:?}"),
    }
}

pub(crate) fn queue(
    store: &SqliteStore,
    name: &Name,
    owner: &OwnerToken,
    ticket: Option<Ticket>,
) -> AcquireReply {
    let queue = Some(QueueRequest { ticket, poll_interval: POLL });
    let request = AcquireRequest { name, owner, ttl: TTL, queue, not_after: Moment::NEVER };
    block_on(store.acquire(request)).unwrap()
}

pub(crate) fn queued(store: &SqliteStore, name: &Name, owner: &OwnerToken, ticket: Option<Ticket>) -> Held {
    match queue(store, name, owner, ticket) {
        AcquireReply::Held(held) => held,
        granted @ AcquireReply::Granted { .. } => panic!("{granted:?}"),
    }
}

pub(crate) fn release(store: &SqliteStore, name: &Name, owner: &OwnerToken) -> Result<ReleaseReply, Error> {
    block_on(store.release(ReleaseRequest { name, owner, keep_for: None }))
}

pub(crate) fn renew(store: &SqliteStore, name: &Name, owner: &OwnerToken) -> Result<RenewReply, Error> {
    let request = RenewRequest { name: name.clone(), owner: owner.clone(), ttl: TTL };
    block_on(store.renew(&[request])).remove(0)
}

/// A clock, a boot and a wall clock that stand still until they are told otherwise.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) boot: BootId,
    since_boot_us: Arc<AtomicU64>,
    wall_us: Arc<AtomicU64>,
}

impl World {
    pub(crate) fn new(boot: &str, since_boot: Duration, wall: Duration) -> Self {
        let us = |duration: Duration| Arc::new(AtomicU64::new(u64::try_from(duration.as_micros()).unwrap()));
        Self { boot: BootId::new(boot), since_boot_us: us(since_boot), wall_us: us(wall) }
    }

    pub(crate) fn pass(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap();
        self.since_boot_us.fetch_add(us, Ordering::SeqCst);
        self.wall_us.fetch_add(us, Ordering::SeqCst);
    }

    pub(crate) fn set_wall(&self, wall: Duration) {
        self.wall_us.store(u64::try_from(wall.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn options(&self) -> SqliteOptions {
        let wall_us = Arc::clone(&self.wall_us);
        let environment = Environment {
            clock: Arc::new(self.clone()),
            boot_id: self.boot.clone(),
            wall_clock: Arc::new(move || Duration::from_micros(wall_us.load(Ordering::SeqCst))),
            clock_offset_ns: 0,
        };
        SqliteOptions { environment: Some(environment), ..SqliteOptions::default() }
    }

    pub(crate) fn open(&self, path: &Path) -> SqliteStore {
        SqliteStore::open(path, self.options()).unwrap()
    }
}

impl Clock for World {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_micros(self.since_boot_us.load(Ordering::SeqCst)))
    }
}

/// Which part a child process plays, and the file it plays it on.
const ROLE: &str = "LEASEHOLD_TEST_ROLE";
const FILE: &str = "LEASEHOLD_TEST_FILE";

/// The role of this process, if it is a child of a test.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(FILE)?.into()))
}

/// Starts the test `entry` of this program as another process, in a role.
pub(crate) fn actor(entry: &str, role: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([entry, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FILE, file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// A child that is killed at the end of its test, however that ends.
pub(crate) struct Actor(pub(crate) Child);

impl Actor {
    pub(crate) fn start(entry: &str, role: &str, file: &Path) -> Self {
        Self(actor(entry, role, file).spawn().unwrap())
    }

    /// What the child printed after this word, once it has ended.
    pub(crate) fn said(&mut self, word: &str) -> Vec<String> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The test harness prints the name of the test on the same line.
        let said = |line: String| line.split_once(word).map(|(_, said)| said.trim().to_owned());
        let said = lines.filter_map(said).collect();
        assert!(self.0.wait().unwrap().success());
        said
    }

    pub(crate) fn kill(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TTL + SLACK, "{what}: not within {:?}", TTL + SLACK);
        std::thread::sleep(Duration::from_millis(5));
    }
}
