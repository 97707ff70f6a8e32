//! MySQL and MariaDB: the schema, the statement, and what its errors mean. There are several drivers, and none is
//! needed here.

use std::error::Error as StdError;

use crate::stamp::{namespace_in, newest_in};
use crate::{SealError, Stamp};

/// The guard table and its procedure: what `leasehold sql mysql` prints, for the `mariadb` and `mysql` programs.
pub const SCHEMA: &str = include_str!("../sql/mysql.sql");

/// Seals: takes resource, fencing token, owner, namespace.
pub const SEAL: &str = "CALL leasehold_seal_v1(?, ?, ?, ?)";

const INSTALL: &str = "leasehold sql mysql | mariadb DATABASE";

/// The statements of [`SCHEMA`] one by one, as a driver takes them.
pub fn statements() -> [&'static str; 2] {
    let (table, rest) = SCHEMA.split_once("DELIMITER //\n").unwrap_or((SCHEMA, ""));
    let procedure = rest.split_once("//\nDELIMITER ;").map_or(rest, |(procedure, _)| procedure);
    [table.trim_end().trim_end_matches(';'), procedure]
}

/// What an error of the seal statement means, from its number, SQLSTATE and message, whatever the driver.
pub fn error(
    stamp: &Stamp,
    number: u16,
    sqlstate: &str,
    message: &str,
    source: Box<dyn StdError + Send + Sync>,
) -> SealError {
    match (number, sqlstate) {
        (_, "LH001") => stamp.fenced(newest_in(message)),
        (_, "LH002") => stamp.other_namespace(namespace_in(message)),
        (_, "LH003") => SealError::Argument { message: message.to_owned() },
        (_, "LH005") => SealError::NoTransaction { source },
        // Read before the seal; deadlock, waited too long, the row has changed since the snapshot.
        (_, "LH006") | (1213 | 1205 | 1020, _) => SealError::Contended { source },
        // No such procedure, table, column or number of arguments; columns that are not ours, or of other types.
        (1305 | 1146 | 1054 | 1318 | 1364 | 1265 | 1366 | 1292 | 1406 | 1136, _) => {
            SealError::Schema { command: INSTALL, source }
        }
        (1044 | 1142 | 1143 | 1370 | 1227, _) => SealError::Denied { source },
        // The server, this transaction (also one that a refused seal has left), or InnoDB.
        (1290 | 1792 | 1836 | 1874, _) => SealError::ReadOnly { source },
        _ => SealError::Database { source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_two_statements_for_a_driver() {
        let statements = statements();
        assert!(statements[0].ends_with("ENGINE = InnoDB"), "{}", statements[0]);
        assert!(
            statements[1].starts_with("CREATE PROCEDURE") && statements[1].ends_with("END"),
            "{}",
            statements[1]
        );
    }
}
