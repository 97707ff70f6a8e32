//! PostgreSQL: the schema, the statement, and what its errors mean.

use std::error::Error as StdError;

use crate::stamp::{namespace_in, newest_in};
use crate::{SealError, Stamp};

/// The guard table and its functions: what `leasehold sql postgres` prints.
pub const SCHEMA: &str = include_str!("../sql/postgres.sql");

/// Seals: takes resource, fencing token, owner, namespace (`text, bigint, text, text`).
pub const SEAL: &str = "SELECT leasehold_seal_v1($1, $2, $3, $4)";

const INSTALL: &str = "leasehold sql postgres | psql -v ON_ERROR_STOP=1 \"$DATABASE_URL\"";

/// What an error of the seal statement means, from its SQLSTATE and DETAIL, whatever the driver.
pub fn error(
    stamp: &Stamp,
    sqlstate: &str,
    detail: Option<&str>,
    source: Box<dyn StdError + Send + Sync>,
) -> SealError {
    let detail = detail.unwrap_or_default();
    match sqlstate {
        "LH001" => stamp.fenced(newest_in(detail)),
        "LH002" => stamp.other_namespace(namespace_in(detail)),
        "LH003" => SealError::Argument { message: source.to_string() },
        // No function, table, column or schema of that name, or of other types, or without its primary key, or
        // with columns that are not ours.
        "42883" | "42P01" | "42703" | "3F000" | "42804" | "42846" | "42704" | "42P10" | "42725" | "42809"
        | "23502" | "23514" | "22P02" => SealError::Schema { command: INSTALL, source },
        "42501" => SealError::Denied { source },
        "25006" => SealError::ReadOnly { source },
        "25P02" => SealError::Aborted { source: Some(source) },
        "40001" | "40P01" | "55P03" => SealError::Contended { source },
        _ => SealError::Database { source },
    }
}

#[cfg(feature = "postgres")]
mod driver {
    use std::future::Future;
    use std::pin::Pin;

    use tokio_postgres::Transaction;
    use tokio_postgres::types::Type;

    use super::SEAL;
    use crate::{SealError, SealTarget, Stamp};

    /// What [`crate::Seal::seal`] returns for a transaction of `tokio-postgres`.
    pub type Sealing<'a> = Pin<Box<dyn Future<Output = Result<(), SealError>> + Send + 'a>>;

    impl<'a> SealTarget for &'a Transaction<'_> {
        type Outcome = Sealing<'a>;

        fn seal_with(self, stamp: Result<Stamp, SealError>) -> Sealing<'a> {
            Box::pin(async move {
                let stamp = stamp?;
                let (resource, fence, owner, namespace) = stamp.parameters();
                // With the types given, the driver need not prepare: one round trip.
                let sealed = self
                    .execute_typed(
                        SEAL,
                        &[
                            (&resource, Type::TEXT),
                            (&fence, Type::INT8),
                            (&owner, Type::TEXT),
                            (&namespace, Type::TEXT),
                        ],
                    )
                    .await;
                sealed.map(|_| ()).map_err(|error| understood(&stamp, error))
            })
        }
    }

    fn understood(stamp: &Stamp, error: tokio_postgres::Error) -> SealError {
        let Some(said) = error.as_db_error() else { return SealError::Database { source: error.into() } };
        let (sqlstate, detail) = (said.code().code().to_owned(), said.detail().map(str::to_owned));
        // Its message says more than the driver's.
        let source = said.to_string();
        super::error(stamp, &sqlstate, detail.as_deref(), source.into())
    }
}

#[cfg(feature = "postgres")]
pub use driver::Sealing;
