//! The database servers start, answer, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use leasehold_testkit::databases::{DatabaseKind, MariaDb, Postgres};

#[test]
fn postgres_answers() {
    if !DatabaseKind::Postgres.is_to_be_tested("postgres_answers") {
        return;
    }
    let server = Postgres::shared();
    assert!(server.url("one").unwrap().starts_with("postgres://"));
    assert_eq!(server.psql("one", "SELECT current_schema()").unwrap(), "one\n");
    let error = server.psql("one", "SELECT 1/0").unwrap_err();
    assert!(error.to_string().contains("division by zero"), "{error}");
}

#[test]
fn mariadb_answers() {
    if !DatabaseKind::MariaDb.is_to_be_tested("mariadb_answers") {
        return;
    }
    let server = MariaDb::shared();
    assert!(server.url("one").unwrap().starts_with("mysql://"));
    assert_eq!(server.client("one", "SELECT database()").unwrap(), "one\n");
    let error = server.client("one", "SELECT * FROM nothing").unwrap_err();
    assert!(error.to_string().contains("ERROR 1146"), "{error}");
}
