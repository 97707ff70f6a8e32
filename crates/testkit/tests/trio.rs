//! The trio of Sentinels that other tests rely on: it fails over, comes back, and each part can be disturbed.

#![cfg(test)]

use std::time::{Duration, Instant};

use leasehold_testkit::servers::{Data, SentinelTrio, kinds_to_test};

fn on_each_kind(test: &str, body: impl Fn(&SentinelTrio) + Sync) {
    std::thread::scope(|scope| {
        for kind in kinds_to_test(test) {
            let body = &body;
            std::thread::Builder::new()
                .name(format!("{test} on {kind}"))
                .spawn_scoped(scope, move || body(&SentinelTrio::start(kind).unwrap()))
                .unwrap();
        }
    });
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let ends = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < ends, "not so: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_primary_is_replaced_and_comes_back_as_a_replica() {
    on_each_kind("a_killed_primary_is_replaced", |trio| {
        assert_eq!(trio.primary(), Some(0));
        trio.node(0).cli(&["SET", "key", "value"]).unwrap();
        until("replicated", || trio.node(1).cli(&["GET", "key"]).unwrap() == "value");
        let started = Instant::now();
        trio.node(0).kill().unwrap();
        let new = trio.wait_for_failover_from(0).unwrap();
        println!("{}: failover after {:?}", trio.node(0).kind(), started.elapsed());
        assert_eq!(new, 1);
        assert_eq!(trio.node(new).cli(&["GET", "key"]).unwrap(), "value");
        trio.node(0).restart(Data::Lose).unwrap();
        until("a replica", || !trio.is_primary(0) && trio.node(0).cli(&["GET", "key"]).unwrap() == "value");
        trio.wait_until_ready().unwrap();
        // And back again, because somebody asks for it.
        trio.fail_over().unwrap();
        trio.wait_for_failover_from(new).unwrap();
    });
}
