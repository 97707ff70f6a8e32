//! One connection to the file, and its transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use leasehold_core::{Error, ErrorKind, Namespace};
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};

use crate::busy::Patience;
use crate::environment::{Environment, Micros};
use crate::failure::Failure;
use crate::file::{Identity, StoreFile};
use crate::options::SqliteOptions;
use crate::schema;

/// The log is moved into the file from this length on, in pages. A longer log makes every process
/// that starts when no other runs read it again; a shorter one waits for the disk more often.
pub(crate) const LOG_PAGES: i32 = 1_000;
/// What is kept of the log's file once it begins anew, in bytes: twice the length at which that is due.
const LOG_KEPT: u32 = 2 * LOG_PAGES.unsigned_abs() * schema::PAGE_BYTES;
/// More than there are statements in this crate, so that each is compiled once per connection.
const STATEMENTS: usize = 64;

/// An open file.
pub(crate) struct Database {
    pub(crate) connection: Connection,
    pub(crate) environment: Environment,
    pub(crate) namespace: Namespace,
    file: StoreFile,
    identity: Identity,
    /// Pages in the log after the last commit of this connection.
    log_pages: Arc<AtomicI32>,
}

/// What a caller lets an attempt do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Nothing that takes time: another attempt on the store's thread follows if need be.
    Quick,
    /// Wait for the disk.
    Patient,
}

impl Database {
    /// Opens the file, creating it if it is missing.
    pub(crate) fn open(file: &StoreFile, options: &SqliteOptions) -> Result<Self, Error> {
        let environment = match &options.environment {
            Some(environment) => environment.clone(),
            None => Environment::system()?,
        };
        let created = file.prepare(options.create, options.any_file_system)?;
        Self::connect(file, options, environment).map_err(|failure| {
            if created {
                file.remove_if_empty();
            }
            failure.into_error(&file.path)
        })
    }

    fn connect(file: &StoreFile, options: &SqliteOptions, environment: Environment) -> Result<Self, Failure> {
        let before = file.identity();
        let mut patience = Patience::lasting(options.command_timeout);
        let mut connection = loop {
            match set_up(file) {
                Err(failure) if failure.is_busy() && patience.sleep() => {}
                outcome => break outcome?,
            }
        };
        let identity = before.filter(|before| file.identity() == Some(*before)).ok_or_else(|| moved(file))?;
        let log_pages = Arc::new(AtomicI32::new(0));
        let pages = Arc::clone(&log_pages);
        connection.wal_hook(Some(move |_: &mut Wal, in_log| {
            pages.store(in_log, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self {
            connection,
            environment,
            namespace: options.namespace.clone(),
            file: file.clone(),
            identity,
            log_pages,
        })
    }

    /// Whether the path still leads to the open file. If it does not, leases in it exclude nobody.
    pub(crate) fn is_in_place(&self) -> bool {
        self.file.identity() == Some(self.identity)
    }

    /// Pages in the log, as far as this connection's last commit knows.
    pub(crate) fn log_pages(&self) -> i32 {
        self.log_pages.load(Ordering::Relaxed)
    }

    /// Does the body in one write transaction. Nothing is changed if it fails.
    pub(crate) fn write<T>(
        &self,
        pace: Pace,
        body: impl Fn(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match self.transaction(false, &body) {
            Err(Failure::ReserveFirst) if pace == Pace::Patient => {
                self.connection.execute_batch("PRAGMA synchronous=FULL")?;
                let outcome = self.transaction(true, &body);
                self.connection.execute_batch("PRAGMA synchronous=NORMAL")?;
                outcome
            }
            outcome => outcome,
        }
    }

    fn transaction<T>(
        &self,
        durable: bool,
        body: &impl Fn(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.run("BEGIN IMMEDIATE")?;
        let transaction = Transaction { database: self, now: self.environment.now(), durable };
        let outcome = body(&transaction).and_then(|value| self.commit().map(|()| value));
        if outcome.is_err() {
            self.roll_back();
        }
        outcome
    }

    fn commit(&self) -> Result<(), Failure> {
        self.run("COMMIT").map_err(Failure::of_commit)
    }

    /// Does the body in one read transaction, so that its statements see the same moment.
    pub(crate) fn read<T>(
        &self,
        body: impl Fn(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.run("BEGIN")?;
        let outcome = body(&Transaction { database: self, now: self.environment.now(), durable: false });
        self.roll_back();
        outcome
    }

    fn run(&self, sql: &'static str) -> Result<(), Failure> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Some failures end the transaction by themselves.
    fn roll_back(&self) {
        if !self.connection.is_autocommit()
            && let Err(failure) = self.run("ROLLBACK")
        {
            tracing::warn!(store = %self.file.path.display(), ?failure, "a transaction could not be rolled back");
        }
    }
}

impl Drop for Database {
    /// Whoever opens the file while nobody else has it open reads the whole log, and forgets how much of it is
    /// in the file already. So a process that leaves a long log behind empties it, unless others are at it.
    fn drop(&mut self) {
        if self.log_pages() >= LOG_PAGES
            && let Err(failure) = checkpoint(&self.connection, "TRUNCATE")
        {
            tracing::debug!(store = %self.file.path.display(), ?failure, "the log was left as it is");
        }
    }
}

/// Moves the log into the file as far as others let it, and tells how long the log is.
pub(crate) fn checkpoint(connection: &Connection, mode: &str) -> Result<i32, Failure> {
    Ok(connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| row.get(1))?)
}

/// A transaction, and the moment it got its turn.
pub(crate) struct Transaction<'a> {
    pub(crate) database: &'a Database,
    pub(crate) now: Micros,
    /// Whether the commit waits for the disk.
    pub(crate) durable: bool,
}

impl Transaction<'_> {
    pub(crate) fn connection(&self) -> &Connection {
        &self.database.connection
    }

    pub(crate) fn namespace(&self) -> &str {
        self.database.namespace.as_str()
    }

    pub(crate) fn boot(&self) -> &[u8] {
        self.database.environment.boot_id.as_bytes()
    }
}

/// A connection to a file that has our tables.
fn set_up(file: &StoreFile) -> Result<Connection, Failure> {
    let connection = connect(file)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(Failure::Refused(Error::new(
            ErrorKind::Denied,
            format!("sqlite:{}: the file cannot be written by this user", file.path.display()),
        )));
    }
    schema::ensure(&connection, &file.path)?;
    Ok(connection)
}

/// A bare connection with our settings. It waits for nobody: callers decide how to wait.
pub(crate) fn connect(file: &StoreFile) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&file.path, flags)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.busy_timeout(std::time::Duration::ZERO)?;
    // The last process to leave would otherwise move the log into the file, which every short command would pay
    // for; and a child that inherited the connection by fork would do so under its parent's feet.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.execute_batch(&format!(
        "PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0; PRAGMA journal_size_limit={LOG_KEPT};"
    ))?;
    Ok(connection)
}

fn moved(file: &StoreFile) -> Failure {
    Failure::Refused(Error::new(
        ErrorKind::Unavailable,
        format!("sqlite:{}: the file was replaced while it was being opened: try again", file.path.display()),
    ))
}
