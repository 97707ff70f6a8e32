//! SQLite: the schema, the statement, and what its errors mean.

/// The guard table, and the view that seals: what `leasehold sql sqlite` prints.
pub const SCHEMA: &str = include_str!("../sql/sqlite.sql");

/// Seals: takes resource, fencing token, owner, namespace.
pub const SEAL: &str =
    "INSERT INTO leasehold_seal_v1 (resource, fence, owner, namespace) VALUES (?1, ?2, ?3, ?4)";

#[cfg(feature = "sqlite")]
mod driver {
    use rusqlite::{Error, Transaction, ffi};

    use super::SEAL;
    use crate::{SealError, SealTarget, Stamp};

    const INSTALL: &str = "leasehold sql sqlite | sqlite3 FILE";

    impl SealTarget for &Transaction<'_> {
        type Outcome = Result<(), SealError>;

        fn seal_with(self, stamp: Result<Stamp, SealError>) -> Result<(), SealError> {
            let stamp = stamp?;
            // After a refusal SQLite has ended the transaction: the next statement would be one of its own.
            if self.is_autocommit() {
                return Err(SealError::Aborted { source: None });
            }
            let sealed = self.prepare_cached(SEAL).and_then(|mut seal| seal.execute(stamp.parameters()));
            sealed.map(|_| ()).map_err(|error| understood(self, &stamp, error))
        }
    }

    fn understood(transaction: &Transaction<'_>, stamp: &Stamp, error: Error) -> SealError {
        let (code, said) = match &error {
            Error::SqliteFailure(failure, message) => {
                (failure.extended_code, message.clone().unwrap_or_default())
            }
            Error::SqlInputError { error: failure, msg, .. } => (failure.extended_code, msg.clone()),
            _ => return SealError::Database { source: error.into() },
        };
        let source = error.into();
        match (code & 0xff, code) {
            (ffi::SQLITE_CONSTRAINT, ffi::SQLITE_CONSTRAINT_TRIGGER) if said == "leasehold: fenced" => {
                let newest: Option<i64> = guard(transaction, stamp, "fence");
                stamp.fenced(newest.and_then(|newest| newest.try_into().ok()))
            }
            (ffi::SQLITE_CONSTRAINT, ffi::SQLITE_CONSTRAINT_TRIGGER)
                if said == "leasehold: another namespace" =>
            {
                stamp.other_namespace(&guard::<String>(transaction, stamp, "namespace").unwrap_or_default())
            }
            (ffi::SQLITE_CONSTRAINT, ffi::SQLITE_CONSTRAINT_TRIGGER) if said == "leasehold: argument" => {
                SealError::Argument { message: said }
            }
            // No such table or column, no trigger on the view, or columns that are not ours.
            (ffi::SQLITE_ERROR | ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH, _) => {
                SealError::Schema { command: INSTALL, source }
            }
            (ffi::SQLITE_READONLY, _) => SealError::ReadOnly { source },
            (ffi::SQLITE_PERM | ffi::SQLITE_AUTH, _) => SealError::Denied { source },
            (ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED, _) => SealError::Contended { source },
            _ => SealError::Database { source },
        }
    }

    /// What the guard row says after a refusal. A newer holder may have come since, never an older one.
    fn guard<T: rusqlite::types::FromSql>(
        transaction: &Transaction<'_>,
        stamp: &Stamp,
        column: &str,
    ) -> Option<T> {
        let question = format!("SELECT {column} FROM leasehold_guard WHERE resource = ?1");
        transaction.query_row(&question, [stamp.resource()], |row| row.get(0)).ok()
    }
}
