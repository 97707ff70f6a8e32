//! What is printed works as it is printed, from the databases' own client programs, with no Rust between.

use ::mysql::prelude::Queryable;
use leasehold_testkit::databases::{DatabaseKind, MariaDb};

use crate::databases::{World, for_each_database, fresh};

/// A transaction as the comments of the schema show it, which adds 1 to a counter.
fn transaction(world: &World, fence: &str, owner: &str) -> String {
    let seal = format!("'counter:1', {fence}, '{owner}', 'lock:'");
    let update = "UPDATE counters SET value = value + 1 WHERE id = 1; COMMIT;";
    match world {
        World::Postgres { .. } => format!("BEGIN; SELECT leasehold_seal_v1({seal}); {update}"),
        World::MariaDb { .. } => format!("START TRANSACTION; CALL leasehold_seal_v1({seal}); {update}"),
        World::Sqlite { .. } => format!(
            "BEGIN IMMEDIATE; INSERT INTO leasehold_seal_v1 (resource, fence, owner, namespace) VALUES ({seal}); {update}"
        ),
    }
}

#[test]
fn a_stale_holder_is_refused_in_the_databases_own_client() {
    for_each_database("a_stale_holder_is_refused_in_the_databases_own_client", |world| {
        world.make_counters(1);
        world.script(&transaction(world, "33", "a")).unwrap();
        world.script(&transaction(world, "34", "b")).unwrap();
        world.script(&transaction(world, "34", "b")).unwrap();
        let refused = world.script(&transaction(world, "33", "a")).unwrap_err();
        assert_eq!(world.session().read(1), 3, "{refused}");
        let words: &[&str] = match world {
            World::Postgres { .. } => &[
                "LH001: leasehold: fenced: counter:1 was sealed under fencing token 34, and this one is 33",
                "DETAIL:  mine=33 newest=34",
                "HINT:  A newer holder",
            ],
            World::MariaDb { .. } => &["ERROR 1644 (LH001)", "leasehold: fenced: mine=33 newest=34"],
            World::Sqlite { .. } => &["leasehold: fenced"],
        };
        for word in words {
            assert!(refused.contains(word), "{word} is not in {refused}");
        }
    });
}

#[test]
fn a_mariadb_client_that_goes_on_after_the_refusal_writes_nothing() {
    if !DatabaseKind::MariaDb.is_to_be_tested("a_mariadb_client_that_goes_on_after_the_refusal") {
        return;
    }
    let world = World::mariadb(leasehold_seal::mysql::SCHEMA);
    let World::MariaDb { database, .. } = &world else { unreachable!() };
    world.make_counters(1);
    world.script(&transaction(&world, "34", "b")).unwrap();
    // A procedure of the user that catches every error and goes on.
    let overlooking = "CREATE PROCEDURE overlooks() BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; \
         START TRANSACTION; UPDATE counters SET value = value + 10; CALL leasehold_seal_v1('counter:1', 33, 'a', 'lock:'); \
         UPDATE counters SET value = value + 100; COMMIT; END//";
    MariaDb::shared()
        .client(database, &format!("DELIMITER //\n{overlooking}\nDELIMITER ;\nCALL overlooks();"))
        .unwrap();
    assert_eq!(world.session().read(1), 1, "neither what came before the seal nor what came after it");
}

#[test]
fn the_sqlite3_program_takes_the_schema_as_well() {
    // Not required: the library is the client that counts, and the program is only another one.
    let folder = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut child = Command::new("sqlite3")
            .args(["-bail", "shop.db"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let Some(said) = run(leasehold_seal::sqlite::SCHEMA) else {
        eprintln!("SKIPPED: no sqlite3 program on this machine");
        return;
    };
    assert_eq!(said, "");
    let world = World::sqlite(leasehold_seal::sqlite::SCHEMA);
    assert_eq!(
        run("CREATE TABLE counters (id INTEGER PRIMARY KEY, value INT); INSERT INTO counters VALUES (1, 0);"),
        Some(String::new())
    );
    assert_eq!(run(&transaction(&world, "34", "b")), Some(String::new()));
    assert!(run(&transaction(&world, "33", "a")).unwrap().contains("leasehold: fenced"));
    assert_eq!(run("SELECT value FROM counters").as_deref(), Some("1\n"));
}

#[test]
fn a_driver_takes_the_schema_of_mysql_statement_by_statement() {
    if !DatabaseKind::MariaDb.is_to_be_tested("a_driver_takes_the_schema_of_mysql") {
        return;
    }
    let url = MariaDb::shared().url(&fresh("driver")).unwrap();
    let mut connection = ::mysql::Conn::new(::mysql::Opts::from_url(&url).unwrap()).unwrap();
    for _twice in 0..2 {
        for statement in leasehold_seal::mysql::statements() {
            connection.query_drop(statement).unwrap();
        }
    }
    connection.query_drop("START TRANSACTION").unwrap();
    crate::databases::seal_mysql(&mut connection, &crate::databases::stamp("r", 34)).unwrap();
}
