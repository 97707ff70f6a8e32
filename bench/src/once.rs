//! Run once: the first call of an operation and a later one, through the whole client, beside the statements that a
//! record under a lease cannot do without, and beside a lock.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use leasehold::blocking::{Attempt, block_on};
use leasehold::{Client, OnceOutcome, Released};
use leasehold_testkit::servers::{Monitor, RedisServer, ServerKind};
use redis::aio::MultiplexedConnection;
use rusqlite::{Connection, params};

use crate::measure::{alternate, median};
use crate::report::Report;

type AnyError = Box<dyn Error>;

const ROUNDS: usize = 9;
const CALLS: u32 = 400;
const OWNER: &str = "MDEyMzQ1Njc4OWFiY2RlZg@bench:1";
const STARTED: &str = "1 started 1 1764440000000000 -";
const DONE: &str = "1 done 1 1764440000000000 -\nJD014600001";
const TAKE: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0";
const WRITE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                     redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) return 1";
const END: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                   redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) redis.call('DEL', KEYS[1]) return 1";

pub(crate) fn run() -> Result<(), AnyError> {
    let mut report = Report::new(
        "once",
        "An operation is done once: the first call, and a later one. Microseconds per call, medians of the rounds.",
    );
    sqlite(&mut report)?;
    redis_server(&mut report)?;
    report.save()
}

/// Our calls; each has names of its own.
struct Ours {
    client: Client,
    used: u64,
}

impl Ours {
    fn pair(&self) -> Result<(), AnyError> {
        match self.client.lock("pair")?.blocking().try_acquire()? {
            Attempt::Acquired(guard) => match guard.release()? {
                Released::Freed => Ok(()),
                Released::AlreadyLost => Err("the lease was lost".into()),
            },
            Attempt::Busy(busy) => Err(busy.to_string().into()),
        }
    }

    fn first(&mut self) -> Result<(), AnyError> {
        self.used += 1;
        let once = self.client.once(format!("ship:{}", self.used))?.retain(Duration::from_secs(60));
        match once.blocking().run(|_| Ok::<_, std::io::Error>("JD014600001"))? {
            OnceOutcome::Ran(_) => Ok(()),
            done @ OnceOutcome::AlreadyDone(_) => Err(format!("not the first: {done:?}").into()),
        }
    }

    fn later(&self) -> Result<(), AnyError> {
        match self.client.once("ship:1")?.blocking().run(|_| Ok::<_, std::io::Error>("JD014600001"))? {
            OnceOutcome::AlreadyDone(_) => Ok(()),
            ran @ OnceOutcome::Ran(_) => Err(format!("not done before: {ran:?}").into()),
        }
    }
}

/// Microseconds of one call.
fn micros(mut call: impl FnMut() -> Result<(), AnyError>) -> f64 {
    let started = Instant::now();
    for _ in 0..CALLS {
        if let Err(error) = call() {
            eprintln!("{error}");
            return f64::NAN;
        }
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
}

fn table(
    report: &mut Report,
    store: &str,
    requests: [&str; 5],
    figures: &[Vec<f64>],
) -> Result<(), AnyError> {
    if figures.iter().flatten().any(|figure| figure.is_nan()) {
        return Err("a call failed: the figures say nothing".into());
    }
    let medians: Vec<f64> = figures.iter().map(|figures| median(figures)).collect();
    let row = |place: usize, what: &str, beside: usize| {
        vec![
            what.to_owned(),
            requests[place].to_owned(),
            format!("{:.1}", medians[place]),
            format!("{:.2}", medians[place] / medians[beside]),
        ]
    };
    report.table(&[
        vec![store.to_owned(), "requests".into(), "µs".into(), "× raw".into()],
        row(0, "first call, raw statements", 0),
        row(1, "first call, leasehold", 0),
        row(2, "later call, raw statement", 2),
        row(3, "later call, leasehold", 2),
        row(4, "a lock, leasehold: acquire and release", 0),
    ]);
    Ok(())
}

fn sqlite(report: &mut Report) -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let bare = bare_connection(&folder.path().join("bare.db"))?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let ours = std::cell::RefCell::new(Ours { client: block_on(Client::connect(&url))?, used: 0 });
    ours.borrow_mut().first()?;
    let mut number = 0;
    let figures = alternate(
        ROUNDS,
        &mut [
            &mut || {
                micros(|| {
                    number += 1;
                    bare_first(&bare, &format!("ship:{number}"))
                })
            },
            &mut || micros(|| ours.borrow_mut().first()),
            &mut || micros(|| bare_later(&bare, "ship:1").map(drop)),
            &mut || micros(|| ours.borrow().later()),
            &mut || micros(|| ours.borrow().pair()),
        ],
    );
    table(report, "SQLite", ["4", "4", "1", "1", "2"], &figures)
}

fn bare_connection(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;
         CREATE TABLE lease(name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID;
         CREATE TABLE record(name TEXT PRIMARY KEY, record TEXT NOT NULL, ends INTEGER NOT NULL) WITHOUT ROWID;",
    )?;
    Ok(connection)
}

fn now() -> Result<i64, AnyError> {
    Ok(i64::try_from(SystemTime::UNIX_EPOCH.elapsed()?.as_micros())?)
}

fn bare_later(connection: &Connection, name: &str) -> Result<Option<String>, AnyError> {
    let mut statement =
        connection.prepare_cached("SELECT record FROM record WHERE name = ?1 AND ends > ?2")?;
    Ok(statement.query_map(params![name, now()?], |row| row.get(0))?.next().transpose()?)
}

fn bare_first(connection: &Connection, name: &str) -> Result<(), AnyError> {
    let write = |record: &str| -> Result<usize, AnyError> {
        let ends = now()? + 60_000_000;
        let written = connection
            .prepare_cached(
                "INSERT OR REPLACE INTO record SELECT ?1, ?2, ?3 FROM lease WHERE name = ?1 AND owner = ?4",
            )?
            .execute(params![name, record, ends, OWNER])?;
        Ok(written)
    };
    let before = bare_later(connection, name)?;
    let now = now()?;
    let taken = connection
        .prepare_cached(
            "INSERT INTO lease VALUES(?1, ?2, ?3) ON CONFLICT(name) \
             DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE expires <= ?4",
        )?
        .execute(params![name, OWNER, now + 30_000_000, now])?;
    let started = write(STARTED)?;
    connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let done = write(DONE)?;
    let freed = connection
        .prepare_cached("DELETE FROM lease WHERE name = ?1 AND owner = ?2")?
        .execute(params![name, OWNER])?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    let as_expected = before.is_none() && [taken, started, done, freed] == [1; 4];
    as_expected.then_some(()).ok_or_else(|| "the bare statements did nothing".into())
}

fn redis_server(report: &mut Report) -> Result<(), AnyError> {
    let server = RedisServer::start(ServerKind::Redis7)?;
    let ours = std::cell::RefCell::new(Ours { client: block_on(Client::connect(&server.url()))?, used: 0 });
    ours.borrow_mut().first()?;
    let requests = count_requests(&server, &ours)?;
    // The driver of this connection runs on a thread of its own, as that of a client does.
    let driver = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let raw = driver.block_on(driver.spawn(Raw::connect(server.url())))??;
    let raw = std::cell::RefCell::new(raw);
    let mut number = 0;
    raw.borrow_mut().first("raw:done")?;
    let figures = alternate(
        ROUNDS,
        &mut [
            &mut || {
                micros(|| {
                    number += 1;
                    raw.borrow_mut().first(&format!("raw:{number}"))
                })
            },
            &mut || micros(|| ours.borrow_mut().first()),
            &mut || micros(|| raw.borrow_mut().later("raw:done").map(drop)),
            &mut || micros(|| ours.borrow().later()),
            &mut || micros(|| ours.borrow().pair()),
        ],
    );
    let [first, later, pair] = &requests.map(|count| count.to_string());
    table(report, "Redis", ["4", first, "1", later, pair], &figures)?;
    report.target(
        &format!("first call: two requests more than a lock at most ({} and {})", requests[0], requests[2]),
        requests[0] <= requests[2] + 2,
    );
    report.target(&format!("later calls: one request ({})", requests[1]), requests[1] == 1);
    Ok(())
}

/// Requests of a first call, a later one and a lock, as MONITOR sees them.
fn count_requests(server: &RedisServer, ours: &std::cell::RefCell<Ours>) -> Result<[usize; 3], AnyError> {
    ours.borrow().pair()?;
    let monitor = server.monitor()?;
    let count = |monitor: &Monitor| -> Result<usize, AnyError> {
        let heartbeat = ["PING".to_owned(), "TIME".to_owned()];
        let requests =
            monitor.requests()?.into_iter().filter(|line| !heartbeat.contains(&line.command())).count();
        monitor.clear()?;
        Ok(requests)
    };
    ours.borrow_mut().first()?;
    let first = count(&monitor)?;
    ours.borrow().later()?;
    let later = count(&monitor)?;
    ours.borrow().pair()?;
    Ok([first, later, count(&monitor)?])
}

/// The statements that a record under a lease cannot do without.
struct Raw {
    connection: MultiplexedConnection,
    scripts: [String; 3],
}

impl Raw {
    async fn connect(url: String) -> redis::RedisResult<Self> {
        // No timeout of its own: that would need a timer of the caller's runtime.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut scripts = Vec::new();
        for text in [TAKE, WRITE, END] {
            scripts.push(redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?);
        }
        let scripts = scripts.try_into().unwrap_or_default();
        Ok(Self { connection, scripts })
    }

    fn later(&mut self, name: &str) -> Result<Option<String>, AnyError> {
        let mut get = redis::cmd("GET");
        get.arg(format!("once:{name}"));
        Ok(block_on(get.query_async(&mut self.connection))?)
    }

    fn first(&mut self, name: &str) -> Result<(), AnyError> {
        let (lock, record) = (format!("lock:{name}"), format!("once:{name}"));
        let before = self.later(name)?;
        let [take, write, end] = self.scripts.each_ref().map(|hash| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(hash);
            call
        });
        let (mut take, mut write, mut end) = (take, write, end);
        take.arg(1).arg(&lock).arg(OWNER).arg(30_000);
        write.arg(2).arg(&lock).arg(&record).arg(OWNER).arg(STARTED).arg(60_000);
        end.arg(2).arg(&lock).arg(&record).arg(OWNER).arg(DONE).arg(60_000);
        for call in [take, write, end] {
            let done: u8 = block_on(call.query_async(&mut self.connection))?;
            if done != 1 {
                return Err("a raw statement did nothing".into());
            }
        }
        before.is_none().then_some(()).ok_or_else(|| "not the first".into())
    }
}
