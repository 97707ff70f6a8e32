//! Real PostgreSQL and MariaDB servers for tests, found and skipped as [`crate::servers`] does with Redis: one of
//! each per test process, which ends with it. Owns no schema.

mod keeper;
mod mariadb;
mod postgres;

pub use mariadb::MariaDb;
pub use postgres::Postgres;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::servers::missing;

/// A folder with the programs of PostgreSQL (`initdb`, `postgres`, `psql`), in place of the usual ones.
pub const POSTGRES_VARIABLE: &str = "LEASEHOLD_POSTGRES_BIN";
/// A folder with the programs of MariaDB (`mariadbd`, `mariadb-install-db`, `mariadb`), in place of the usual ones.
pub const MARIADB_VARIABLE: &str = "LEASEHOLD_MARIADB_BIN";

/// A kind of database the tests run against. SQLite needs no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind {
    /// PostgreSQL, 13 or newer.
    Postgres,
    /// MariaDB, 10.6 or newer.
    MariaDb,
}

impl DatabaseKind {
    /// The name used in [`crate::servers::REQUIRE_VARIABLE`] and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
        }
    }

    /// Whether a test is to run against this kind. Where this machine has none, one line on stderr says that it
    /// is skipped, and [`crate::servers::SKIP_LOG_VARIABLE`] counts it.
    ///
    /// # Panics
    /// When the kind is missing and [`crate::servers::REQUIRE_VARIABLE`] lists it, or a skip cannot be counted.
    pub fn is_to_be_tested(self, test: &str) -> bool {
        if self.programs().is_some() {
            return true;
        }
        if let Err(message) = missing(test, self.name(), self.variable()) {
            panic!("{message}");
        }
        false
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Postgres => POSTGRES_VARIABLE,
            Self::MariaDb => MARIADB_VARIABLE,
        }
    }

    /// The path of one of its programs, or `None` where this machine has no server of this kind.
    pub fn program(self, name: &str) -> Option<PathBuf> {
        self.programs().map(|programs| programs.path(name))
    }

    fn programs(self) -> Option<&'static Programs> {
        static POSTGRES: OnceLock<Option<Programs>> = OnceLock::new();
        static MARIADB: OnceLock<Option<Programs>> = OnceLock::new();
        let (found, server) = match self {
            Self::Postgres => (&POSTGRES, "postgres"),
            Self::MariaDb => (&MARIADB, "mariadbd"),
        };
        found.get_or_init(|| Programs::find(self, server)).as_ref()
    }

    fn usual_folders(self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = match self {
            // Debian keeps each version in a folder of its own, and outside the search path.
            Self::Postgres => std::fs::read_dir("/usr/lib/postgresql")
                .map(|versions| versions.flatten().map(|version| version.path().join("bin")).collect())
                .unwrap_or_default(),
            Self::MariaDb => ["/usr/sbin", "/usr/libexec"].map(PathBuf::from).to_vec(),
        };
        folders.sort();
        folders.reverse();
        folders.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
        folders.extend(["/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from));
        folders
    }
}

impl fmt::Display for DatabaseKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Where the programs of one kind are.
#[derive(Debug)]
struct Programs {
    folders: Vec<PathBuf>,
}

impl Programs {
    /// The first folder with the server, then the others, in which the rest may be.
    fn find(kind: DatabaseKind, server: &str) -> Option<Self> {
        if let Some(folder) = std::env::var_os(kind.variable()) {
            // Taken as it is: a wrong one should fail loudly when the server is started.
            return Some(Self { folders: vec![PathBuf::from(folder)] });
        }
        let mut folders = kind.usual_folders();
        let first = folders.iter().position(|folder| folder.join(server).is_file())?;
        folders.drain(..first);
        Some(Self { folders })
    }

    fn path(&self, name: &str) -> PathBuf {
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.unwrap_or_else(|| self.folders.first().map_or_else(|| name.into(), |folder| folder.join(name)))
    }
}

fn run(mut command: std::process::Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    Err(io::Error::other(format!("{command:?}: {}: {said}", output.status)))
}

fn log_of(folder: &Path) -> String {
    // No log yet is an empty log.
    let log = std::fs::read_to_string(folder.join("server.log")).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n  ")
}
