//! Acquire and release of one name that nobody else wants, on one thread: the store beside the two bare SQL
//! statements that a lock in a SQLite file cannot do without. Then what a short command pays: opening the file,
//! one pair, closing it.
//!
//! `cargo bench -p leasehold-sqlite --bench pair`; rounds alternate, medians count. `-- DIRECTORY` chooses
//! where the files lie.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use leasehold_core::store::{AcquireReply, AcquireRequest, ReleaseReply, ReleaseRequest};
use leasehold_core::{Label, Moment, Name, OwnerToken, Store, SystemEntropy};
use leasehold_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::{Connection, params};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);
const OPENED: usize = 201;
const TTL: Duration = Duration::from_secs(30);

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let directory = match directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let token = OwnerToken::generate(&SystemEntropy, &Label::new("bench:1")?)?;
    let name = Name::new("order:1001")?;
    let bare = bare_connection(&directory.path().join("bare.db"))?;
    let store = SqliteStore::open(directory.path().join("store.db"), SqliteOptions::default())?;
    let mut rates = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        rates.0.push(measure(|| bare_pair(&bare, &name, &token))?);
        rates.1.push(measure(|| store_pair(&store, &name, &token))?);
    }
    let (bare, ours) = (Rate::median(&rates.0), Rate::median(&rates.1));
    println!(
        "bare statements  {:>8.0} pairs/s  {:>6.1} µs of this thread's processor time each",
        bare.pairs, bare.cpu_us
    );
    println!("leasehold        {:>8.0} pairs/s  {:>6.1} µs", ours.pairs, ours.cpu_us);
    println!(
        "ratio            {:>8.2}  (at least 0.70 is wanted)  {:.2}",
        ours.pairs / bare.pairs,
        bare.cpu_us / ours.cpu_us
    );
    drop(store);
    let path = directory.path().join("store.db");
    let mut opened: Vec<f64> = Vec::new();
    for _ in 0..OPENED {
        let started = Instant::now();
        let store = SqliteStore::open(&path, SqliteOptions::default())?;
        store_pair(&store, &name, &token)?;
        block_on(store.close());
        opened.push(started.elapsed().as_secs_f64() * 1e6);
    }
    println!("open, pair, close {:>7.0} µs, the median of {OPENED}", median(&mut opened));
    Ok(())
}

fn bare_connection(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;
         CREATE TABLE lease(name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID;",
    )?;
    Ok(connection)
}

fn bare_pair(connection: &Connection, name: &Name, token: &OwnerToken) -> Result<(), AnyError> {
    let now = i64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_micros())?;
    let inserted = connection
        .prepare_cached(
            "INSERT INTO lease VALUES(?1, ?2, ?3) ON CONFLICT(name) \
             DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE expires <= ?4",
        )?
        .execute(params![name.as_str(), token.expose(), now + 30_000_000, now])?;
    let freed = connection
        .prepare_cached("DELETE FROM lease WHERE name = ?1 AND owner = ?2")?
        .execute((name.as_str(), token.expose()))?;
    (inserted == 1 && freed == 1).then_some(()).ok_or_else(|| "the bare statements did nothing".into())
}

fn store_pair(store: &SqliteStore, name: &Name, owner: &OwnerToken) -> Result<(), AnyError> {
    let acquire = AcquireRequest { name, owner, ttl: TTL, queue: None, not_after: Moment::NEVER };
    let AcquireReply::Granted { .. } = block_on(store.acquire(acquire))? else {
        return Err("the name was taken".into());
    };
    match block_on(store.release(ReleaseRequest { name, owner, keep_for: None }))? {
        ReleaseReply::Freed { .. } => Ok(()),
        ReleaseReply::NotHeld => Err("the lease was gone".into()),
    }
}

/// What a round came to. Processor time tells more than the clock on a machine that others use too.
struct Rate {
    pairs: f64,
    cpu_us: f64,
}

impl Rate {
    fn median(rounds: &[Self]) -> Self {
        let of = |part: fn(&Self) -> f64| median(&mut rounds.iter().map(part).collect::<Vec<_>>());
        Self { pairs: of(|round| round.pairs), cpu_us: of(|round| round.cpu_us) }
    }
}

fn cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64() * 1e6
}

fn measure(mut pair: impl FnMut() -> Result<(), AnyError>) -> Result<Rate, AnyError> {
    let (started, cpu_started) = (Instant::now(), cpu_us());
    let mut pairs = 0_u32;
    while started.elapsed() < ROUND {
        for _ in 0..20 {
            pair()?;
        }
        pairs += 20;
    }
    Ok(Rate {
        pairs: f64::from(pairs) / started.elapsed().as_secs_f64(),
        cpu_us: (cpu_us() - cpu_started) / f64::from(pairs),
    })
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    // An operation that runs at once needs no waker of its own.
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
