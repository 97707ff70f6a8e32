//! What `doctor` finds on a cluster.

use leasehold_core::store::{Finding, Severity, Store};

use crate::support::{Process, name, on_each_cluster, owner, until};

fn found<'a>(findings: &'a [Finding], subject: &str, word: &str) -> &'a Finding {
    let is_it = |finding: &&Finding| finding.subject == subject && finding.message.contains(word);
    findings.iter().find(is_it).unwrap_or_else(|| panic!("{subject} … {word} is not among {findings:#?}"))
}

#[test]
fn a_well_set_cluster_has_nothing_wrong_and_every_danger_is_named_with_its_node() {
    let well_set = |settings: leasehold_testkit::servers::ClusterBuilder| {
        settings.shards(2).config("maxmemory-policy", "noeviction").config("appendonly", "yes")
    };
    on_each_cluster("a_well_set_cluster", well_set, async |cluster| {
        let process = Process::start(&cluster.url()).await;
        process.take(&name("job"), &owner("me")).await;
        // Nodes count a replica only once it has told them how far it has come.
        until("every primary has a replica", async || {
            let findings = process.store.diagnose().await.unwrap();
            let replicas = findings.iter().find(|finding| finding.subject == "replicas").unwrap();
            replicas.severity == Severity::Fine
        })
        .await;
        let findings = process.store.diagnose().await.unwrap();
        let wrong: Vec<_> = findings.iter().filter(|found| found.severity != Severity::Fine).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(findings.iter().all(|found| found.advice.is_empty()));
        found(&findings, "slots", "2 primaries");
        found(&findings, "nodes", "all 4");

        // A replica may be the primary tomorrow, so its settings count, too.
        cluster.node(3).cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
        cluster.node(3).cli(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
        cluster.node(0).cli(&["CONFIG", "SET", "appendonly", "no"]).unwrap();
        cluster.node(1).cli(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]).unwrap();
        cluster.node(2).kill().unwrap();
        let findings = process.store.diagnose().await.unwrap();
        let at = |node: usize| cluster.address(node).to_string();
        assert_eq!(found(&findings, "eviction policy", &at(3)).severity, Severity::Problem);
        assert_eq!(found(&findings, "persistence", &at(0)).severity, Severity::Warning);
        assert_eq!(found(&findings, "cluster-require-full-coverage", &at(1)).severity, Severity::Warning);
        assert_eq!(found(&findings, "nodes", &at(2)).severity, Severity::Problem);
        assert!(findings.iter().all(|found| found.advice.is_empty() == (found.severity == Severity::Fine)));
    });
}
