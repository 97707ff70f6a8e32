//! Names in slots: braces of every kind, and slots that move to another node.

use leasehold_core::store::{ReleaseReply, Store};
use leasehold_redis::smallest_cluster_acl;

use crate::support::{Process, name, on_each_cluster, owner, place_of, until};

/// F058: On a cluster a fencing token is minted with the grant, in the slot of the lock key whatever braces the name
/// has, grows from holder to holder and stays through renewals.
#[test]
fn trap_40_f058_names_with_full_empty_and_broken_braces_are_locked_and_handed_over() {
    let test = "names_with_full_empty_and_broken_braces";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let (one, other) = (Process::start(&cluster.url()).await, Process::start(&cluster.url()).await);
            for text in ["plain", "{user}:1", "a{}b", "x{y", "}{", "{{b}}", "foo{}{bar}", "} {", "{a}{b}"] {
                let (job, me, next) = (name(text), owner("me"), owner("next"));
                let first = one.take(&job, &me).await;
                for _ in 0..5 {
                    one.still_holds(&job, &me).await;
                }
                let again = one.take(&job, &me).await;
                assert!(again > first, "{text}: a repeated grant has a larger token");
                assert!(other.queue(&job, &next).await.place.unwrap().pushed, "{text}");
                assert_eq!(
                    one.release(&job, &me).await.unwrap(),
                    ReleaseReply::Freed { handed_over: true },
                    "{text}"
                );
                until("handed over", async || other.grants(&next).len() == 1).await;
                assert!(other.grants(&next)[0] > again, "{text}");
                other.free(&job, &next).await;
                assert_eq!(one.store.inspect(&job).await.unwrap(), None, "{text}");
            }
            let left = cluster.keys("*").unwrap();
            assert!(left.iter().all(|key| key.starts_with("lock:~fence:{")), "{left:?}");
        },
    );
}

/// F066: A slot that moves to a node that has never seen a script costs no operation.
#[test]
fn trap_41_f066_a_slot_that_has_moved_is_followed_with_its_leases_and_waiters() {
    let test = "a_slot_that_has_moved_is_followed";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let (one, other) = (Process::start(&cluster.url()).await, Process::start(&cluster.url()).await);
            let (job, me, next) = (name("job"), owner("me"), owner("next"));
            let (slot, from) = place_of(cluster, "job");
            let to = (from + 1) % 3;
            let first = one.take(&job, &me).await;
            let held = other.queue(&job, &next).await;
            cluster.node(to).cli(&["SCRIPT", "FLUSH"]).unwrap();
            cluster.migrate(slot, from, to).unwrap();
            assert_eq!(place_of(cluster, "job"), (slot, to));

            one.still_holds(&job, &me).await;
            // The old node ended the subscription: the waiter is told, and comes back to its place at the new one.
            until("told to ask again", async || other.asked_again(&next) > 0).await;
            let ticket = held.place.map(|place| place.ticket);
            let place = other.queue_with(&job, &next, ticket).await.place.unwrap();
            assert!(place.pushed && place.first && Some(place.ticket) == ticket, "{place:?}");
            assert_eq!(one.release(&job, &me).await.unwrap(), ReleaseReply::Freed { handed_over: true });
            until("handed over", async || other.grants(&next).len() == 1).await;
            assert!(other.grants(&next)[0] > first);
            other.free(&job, &next).await;

            // Back again: both know both nodes now.
            cluster.migrate(slot, to, from).unwrap();
            assert!(one.take(&job, &me).await > first);
            assert_eq!(one.store.list("", 10).await.unwrap().entries.len(), 1);
            one.free(&job, &me).await;
        },
    );
}

#[test]
fn channels_are_given_back_when_nobody_waits_in_their_slot_any_more() {
    let test = "channels_are_given_back";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let (one, other) = (Process::start(&cluster.url()).await, Process::start(&cluster.url()).await);
            let me = owner("me");
            let jobs: Vec<_> = (0..20).map(|job| name(&format!("job-{job}"))).collect();
            let channels = || -> usize {
                let of = |node| cluster.node(node).command(&["PUBSUB", "SHARDCHANNELS"]).unwrap();
                (0..3).map(|node| of(node).items().unwrap().len()).sum()
            };
            let mut waiters = Vec::new();
            for job in &jobs {
                one.take(job, &me).await;
                let waiter = owner("waiter");
                other.queue(job, &waiter).await;
                waiters.push(waiter);
            }
            assert_eq!(channels(), jobs.len());
            for (job, waiter) in jobs.iter().zip(&waiters).skip(1) {
                other.release(job, waiter).await.unwrap();
            }
            until("one channel is left", async || channels() == 1).await;
            // The one that is still waited for, and one that is waited for anew, are served.
            let again = owner("again");
            other.queue(&jobs[1], &again).await;
            for (job, waiter) in [(&jobs[0], &waiters[0]), (&jobs[1], &again)] {
                assert_eq!(one.release(job, &me).await.unwrap(), ReleaseReply::Freed { handed_over: true });
                until("handed over", async || other.grants(waiter).len() == 1).await;
            }
        },
    );
}

#[test]
fn trap_45_the_smallest_rights_are_enough_in_a_cluster() {
    let test = "the_smallest_rights_are_enough_in_a_cluster";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let rules = smallest_cluster_acl(&leasehold_core::Namespace::default());
            for node in 0..3 {
                let mut words = vec!["ACL", "SETUSER", "app", "on", ">secret"];
                words.extend(rules.split(' '));
                cluster.node(node).cli(&words).unwrap();
            }
            let url = cluster.url().replace("://", "://app:secret@");
            let (one, other) = (Process::start(&url).await, Process::start(&url).await);
            let (job, me, next) = (name("job"), owner("me"), owner("next"));
            let (slot, from) = place_of(cluster, "job");
            one.take(&job, &me).await;
            assert!(other.queue(&job, &next).await.place.unwrap().pushed, "channels are allowed");
            one.free(&job, &me).await;
            until("handed over", async || other.grants(&next).len() == 1).await;
            cluster.begin_migration(slot, from, (from + 1) % 3).unwrap();
            other.free(&job, &next).await;
            one.take(&job, &me).await;
            one.free(&job, &me).await;
            for node in 0..3 {
                let log = cluster.node(node).command(&["ACL", "LOG"]).unwrap();
                assert_eq!(log.items().unwrap().len(), 0, "{log:?}");
            }
        },
    );
}
