//! `leasehold sql`: prints what a database needs to refuse stale holders. It asks no store.

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::output::data;

/// Print what a database needs to refuse a stale holder
///
/// A guard table and one statement, with comments on how to use them from any language: the first statement of a
/// transaction seals what it protects with the fencing token of the lease, and fails if a newer holder was there.
/// Running it again changes nothing, so it may stand in a migration.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct SqlArgs {
    /// The database
    #[arg(value_enum)]
    database: Database,
}

const HELP: &str = "\
Examples:
  leasehold sql postgres | psql -v ON_ERROR_STOP=1 \"$DATABASE_URL\"
  leasehold sql mysql | mariadb shop            also for MySQL: | mysql shop
  leasehold sql sqlite | sqlite3 shop.db
  leasehold sql redis > guarded.lua             for what is kept in Redis or Valkey itself

A command under `leasehold run` finds its token in LEASEHOLD_FENCING_TOKEN. No store is asked.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Database {
    /// PostgreSQL 13 or newer
    Postgres,
    /// MariaDB 10.6 or newer, MySQL 8.0.29 or newer
    #[value(alias = "mariadb")]
    Mysql,
    /// SQLite 3.24 or newer
    Sqlite,
    /// A script for what is kept in Redis or Valkey itself
    Redis,
}

/// Prints it.
pub(crate) fn print(args: &SqlArgs) -> Result<(), Failure> {
    data(match args.database {
        Database::Postgres => leasehold::seal::postgres::SCHEMA,
        Database::Mysql => leasehold::seal::mysql::SCHEMA,
        Database::Sqlite => leasehold::seal::sqlite::SCHEMA,
        Database::Redis => leasehold::seal::redis::SCRIPT,
    })
}
