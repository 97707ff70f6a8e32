//! Holding a lease on a real server: it is renewed whatever the program does, and its loss is told whatever
//! happens to the server.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LeaseState, LostCause, Released};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::Data;

use crate::support::{
    SLACK, connect, free, guard, number, on_each_server, pttl, run, run_on_each_server, take, until,
    until_nothing_is_left, until_queued, wait_for,
};

const TTL: Duration = Duration::from_secs(60);

#[test]
fn trap_11_trap_37_a_flush_is_noticed_and_the_lease_is_not_brought_back() {
    run_on_each_server("a_flush_is_noticed_and_the_lease_is_not_brought_back", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let held = take(&client, "job", Duration::from_secs(1)).await;
        server.command(&["FLUSHALL"]).unwrap();
        let cause = tokio::time::timeout(SLACK, held.lost()).await.unwrap();
        assert_eq!(cause, LostCause::Missing);
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!(pttl(server, "job"), -2);
        let next = take(&other, "job", TTL).await;
        assert!(next.fencing_token() > held.fencing_token());
        assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
        free(next).await;
    });
}

#[test]
fn trap_37_an_old_snapshot_brings_neither_old_leases_to_life_nor_old_tokens() {
    on_each_server("an_old_snapshot", |server| {
        run(async {
            let client = connect(&server.url(), "a").await;
            let old = take(&client, "job", Duration::from_secs(600)).await;
            server.command(&["SAVE"]).unwrap();
            free(old).await;
            let held = take(&client, "job", Duration::from_secs(3)).await;
            let newest = take(&client, "other", TTL).await.fencing_token();
            // Comes back with the lease of the snapshot.
            server.kill().unwrap();
            server.restart(Data::Keep).unwrap();
            let cause = tokio::time::timeout(SLACK + SLACK, held.lost()).await.unwrap();
            assert_eq!(cause, LostCause::Taken, "the snapshot's owner has it now");
            assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
            let after = take(&client, "another", TTL).await;
            assert!(after.fencing_token() > newest, "a fencing token came back");
            free(after).await;
        });
    });
}

#[test]
fn trap_15_the_end_of_a_lost_lease_leaves_the_next_of_its_name_renewed() {
    const SHORT: Duration = Duration::from_millis(900);
    run_on_each_server("the_end_of_a_lost_lease_leaves_the_next", async |server| {
        let client = connect(&server.url(), "a").await;
        let lost = take(&client, "job", SHORT).await;
        server.command(&["DEL", "lock:job"]).unwrap();
        let held = take(&client, "job", SHORT).await;
        lost.lost().await;
        drop(lost);
        tokio::time::sleep(SHORT * 5 / 2).await;
        assert_eq!(held.state(), LeaseState::Held);
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), held.owner_token().expose());
        free(held).await;
    });
}

#[test]
fn trap_17_a_thousand_leases_are_all_renewed_in_time() {
    run_on_each_server("a_thousand_leases_are_all_renewed_in_time", async |server| {
        let client = connect(&server.url(), "a").await;
        let mut held = Vec::new();
        for number in 0..1_000 {
            held.push(take(&client, &format!("job-{number}"), Duration::from_secs(4)).await);
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
        for held in held {
            free(held).await;
        }
        until_nothing_is_left(server).await;
    });
}

/// F096: On real servers, hung work loses its lease at `max_hold` and the next is served.
#[test]
fn trap_18_f096_hung_work_loses_its_lease_at_max_hold_and_the_next_is_served() {
    run_on_each_server("hung_work_loses_its_lease_at_max_hold", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let lock = client.lock("job").unwrap().ttl(Duration::from_secs(1)).max_hold(Duration::from_secs(2));
        let hung = guard(lock.try_acquire().await);
        let started = Instant::now();
        let waiting = wait_for(&other, "job", TTL);
        assert_eq!(tokio::time::timeout(SLACK, hung.lost()).await.unwrap(), LostCause::MaxHold);
        assert!(started.elapsed() > Duration::from_millis(1_200), "{:?}", started.elapsed());
        let held = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
        assert_eq!(hung.release().await.unwrap(), Released::AlreadyLost);
        free(held).await;
    });
}

/// F096: Guards that are dropped by an early return, a panic, a timeout or elsewhere free their names.
#[test]
fn trap_32_f096_guards_that_are_dropped_anywhere_free_their_names() {
    run_on_each_server("guards_that_are_dropped_anywhere", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        // On a thread without a runtime.
        let held = take(&client, "job", TTL).await;
        std::thread::spawn(move || drop(held)).join().unwrap();
        free(wait_for(&other, "job", TTL).await.unwrap()).await;
        // While a task panics.
        let held = take(&client, "job", TTL).await;
        let panicking = std::thread::spawn(move || {
            std::panic::catch_unwind(AssertUnwindSafe(|| {
                let _held = held;
                std::panic::resume_unwind(Box::new("no message on standard error"));
            }))
            .is_err()
        });
        assert!(panicking.join().unwrap());
        free(wait_for(&other, "job", TTL).await.unwrap()).await;
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_32_a_guard_that_outlives_its_runtime_and_its_client_frees_its_name() {
    on_each_server("a_guard_that_outlives_its_runtime", |server| {
        let held = run(async {
            let client = connect(&server.url(), "a").await;
            take(&client, "job", TTL).await
        });
        drop(held);
        run(until_nothing_is_left(server));
    });
}

#[test]
fn trap_19_a_program_that_blocks_its_runtime_keeps_its_lease() {
    on_each_server("a_program_that_blocks_its_runtime_keeps_its_lease", |server| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = connect(&server.url(), "a").await;
            let held = take(&client, "job", Duration::from_secs(1)).await;
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(held.state(), LeaseState::Held);
            assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), held.owner_token().expose());
            free(held).await;
        });
    });
}

#[test]
fn trap_21_a_holder_that_is_cut_off_is_told_before_its_lease_can_have_ended() {
    run_on_each_server("a_holder_that_is_cut_off_is_told", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let client = connect(&server.url_through(&proxy), "a").await;
        let held = take(&client, "job", Duration::from_secs(5)).await;
        proxy.half_open();
        let cause = tokio::time::timeout(Duration::from_secs(5) + SLACK, held.lost()).await.unwrap();
        let left = pttl(server, "job");
        assert_eq!(cause, LostCause::Unreachable);
        assert!(held.remaining().is_zero());
        // The margin is half a second.
        assert!(left > 0, "told after the lease had ended");
    });
}

/// F067: The same on real servers.
#[test]
fn f067_a_lease_that_ended_blocks_nobody_in_its_own_process() {
    run_on_each_server("a_lease_that_ended_blocks_nobody", async |server| {
        let client = connect(&server.url(), "a").await;
        for releases in [true, false] {
            let lock = client.lock("job").unwrap().ttl(Duration::from_millis(500)).fixed_lease();
            let ended = guard(lock.try_acquire().await);
            tokio::time::sleep(Duration::from_millis(700)).await;
            let mut ended = Some(ended);
            if releases {
                assert_eq!(ended.take().unwrap().release().await.unwrap(), Released::AlreadyLost);
            }
            let second = tokio::time::timeout(SLACK, wait_for(&client, "job", TTL)).await.unwrap().unwrap();
            assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), second.owner_token().expose());
            drop(ended);
            free(second).await;
        }
    });
}

#[test]
fn trap_10_a_stale_release_leaves_the_next_holder_alone() {
    run_on_each_server("a_stale_release_leaves_the_next_holder_alone", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let stale = take(&client, "job", TTL).await;
        // The process does not know yet.
        server.command(&["DEL", "lock:job"]).unwrap();
        let held = take(&other, "job", TTL).await;
        assert_eq!(stale.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), held.owner_token().expose());
        free(held).await;
    });
}

#[test]
fn trap_38_fencing_tokens_are_exact_up_to_two_to_the_fifty_three() {
    const LIMIT: u64 = 9_007_199_254_740_991;
    run_on_each_server("fencing_tokens_are_exact", async |server| {
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        server.command(&["SET", "lock:~fence", &(LIMIT - 3).to_string()]).unwrap();
        let held = take(&client, "job", TTL).await;
        assert_eq!(held.fencing_token().get(), LIMIT - 2);
        let waiting = wait_for(&other, "job", TTL);
        until_queued(server, "job", 1).await;
        free(held).await;
        // This one travelled in a message.
        let held = waiting.await.unwrap();
        assert_eq!(held.fencing_token().get(), LIMIT - 1);
        let last = take(&client, "other", TTL).await;
        assert_eq!(last.fencing_token().get(), LIMIT);
        assert_eq!(number(server, &["GET", "lock:~fence"]), 9_007_199_254_740_991);
        let error = client.lock("one-too-many").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        free(held).await;
        free(last).await;
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_46_a_lease_that_was_overwritten_with_other_data_is_lost_and_the_data_is_left_alone() {
    run_on_each_server("a_lease_that_was_overwritten", async |server| {
        let client = connect(&server.url(), "a").await;
        let held = take(&client, "job", Duration::from_secs(1)).await;
        server.command(&["DEL", "lock:job"]).unwrap();
        server.command(&["RPUSH", "lock:job", "their data"]).unwrap();
        tokio::time::timeout(SLACK, held.lost()).await.unwrap();
        let released = held.release().await;
        println!("{}: {released:?}", server.kind());
        until("nothing left to clean up", || client.load().cleanups == 0).await;
        assert_eq!(server.cli(&["LINDEX", "lock:job", "0"]).unwrap(), "their data");
    });
}
