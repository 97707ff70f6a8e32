//! The trigger of PostgreSQL that refuses writers who bring no token.

use leasehold_testkit::databases::DatabaseKind;

use crate::databases::World;

const SHIPMENTS: &str = "
    CREATE TABLE shipments (id bigint PRIMARY KEY, state text NOT NULL);
    INSERT INTO shipments SELECT id, 'PAID' FROM generate_series(1, 5) AS id;
    CREATE TRIGGER sealed BEFORE INSERT OR UPDATE OR DELETE ON shipments
      FOR EACH ROW EXECUTE FUNCTION leasehold_require_seal_v1('shipment:', 'id');
    CREATE TRIGGER sealed_truncate BEFORE TRUNCATE ON shipments
      FOR EACH STATEMENT EXECUTE FUNCTION leasehold_require_seal_v1('shipments');";

fn world(test: &str) -> Option<World> {
    DatabaseKind::Postgres.is_to_be_tested(test).then(|| {
        let world = World::postgres(leasehold_seal::postgres::SCHEMA);
        world.script(SHIPMENTS).unwrap();
        world
    })
}

/// A transaction that seals these resources and then does this.
fn sealed(resources: &[&str], statement: &str) -> String {
    let seals: Vec<_> = resources
        .iter()
        .map(|resource| format!("SELECT leasehold_seal_v1('{resource}', 34, 'b', 'lock:');"))
        .collect();
    let seals = seals.concat();
    format!("BEGIN; {seals} {statement}; COMMIT;")
}

#[test]
fn a_writer_without_a_token_is_refused_whatever_it_does() {
    let Some(world) = world("a_writer_without_a_token_is_refused") else { return };
    for write in [
        "INSERT INTO shipments VALUES (9, 'PAID')",
        "UPDATE shipments SET state = 'LOST' WHERE id = 1",
        "DELETE FROM shipments WHERE id = 1",
        "TRUNCATE shipments",
        "INSERT INTO shipments VALUES (1, 'LOST') ON CONFLICT (id) DO UPDATE SET state = excluded.state",
        "MERGE INTO shipments USING (VALUES (1)) AS new (id) ON shipments.id = new.id WHEN MATCHED THEN DELETE",
        "COPY shipments FROM PROGRAM 'echo 9,PAID' (FORMAT csv)",
    ] {
        let refused = world.script(&format!("{write};")).unwrap_err();
        assert!(refused.contains("LH004: leasehold: not sealed"), "{write}: {refused}");
        // Another resource is not enough, and neither is a seal of an earlier transaction.
        let refused = world.script(&sealed(&["shipment:2"], write)).unwrap_err();
        assert!(refused.contains("LH004"), "{write}: {refused}");
    }
    assert_eq!(world.script("SELECT count(*) FROM shipments WHERE state = 'PAID';").unwrap(), "5\n");
    assert_eq!(world.script("SELECT * FROM shipments WHERE id = 1;").unwrap(), "1|PAID\n", "reading is free");
}

#[test]
fn a_sealed_writer_passes() {
    let Some(world) = world("a_sealed_writer_passes") else { return };
    world.script(&sealed(&["shipment:1"], "UPDATE shipments SET state = 'REQUESTED' WHERE id = 1")).unwrap();
    world.script(&sealed(&["shipment:9"], "INSERT INTO shipments VALUES (9, 'PAID')")).unwrap();
    world.script(&sealed(&["shipment:9"], "DELETE FROM shipments WHERE id = 9")).unwrap();
    // In a savepoint too, but not by a seal that was rolled back with one.
    world
        .script(&sealed(
            &["shipment:2"],
            "SAVEPOINT s; UPDATE shipments SET state = 'REQUESTED' WHERE id = 2; RELEASE s",
        ))
        .unwrap();
    let undone = "SAVEPOINT s; SELECT leasehold_seal_v1('shipment:3', 34, 'b', 'lock:'); ROLLBACK TO s; \
                  UPDATE shipments SET state = 'REQUESTED' WHERE id = 3";
    assert!(world.script(&sealed(&[], undone)).unwrap_err().contains("LH004"));
    // Moving a row needs both.
    let moved = "UPDATE shipments SET id = 10 WHERE id = 4";
    assert!(world.script(&sealed(&["shipment:4"], moved)).unwrap_err().contains("writes shipment:10"));
    assert!(world.script(&sealed(&["shipment:10"], moved)).unwrap_err().contains("writes shipment:4"));
    world.script(&sealed(&["shipment:4", "shipment:10"], moved)).unwrap();
    assert_eq!(world.script("SELECT count(*) FROM shipments WHERE state = 'REQUESTED';").unwrap(), "2\n");
    world.script(&sealed(&["shipments"], "TRUNCATE shipments")).unwrap();
}

#[test]
fn a_trigger_that_names_no_resource_refuses_everything() {
    let Some(world) = world("a_trigger_that_names_no_resource") else { return };
    for arguments in ["'shipment:', 'no_such_column'", "", "'a', 'b', 'c'"] {
        world
            .script(&format!(
                "DROP TRIGGER sealed ON shipments; CREATE TRIGGER sealed BEFORE UPDATE ON shipments
                   FOR EACH ROW EXECUTE FUNCTION leasehold_require_seal_v1({arguments});"
            ))
            .unwrap();
        let refused = world
            .script(&sealed(&["shipment:1"], "UPDATE shipments SET state = 'x' WHERE id = 1"))
            .unwrap_err();
        assert!(
            refused.contains("LH003: leasehold: the trigger sealed on shipments names no resource"),
            "{refused}"
        );
    }
}

/// What a test of this file would not notice without: the comparison with the present transaction.
#[test]
fn without_the_comparison_an_earlier_seal_would_do() {
    if !DatabaseKind::Postgres.is_to_be_tested("without_the_comparison_an_earlier_seal_would_do") {
        return;
    }
    let part = " AND sealed_in = pg_current_xact_id_if_assigned()";
    assert!(leasehold_seal::postgres::SCHEMA.contains(part));
    let world = World::postgres(&leasehold_seal::postgres::SCHEMA.replace(part, ""));
    world.script(SHIPMENTS).unwrap();
    world.script(&sealed(&["shipment:1"], "SELECT 1")).unwrap();
    world.script("UPDATE shipments SET state = 'LOST' WHERE id = 1;").unwrap();
}
