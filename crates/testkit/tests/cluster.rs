//! The cluster for tests is one: whole, with replicas, and slots move.

#![cfg(test)]

use std::time::Instant;

use leasehold_testkit::servers::{RedisCluster, kinds_to_test};

#[test]
fn a_cluster_forms_moves_slots_and_fails_over() {
    // Other tests form clusters of the other kinds.
    for kind in kinds_to_test("a_cluster_forms").into_iter().take(1) {
        let started = Instant::now();
        let cluster = RedisCluster::builder(kind).proxies().start().unwrap();
        println!("{kind}: whole after {:?}", started.elapsed());
        let slot = cluster.slot_of("x").unwrap();
        let from = cluster.owner_of(slot).unwrap();
        let to = (from + 1) % 3;
        cluster.command(&["SET", "x", "1"]).unwrap();
        cluster.migrate(slot, from, to).unwrap();
        assert_eq!(cluster.owner_of(slot).unwrap(), to);
        assert_eq!(cluster.command(&["GET", "x"]).unwrap().text().as_deref(), Some("1"));
        assert_eq!(cluster.keys("*").unwrap(), ["x"]);

        cluster.fail_over_to(3 + to).unwrap();
        assert_eq!(cluster.owner_of(slot).unwrap(), 3 + to);
        cluster.node(3 + to).kill().unwrap();
        cluster.until_primary(to).unwrap();
        assert_eq!(cluster.command(&["GET", "x"]).unwrap().text().as_deref(), Some("1"));
    }
}
