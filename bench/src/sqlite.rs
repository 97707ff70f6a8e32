//! The embedded store: acquire and release of one name through the whole client, beside the two bare SQL
//! statements that a lock in a SQLite file cannot do without, on one thread.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold::blocking::Attempt;
use leasehold::{Client, Released};
use rusqlite::{Connection, params};

use crate::measure::{alternate, median, rate};
use crate::report::Report;

const ROUNDS: usize = 9;
const SPAN: Duration = Duration::from_millis(700);
const TARGET: f64 = 0.7;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let bare = bare_connection(&folder.path().join("bare.db"))?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let client = leasehold::blocking::block_on(Client::connect(&url))?;
    let lock = client.lock("order:1001")?.blocking();
    let failed = std::cell::Cell::new(0_u64);
    let check = |done: bool| failed.set(failed.get() + u64::from(!done));
    let figures = alternate(
        ROUNDS,
        &mut [&mut || rate(SPAN, || check(bare_pair(&bare).is_ok())), &mut || {
            rate(SPAN, || {
                let freed = match lock.try_acquire() {
                    Ok(Attempt::Acquired(guard)) => matches!(guard.release(), Ok(Released::Freed)),
                    _ => false,
                };
                check(freed);
            })
        }],
    );
    if failed.get() > 0 {
        return Err(format!("{} pairs failed: the figures say nothing", failed.get()).into());
    }
    let (bare, ours) = (median(&figures[0]), median(&figures[1]));
    let mut report =
        Report::new("sqlite", "Acquire and release of one free name on the embedded store, one thread.");
    report.table(&[
        vec!["method".into(), "pairs per second".into(), "per pair".into(), "ratio".into()],
        vec!["two bare SQL statements (rusqlite)".into(), format!("{bare:.0}"), micros(bare), "1.00".into()],
        vec![
            "leasehold, blocking client".into(),
            format!("{ours:.0}"),
            micros(ours),
            format!("{:.2}", ours / bare),
        ],
    ]);
    report.target(
        &format!("at least {TARGET} × the bare statements: {:.2}", ours / bare),
        ours / bare >= TARGET,
    );
    report.save()
}

fn micros(per_second: f64) -> String {
    format!("{:.1} µs", 1e6 / per_second)
}

fn bare_connection(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;
         CREATE TABLE lease(name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID;",
    )?;
    Ok(connection)
}

fn bare_pair(connection: &Connection) -> Result<(), Box<dyn Error>> {
    const OWNER: &str = "MDEyMzQ1Njc4OWFiY2RlZg@bench:1";
    let now = i64::try_from(SystemTime::UNIX_EPOCH.elapsed()?.as_micros())?;
    let taken = connection
        .prepare_cached(
            "INSERT INTO lease VALUES(?1, ?2, ?3) ON CONFLICT(name) \
             DO UPDATE SET owner = excluded.owner, expires = excluded.expires WHERE expires <= ?4",
        )?
        .execute(params!["order:1001", OWNER, now + 30_000_000, now])?;
    let freed = connection
        .prepare_cached("DELETE FROM lease WHERE name = ?1 AND owner = ?2")?
        .execute(params!["order:1001", OWNER])?;
    (taken == 1 && freed == 1).then_some(()).ok_or_else(|| "the bare statements did nothing".into())
}
