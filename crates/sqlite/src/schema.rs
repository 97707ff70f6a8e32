//! The tables, and how a file comes to have them: in one transaction, however many processes start at once.

use std::path::Path;

use leasehold_core::Error;
use rusqlite::Connection;

use crate::failure::Failure;

/// `LHLD`, in the header of every file of ours.
pub(crate) const APPLICATION_ID: u32 = 0x4C48_4C44;
/// The version of the tables below, kept in `user_version`.
pub(crate) const VERSION: u32 = 1;

/// A quarter of what SQLite takes by default: every commit writes whole pages, and the rows are short.
pub(crate) const PAGE_BYTES: u32 = 1_024;

/// Moments are microseconds since boot and count only together with the boot they were written in.
const TABLES: &str = "
    -- Taken names. A name that nobody holds has no row; a row whose time has passed counts as none.
    CREATE TABLE lease(
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        value TEXT NOT NULL,                -- an owner token or a tombstone, as in every store
        expires INTEGER NOT NULL,
        boot BLOB NOT NULL,
        fencing_token INTEGER NOT NULL,
        PRIMARY KEY(namespace, name)
    ) STRICT, WITHOUT ROWID;

    -- Waiting processes, in the order of their tickets.
    CREATE TABLE waiter(
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        ticket INTEGER NOT NULL,            -- when it first asked
        owner TEXT NOT NULL,
        claim INTEGER NOT NULL,             -- how long a grant waits for it, in microseconds
        seen_until INTEGER NOT NULL,        -- it counts as dead after this moment, unless it asks again
        boot BLOB NOT NULL,
        PRIMARY KEY(namespace, name, ticket, owner)
    ) STRICT, WITHOUT ROWID;

    -- One row: the last fencing token minted, and up to where tokens are reserved on disk.
    CREATE TABLE fence(
        id INTEGER PRIMARY KEY CHECK(id = 1),
        last INTEGER NOT NULL,
        reserved INTEGER NOT NULL,
        boot BLOB NOT NULL
    ) STRICT;
    INSERT INTO fence VALUES(1, 0, 0, x'');

    -- One row: how far the search for rows that nobody will ask about again has come.
    CREATE TABLE sweep(
        id INTEGER PRIMARY KEY CHECK(id = 1),
        namespace TEXT NOT NULL,
        name TEXT NOT NULL
    ) STRICT;
    INSERT INTO sweep VALUES(1, '', '');
";

/// Added to files that were made before there were records: programs that do not know the table are not disturbed by
/// it, so the version stays.
const RECORDS: &str = "
    -- What is known of operations that are to be done once, each until its time is over.
    CREATE TABLE IF NOT EXISTS once(
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        record BLOB NOT NULL,
        ends INTEGER NOT NULL,              -- counts in the boot it was written in
        boot BLOB NOT NULL,
        ends_wall INTEGER NOT NULL,         -- counts after a reboot: microseconds since 1970
        PRIMARY KEY(namespace, name)
    ) STRICT;
    CREATE INDEX IF NOT EXISTS once_by_end ON once(ends_wall);
";

/// Creates the tables if the file is new, and checks that they are ours and of our version otherwise.
pub(crate) fn ensure(connection: &Connection, path: &Path) -> Result<(), Failure> {
    let is_new = !is_ours(connection, path)?;
    if is_new {
        connection.execute_batch(&format!("PRAGMA page_size={PAGE_BYTES}; BEGIN EXCLUSIVE"))?;
        let created = create(connection, path);
        if !connection.is_autocommit() {
            connection.execute_batch(if created.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        }
        created?;
    }
    // Only now, so that the header says whose file it is before there is a log that it could be hidden in.
    let mode: String = connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
    if mode.eq_ignore_ascii_case("wal") {
        // Even looking into a new file would leave a log beside it.
        return if is_new { Ok(()) } else { ensure_records(connection) };
    }
    Err(Failure::Refused(Error::config(format!(
        "sqlite:{}: this file system has no shared memory for SQLite's log: name a file on a local disk",
        path.display()
    ))))
}

fn ensure_records(connection: &Connection) -> Result<(), Failure> {
    let there = "SELECT EXISTS(SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = 'once_by_end')";
    if connection.query_row(there, [], |row| row.get(0))? {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let created = connection.execute_batch(RECORDS);
    if !connection.is_autocommit() {
        connection.execute_batch(if created.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    }
    Ok(created?)
}

fn is_ours(connection: &Connection, path: &Path) -> Result<bool, Failure> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u32>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    match application {
        APPLICATION_ID if version > VERSION => Err(Failure::Refused(newer(path, version))),
        APPLICATION_ID => Ok(true),
        0 if version == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(false),
        _ => Err(Failure::Refused(foreign(path))),
    }
}

fn create(connection: &Connection, path: &Path) -> Result<(), Failure> {
    // Another process may have been faster.
    if is_ours(connection, path)? {
        return Ok(());
    }
    connection.execute_batch(TABLES)?;
    connection.execute_batch(RECORDS)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    Ok(())
}

/// The refusal of a file whose tables a newer Leasehold has made.
pub(crate) fn newer(path: &Path, version: u32) -> Error {
    Error::config(format!(
        "sqlite:{}: the file was made by a newer Leasehold (format {version}, this one knows up to {VERSION}): \
         update this program",
        path.display()
    ))
}

/// The refusal of another program's database.
pub(crate) fn foreign(path: &Path) -> Error {
    Error::config(format!(
        "sqlite:{}: this is the database of another program, so it was left alone: name another file",
        path.display()
    ))
}
