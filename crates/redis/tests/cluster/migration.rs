//! While a slot migrates its keys are at two nodes, and scripts on several of them are refused, perhaps for minutes.

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::store::{AcquireReply, BreakMode, Holder, ReleaseReply, Store, SwapRequest, Then};
use leasehold_testkit::servers::RedisCluster;

use crate::support::{Process, TTL, name, on_each_cluster, one_kind, owner, place_of, run, until};

#[test]
fn trap_67_names_of_a_slot_that_migrates_are_taken_renewed_and_given_back_step_by_step() {
    let test = "names_of_a_slot_that_migrates";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let (one, other) = (Process::start(&cluster.url()).await, Process::start(&cluster.url()).await);
            // Two names of one slot: one whose keys are still at the old node, one that is new.
            let (old, new, me, you) = (name("{job}:old"), name("{job}:new"), owner("me"), owner("you"));
            let (slot, from) = place_of(cluster, "{job}:old");
            let to = (from + 1) % 3;
            let before = one.take(&old, &me).await;
            cluster.begin_migration(slot, from, to).unwrap();

            // Both are renewed and taken wherever they are, and tokens grow.
            one.still_holds(&old, &me).await;
            let taken = other.take(&new, &you).await;
            assert!(taken > before);
            assert_eq!(other.steps(), ["acquire"]);
            other.still_holds(&new, &you).await;
            // Nobody else gets in, and whoever waits polls and has a place for later.
            let held = one.queue(&new, &owner("waiter")).await;
            assert_eq!(held.holder, Holder::Lease { label: "you".into() });
            assert!(!held.place.unwrap().pushed);
            assert!(matches!(other.try_acquire(&old, &you).await.unwrap(), AcquireReply::Held(_)));
            assert_eq!(one.store.list("", 10).await.unwrap().entries.len(), 2);

            // In the middle of it the keys move: the counter goes with them, and the leases.
            cluster.move_keys(slot, from, to).unwrap();
            one.still_holds(&old, &me).await;
            other.still_holds(&new, &you).await;
            one.free(&old, &me).await;
            assert_eq!(one.release(&old, &me).await.unwrap(), ReleaseReply::NotHeld);
            let again = other.take(&old, &you).await;
            assert!(again > taken);

            cluster.finish_migration(slot, from, to).unwrap();
            other.free(&old, &you).await;
            other.free(&new, &you).await;
            let steps = one.steps().len() + other.steps().len();
            assert!(one.take(&old, &me).await > again);
            one.free(&old, &me).await;
            assert_eq!(one.steps().len() + other.steps().len(), steps, "in one step again");
        },
    );
}

#[test]
fn trap_30_a_waiter_of_a_slot_that_migrates_is_withdrawn_from_the_queue() {
    let test = "a_waiter_of_a_slot_that_migrates_is_withdrawn";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let (one, other) = (Process::start(&cluster.url()).await, Process::start(&cluster.url()).await);
            let (job, me, waiter, second) = (name("job"), owner("me"), owner("waiter"), owner("second"));
            let (slot, from) = place_of(cluster, "job");
            let to = (from + 1) % 3;
            one.take(&job, &me).await;
            other.queue(&job, &waiter).await;
            cluster.begin_migration(slot, from, to).unwrap();
            cluster.move_keys(slot, from, to).unwrap();
            assert_eq!(other.release(&job, &waiter).await.unwrap(), ReleaseReply::NotHeld);
            cluster.finish_migration(slot, from, to).unwrap();
            let seen = one.store.inspect(&job).await.unwrap().unwrap();
            assert!(seen.waiters.is_empty(), "{seen:?}");
            // The queue works at the new node.
            other.queue(&job, &second).await;
            assert_eq!(one.release(&job, &me).await.unwrap(), ReleaseReply::Freed { handed_over: true });
            until("handed over", async || other.grants(&second).len() == 1).await;
        },
    );
}

#[test]
fn what_needs_several_keys_at_once_says_that_the_slot_migrates_and_works_after_it() {
    let test = "what_needs_several_keys_at_once";
    on_each_cluster(
        test,
        |settings| settings.replicas(0),
        async |cluster| {
            let one = Process::start(&cluster.url()).await;
            let (job, me) = (name("job"), owner("me"));
            let (slot, from) = place_of(cluster, "job");
            let to = (from + 1) % 3;
            one.take(&job, &me).await;
            let swap = SwapRequest {
                name: &job,
                owner: &me,
                expected: None,
                record: b"done",
                retain: TTL,
                then: Then::Hold,
            };
            cluster.begin_migration(slot, from, to).unwrap();
            let by = leasehold_core::Label::new("operator").unwrap();
            for error in [
                one.store.swap_record(swap).await.map(|_| ()).unwrap_err(),
                one.store.break_lease(&job, BreakMode::Now, &by).await.map(|_| ()).unwrap_err(),
            ] {
                assert!(
                    error.kind() == ErrorKind::Unavailable && error.to_string().contains("migrates"),
                    "{error}"
                );
            }
            assert_eq!(one.store.read_record(&job).await.unwrap(), None);
            cluster.move_keys(slot, from, to).unwrap();
            cluster.finish_migration(slot, from, to).unwrap();
            one.store.swap_record(swap).await.unwrap();
            assert_eq!(one.store.read_record(&job).await.unwrap().as_deref(), Some(&b"done"[..]));
            one.free(&job, &me).await;
        },
    );
}

#[test]
fn trap_67_a_name_that_ends_between_the_steps_is_not_granted() {
    let Some(kind) = one_kind("a_name_that_ends_between_the_steps_is_not_granted") else { return };
    let cluster = RedisCluster::builder(kind).replicas(0).proxies().start().unwrap();
    run(async {
        let process = Process::start(&cluster.url()).await;
        let (job, me) = (name("job"), owner("me"));
        let (slot, from) = place_of(&cluster, "job");
        let to = (from + 1) % 3;
        process.take(&job, &me).await;
        process.free(&job, &me).await;
        cluster.begin_migration(slot, from, to).unwrap();
        let ttl = Duration::from_millis(40);
        // Each step takes longer than the lease lasts.
        for node in [from, to] {
            cluster.proxy(node).set_delay(ttl, ttl);
        }
        let error = process.try_for(&job, &me, ttl).await.map(|reply| panic!("{reply:?}")).unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("step"), "{error}");
        for node in [from, to] {
            cluster.proxy(node).set_delay(Duration::ZERO, Duration::ZERO);
        }
        process.take(&job, &owner("another")).await;
    });
}
