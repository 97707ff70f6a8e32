//! What goes over the wire, as the server sees it: how many requests, which, and in what order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::{Attempt, Client};
use leasehold_testkit::servers::{Monitor, MonitorLine, RedisServer};

use crate::common::{Seeded, Workers};
use crate::support::{
    SLACK, connect, free, is_renewal, number, queued, run_on_each_server, script_calls, take, until,
    until_nothing_is_left, until_queued, wait_for,
};

const TTL: Duration = Duration::from_secs(60);

/// Makes the server keep the scripts; the hashes of acquire and release.
async fn learn_scripts(server: &RedisServer, client: &Client) -> (String, String) {
    free(take(client, "warm-up", TTL).await).await;
    let monitor = server.monitor().unwrap();
    free(take(client, "warm-up", TTL).await).await;
    let calls = script_calls(&monitor);
    assert_eq!(calls.len(), 2, "{calls:?}");
    (calls[0].arguments[1].clone(), calls[1].arguments[1].clone())
}

fn of_script(calls: &[MonitorLine], hash: &str) -> usize {
    calls.iter().filter(|call| call.arguments[1] == hash).count()
}

#[test]
fn trap_9_trap_65_an_acquire_and_a_release_are_one_request_each_and_one_write_of_the_key() {
    run_on_each_server("an_acquire_and_a_release_are_one_request_each", async |server| {
        let client = connect(&server.url(), "me").await;
        learn_scripts(server, &client).await;
        let monitor = server.monitor().unwrap();
        for _ in 0..20 {
            monitor.clear().unwrap();
            let held = take(&client, "job", TTL).await;
            assert_eq!(script_calls(&monitor).len(), 1);
            let on_the_key: Vec<_> = monitor.lines().unwrap().into_iter().filter(writes_the_key).collect();
            assert_eq!(on_the_key.len(), 1, "{on_the_key:?}");
            assert_eq!(on_the_key[0].command(), "SET");
            assert!(on_the_key[0].arguments.iter().any(|word| word == "PX"), "{on_the_key:?}");
            free(held).await;
            assert_eq!(script_calls(&monitor).len(), 2);
        }
        // The heartbeat is all there is beside.
        let known = ["EVALSHA", "HELLO", "TIME", "PING"].map(str::to_owned);
        let others: Vec<_> =
            monitor.requests().unwrap().into_iter().filter(|line| !known.contains(&line.command())).collect();
        assert!(others.is_empty(), "{others:?}");
    });
}

fn writes_the_key(line: &MonitorLine) -> bool {
    let reads = ["GET", "EXISTS", "PTTL"].map(str::to_owned);
    line.is_from_script()
        && !reads.contains(&line.command())
        && line.arguments.get(1).is_some_and(|key| key == "lock:job")
}

/// F004: On real servers, as MONITOR shows, no renewal follows a release.
#[test]
fn trap_13_trap_14_f004_no_renewal_follows_a_release() {
    run_on_each_server("no_renewal_follows_a_release", async |server| {
        let client = connect(&server.url(), "me").await;
        let (_, release) = learn_scripts(server, &client).await;
        let monitor = server.monitor().unwrap();
        let tasks: Vec<_> = (0..4).map(|task| tokio::spawn(hold_briefly(client.clone(), task))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let (mut released, mut renewed) = (BTreeSet::new(), 0);
        for call in script_calls(&monitor) {
            if is_renewal(&call) {
                renewed += 1;
                assert!(!released.contains(&call.arguments[4]), "renewed after its release: {call:?}");
            } else if call.arguments[1] == release {
                released.insert(call.arguments[6].clone());
            }
        }
        assert!(renewed > 20, "only {renewed} renewals: the test shows nothing");
        until_nothing_is_left(server).await;
    });
}

/// Many leases that are renewed every 10 ms and released at any moment.
async fn hold_briefly(client: Client, task: u64) {
    let mut seeded = Seeded(task);
    let lock = client.lock(format!("job-{task}")).unwrap().ttl(Duration::from_millis(30)).wait(SLACK);
    for _ in 0..100 {
        let Attempt::Acquired(held) = lock.acquire().await.unwrap() else { panic!("busy") };
        tokio::time::sleep(Duration::from_micros(seeded.below(25_000))).await;
        // A busy machine may lose so short a lease.
        let _ = held.release().await.unwrap();
    }
}

#[test]
fn trap_25_a_release_wakes_exactly_one_of_fifty_waiters() {
    const WAITERS: usize = 50;
    run_on_each_server("a_release_wakes_exactly_one_of_fifty_waiters", async |server| {
        let holder = connect(&server.url(), "holder").await;
        let (acquire, release) = learn_scripts(server, &holder).await;
        let held = take(&holder, "job", TTL).await;
        let mut waiting = Vec::new();
        for number in 0..WAITERS {
            let client = connect(&server.url(), &format!("waiter-{number}")).await;
            waiting.push((wait_for(&client, "job", TTL), client));
        }
        until_queued(server, "job", 50).await;
        let monitor = server.monitor().unwrap();
        free(held).await;
        until("one is granted", || waiting.iter().any(|(task, _)| task.is_finished())).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(waiting.iter().filter(|(task, _)| task.is_finished()).count(), 1);
        assert_eq!(messages(&monitor), (1, 1), "one grant, and one who is told to be next");
        assert_eq!(of_script(&script_calls(&monitor), &release), 1);

        while !waiting.is_empty() {
            until("the next is granted", || waiting.iter().any(|(task, _)| task.is_finished())).await;
            let index = waiting.iter().position(|(task, _)| task.is_finished()).unwrap();
            free(waiting.swap_remove(index).0.await.unwrap()).await;
        }
        let calls = script_calls(&monitor);
        let (asked, released) = (of_script(&calls, &acquire), of_script(&calls, &release));
        println!("{}: {asked} asked again, {released} released, {} calls", server.kind(), calls.len());
        assert_eq!(released, WAITERS + 1);
        // Publishing to all would be 50 + 49 + … calls. What is above one each is polls of a slow machine.
        assert!(calls.len() < 4 * WAITERS, "{} script calls", calls.len());
        assert_eq!(messages(&monitor).0, WAITERS);
        until_nothing_is_left(server).await;
    });
}

/// How many grants and how many notices to the next were published.
fn messages(monitor: &Monitor) -> (usize, usize) {
    let lines = monitor.lines().unwrap();
    let count = |kind: &str| {
        let published = lines.iter().filter(|line| line.command() == "PUBLISH");
        published.filter(|line| line.arguments[2].starts_with(kind)).count()
    };
    (count("1 grant "), count("1 next "))
}

/// F081: Five hundred waiters of a process cost the server what one does.
#[test]
fn f081_five_hundred_waiters_of_a_process_cost_what_one_does() {
    const WATCHED: Duration = Duration::from_secs(8);
    run_on_each_server("five_hundred_waiters_of_a_process_cost_what_one_does", async |server| {
        let (holder, client) =
            (connect(&server.url(), "holder").await, connect(&server.url(), "waiter").await);
        let held = take(&holder, "job", Duration::from_secs(600)).await;
        let waiting: Vec<_> = (0..500).map(|_| wait_for(&client, "job", TTL)).collect();
        until_queued(server, "job", 1).await;
        let channels = server.command(&["PUBSUB", "CHANNELS", "*"]).unwrap().items().unwrap().len();
        assert_eq!(channels, 2, "one for each process");
        let monitor = server.monitor().unwrap();
        tokio::time::sleep(WATCHED).await;
        let mut commands = BTreeMap::new();
        for request in monitor.requests().unwrap() {
            *commands.entry(request.command()).or_insert(0_u64) += 1;
        }
        println!("{}: in {WATCHED:?} of waiting, the heartbeat of two: {commands:?}", server.kind());
        let polls = commands.get("EVALSHA").copied().unwrap_or(0);
        let pings = commands.get("PING").copied().unwrap_or(0);
        assert!((WATCHED.as_secs() / 2..=WATCHED.as_secs() + 2).contains(&polls), "{commands:?}");
        assert!(pings <= 2 * WATCHED.as_secs(), "{commands:?}");
        assert_eq!(queued(server, "job"), 1);
        for task in &waiting {
            task.abort();
        }
        free(held).await;
        until_nothing_is_left(server).await;
        until("no waiter left in the process", || client.load().waiters == 0).await;
    });
}

/// F081: A process that waits is idle.
#[cfg(target_os = "linux")]
#[test]
fn f081_a_process_that_waits_is_idle() {
    run_on_each_server("a_process_that_waits_is_idle", async |server| {
        let folder = tempfile::tempdir().unwrap();
        let holder = connect(&server.url(), "holder").await;
        let held = take(&holder, "counter", TTL).await;
        let mut workers = Workers::new(&server.url(), folder.path(), TTL, "plain");
        workers.start(0);
        until_queued(server, "counter", 1).await;
        let before = processor_time(workers.process_id(0));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let used = processor_time(workers.process_id(0)).saturating_sub(before);
        println!("{}: {used:?} of processor time in 4 s", server.kind());
        assert!(used < Duration::from_millis(400), "{used:?} of processor time in 4 s of waiting");
        free(held).await;
    });
}

/// User and system time of a process.
#[cfg(target_os = "linux")]
fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The program's name, in brackets, may hold spaces.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // A tick is 10 ms on every Linux that Rust supports.
    Duration::from_millis(ticks * 10)
}

#[test]
fn trap_70_dead_waiters_are_removed_a_hundred_at_a_time() {
    const DEAD: usize = 10_000;
    run_on_each_server("dead_waiters_are_removed_a_hundred_at_a_time", async |server| {
        let (holder, waiter) =
            (connect(&server.url(), "holder").await, connect(&server.url(), "waiter").await);
        let held = take(&holder, "job", TTL).await;
        let waiting = wait_for(&waiter, "job", TTL);
        until_queued(server, "job", 1).await;
        let queue = crate::support::queue_key(server, "job").unwrap();
        let fill = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, '1 gone' .. i .. ' 3000 ' .. \
                    string.format('%022d', i) .. '@dead') end";
        server.command(&["EVAL", fill, "1", &queue, &DEAD.to_string()]).unwrap();
        assert_eq!(number(server, &["ZCARD", &queue]), 10_001);
        let monitor = server.monitor().unwrap();
        free(held).await;
        free(waiting.await.unwrap()).await;
        let (mut most, mut removed) = (0, 0);
        for line in monitor.lines().unwrap() {
            match (line.is_from_script(), line.command().as_str()) {
                (true, "ZREM") => removed += 1,
                (false, _) => removed = 0,
                _ => {}
            }
            most = most.max(removed);
        }
        assert!((100..=102).contains(&most), "{most} removed in one call");
        until_nothing_is_left(server).await;
    });
}
