//! The three databases behind one face, so that every schedule runs on each: a table of counters, and a session
//! that does one step at a time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use ::mysql::prelude::Queryable;
use leasehold_core::{FencingToken, OwnerToken};
use leasehold_seal::{SealError, Stamp, mysql, postgres, sqlite};
use leasehold_testkit::databases::{DatabaseKind, MariaDb, Postgres};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The step of a holder that could not be done.
pub(crate) type Refused = SealError;

/// One connection, and at most one transaction on it.
pub(crate) trait Session: Send {
    fn begin(&mut self);
    fn seal(&mut self, stamp: &Stamp) -> Result<(), Refused>;
    /// The value of a counter.
    fn read(&mut self, counter: u32) -> i64;
    fn write(&mut self, counter: u32, value: i64);
    /// The check that is not enough: writes if no newer token has written; whether it did.
    fn write_checked(&mut self, counter: u32, value: i64, fence: i64) -> bool;
    fn commit(&mut self);
    fn rollback(&mut self);
}

/// A database with the schema of the seal and a table `counters`.
#[derive(Clone)]
pub(crate) enum World {
    Postgres { url: String, schema: String },
    MariaDb { url: String, database: String },
    Sqlite { folder: Arc<TempDir> },
}

const COUNTERS: &str =
    "CREATE TABLE counters (id INTEGER PRIMARY KEY, value BIGINT NOT NULL, lock_token BIGINT NOT NULL)";

/// The async driver needs a runtime; sessions of all tests share one.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
});

/// A name that no other test has.
pub(crate) fn fresh(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{prefix}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs the test on each database this machine has.
pub(crate) fn for_each_database(test: &str, mut body: impl FnMut(&World)) {
    for_each_database_with(test, str::to_owned, &mut body);
}

/// The same with a schema that is changed on its way.
pub(crate) fn for_each_database_with(
    test: &str,
    change: impl Fn(&str) -> String,
    body: &mut dyn FnMut(&World),
) {
    eprintln!("{test}: on sqlite");
    body(&World::sqlite(&change(sqlite::SCHEMA)));
    if DatabaseKind::Postgres.is_to_be_tested(test) {
        eprintln!("{test}: on postgres");
        body(&World::postgres(&change(postgres::SCHEMA)));
    }
    if DatabaseKind::MariaDb.is_to_be_tested(test) {
        eprintln!("{test}: on mariadb");
        body(&World::mariadb(&change(mysql::SCHEMA)));
    }
}

impl World {
    pub(crate) fn sqlite(schema: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let world = Self::Sqlite { folder };
        let connection = world.sqlite_connection();
        connection.execute_batch(schema).unwrap();
        connection.execute_batch(COUNTERS).unwrap();
        world
    }

    pub(crate) fn postgres(schema_of_seal: &str) -> Self {
        let schema = fresh("seal");
        let url = Postgres::shared().url(&schema).unwrap();
        Postgres::shared().psql(&schema, &format!("{schema_of_seal};\n{COUNTERS};")).unwrap();
        Self::Postgres { url, schema }
    }

    pub(crate) fn mariadb(schema: &str) -> Self {
        let database = fresh("seal");
        let url = MariaDb::shared().url(&database).unwrap();
        MariaDb::shared().client(&database, &format!("{schema}\n{COUNTERS};")).unwrap();
        Self::MariaDb { url, database }
    }

    /// Runs a script with the database's own client program, or with the library where that is the client.
    pub(crate) fn script(&self, script: &str) -> Result<String, String> {
        match self {
            Self::Postgres { schema, .. } => {
                Postgres::shared().psql(schema, script).map_err(|e| e.to_string())
            }
            Self::MariaDb { database, .. } => {
                MariaDb::shared().client(database, script).map_err(|e| e.to_string())
            }
            Self::Sqlite { .. } => {
                let connection = self.sqlite_connection();
                connection.execute_batch(script).map(|()| String::new()).map_err(|error| error.to_string())
            }
        }
    }

    /// A connection to the SQLite file.
    pub(crate) fn sqlite_connection(&self) -> Connection {
        let Self::Sqlite { folder } = self else { panic!("not SQLite") };
        let mut connection = Connection::open(folder.path().join("shop.db")).unwrap();
        // Nothing has to survive a power loss here.
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").unwrap();
        connection
            .busy_handler(Some(|tries| {
                std::thread::sleep(std::time::Duration::from_micros(50));
                tries < 400_000
            }))
            .unwrap();
        connection
    }

    /// A session, with counters up to this number at 0.
    pub(crate) fn session(&self) -> Box<dyn Session> {
        match self {
            Self::Postgres { url, .. } => Box::new(PostgresSession(connect_postgres(url))),
            Self::MariaDb { url, .. } => {
                Box::new(MySqlSession(::mysql::Conn::new(::mysql::Opts::from_url(url).unwrap()).unwrap()))
            }
            Self::Sqlite { .. } => Box::new(SqliteSession(self.sqlite_connection())),
        }
    }

    /// Makes the counters 1 to `count`, with value 0.
    pub(crate) fn make_counters(&self, count: u32) {
        for first in (1..=count).step_by(500) {
            let rows: Vec<_> =
                (first..=count.min(first + 499)).map(|counter| format!("({counter}, 0, 0)")).collect();
            self.script(&format!("INSERT INTO counters VALUES {};", rows.join(","))).unwrap();
        }
    }
}

/// A stamp as a holder with this token makes it.
pub(crate) fn stamp(resource: &str, fence: u64) -> Stamp {
    stamp_in(resource, fence, "lock:")
}

pub(crate) fn stamp_in(resource: &str, fence: u64, namespace: &str) -> Stamp {
    let owner = OwnerToken::parse(&format!("MDEyMzQ1Njc4OWFiY2RlZg@holder-{fence}")).unwrap();
    Stamp::new(resource, FencingToken::new(fence).unwrap(), &owner, namespace).unwrap()
}

pub(crate) fn connect_postgres(url: &str) -> tokio_postgres::Client {
    let (client, connection) = RUNTIME.block_on(tokio_postgres::connect(url, tokio_postgres::NoTls)).unwrap();
    RUNTIME.spawn(connection);
    client
}

/// Statements of its own begin and end the transaction, so that a step is one call.
pub(crate) struct PostgresSession(pub(crate) tokio_postgres::Client);

impl PostgresSession {
    fn run(&mut self, statement: &str) {
        RUNTIME.block_on(self.0.batch_execute(statement)).unwrap();
    }
}

impl Session for PostgresSession {
    fn begin(&mut self) {
        self.run("BEGIN");
    }

    fn seal(&mut self, stamp: &Stamp) -> Result<(), Refused> {
        use tokio_postgres::types::Type;
        let (resource, fence, owner, namespace) = stamp.parameters();
        let sealed = RUNTIME.block_on(self.0.query_typed(
            postgres::SEAL,
            &[(&resource, Type::TEXT), (&fence, Type::INT8), (&owner, Type::TEXT), (&namespace, Type::TEXT)],
        ));
        sealed.map(|_| ()).map_err(|error| {
            let said = error.as_db_error().unwrap().clone();
            postgres::error(stamp, said.code().code(), said.detail(), said.to_string().into())
        })
    }

    fn read(&mut self, counter: u32) -> i64 {
        let question = format!("SELECT value FROM counters WHERE id = {counter}");
        RUNTIME.block_on(self.0.query_typed_one(&question, &[])).unwrap().get(0)
    }

    fn write(&mut self, counter: u32, value: i64) {
        self.run(&format!("UPDATE counters SET value = {value} WHERE id = {counter}"));
    }

    fn write_checked(&mut self, counter: u32, value: i64, fence: i64) -> bool {
        let update = format!(
            "UPDATE counters SET value = {value}, lock_token = {fence} WHERE id = {counter} AND lock_token <= {fence}"
        );
        RUNTIME.block_on(self.0.execute_typed(&update, &[])).unwrap() == 1
    }

    fn commit(&mut self) {
        self.run("COMMIT");
    }

    fn rollback(&mut self) {
        self.run("ROLLBACK");
    }
}

pub(crate) struct MySqlSession(pub(crate) ::mysql::Conn);

/// How a driver that this crate does not know is taught to seal.
pub(crate) fn seal_mysql(connection: &mut impl Queryable, stamp: &Stamp) -> Result<(), SealError> {
    connection.exec_drop(mysql::SEAL, stamp.parameters()).map_err(|error| match error {
        ::mysql::Error::MySqlError(said) => {
            mysql::error(stamp, said.code, &said.state, &said.message, said.clone().into())
        }
        other => SealError::Database { source: other.into() },
    })
}

impl Session for MySqlSession {
    fn begin(&mut self) {
        self.0.query_drop("START TRANSACTION").unwrap();
    }

    fn seal(&mut self, stamp: &Stamp) -> Result<(), Refused> {
        seal_mysql(&mut self.0, stamp)
    }

    fn read(&mut self, counter: u32) -> i64 {
        self.0.query_first(format!("SELECT value FROM counters WHERE id = {counter}")).unwrap().unwrap()
    }

    fn write(&mut self, counter: u32, value: i64) {
        self.0.query_drop(format!("UPDATE counters SET value = {value} WHERE id = {counter}")).unwrap();
    }

    fn write_checked(&mut self, counter: u32, value: i64, fence: i64) -> bool {
        self.0
            .query_drop(format!(
                "UPDATE counters SET value = {value}, lock_token = {fence} \
                 WHERE id = {counter} AND lock_token <= {fence}"
            ))
            .unwrap();
        self.0.affected_rows() == 1
    }

    fn commit(&mut self) {
        self.0.query_drop("COMMIT").unwrap();
    }

    fn rollback(&mut self) {
        self.0.query_drop("ROLLBACK").unwrap();
    }
}

pub(crate) struct SqliteSession(pub(crate) Connection);

impl Session for SqliteSession {
    fn begin(&mut self) {
        // Not IMMEDIATE: the seal itself has to be what waits.
        self.0.execute_batch("BEGIN").unwrap();
    }

    fn seal(&mut self, stamp: &Stamp) -> Result<(), Refused> {
        let sealed = self.0.prepare_cached(sqlite::SEAL).unwrap().execute(stamp.parameters());
        sealed.map(|_| ()).map_err(|error| {
            if error.to_string().contains("leasehold: fenced") {
                return SealError::Fenced {
                    resource: stamp.resource().to_owned(),
                    mine: stamp.fence(),
                    newest: FencingToken::MAX,
                };
            }
            SealError::Database { source: error.into() }
        })
    }

    fn read(&mut self, counter: u32) -> i64 {
        let mut read = self.0.prepare_cached("SELECT value FROM counters WHERE id = ?1").unwrap();
        read.query_row([counter], |row| row.get(0)).unwrap()
    }

    fn write(&mut self, counter: u32, value: i64) {
        let mut write = self.0.prepare_cached("UPDATE counters SET value = ?2 WHERE id = ?1").unwrap();
        assert_eq!(write.execute((counter, value)).unwrap(), 1);
    }

    fn write_checked(&mut self, counter: u32, value: i64, fence: i64) -> bool {
        let mut write = self
            .0
            .prepare_cached(
                "UPDATE counters SET value = ?2, lock_token = ?3 WHERE id = ?1 AND lock_token <= ?3",
            )
            .unwrap();
        write.execute((counter, value, fence)).unwrap() == 1
    }

    fn commit(&mut self) {
        self.0.execute_batch("COMMIT").unwrap();
    }

    fn rollback(&mut self) {
        if !self.0.is_autocommit() {
            self.0.execute_batch("ROLLBACK").unwrap();
        }
    }
}
