//! The form in one statement, on a row of the user's own: the write is refused, or the row is missing, or it is done.

use crate::databases::{World, for_each_database};

const SHIPMENTS: &str = "CREATE TABLE shipments (id BIGINT PRIMARY KEY, state VARCHAR(20) NOT NULL, \
    lock_token BIGINT NOT NULL DEFAULT 0); INSERT INTO shipments VALUES (1001, 'PAID', 0);";

#[derive(Debug, PartialEq, Eq)]
enum Written {
    Accepted,
    Refused { newest: i64 },
    Missing,
}

/// As `docs/fencing.md` shows it for each database.
fn update(world: &World, id: i64, state: &str, token: i64) -> Written {
    match world {
        World::Postgres { .. } => update_postgres(world, id, state, token),
        World::MariaDb { .. } => {
            // Only values that grow are written, so a row that matches is always changed.
            let said = world
                .script(&format!(
                    "UPDATE shipments SET state = '{state}', lock_token = {token} WHERE id = {id} AND lock_token < {token};
                     SELECT ROW_COUNT(); SELECT lock_token FROM shipments WHERE id = {id};"
                ))
                .unwrap();
            let mut lines = said.lines().map(|line| line.parse().unwrap());
            told(lines.next().unwrap(), lines.next())
        }
        World::Sqlite { .. } => {
            let connection = world.sqlite_connection();
            let changed = connection
                .execute(
                    "UPDATE shipments SET state = ?2, lock_token = ?3 WHERE id = ?1 AND lock_token < ?3",
                    (id, state, token),
                )
                .unwrap();
            let newest = connection
                .query_row("SELECT lock_token FROM shipments WHERE id = ?1", [id], |row| row.get(0))
                .ok();
            told(i64::try_from(changed).unwrap(), newest)
        }
    }
}

fn told(written: i64, newest: Option<i64>) -> Written {
    match (written, newest) {
        (1, _) => Written::Accepted,
        (_, Some(newest)) => Written::Refused { newest },
        (_, None) => Written::Missing,
    }
}

fn update_postgres(world: &World, id: i64, state: &str, token: i64) -> Written {
    let said = world
        .script(&format!(
            "WITH written AS (
               UPDATE shipments SET state = '{state}', lock_token = {token}
               WHERE id = {id} AND lock_token < {token} RETURNING 1
             ), found AS (
               SELECT lock_token FROM shipments WHERE id = {id} FOR UPDATE
             )
             SELECT (SELECT count(*) FROM written), (SELECT lock_token FROM found);"
        ))
        .unwrap();
    let (written, newest) = said.trim().split_once('|').unwrap();
    told(written.parse().unwrap(), newest.parse().ok())
}

#[test]
fn a_missing_row_is_told_apart_from_a_refused_write() {
    for_each_database("a_missing_row_is_told_apart_from_a_refused_write", |world| {
        world.script(SHIPMENTS).unwrap();
        assert_eq!(update(world, 1001, "REQUESTED", 34), Written::Accepted);
        assert_eq!(update(world, 1001, "LOST", 33), Written::Refused { newest: 34 });
        // One write for each grant: the same token again is refused, too.
        assert_eq!(update(world, 1001, "AGAIN", 34), Written::Refused { newest: 34 });
        assert_eq!(update(world, 1002, "LOST", 35), Written::Missing);
        assert_eq!(update(world, 1001, "SHIPPED", 35), Written::Accepted);
    });
}

#[test]
fn on_postgres_a_write_that_waited_for_a_newer_one_is_refused_with_its_token() {
    for_each_database("on_postgres_a_write_that_waited", |world| {
        let World::Postgres { .. } = world else { return };
        world.script(SHIPMENTS).unwrap();
        std::thread::scope(|scope| {
            let newer = scope.spawn(|| {
                world.script(
                    "BEGIN; UPDATE shipments SET state = 'NEWER', lock_token = 34 WHERE id = 1001; \
                     SELECT pg_sleep(0.5); COMMIT;",
                )
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert_eq!(update(world, 1001, "STALE", 33), Written::Refused { newest: 34 });
            newer.join().unwrap().unwrap();
        });
    });
}
