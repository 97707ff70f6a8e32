//! What `doctor` finds on real servers.

use leasehold_core::Namespace;
use leasehold_core::store::{Finding, Severity, Store};
use leasehold_redis::smallest_acl;
use leasehold_testkit::servers::{RedisServer, for_each_server};

use crate::support::{Process, connect, name, owner, run};

async fn findings(url: &str) -> Vec<Finding> {
    connect(url).await.unwrap().diagnose().await.unwrap()
}

fn severity(findings: &[Finding], subject: &str) -> Severity {
    let found: Vec<_> = findings.iter().filter(|finding| finding.subject == subject).collect();
    assert!(!found.is_empty(), "{subject} is not among {findings:#?}");
    found.iter().map(|finding| finding.severity).max().unwrap()
}

#[test]
fn a_well_set_server_has_nothing_wrong() {
    for_each_server("a_well_set_server_has_nothing_wrong", |server| {
        let server = RedisServer::builder(server.kind())
            .config("maxmemory", "100mb")
            .config("maxmemory-policy", "noeviction")
            .append_only()
            .start()
            .unwrap();
        run(async {
            let process = Process::start(&server.url()).await;
            process.take(&name("job"), &owner("me")).await;
            let findings = process.store.diagnose().await.unwrap();
            let wrong: Vec<_> = findings.iter().filter(|found| found.severity != Severity::Fine).collect();
            assert!(wrong.is_empty(), "{wrong:#?}");
            assert!(findings.iter().all(|found| found.advice.is_empty()));
            let named = findings.iter().find(|found| found.subject == "server").unwrap();
            assert!(named.message.contains("standalone"), "{named:?}");
        });
    });
}

#[test]
fn settings_that_endanger_locks_are_found() {
    for_each_server("settings_that_endanger_locks_are_found", |server| {
        run(async {
            let set = |name: &str, value: &str| server.command(&["CONFIG", "SET", name, value]).unwrap();
            set("maxmemory", "100mb");
            set("maxmemory-policy", "allkeys-lru");
            set("min-replicas-to-write", "1");
            let found = findings(&server.url()).await;
            assert_eq!(severity(&found, "eviction policy"), Severity::Problem);
            assert_eq!(severity(&found, "min-replicas-to-write"), Severity::Problem);
            assert_eq!(severity(&found, "persistence"), Severity::Warning);
            set("min-replicas-to-write", "0");
            set("save", "60 1");
            server.command(&["SET", "lock:~fence", "9007199254740000"]).unwrap();
            let found = findings(&server.url()).await;
            assert_eq!(severity(&found, "stop-writes-on-bgsave-error"), Severity::Warning);
            assert_eq!(severity(&found, "fencing counter"), Severity::Warning);
        });
    });
}

#[test]
fn what_a_user_may_not_see_is_a_finding() {
    for_each_server("what_a_user_may_not_see_is_a_finding", |server| {
        run(async {
            let rules = smallest_acl(&Namespace::default());
            let mut user = vec!["ACL", "SETUSER", "locks", "on", ">PASSWORD"];
            user.extend(rules.split(' '));
            server.command(&user).unwrap();
            let url = format!("redis://locks:PASSWORD@{}/", server.address());
            let found = findings(&url).await;
            let hidden =
                found.iter().find(|finding| finding.subject == "stop-writes-on-bgsave-error").unwrap();
            assert!(
                hidden.message.contains("cannot be seen") && hidden.severity == Severity::Warning,
                "{hidden:?}"
            );
            assert_eq!(severity(&found, "rights"), Severity::Fine);
        });
    });
}

#[test]
fn missing_rights_are_found_with_the_line_that_gives_them() {
    for_each_server("missing_rights_are_found_with_the_line_that_gives_them", |server| {
        run(async {
            let user = ["ACL", "SETUSER", "app", "on", ">pw", "~lock:*", "resetchannels", "+@all", "-scan"];
            server.command(&user).unwrap();
            let found = findings(&format!("redis://app:pw@{}/", server.address())).await;
            let rights: Vec<_> = found
                .iter()
                .filter(|finding| finding.subject == "rights" && finding.severity == Severity::Warning)
                .collect();
            assert!(rights.iter().any(|finding| finding.message.contains("SCAN")), "{rights:#?}");
            assert!(rights.iter().any(|finding| finding.message.contains("channels")), "{rights:#?}");
            assert!(rights.iter().all(|finding| finding.advice.contains("ACL SETUSER")), "{rights:#?}");
        });
    });
}
