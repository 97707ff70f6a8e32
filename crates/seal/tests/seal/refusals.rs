//! What goes wrong at the database, and the typed error that tells it: the transaction of the user is untouched, or
//! rolled back, and never half of a write is done.

use std::time::Duration;

use ::mysql::prelude::Queryable;
use leasehold_seal::{SealError, SealTarget, Stamp, mysql, postgres, sqlite};
use leasehold_testkit::databases::{DatabaseKind, MariaDb};
use mysql::SCHEMA as MYSQL;
use postgres::SCHEMA as POSTGRES;
use rusqlite::TransactionBehavior;
use sqlite::SCHEMA as SQLITE;

use crate::databases::{
    MySqlSession, PostgresSession, RUNTIME, Session, World, connect_postgres, fresh, seal_mysql, stamp,
    stamp_in,
};

const COUNTER: &str = "INSERT INTO counters VALUES (1, 0, 0);";
const RESOURCE: &str = "counter:1";

fn value(world: &World) -> i64 {
    world.session().read(1)
}

fn mysql_session(world: &World) -> ::mysql::Conn {
    let World::MariaDb { url, .. } = world else { panic!("not MariaDB") };
    ::mysql::Conn::new(::mysql::Opts::from_url(url).unwrap()).unwrap()
}

fn postgres_client(world: &World) -> tokio_postgres::Client {
    let World::Postgres { url, .. } = world else { panic!("not PostgreSQL") };
    connect_postgres(url)
}

/// Seals as a user of `tokio-postgres` does, after this statement in the same transaction, writes, whatever the seal
/// said, and commits.
fn postgres_after(client: &mut tokio_postgres::Client, first: &str, stamp: &Stamp) -> Result<(), SealError> {
    RUNTIME.block_on(async {
        let tx = client.transaction().await.unwrap();
        let _ = tx.batch_execute(first).await;
        let sealed = tx.seal_with(Ok(stamp.clone())).await;
        let _ = tx.batch_execute("UPDATE counters SET value = value + 100").await;
        let _ = tx.commit().await;
        sealed
    })
}

/// The same with `rusqlite`; the write is left out where the seal has failed.
fn sqlite_after(connection: &mut rusqlite::Connection, first: &str, stamp: &Stamp) -> Result<(), SealError> {
    let tx = connection.transaction().unwrap();
    let _ = tx.execute_batch(first);
    tx.seal_with(Ok(stamp.clone()))?;
    tx.execute_batch("UPDATE counters SET value = value + 100").unwrap();
    tx.commit().unwrap();
    Ok(())
}

/// The same with a driver of MySQL, by a program that overlooks every error.
fn mysql_after(connection: &mut ::mysql::Conn, first: &str, stamp: &Stamp) -> Result<(), SealError> {
    let _ = connection.query_drop(first);
    let sealed = seal_mysql(connection, stamp);
    let _ = connection.query_drop("UPDATE counters SET value = value + 100");
    let _ = connection.query_drop("COMMIT");
    sealed
}

/// Seals after a statement, in a new transaction of a new connection.
fn seal_after(world: &World, first: &str, stamp: &Stamp) -> Result<(), SealError> {
    match world {
        World::Postgres { .. } => postgres_after(&mut postgres_client(world), first, stamp),
        World::MariaDb { .. } => {
            mysql_after(&mut mysql_session(world), &format!("START TRANSACTION; {first}"), stamp)
        }
        World::Sqlite { .. } => sqlite_after(&mut world.sqlite_connection(), first, stamp),
    }
}

fn for_each_with_a_counter(test: &str, mut body: impl FnMut(&World)) {
    crate::databases::for_each_database(test, |world| {
        world.script(COUNTER).unwrap();
        body(world);
    });
}

#[test]
fn a_stale_holder_gets_one_typed_error_and_writes_nothing_even_if_it_overlooks_it() {
    for_each_with_a_counter("a_stale_holder_gets_one_typed_error", |world| {
        seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
        assert_eq!(value(world), 100);
        let refused = seal_after(world, "", &stamp(RESOURCE, 33)).unwrap_err();
        let SealError::Fenced { resource, mine, newest } = &refused else { panic!("{refused:?}") };
        assert_eq!((resource.as_str(), mine.get(), newest.get()), (RESOURCE, 33, 34));
        assert!(refused.to_string().contains("counter:1: fenced: it was sealed under fencing token 34"));
        assert!(!refused.is_retryable());
        assert_eq!(value(world), 100, "nothing of it is there");
        // The same holder again, and a newer one.
        seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
        seal_after(world, "", &stamp(RESOURCE, 35)).unwrap();
        assert_eq!(value(world), 300);
    });
}

#[test]
fn an_equal_token_of_somebody_else_is_refused() {
    for_each_with_a_counter("an_equal_token_of_somebody_else_is_refused", |world| {
        seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
        let owner = leasehold_core::OwnerToken::parse("MDEyMzQ1Njc4OWFiY2RlZg@somebody-else").unwrap();
        let fence = leasehold_core::FencingToken::new(34).unwrap();
        let other = Stamp::new(RESOURCE, fence, &owner, "lock:").unwrap();
        assert!(seal_after(world, "", &other).unwrap_err().is_fenced());
        assert_eq!(value(world), 100);
    });
}

#[test]
fn a_token_of_another_namespace_is_refused_whatever_its_number() {
    for_each_with_a_counter("a_token_of_another_namespace", |world| {
        seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
        for fence in [1, 34, 1_000] {
            let refused = seal_after(world, "", &stamp_in(RESOURCE, fence, "billing:")).unwrap_err();
            let SealError::Namespace { mine, sealed_under, .. } = &refused else { panic!("{refused:?}") };
            assert_eq!((mine.as_str(), sealed_under.as_str()), ("billing:", "lock:"));
        }
        assert_eq!(value(world), 100);
        // Other resources are other rows, also those that differ by little.
        for other in ["Counter:1", "counter:1 ", "counter:10", "çounter:1"] {
            seal_after(world, "", &stamp_in(other, 1, "billing:")).unwrap();
        }
    });
}

#[test]
fn a_missing_or_older_schema_is_told_with_the_command_to_run() {
    for_each_with_a_counter("a_missing_or_older_schema", |world| {
        let (schema, gone, command): (_, &[&str], _) = match world {
            World::Postgres { .. } => (
                POSTGRES,
                &[
                    // An older version; no table; a column of another type, or gone; no key; one column more.
                    "ALTER FUNCTION leasehold_seal_v1 RENAME TO leasehold_seal_v0",
                    "DROP TABLE leasehold_guard",
                    "ALTER TABLE leasehold_guard ALTER fence TYPE text",
                    "ALTER TABLE leasehold_guard DROP owner",
                    "ALTER TABLE leasehold_guard DROP CONSTRAINT leasehold_guard_pkey",
                    "DELETE FROM leasehold_guard; ALTER TABLE leasehold_guard ADD more int NOT NULL",
                ],
                "leasehold sql postgres | psql",
            ),
            World::MariaDb { .. } => (
                MYSQL,
                &[
                    "DROP PROCEDURE leasehold_seal_v1",
                    "DROP TABLE leasehold_guard",
                    "ALTER TABLE leasehold_guard DROP owner",
                    "DELETE FROM leasehold_guard; ALTER TABLE leasehold_guard MODIFY fence DATE NOT NULL",
                    "ALTER TABLE leasehold_guard ADD more INT NOT NULL",
                ],
                "leasehold sql mysql | mariadb",
            ),
            World::Sqlite { .. } => (
                SQLITE,
                &[
                    "DROP VIEW leasehold_seal_v1",
                    "DROP TRIGGER leasehold_seal_v1_insert",
                    "DROP TABLE leasehold_guard",
                    "DROP TABLE leasehold_guard; CREATE TABLE leasehold_guard (resource TEXT PRIMARY KEY, fence TEXT, \
                     owner TEXT, namespace TEXT, sealed_at TEXT); \
                     INSERT INTO leasehold_guard VALUES ('counter:1', 7, 'o', 'lock:', '')",
                    "DROP TABLE leasehold_guard; CREATE TABLE leasehold_guard (resource TEXT PRIMARY KEY, fence INT)",
                ],
                "leasehold sql sqlite | sqlite3",
            ),
        };
        for change in gone {
            world.script(&format!("{change};")).unwrap();
            let refused = seal_after(world, "", &stamp(RESOURCE, 40)).expect_err(change);
            let SealError::Schema { command: said, .. } = &refused else { panic!("{change}: {refused:?}") };
            assert!(said.starts_with(command), "{said}");
            assert!(refused.to_string().contains(command), "{refused}");
            match world {
                // The transaction is as it was, and nothing of this crate is in it.
                World::Sqlite { .. } => assert_eq!(value(world), 0),
                // Even the write that follows the overlooked error is not there, except that MariaDB knows nothing
                // of a procedure it does not have.
                _ if *change == "DROP PROCEDURE leasehold_seal_v1" => {
                    world.script("UPDATE counters SET value = 0;").unwrap();
                }
                _ => assert_eq!(value(world), 0, "{change}"),
            }
            let everything = match world {
                World::Postgres { .. } => "DROP TABLE IF EXISTS leasehold_guard CASCADE;",
                World::MariaDb { .. } => "DROP TABLE IF EXISTS leasehold_guard;",
                World::Sqlite { .. } => {
                    "DROP VIEW IF EXISTS leasehold_seal_v1; DROP TABLE IF EXISTS leasehold_guard;"
                }
            };
            world.script(everything).unwrap();
            // The command repairs it.
            world.script(schema).unwrap();
            seal_after(world, "", &stamp(RESOURCE, 40)).unwrap();
            world.script("UPDATE counters SET value = 0;").unwrap();
        }
        // And running it on what is there changes nothing.
        world.script(schema).unwrap();
        assert!(seal_after(world, "", &stamp(RESOURCE, 39)).unwrap_err().is_fenced());
    });
}

#[test]
fn a_read_only_database_is_told() {
    for_each_with_a_counter("a_read_only_database_is_told", |world| {
        let refused = match world {
            World::Postgres { .. } => seal_after(world, "SET TRANSACTION READ ONLY", &stamp(RESOURCE, 34)),
            World::MariaDb { .. } => {
                // For the whole server, so not for longer than it takes.
                let mut session = mysql_session(world);
                session.query_drop("START TRANSACTION READ ONLY").unwrap();
                let in_transaction = mysql_after(&mut session, "SELECT 1", &stamp(RESOURCE, 34));
                assert!(matches!(in_transaction, Err(SealError::ReadOnly { .. })), "{in_transaction:?}");
                in_transaction
            }
            World::Sqlite { .. } => {
                let mut connection = world.sqlite_connection();
                connection.execute_batch("PRAGMA query_only = ON").unwrap();
                sqlite_after(&mut connection, "", &stamp(RESOURCE, 34))
            }
        };
        assert!(matches!(refused, Err(SealError::ReadOnly { .. })), "{refused:?}");
        assert_eq!(value(world), 0);
    });
}

#[test]
fn a_transaction_that_has_failed_before_is_told() {
    // MySQL has no such state: there, an earlier seal that failed leaves a READ ONLY transaction.
    for_each_with_a_counter("a_transaction_that_has_failed_before_is_told", |world| match world {
        World::Postgres { .. } => {
            let refused = seal_after(world, "SELECT 1/0", &stamp(RESOURCE, 34));
            assert!(matches!(refused, Err(SealError::Aborted { source: Some(_) })), "{refused:?}");
            assert_eq!(value(world), 0);
        }
        World::MariaDb { .. } => {
            seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
            let mut session = mysql_session(world);
            for _ in 0..2 {
                let mut one = MySqlSession(session);
                one.begin();
                session = one.0;
                assert!(seal_mysql(&mut session, &stamp(RESOURCE, 33)).unwrap_err().is_fenced());
                let again = seal_mysql(&mut session, &stamp(RESOURCE, 35));
                assert!(matches!(again, Err(SealError::ReadOnly { .. })), "{again:?}");
            }
            // ROLLBACK, COMMIT or another START TRANSACTION ends it.
            mysql_after(&mut session, "START TRANSACTION", &stamp(RESOURCE, 34)).unwrap();
            assert_eq!(value(world), 200);
        }
        World::Sqlite { .. } => {
            seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
            let mut connection = world.sqlite_connection();
            let tx = connection.transaction().unwrap();
            assert!(tx.seal_with(Ok(stamp(RESOURCE, 33))).unwrap_err().is_fenced());
            let again = tx.seal_with(Ok(stamp(RESOURCE, 35)));
            assert!(matches!(again, Err(SealError::Aborted { source: None })), "{again:?}");
            assert!(tx.commit().is_err(), "there is no transaction to commit");
        }
    });
}

#[test]
fn a_seal_without_a_transaction_is_refused_where_that_can_be_seen() {
    if !DatabaseKind::MariaDb.is_to_be_tested("a_seal_without_a_transaction_is_refused") {
        return;
    }
    let world = World::mariadb(MYSQL);
    let refused = seal_mysql(&mut mysql_session(&world), &stamp(RESOURCE, 34));
    assert!(matches!(refused, Err(SealError::NoTransaction { .. })), "{refused:?}");
    // With autocommit off there always is one.
    let mut session = mysql_session(&world);
    session.query_drop("SET autocommit = 0").unwrap();
    seal_mysql(&mut session, &stamp(RESOURCE, 34)).unwrap();
}

#[test]
fn what_was_read_before_the_seal_is_told_where_the_database_would_go_on_reading_it() {
    for_each_with_a_counter("what_was_read_before_the_seal", |world| {
        seal_after(world, "", &stamp(RESOURCE, 33)).unwrap();
        let mut session: Box<dyn Session> = match world {
            // READ COMMITTED, the default, reads anew in every statement.
            World::Postgres { .. } => {
                let client = postgres_client(world);
                RUNTIME
                    .block_on(client.batch_execute(
                        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                    ))
                    .unwrap();
                Box::new(PostgresSession(client))
            }
            _ => world.session(),
        };
        session.begin();
        assert_eq!(session.read(1), 100);
        // Another holder writes and is done.
        seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
        // 35 may seal, by its number, but would go on with what it has read.
        let told = session.seal(&stamp(RESOURCE, 35)).unwrap_err();
        session.rollback();
        if let World::Sqlite { .. } = world {
            let mut connection = world.sqlite_connection();
            let tx = connection.transaction().unwrap();
            let read: i64 = tx.query_row("SELECT value FROM counters", [], |row| row.get(0)).unwrap();
            assert_eq!(read, 200);
            seal_after(world, "", &stamp(RESOURCE, 35)).unwrap();
            let told = tx.seal_with(Ok(stamp(RESOURCE, 36))).unwrap_err();
            assert!(matches!(told, SealError::Contended { .. }) && told.is_retryable(), "{told:?}");
            drop(tx);
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            tx.seal_with(Ok(stamp(RESOURCE, 36))).unwrap();
        } else {
            assert!(matches!(told, SealError::Contended { .. }) && told.is_retryable(), "{told:?}");
            session.begin();
            session.seal(&stamp(RESOURCE, 35)).unwrap();
            assert_eq!(session.read(1), 200);
            session.rollback();
        }
    });
}

#[test]
fn a_seal_that_waits_for_too_long_is_told_and_can_be_tried_again() {
    for_each_with_a_counter("a_seal_that_waits_for_too_long", |world| {
        let mut first = world.session();
        first.begin();
        first.seal(&stamp(RESOURCE, 33)).unwrap();
        let waited = match world {
            World::Postgres { .. } => {
                seal_after(world, "SET LOCAL lock_timeout = '100ms'", &stamp(RESOURCE, 34))
            }
            World::MariaDb { .. } => {
                let mut session = mysql_session(world);
                session.query_drop("SET innodb_lock_wait_timeout = 1").unwrap();
                mysql_after(&mut session, "START TRANSACTION", &stamp(RESOURCE, 34))
            }
            World::Sqlite { .. } => {
                let mut connection = world.sqlite_connection();
                connection.busy_timeout(Duration::from_millis(50)).unwrap();
                sqlite_after(&mut connection, "", &stamp(RESOURCE, 34))
            }
        };
        let waited = waited.unwrap_err();
        assert!(matches!(waited, SealError::Contended { .. }) && waited.is_retryable(), "{waited:?}");
        first.write(1, 5);
        first.commit();
        assert_eq!(value(world), 5);
        seal_after(world, "", &stamp(RESOURCE, 34)).unwrap();
    });
}

#[test]
fn who_may_not_seal_is_told() {
    let mut tested = false;
    if DatabaseKind::Postgres.is_to_be_tested("who_may_not_seal_is_told") {
        let world = World::postgres(POSTGRES);
        let World::Postgres { schema, .. } = &world else { unreachable!() };
        let role = fresh("nobody");
        world.script(&format!("CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role};")).unwrap();
        let refused = seal_after(&world, &format!("SET LOCAL ROLE {role}"), &stamp(RESOURCE, 34));
        assert!(matches!(refused, Err(SealError::Denied { .. })), "{refused:?}");
        // What the schema says that it needs is enough.
        world.script(&format!("GRANT SELECT, INSERT, UPDATE ON leasehold_guard TO {role};")).unwrap();
        seal_after(&world, &format!("SET LOCAL ROLE {role}"), &stamp(RESOURCE, 34)).unwrap();
        tested = true;
    }
    if DatabaseKind::MariaDb.is_to_be_tested("who_may_not_seal_is_told") {
        let world = World::mariadb(MYSQL);
        let World::MariaDb { url, database } = &world else { unreachable!() };
        let user = fresh("nobody");
        let table = format!("{database}.leasehold_guard");
        MariaDb::shared().root(&format!("CREATE USER {user}; GRANT SELECT ON {table} TO {user};")).unwrap();
        let url = url.replace("leasehold@", &format!("{user}@"));
        let connect = || ::mysql::Conn::new(::mysql::Opts::from_url(&url).unwrap()).unwrap();
        let refused = mysql_after(&mut connect(), "START TRANSACTION", &stamp(RESOURCE, 34));
        assert!(matches!(refused, Err(SealError::Denied { .. })), "{refused:?}");
        MariaDb::shared()
            .root(&format!(
                "GRANT EXECUTE ON PROCEDURE {database}.leasehold_seal_v1 TO {user}; \
                 GRANT SELECT, INSERT, UPDATE ON {table} TO {user};"
            ))
            .unwrap();
        mysql_after(&mut connect(), "START TRANSACTION", &stamp(RESOURCE, 34)).unwrap();
        tested = true;
    }
    eprintln!("tested: {tested}");
}

#[test]
fn a_connection_that_breaks_is_an_error_of_the_database() {
    if !DatabaseKind::Postgres.is_to_be_tested("a_connection_that_breaks") {
        return;
    }
    let world = World::postgres(POSTGRES);
    world.script(COUNTER).unwrap();
    let mut client = postgres_client(&world);
    let broken =
        postgres_after(&mut client, "SELECT pg_terminate_backend(pg_backend_pid())", &stamp(RESOURCE, 34));
    assert!(matches!(broken, Err(SealError::Database { .. })), "{broken:?}");
    assert_eq!(value(&world), 0);
}

#[test]
fn arguments_that_no_lease_has_are_refused_by_the_statement_itself() {
    let longest = "x".repeat(513);
    for_each_with_a_counter("arguments_that_no_lease_has", |world| {
        let arguments = |resource: &str, fence: &str, owner: &str, namespace: &str| match world {
            World::Postgres { .. } => {
                format!("BEGIN; SELECT leasehold_seal_v1({resource}, {fence}, {owner}, {namespace}); COMMIT;")
            }
            World::MariaDb { .. } => {
                format!(
                    "START TRANSACTION; CALL leasehold_seal_v1({resource}, {fence}, {owner}, {namespace}); COMMIT;"
                )
            }
            World::Sqlite { .. } => format!(
                "BEGIN; INSERT INTO leasehold_seal_v1 (resource, fence, owner, namespace) \
                 VALUES ({resource}, {fence}, {owner}, {namespace}); COMMIT;"
            ),
        };
        world.script(&arguments("'r'", "9007199254740991", "'o'", "''")).unwrap();
        for [resource, fence, owner, namespace] in [
            ["'s'", "0", "'o'", "'lock:'"],
            ["'s'", "-1", "'o'", "'lock:'"],
            ["'s'", "9007199254740992", "'o'", "'lock:'"],
            ["'s'", "NULL", "'o'", "'lock:'"],
            ["NULL", "34", "'o'", "'lock:'"],
            ["''", "34", "'o'", "'lock:'"],
            [&format!("'{longest}'"), "34", "'o'", "'lock:'"],
            ["'s'", "34", "NULL", "'lock:'"],
            ["'s'", "34", "''", "'lock:'"],
            ["'s'", "34", "'o'", "NULL"],
        ] {
            let refused = world.script(&arguments(resource, fence, owner, namespace)).unwrap_err();
            assert!(refused.contains("leasehold: a"), "{fence}: {refused}");
        }
        let rows = match world {
            World::Sqlite { .. } => {
                let question = "SELECT count(*) FROM leasehold_guard";
                world
                    .sqlite_connection()
                    .query_row(question, [], |row| row.get::<_, u32>(0))
                    .unwrap()
                    .to_string()
            }
            _ => world.script("SELECT count(*) FROM leasehold_guard;").unwrap(),
        };
        assert_eq!(rows.trim(), "1", "only the first");
    });
}
