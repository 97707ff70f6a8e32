//! Shards that fail over, and shards that are down.

use std::time::Duration;

use leasehold_core::store::{RenewReply, RenewRequest, Store};
use leasehold_core::{Clock, ErrorKind, SystemClock};

use crate::support::{Process, SLACK, TTL, name, on_each_cluster, owner, place_of, until};

/// F012: After a planned failover leases of the shard are renewed and given back at the new primary at once, while
/// the old one goes on as a replica.
#[test]
fn trap_41_f012_a_planned_failover_costs_no_lease_and_no_operation() {
    let test = "a_planned_failover_costs_no_lease";
    on_each_cluster(
        test,
        |settings| settings,
        async |cluster| {
            let process = Process::start(&cluster.url()).await;
            let (me, waiter) = (owner("me"), owner("waiter"));
            let jobs: Vec<_> = (0..50).map(|job| name(&format!("job-{job}"))).collect();
            let mut newest = Vec::new();
            for job in &jobs {
                newest.push(process.take(job, &me).await);
            }
            let (_, shard) = place_of(cluster, "job-0");
            let held = process.queue(&jobs[0], &waiter).await;
            cluster.fail_over_to(3 + shard).unwrap();
            let started = SystemClock.now();
            for (job, token) in jobs.iter().zip(&newest) {
                process.still_holds(job, &me).await;
                assert!(process.take(job, &me).await > *token);
            }
            // Its subscription was at the old primary, which is none any more.
            until("told to ask again", async || process.asked_again(&waiter) > 0).await;
            let ticket = held.place.map(|place| place.ticket);
            assert!(process.queue_with(&jobs[0], &waiter, ticket).await.place.unwrap().pushed);
            for job in &jobs {
                process.free(job, &me).await;
            }
            until("handed over", async || process.grants(&waiter).len() == 1).await;
            assert!(SystemClock.now().since(started) < SLACK);
        },
    );
}

#[test]
fn trap_16_a_shard_that_is_down_stops_its_own_names_only_until_its_replica_takes_over() {
    let test = "a_shard_that_is_down_stops_its_own_names_only";
    on_each_cluster(
        test,
        |settings| settings,
        async |cluster| {
            let process = Process::start(&cluster.url()).await;
            let me = owner("me");
            let jobs: Vec<_> = (0..12).map(|job| name(&format!("job-{job}"))).collect();
            for job in &jobs {
                process.take(job, &me).await;
            }
            // What was written has reached the replicas.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let (_, dead) = place_of(cluster, "job-0");
            let is_there = |job: &leasehold_core::Name| place_of(cluster, job.as_str()).1 == dead;
            let (there, elsewhere): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| is_there(job));
            assert!(!there.is_empty() && !elsewhere.is_empty());
            let requests: Vec<_> = jobs
                .iter()
                .map(|job| RenewRequest { name: job.clone(), owner: me.clone(), ttl: TTL })
                .collect();
            cluster.node(dead).kill().unwrap();
            let renewed = process.store.renew(&requests).await;
            for (job, reply) in jobs.iter().zip(renewed) {
                match reply {
                    Ok(reply) => assert!(elsewhere.contains(&job) && reply == RenewReply::Renewed, "{job}"),
                    Err(error) => assert!(there.contains(&job), "{job}: {error}"),
                }
            }
            for job in &elsewhere {
                process.still_holds(job, &me).await;
            }
            cluster.until_primary(3 + dead).unwrap();
            for job in &there {
                until("the replica has taken over", async || process.renew(job, &me).await.is_ok()).await;
                process.still_holds(job, &me).await;
            }
            for job in &jobs {
                process.free(job, &me).await;
            }
            // The old primary comes back, as a replica.
            cluster.node(dead).restart(leasehold_testkit::servers::Data::Lose).unwrap();
            cluster.until_whole().unwrap();
            process.take(&jobs[0], &me).await;
            process.free(&jobs[0], &me).await;
        },
    );
}

#[test]
fn a_shard_without_a_replica_is_unavailable_and_works_again_when_it_is_back() {
    let test = "a_shard_without_a_replica_is_unavailable";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let process = Process::start(&cluster.url()).await;
            let (job, me) = (name("job"), owner("me"));
            let (_, dead) = place_of(cluster, "job");
            let address = cluster.address(dead).to_string();
            process.take(&job, &me).await;
            process.free(&job, &me).await;
            cluster.node(dead).kill().unwrap();
            until("unavailable", async || match process.try_acquire(&job, &me).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => error.to_string().contains(&address),
                _ => false,
            })
            .await;
            cluster.node(dead).restart(leasehold_testkit::servers::Data::Lose).unwrap();
            until("taken again", async || process.try_acquire(&job, &me).await.is_ok()).await;
            process.free(&job, &me).await;
        },
    );
}
