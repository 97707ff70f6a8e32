//! What `doctor` looks at: conditions of the file and its disk that endanger locks.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use leasehold_core::store::{Finding, Severity};

use crate::database::{Database, Pace};
use crate::failure::Failure;
use crate::file::{FileSystem, StoreFile};
use crate::schema;

/// Below this much free space something else is likely to fill the disk soon.
const LITTLE_SPACE: u64 = 16 * 1024 * 1024;
/// A log this long is not being moved into the file.
const LONG_LOG: u64 = 128 * 1024 * 1024;

/// Looks at everything.
pub(crate) fn diagnose(database: &Database, file: &StoreFile) -> Result<Vec<Finding>, Failure> {
    let mut findings = content(database)?;
    findings.extend([file_system(file), free_space(file), permissions(file), log_length(file)]);
    Ok(findings)
}

/// What is in the file. Damage can stop any of these, and is what the first that it stops tells.
fn content(database: &Database) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for look in [version, journal_mode, integrity] {
        match look(database) {
            Ok(found) => findings.push(found),
            Err(failure) if failure.is_damage() => {
                findings.push(damaged(&failure.words()));
                return Ok(findings);
            }
            Err(failure) => return Err(failure),
        }
    }
    findings.push(writing(database));
    Ok(findings)
}

fn fine(subject: &str, message: impl Into<String>) -> Finding {
    finding(Severity::Fine, subject, message, "")
}

fn finding(severity: Severity, subject: &str, message: impl Into<String>, advice: &str) -> Finding {
    Finding { severity, subject: subject.into(), message: message.into(), advice: advice.into() }
}

fn version(database: &Database) -> Result<Finding, Failure> {
    let format: u32 = database.connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let message = format!("SQLite {}, file format {format}", rusqlite::version());
    Ok(if format == schema::VERSION {
        fine("version", message)
    } else {
        finding(
            Severity::Problem,
            "version",
            format!("{message}, but this program knows format {}", schema::VERSION),
            "run the same version of Leasehold in all processes that use this file",
        )
    })
}

fn journal_mode(database: &Database) -> Result<Finding, Failure> {
    let mode: String = database.connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    Ok(if mode == "wal" {
        fine("journal mode", "write-ahead log")
    } else {
        finding(
            Severity::Problem,
            "journal mode",
            format!("{mode} instead of a write-ahead log: somebody has changed it"),
            "stop all processes that use the file and start them again",
        )
    })
}

fn integrity(database: &Database) -> Result<Finding, Failure> {
    let found: String = database.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(if found == "ok" { fine("integrity", "the file is sound") } else { damaged(&found) })
}

fn damaged(how: &str) -> Finding {
    finding(
        Severity::Problem,
        "integrity",
        format!("the file is damaged: {how}"),
        "stop everything that uses it, move it away with the files beside it, and start again",
    )
}

/// Tries what every acquire does: a write transaction over the tables.
fn writing(database: &Database) -> Finding {
    let subject = "writing";
    let tried = database.write(Pace::Patient, |transaction| {
        let tables = "SELECT count(*) FROM lease, waiter, fence, sweep, once WHERE fence.id = 0";
        Ok(transaction.connection().query_row(tables, [], |row| row.get::<_, i64>(0))?)
    });
    match tried {
        Ok(_) => fine(subject, "the file takes transactions, and its tables are there"),
        Err(failure) if failure.is_busy() => finding(
            Severity::Problem,
            subject,
            "another process keeps the file locked for writing, so no name can be taken or given back",
            "find the process with lsof or fuser, and end its transaction",
        ),
        Err(failure) => finding(
            Severity::Problem,
            subject,
            format!("no transaction is possible: {}", failure.words()),
            "stop everything that uses the file, move it away with the files beside it, and start again",
        ),
    }
}

fn file_system(file: &StoreFile) -> Finding {
    let subject = "file system";
    let Some(found) = FileSystem::of(&file.path) else {
        return finding(
            Severity::Warning,
            subject,
            "this system does not tell which type it is",
            "make sure that it is a local disk",
        );
    };
    if found.shared {
        return finding(
            Severity::Problem,
            subject,
            format!("{}, which other machines may share", found.name),
            "use a file on a local disk, or a server",
        );
    }
    if found.layered {
        return finding(
            Severity::Warning,
            subject,
            "overlay: other containers have a file of their own under this path",
            "to share locks between containers, put the file into a directory that is a volume of all of them",
        );
    }
    fine(subject, found.name)
}

fn free_space(file: &StoreFile) -> Finding {
    let subject = "free space";
    let Ok(found) = rustix::fs::statvfs(file.directory()) else {
        return finding(Severity::Warning, subject, "this system does not tell", "");
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let message = format!("{} MiB", free / (1024 * 1024));
    if free < LITTLE_SPACE {
        return finding(
            Severity::Warning,
            subject,
            message,
            "make room: nothing can be acquired on a full disk",
        );
    }
    fine(subject, message)
}

fn permissions(file: &StoreFile) -> Finding {
    const OTHERS_WRITE: u32 = 0o002;
    const OTHERS_READ: u32 = 0o004;
    let subject = "permissions";
    let mode = match fs::metadata(&file.path) {
        Ok(found) => found.permissions().mode() & 0o777,
        Err(error) => return finding(Severity::Problem, subject, error.to_string(), "look after the file"),
    };
    let message = format!("{mode:03o}");
    if mode & OTHERS_WRITE != 0 {
        return finding(
            Severity::Problem,
            subject,
            format!("{message}: every user can take any lock away"),
            "take the right to write away from others (chmod o-rw)",
        );
    }
    if mode & OTHERS_READ != 0 {
        return finding(
            Severity::Warning,
            subject,
            format!("{message}: every user can read the owner tokens"),
            "take the right to read away from others (chmod o-r)",
        );
    }
    fine(subject, message)
}

fn log_length(file: &StoreFile) -> Finding {
    let length = fs::metadata(file.beside("-wal")).map_or(0, |found| found.len());
    let message = format!("{} KiB", length / 1024);
    if length > LONG_LOG {
        return finding(
            Severity::Warning,
            "log",
            message,
            "look for a program that keeps the file open in a transaction (a database shell, a backup)",
        );
    }
    fine("log", message)
}
