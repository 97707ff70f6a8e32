//! What goes over the wire: how many requests, and which.

use leasehold_core::store::{RenewReply, RenewRequest, Store};
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::support::{Process, TTL, name, owner, run, until};

/// The requests that clients sent, by command, without the heartbeat.
fn requests(monitor: &leasehold_testkit::servers::Monitor) -> Vec<String> {
    let sent = monitor.requests().unwrap();
    let commands = sent.iter().map(leasehold_testkit::servers::MonitorLine::command);
    commands.filter(|command| !["HELLO", "TIME", "PING", "ECHO"].contains(&command.as_str())).collect()
}

#[test]
fn an_uncontended_acquire_and_release_are_one_round_trip_each() {
    for_each_server("an_uncontended_acquire_and_release_are_one_round_trip_each", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let (job, me) = (name("job"), owner("me"));
            process.take(&job, &me).await;
            process.release(&job, &me).await.unwrap();
            let monitor = server.monitor().unwrap();
            process.take(&job, &me).await;
            assert_eq!(requests(&monitor), ["EVALSHA"]);
            process.release(&job, &me).await.unwrap();
            assert_eq!(requests(&monitor), ["EVALSHA", "EVALSHA"]);
        });
    });
}

#[test]
fn a_hand_over_is_the_release_alone() {
    for_each_server("a_hand_over_is_the_release_alone", |server| {
        run(async {
            let holder = Process::start(&server.url()).await;
            let waiter = Process::start(&server.url()).await;
            let (job, first, second) = (name("job"), owner("first"), owner("second"));
            // Makes the server keep both scripts.
            holder.take(&job, &first).await;
            holder.release(&job, &first).await.unwrap();
            holder.take(&job, &first).await;
            waiter.queue(&job, &second).await;
            let monitor = server.monitor().unwrap();
            holder.release(&job, &first).await.unwrap();
            until("granted", async || waiter.grants(&second).len() == 1).await;
            assert_eq!(requests(&monitor), ["EVALSHA"]);
        });
    });
}

#[test]
fn trap_41_a_script_that_the_server_forgot_is_sent_once() {
    for_each_server("trap_41_a_script_that_the_server_forgot_is_sent_once", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let owners: Vec<_> = (0..20).map(|i| (name(&format!("job-{i}")), owner("me"))).collect();
            for (job, me) in &owners {
                process.take(job, me).await;
            }
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            let monitor = server.monitor().unwrap();
            let requests_for: Vec<_> = owners
                .iter()
                .map(|(job, me)| RenewRequest { name: job.clone(), owner: me.clone(), ttl: TTL })
                .collect();
            for reply in process.store.renew(&requests_for).await {
                assert_eq!(reply.unwrap(), RenewReply::Renewed);
            }
            let sent = requests(&monitor);
            assert_eq!(sent.iter().filter(|command| *command == "EVAL").count(), 1, "{sent:?}");

            monitor.clear().unwrap();
            let (job, me) = (name("another"), owner("me"));
            process.take(&job, &me).await;
            assert_eq!(requests(&monitor), ["EVALSHA", "EVAL"]);
            process.release(&job, &me).await.unwrap();
            process.take(&job, &me).await;
            assert_eq!(requests(&monitor), ["EVALSHA", "EVAL", "EVALSHA", "EVAL", "EVALSHA"]);
        });
    });
}

#[test]
fn renewals_go_out_together_and_one_bad_key_spoils_no_other() {
    for_each_server("renewals_go_out_together_and_one_bad_key_spoils_no_other", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let me = owner("me");
            let jobs: Vec<_> = (0..1_200).map(|i| name(&format!("job-{i}"))).collect();
            for job in &jobs {
                process.take(job, &me).await;
            }
            server.command(&["DEL", "lock:job-7"]).unwrap();
            server.command(&["HSET", "lock:job-7", "a", "b"]).unwrap();
            server.command(&["DEL", "lock:job-900"]).unwrap();
            let requests: Vec<_> = jobs
                .iter()
                .map(|job| RenewRequest { name: job.clone(), owner: me.clone(), ttl: TTL })
                .collect();
            let replies = process.store.renew(&requests).await;
            let renewed = replies.iter().filter(|reply| matches!(reply, Ok(RenewReply::Renewed))).count();
            assert_eq!((replies.len(), renewed), (1_200, 1_198));
            assert!(
                matches!(replies[900], Ok(RenewReply::NotHeld(_)))
                    && !matches!(replies[7], Ok(RenewReply::Renewed))
            );
        });
    });
}

#[test]
fn keys_and_their_types_are_as_documented() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        let (job, holder, waiter) = (name("order:1001"), owner("holder"), owner("waiter"));
        process.take(&job, &holder).await;
        process.queue(&job, &waiter).await;
        for (key, kind) in [
            ("lock:order:1001", "string"),
            ("lock:~queue:{24d}:order:1001", "zset"),
            ("lock:~fence", "string"),
        ] {
            assert_eq!(server.cli(&["TYPE", key]).unwrap(), kind, "{key}");
        }
        assert_eq!(server.cli(&["GET", "lock:order:1001"]).unwrap(), holder.expose());
        assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "3");
        let ttl: i64 = server.cli(&["PTTL", "lock:~queue:{24d}:order:1001"]).unwrap().parse().unwrap();
        assert!((1..=60_000).contains(&ttl), "{ttl}");
    });
}

#[test]
fn trap_69_a_poll_refreshes_the_end_of_the_queue_and_never_shortens_it() {
    for_each_server("trap_69_a_poll_refreshes_the_end_of_the_queue_and_never_shortens_it", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let (job, holder, waiter) = (name("order:1001"), owner("holder"), owner("waiter"));
            process.take(&job, &holder).await;
            process.queue(&job, &waiter).await;
            let queue = "lock:~queue:{24d}:order:1001";
            for (set, least) in [("1000", 30_000), ("90000", 60_001)] {
                server.command(&["PEXPIRE", queue, set]).unwrap();
                process.queue(&job, &waiter).await;
                let ttl: i64 = server.cli(&["PTTL", queue]).unwrap().parse().unwrap();
                assert!(ttl >= least, "{set}: {ttl}");
            }
        });
    });
}

#[test]
fn trap_59_many_names_leave_one_key_on_the_server() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        let me = owner("me");
        for i in 0..2_000 {
            let job = name(&format!("job-{i}"));
            process.take(&job, &me).await;
            process.release(&job, &me).await.unwrap();
        }
        assert_eq!(server.cli(&["KEYS", "*"]).ok(), None, "KEYS answers a list");
        assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "1");
        assert_eq!(server.cli(&["EXISTS", "lock:~fence"]).unwrap(), "1");
    });
}
