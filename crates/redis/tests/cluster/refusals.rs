//! Nodes and clusters that cannot be used, and what users are told about them. Nothing is left on any.

use leasehold_core::{Clock, ErrorKind, SystemClock};
use leasehold_testkit::ports::PortLease;
use leasehold_testkit::servers::{RedisCluster, RedisServer};

use crate::support::{Process, SLACK, connect_error, name, on_each_cluster, one_kind, owner, run};

async fn assert_refused(url: &str, kind: ErrorKind, words: &[&str]) {
    let started = SystemClock.now();
    let error = connect_error(url).await;
    assert!(SystemClock.now().since(started) < SLACK, "{url}: refused late");
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word} is not in: {error}");
    }
}

#[test]
fn a_single_server_given_as_a_cluster_is_refused_with_what_to_write() {
    let Some(kind) = one_kind("a_single_server_given_as_a_cluster") else { return };
    let server = RedisServer::start(kind).unwrap();
    let address = server.address().to_string();
    run(async {
        let url = format!("redis+cluster://{address}/");
        assert_refused(&url, ErrorKind::Config, &["not part of a cluster", "redis://", &address]).await;
        let words = &["refuses the user or the password", &*address];
        assert_refused(&format!("redis+cluster://nobody:wrong@{address}/"), ErrorKind::Denied, words).await;
    });
    assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "0");
}

#[test]
fn nodes_that_cannot_be_reached_are_named_and_one_that_can_is_enough() {
    let nobody = PortLease::take().unwrap();
    let nobody = nobody.address();
    run(async {
        let url = format!("redis+cluster://{nobody}/");
        assert_refused(&url, ErrorKind::Unavailable, &[&nobody.to_string(), "is it running there"]).await;
    });
    on_each_cluster(
        "one_node_is_enough",
        |settings| settings.shards(2),
        async |cluster| {
            let (job, me) = (name("job"), owner("me"));
            // A replica, behind a node that is not there.
            let process = Process::start(&format!("redis+cluster://{nobody},{}/", cluster.address(3))).await;
            process.take(&job, &me).await;
            process.free(&job, &me).await;
        },
    );
}

#[test]
fn slots_that_nobody_has_are_named_and_nothing_is_left() {
    on_each_cluster(
        "slots_that_nobody_has",
        |settings| settings.replicas(0).uncovered(),
        async |cluster| {
            let (first, last) = cluster.slots_of(2);
            let words = [&*format!("{first} to {last}"), "CLUSTER ADDSLOTSRANGE"];
            assert_refused(&cluster.url(), ErrorKind::Unavailable, &words).await;
            assert!(cluster.keys("*").unwrap().is_empty());
        },
    );
}

#[test]
fn addresses_that_are_announced_but_not_reached_are_named() {
    let Some(kind) = one_kind("addresses_that_are_announced_but_not_reached") else { return };
    let cluster = RedisCluster::builder(kind).replicas(0).proxies().start().unwrap();
    for node in 0..3 {
        cluster.proxy(node).refuse().unwrap();
    }
    run(async {
        let url = format!("redis+cluster://{}/", cluster.node(0).address());
        assert_refused(&url, ErrorKind::Unavailable, &["announce", "cluster-announce-ip"]).await;
    });
}

#[test]
fn a_node_that_refuses_to_work_says_why() {
    let Some(kind) = one_kind("a_node_that_refuses_to_work") else { return };
    let settings = RedisCluster::builder(kind).replicas(0);
    let cluster = settings.config("cluster-require-full-coverage", "yes").start().unwrap();
    run(async {
        let process = Process::start(&cluster.url()).await;
        cluster.node(2).kill().unwrap();
        let (job, me) = (name("job-1"), owner("me"));
        crate::support::until("the cluster is down", async || match process.try_acquire(&job, &me).await {
            Ok(_) => process.release(&job, &me).await.is_err(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                error.to_string().contains("cluster-require-full-coverage")
            }
        })
        .await;
    });
}
