//! A shard that hangs, with leases on it and on others.

use std::time::{Duration, Instant};

use leasehold::{Attempt, Client, Guard, LeaseState, Released};
use leasehold_testkit::servers::{RedisCluster, kinds_to_test};

const TTL: Duration = Duration::from_secs(2);

async fn take(client: &Client, name: &str) -> Guard {
    match client.lock(name).unwrap().ttl(TTL).wait(Duration::from_secs(20)).acquire().await.unwrap() {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(busy) => panic!("{name} is busy: {busy}"),
    }
}

#[test]
fn trap_16_a_shard_that_hangs_costs_its_own_leases_only() {
    let Some(kind) = kinds_to_test("a_shard_that_hangs").into_iter().next() else { return };
    let cluster = RedisCluster::builder(kind).replicas(0).start().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&cluster.url()).await.unwrap();
        let names: Vec<_> = (0..30).map(|job| format!("job-{job}")).collect();
        let node_of = |name: &str| {
            let slot = cluster.slot_of(&format!("lock:{name}")).unwrap();
            (0..3)
                .find(|shard| (cluster.slots_of(*shard).0..=cluster.slots_of(*shard).1).contains(&slot))
                .unwrap()
        };
        let (mut there, mut elsewhere) = (Vec::new(), Vec::new());
        for name in &names {
            let guard = take(&client, name).await;
            if node_of(name) == 1 { there.push(guard) } else { elsewhere.push(guard) }
        }
        assert!(!there.is_empty() && !elsewhere.is_empty());

        let frozen = Instant::now();
        cluster.node(1).freeze().unwrap();
        while frozen.elapsed() < TTL * 2 {
            for guard in &elsewhere {
                assert!(!matches!(guard.state(), LeaseState::Lost(_)), "{} was lost", guard.name());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for guard in &there {
            assert!(
                matches!(guard.state(), LeaseState::Lost(_)),
                "{} is held by nobody's word",
                guard.name()
            );
        }
        // Names on the others can be taken and given back meanwhile.
        for guard in elsewhere {
            let name = guard.name().to_string();
            assert_eq!(guard.release().await.unwrap(), Released::Freed);
            assert_eq!(take(&client, &name).await.release().await.unwrap(), Released::Freed);
        }
        cluster.node(1).thaw().unwrap();
        drop(there);
        for name in names.iter().filter(|name| node_of(name) == 1) {
            assert_eq!(take(&client, name).await.release().await.unwrap(), Released::Freed);
        }
        client.close(Duration::from_secs(5)).await.unwrap();
    });
}
