//! What the seal costs: the same transaction (read, add 1, write) without it, with a bare upsert of the same row in its
//! place, and with it; on SQLite, PostgreSQL and MariaDB, one connection, one thread.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::time::Duration;

use leasehold::FencingToken;
use leasehold::core::{OwnerToken, SystemEntropy};
use leasehold::seal::{SealTarget, Stamp, mysql, postgres, sqlite};
use leasehold_testkit::databases::{DatabaseKind, MariaDb, Postgres};
use mysql_driver::prelude::Queryable;
use tokio_postgres::types::Type;

use crate::measure::{alternate, median, rate};
use crate::report::Report;

const ROUNDS: usize = 7;
const SPAN: Duration = Duration::from_millis(500);
const TABLES: &str = "CREATE TABLE stock (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL);
    INSERT INTO stock VALUES (7, 0);
    CREATE TABLE bare (resource VARCHAR(100) PRIMARY KEY, fence BIGINT NOT NULL, owner VARCHAR(40) NOT NULL);";

type Done = Result<(), Box<dyn Error>>;

pub(crate) fn run() -> Done {
    let mut report = Report::new(
        "seal",
        "A transaction that reads a row, adds 1 and writes it: with plain statements, with a bare upsert of a guard \
         row before them, and sealed. Transactions per second, one connection. That the seal takes one round trip, or \
         none of its own beside the first read, is counted on the wire by a test (round_trips.rs of leasehold-seal).",
    );
    let owner = OwnerToken::generate(&SystemEntropy, &leasehold::Label::new("bench")?)?;
    let fence = FencingToken::new(1_700_000_000_000_000).ok_or("no token")?;
    let stamp = Stamp::new("stock:7", fence, &owner, "lock:")?;
    sqlite_rows(&mut report, &stamp)?;
    if DatabaseKind::Postgres.is_to_be_tested("seal") {
        postgres_rows(&mut report, &stamp)?;
    }
    if DatabaseKind::MariaDb.is_to_be_tested("seal") {
        mariadb_rows(&mut report, &stamp)?;
    }
    report.save()
}

/// Runs the methods side by side; the third is the bare upsert, the fourth the seal.
fn compare(
    report: &mut Report,
    database: &str,
    methods: &mut [(&str, u32, &mut dyn FnMut() -> Done)],
) -> Done {
    let failed = Cell::new(0_u32);
    let mut measured: Vec<_> = methods
        .iter_mut()
        .map(|(_, _, run)| || rate(SPAN, || failed.set(failed.get() + u32::from(run().is_err()))))
        .collect();
    let mut measured: Vec<&mut dyn FnMut() -> f64> =
        measured.iter_mut().map(|method| method as &mut dyn FnMut() -> f64).collect();
    let figures: Vec<f64> = alternate(ROUNDS, &mut measured).iter().map(|rates| median(rates)).collect();
    if failed.get() > 0 {
        return Err(format!("{} transactions failed: the figures say nothing", failed.get()).into());
    }
    let head = ["", "round trips", "per second", "each", "ratio to plain"];
    let mut rows = vec![
        std::iter::once(database).chain(head.into_iter().skip(1)).map(str::to_owned).collect::<Vec<_>>(),
    ];
    for ((name, trips, _), rate) in methods.iter().zip(&figures) {
        let trips = if *trips == 0 { "-".to_owned() } else { trips.to_string() };
        rows.push(vec![
            (*name).to_owned(),
            trips,
            format!("{rate:.0}"),
            format!("{:.1} µs", 1e6 / rate),
            format!("{:.2}", rate / figures[0]),
        ]);
    }
    report.table(&rows);
    report.line(&format!(
        "- {database}: the seal is one statement more; sealed {:.2} × the rate with the bare upsert.",
        figures[3] / figures[2]
    ));
    report.line("");
    Ok(())
}

const UPSERT: &str = "INSERT INTO bare (resource, fence, owner) VALUES ($1, $2, $3) ON CONFLICT (resource) DO UPDATE \
     SET fence = excluded.fence, owner = excluded.owner WHERE bare.fence < excluded.fence \
     OR (bare.fence = excluded.fence AND bare.owner = excluded.owner)";

fn sqlite_rows(report: &mut Report, stamp: &Stamp) -> Done {
    let folder = tempfile::tempdir()?;
    let connection = rusqlite::Connection::open(folder.path().join("shop.db"))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")?;
    connection.execute_batch(sqlite::SCHEMA)?;
    connection.execute_batch(TABLES)?;
    let connection = RefCell::new(connection);
    let (resource, fence, owner, _) = stamp.parameters();
    let upsert = UPSERT.replace('$', "?");
    let work = |tx: &rusqlite::Transaction<'_>| -> Done {
        let amount: i64 =
            tx.prepare_cached("SELECT amount FROM stock WHERE id = 7")?.query_row((), |row| row.get(0))?;
        tx.prepare_cached("UPDATE stock SET amount = ?1 WHERE id = 7")?.execute([amount + 1])?;
        Ok(())
    };
    let transaction = |first: &dyn Fn(&rusqlite::Transaction<'_>) -> Done| -> Done {
        let mut connection = connection.borrow_mut();
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        first(&tx)?;
        work(&tx)?;
        Ok(tx.commit()?)
    };
    compare(
        report,
        "SQLite",
        &mut [
            ("plain, BEGIN IMMEDIATE", 0, &mut || transaction(&|_| Ok(()))),
            ("the same", 0, &mut || transaction(&|_| Ok(()))),
            ("with a bare upsert", 0, &mut || {
                transaction(&|tx| {
                    tx.prepare_cached(&upsert)?.execute((resource, fence, owner))?;
                    Ok(())
                })
            }),
            ("sealed", 0, &mut || transaction(&|tx| Ok(tx.seal_with(Ok(stamp.clone()))?))),
        ],
    )
}

fn postgres_rows(report: &mut Report, stamp: &Stamp) -> Done {
    let server = Postgres::shared();
    let url = server.url("bench")?;
    server.psql("bench", postgres::SCHEMA)?;
    server.psql("bench", TABLES)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&url, tokio_postgres::NoTls))?;
    runtime.spawn(connection);
    let client = RefCell::new(client);
    let transaction = |way: &str| -> Done {
        let mut client = client.borrow_mut();
        runtime.block_on(async {
            let tx = client.transaction().await?;
            let read = "SELECT amount FROM stock WHERE id = 7";
            let rows = match way {
                "for update" => tx.query_typed(&format!("{read} FOR UPDATE"), &[]).await?,
                "along" => {
                    let (sealed, rows) =
                        tokio::join!(tx.seal_with(Ok(stamp.clone())), tx.query_typed(read, &[]));
                    sealed?;
                    rows?
                }
                _ => {
                    let (resource, fence, owner, _) = stamp.parameters();
                    match way {
                        "bare" => {
                            let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
                                [(&resource, Type::VARCHAR), (&fence, Type::INT8), (&owner, Type::VARCHAR)];
                            tx.execute_typed(UPSERT, &parameters).await?;
                        }
                        "sealed" => tx.seal_with(Ok(stamp.clone())).await?,
                        _ => {}
                    }
                    tx.query_typed(read, &[]).await?
                }
            };
            let amount = rows.first().ok_or("no row")?.get::<_, i64>(0) + 1;
            tx.execute_typed("UPDATE stock SET amount = $1 WHERE id = 7", &[(&amount, Type::INT8)]).await?;
            Ok(tx.commit().await?)
        })
    };
    compare(
        report,
        "PostgreSQL",
        &mut [
            ("plain, READ COMMITTED", 4, &mut || transaction("plain")),
            ("SELECT … FOR UPDATE", 4, &mut || transaction("for update")),
            ("with a bare upsert", 5, &mut || transaction("bare")),
            ("sealed", 5, &mut || transaction("sealed")),
            ("sealed, sent along with the read", 4, &mut || transaction("along")),
        ],
    )
}

fn mariadb_rows(report: &mut Report, stamp: &Stamp) -> Done {
    let server = MariaDb::shared();
    let url = server.url("bench")?;
    server.client("bench", mysql::SCHEMA)?;
    server.client("bench", TABLES)?;
    let connection = RefCell::new(mysql_driver::Conn::new(mysql_driver::Opts::from_url(&url)?)?);
    let transaction = |way: &str| -> Done {
        let mut connection = connection.borrow_mut();
        let (resource, fence, owner, _) = stamp.parameters();
        connection.query_drop("START TRANSACTION")?;
        match way {
            "bare" => connection.exec_drop(
                "INSERT INTO bare (resource, fence, owner) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE \
                 fence = IF(fence < VALUES(fence), VALUES(fence), fence), owner = VALUES(owner)",
                (resource, fence, owner),
            )?,
            "sealed" => connection.exec_drop(mysql::SEAL, stamp.parameters())?,
            _ => {}
        }
        let lock = if way == "for update" { " FOR UPDATE" } else { "" };
        let amount: Option<i64> =
            connection.exec_first(format!("SELECT amount FROM stock WHERE id = 7{lock}"), ())?;
        connection.exec_drop("UPDATE stock SET amount = ? WHERE id = 7", (amount.ok_or("no row")? + 1,))?;
        Ok(connection.query_drop("COMMIT")?)
    };
    compare(
        report,
        "MariaDB",
        &mut [
            ("plain", 4, &mut || transaction("plain")),
            ("SELECT … FOR UPDATE", 4, &mut || transaction("for update")),
            ("with a bare upsert", 5, &mut || transaction("bare")),
            ("sealed", 5, &mut || transaction("sealed")),
        ],
    )
}
