//! Grants that are pushed: the bound of the moment they came after, and who may get one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::store::{ReleaseReply, Store};
use leasehold_core::{Clock, Moment, SystemClock};
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::support::{Process, name, owner, run, until};

/// The time of day at a moment of our clock, in microseconds: the server's too, on the same machine.
fn time_of_day(moment: Moment) -> u64 {
    let (now, time) = (SystemClock.now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
    u64::try_from(time.checked_sub(now.since(moment)).unwrap().as_micros()).unwrap()
}

#[test]
fn trap_63_the_bound_of_a_pushed_grant_is_never_after_the_grant() {
    for_each_server("trap_63_the_bound_of_a_pushed_grant_is_never_after_the_grant", |server| {
        run(async {
            let (one, other) = (Process::start(&server.url()).await, Process::start(&server.url()).await);
            let job = name("job");
            let mut holder = (&one, owner("one"));
            holder.0.take(&job, &holder.1).await;
            for round in 0..300 {
                let waiting = if round % 2 == 0 { &other } else { &one };
                let waiter = (waiting, owner("waiter"));
                waiter.0.queue(&job, &waiter.1).await;
                // Many replies arrive at the waiter's process around the push.
                let busy = async {
                    for i in 0..10 {
                        let me = owner("busy");
                        let another = name(&format!("busy-{i}"));
                        waiter.0.take(&another, &me).await;
                        waiter.0.release(&another, &me).await.unwrap();
                    }
                };
                let (released, ()) = tokio::join!(holder.0.release(&job, &holder.1), busy);
                assert_eq!(released.unwrap(), ReleaseReply::Freed { handed_over: true });
                until("granted", async || waiter.0.grants(&waiter.1).len() == 1).await;
                let (fencing_token, bound) = waiter.0.grants(&waiter.1)[0];
                // The token was minted at the grant, from the server's clock, and no other is close to it.
                let bound = time_of_day(bound.unwrap());
                assert!(bound <= fencing_token.get() + 20, "round {round}: {bound} is after {fencing_token}");
                holder = waiter;
            }
        });
    });
}

#[test]
fn the_bound_stays_fresh_while_somebody_waits() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let (holding, waiting) = (Process::start(&server.url()).await, Process::start(&server.url()).await);
        let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
        holding.take(&job, &holder).await;
        waiting.queue(&job, &waiter).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let before = SystemClock.now();
        holding.release(&job, &holder).await.unwrap();
        until("granted", async || waiting.grants(&waiter).len() == 1).await;
        let bound = waiting.grants(&waiter)[0].1.unwrap();
        let pings = server.command_stats().unwrap().get("ping").map_or(0, |stats| stats.calls);
        // One every quarter of a claim time of 3 s.
        assert!(pings >= 3, "{pings}");
        // Half the claim time is what the engine relies on; the rest is for a busy machine.
        assert!(before.since(bound) < Duration::from_secs(3), "{:?} old", before.since(bound));
    });
}

#[test]
fn a_grant_after_a_reconnection_has_a_bound_of_the_new_connection() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let (holding, waiting) = (Process::start(&server.url()).await, Process::start(&server.url()).await);
        let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
        holding.take(&job, &holder).await;
        let ticket = waiting.queue(&job, &waiter).await.place.unwrap().ticket;
        let cut = SystemClock.now();
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        waiting.until_reconnected(1).await;
        holding.until_reconnected(1).await;
        let again = waiting.queue(&job, &waiter).await.place.unwrap();
        assert!(again.first && again.ticket >= ticket);
        assert_eq!(server.cli(&["ZCARD", "lock:~queue:{24d}:order:1001"]).unwrap(), "0");
        holding.release(&job, &holder).await.unwrap();
        until("granted", async || waiting.grants(&waiter).len() == 1).await;
        assert!(waiting.grants(&waiter)[0].1.unwrap() > cut);
    });
}

#[test]
fn trap_61_a_pattern_subscriber_does_not_make_a_dead_waiter_count_as_alive() {
    for_each_server("trap_61_a_pattern_subscriber_does_not_make_a_dead_waiter_count_as_alive", |server| {
        run(async {
            let mut spy = server.connect().unwrap();
            spy.command(&["PSUBSCRIBE", "*"]).unwrap();
            let (holding, dead) = (Process::start(&server.url()).await, Process::start(&server.url()).await);
            let (job, holder) = (name("job"), owner("holder"));
            holding.take(&job, &holder).await;
            dead.queue(&job, &owner("dead")).await;
            dead.store.close().await;
            until("the server sees it", async || {
                server.cli(&["PUBSUB", "NUMPAT"]).unwrap() == "1"
                    && server.info("clients").unwrap()["connected_clients"] == "3"
            })
            .await;
            assert_eq!(
                holding.release(&job, &holder).await.unwrap(),
                ReleaseReply::Freed { handed_over: false }
            );
        });
    });
}
