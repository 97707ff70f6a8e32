//! What `doctor` finds on a service with Sentinels and on the replicas of any primary.

use leasehold::{Finding, Severity};
use leasehold_testkit::servers::{RedisServer, ServerKind, kinds_to_test};

use crate::support::{connect, on_each_kind, run, until};

async fn findings(url: &str) -> Vec<Finding> {
    connect(url, "doctor").await.diagnose().await.unwrap()
}

/// The worst that is said about subjects that begin so, and all of it.
fn worst(findings: &[Finding], subject: &str) -> (Severity, String) {
    let about = |finding: &&Finding| finding.subject.starts_with(subject);
    let worst = findings.iter().filter(about).max_by_key(|finding| finding.severity);
    let worst = worst.unwrap_or_else(|| panic!("nothing about {subject} in {findings:#?}"));
    assert!(worst.severity == Severity::Fine || !worst.advice.is_empty(), "no advice: {worst:?}");
    (worst.severity, worst.message.clone())
}

#[test]
fn a_service_is_fine_when_every_part_of_it_is_and_each_fault_is_named() {
    on_each_kind("a_service_is_fine_when_every_part_is", |trio| {
        run(async {
            for number in 0..3 {
                let on = ["CONFIG", "SET", "appendonly", "yes"];
                trio.node(number).command(&on).unwrap();
                trio.node(number).command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).unwrap();
            }
            trio.wait_until_ready().unwrap();
            let found = findings(&trio.url()).await;
            let wrong: Vec<_> = found.iter().filter(|finding| finding.severity != Severity::Fine).collect();
            assert!(wrong.is_empty(), "{wrong:#?}");
            for number in 0..3 {
                worst(&found, &format!("sentinel {}", trio.sentinel(number).address()));
            }
            let (one, two) = (trio.proxy(1).address(), trio.proxy(2).address());
            for replica in [one, two] {
                worst(&found, &format!("replica {replica}: clock"));
            }
            // One thing after the other is wrong.
            trio.node(1).command(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
            trio.node(1).command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
            trio.node(2).command(&["CONFIG", "SET", "appendonly", "no"]).unwrap();
            trio.sentinel(2).kill().unwrap();
            until("two Sentinels", || {
                let reply = trio.sentinel(0).command(&["SENTINEL", "CKQUORUM", "orders"]).unwrap();
                reply.text().is_some_and(|text| text.contains("2 usable"))
            })
            .await;
            let found = findings(&trio.url()).await;
            let said = worst(&found, &format!("replica {one}: eviction policy"));
            assert!(said.0 == Severity::Problem && said.1.contains("allkeys-lru"), "{said:?}");
            assert_eq!(worst(&found, &format!("replica {two}: persistence")).0, Severity::Warning);
            let gone = worst(&found, &format!("sentinel {}", trio.sentinel(2).address()));
            assert!(gone.0 == Severity::Warning && gone.1.contains("reached"), "{gone:?}");
            // Without a second one nobody may fail over.
            trio.sentinel(1).kill().unwrap();
            until("no quorum", || {
                let reply = trio.sentinel(0).command(&["SENTINEL", "CKQUORUM", "orders"]).unwrap();
                matches!(reply, leasehold_testkit::resp::RespValue::Error(_))
            })
            .await;
            let found = findings(&trio.url()).await;
            let said = worst(&found, &format!("sentinel {}", trio.sentinel(0).address()));
            assert!(said.0 == Severity::Problem && said.1.contains("NOQUORUM"), "{said:?}");
        });
    });
}

#[test]
fn the_replicas_of_a_plain_server_are_looked_at_too() {
    let test = "the_replicas_of_a_plain_server_are_looked_at";
    if !kinds_to_test(test).contains(&ServerKind::Redis7) {
        return;
    }
    let primary = RedisServer::start(ServerKind::Redis7).unwrap();
    let follows = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::builder(ServerKind::Redis7)
        .config("replicaof", &follows)
        .config("repl-diskless-sync-delay", "0")
        .start()
        .unwrap();
    run(async {
        let online =
            || primary.info("replication").unwrap().get("slave0").is_some_and(|it| it.contains("online"));
        until("it follows", online).await;
        let subject = format!("replica {}", replica.address());
        let found = findings(&primary.url()).await;
        assert_eq!(worst(&found, &format!("{subject}: clock")).0, Severity::Fine);
        assert_eq!(worst(&found, &format!("{subject}: persistence")).0, Severity::Warning);
        // Frozen: it cannot be looked at, and that is said, in time.
        replica.freeze().unwrap();
        let found = findings(&primary.url()).await;
        let said = worst(&found, &subject);
        assert_eq!(said.0, Severity::Warning, "{said:?}");
        replica.thaw().unwrap();
    });
}
