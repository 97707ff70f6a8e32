//! Clients that follow the documented pattern (`SET key value NX PX ttl`, compare-and-delete) on the same key:
//! they exclude Leasehold and Leasehold excludes them.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::blocking::{self, block_on};
use leasehold::{Attempt, Client, Holder, Released};
use leasehold_testkit::resp::{Connection, RespValue};
use leasehold_testkit::servers::RedisServer;

use crate::common::Seeded;
use crate::python;
use crate::support::{SLACK, connect, free, on_each_server, pttl, run_on_each_server, take, wait_for};

const TTL: Duration = Duration::from_secs(10);
/// Acquisitions of both sides together, on each server.
const ROUNDS: u64 = 10_000;
/// At least so many by each side, or there was no contention.
const ROUNDS_OF_EACH: u64 = 1_000;
/// The rounds with the lock of `redis-py`.
const PYTHON_ROUNDS: u64 = 3_400;

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The documented pattern, by hand.
struct Pattern {
    connection: Connection,
    value: String,
    taken: u64,
}

impl Pattern {
    fn new(server: &RedisServer, label: &str) -> Self {
        Self { connection: server.connect().unwrap(), value: label.to_owned(), taken: 0 }
    }

    fn try_take(&mut self, name: &str, ttl: Duration) -> bool {
        self.taken += 1;
        let (key, value) = (format!("lock:{name}"), format!("{}-{}", self.value, self.taken));
        let ttl = ttl.as_millis().to_string();
        match self.connection.command(&["SET", &key, &value, "NX", "PX", &ttl]).unwrap() {
            RespValue::Null => false,
            RespValue::Error(message) => panic!("{message}"),
            _ => true,
        }
    }

    fn give_back(&mut self, name: &str) -> bool {
        let (key, value) = (format!("lock:{name}"), format!("{}-{}", self.value, self.taken));
        let reply = self.connection.command(&["EVAL", COMPARE_AND_DELETE, "1", &key, &value]).unwrap();
        reply.integer().unwrap() == 1
    }
}

/// What the lock protects, and who was there.
#[derive(Default)]
struct Section {
    occupied: AtomicBool,
    overlaps: AtomicU64,
    by_leasehold: AtomicU64,
    by_pattern: AtomicU64,
    tokens: Mutex<Vec<u64>>,
}

impl Section {
    fn visit(&self, visits: &AtomicU64, seeded: &mut Seeded) {
        if self.occupied.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_micros(seeded.below(100)));
        self.occupied.store(false, Ordering::SeqCst);
        visits.fetch_add(1, Ordering::SeqCst);
    }

    fn is_done(&self) -> bool {
        let (ours, theirs) =
            (self.by_leasehold.load(Ordering::SeqCst), self.by_pattern.load(Ordering::SeqCst));
        ours + theirs >= ROUNDS && ours.min(theirs) >= ROUNDS_OF_EACH
    }
}

fn pause(seeded: &mut Seeded, most_micros: u64) {
    std::thread::sleep(Duration::from_micros(seeded.below(most_micros)));
}

fn pattern_rounds(server: &RedisServer, section: &Section, number: u64) {
    let (mut client, mut seeded) = (Pattern::new(server, &format!("pattern-{number}")), Seeded(number));
    while !section.is_done() {
        if client.try_take("order:1001", TTL) {
            section.visit(&section.by_pattern, &mut seeded);
            assert!(client.give_back("order:1001"), "its lock was taken away");
        }
        pause(&mut seeded, 1_000);
    }
}

fn leasehold_rounds(server: &RedisServer, section: &Section, number: u64, waits: bool) {
    let client = block_on(connect(&server.url(), &format!("leasehold-{number}")));
    let mut seeded = Seeded(100 + number);
    let lock = client.lock("order:1001").unwrap().ttl(TTL).wait(Duration::from_secs(60)).blocking();
    while !section.is_done() {
        let attempt = if waits { lock.acquire() } else { lock.try_acquire() };
        if let blocking::Attempt::Acquired(guard) = attempt.unwrap() {
            section.tokens.lock().unwrap().push(guard.fencing_token().get());
            section.visit(&section.by_leasehold, &mut seeded);
            assert_eq!(guard.release().unwrap(), Released::Freed);
        }
        pause(&mut seeded, if waits { 20_000 } else { 1_000 });
    }
    block_on(client.close(SLACK)).unwrap();
}

#[test]
fn the_documented_pattern_and_leasehold_exclude_each_other() {
    on_each_server("the_documented_pattern_and_leasehold_exclude_each_other", |server| {
        let (section, started) = (Section::default(), Instant::now());
        std::thread::scope(|scope| {
            for number in 0..2 {
                let section = &section;
                scope.spawn(move || pattern_rounds(server, section, number));
                scope.spawn(move || leasehold_rounds(server, section, number, true));
            }
            scope.spawn(|| leasehold_rounds(server, &section, 2, false));
        });
        println!(
            "{}: {:?} rounds by Leasehold, {:?} by the pattern, {:?}",
            server.kind(),
            section.by_leasehold,
            section.by_pattern,
            started.elapsed()
        );
        assert_eq!(section.overlaps.into_inner(), 0);
        let tokens = section.tokens.into_inner().unwrap();
        assert!(tokens.is_sorted_by(|one, next| one < next), "fencing tokens do not grow");
    });
}

#[test]
fn a_holder_that_is_not_leasehold_is_shown_as_such_and_its_value_is_not() {
    run_on_each_server("a_holder_that_is_not_leasehold_is_shown_as_such", async |server| {
        let mut pattern = Pattern::new(server, "secret-value");
        assert!(pattern.try_take("job", TTL));
        let client = connect(&server.url(), "me").await;
        let Attempt::Busy(busy) = client.lock("job").unwrap().try_acquire().await.unwrap() else {
            panic!("a foreign lock was taken");
        };
        let text = format!("{busy} {busy:?}");
        assert!(!text.contains("secret-value"), "{text}");
        assert!(busy.remaining.unwrap() <= TTL, "{busy:?}");
        let inspection = client.inspect("job").await.unwrap().unwrap();
        assert_eq!(inspection.holder, Some(Holder::Foreign), "{inspection:?}");
        println!("{busy}");
        assert!(pattern.give_back("job"));
    });
}

#[test]
fn the_pattern_neither_takes_nor_deletes_a_lease() {
    run_on_each_server("the_pattern_neither_takes_nor_deletes_a_lease", async |server| {
        let (client, mut pattern) = (connect(&server.url(), "me").await, Pattern::new(server, "pattern"));
        let held = take(&client, "job", TTL).await;
        assert!(!pattern.try_take("job", TTL));
        assert!(!pattern.give_back("job"));
        let value = server.cli(&["GET", "lock:job"]).unwrap();
        assert!(value.ends_with("@me"), "an operator cannot see who holds it: {value}");
        assert!(pttl(server, "job") > 0);
        free(held).await;
        assert!(pattern.try_take("job", TTL));
    });
}

#[test]
fn waiting_for_a_foreign_holder_ends_when_it_expires_or_deletes() {
    run_on_each_server("waiting_for_a_foreign_holder_ends", async |server| {
        let (client, mut pattern) = (connect(&server.url(), "me").await, Pattern::new(server, "pattern"));
        // It expires.
        let start = Instant::now();
        assert!(pattern.try_take("expires", Duration::from_millis(700)));
        let held = wait_for(&client, "expires", TTL).await.unwrap();
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(700), "a foreign lock was overrun after {waited:?}");
        assert!(waited < Duration::from_millis(700) + SLACK, "{waited:?}");
        assert!(!pattern.give_back("expires"), "its expired lock took ours along");
        free(held).await;
        // It deletes, and tells nobody.
        assert!(pattern.try_take("deletes", Duration::from_secs(60)));
        let waiting = wait_for(&client, "deletes", TTL);
        tokio::time::sleep(Duration::from_millis(700)).await;
        let start = Instant::now();
        assert!(pattern.give_back("deletes"));
        free(waiting.await.unwrap()).await;
        assert!(start.elapsed() < SLACK, "found free after {:?}", start.elapsed());
    });
}

#[test]
fn a_foreign_client_sees_a_waiter_served_before_it_can_take_the_lock() {
    run_on_each_server("a_foreign_client_sees_a_waiter_served", async |server| {
        let (holder, waiter) =
            (connect(&server.url(), "holder").await, connect(&server.url(), "waiter").await);
        let held = take(&holder, "job", TTL).await;
        let waiting = wait_for(&waiter, "job", TTL);
        crate::support::until_queued(server, "job", 1).await;
        free(held).await;
        // There is no moment at which the key is free.
        assert!(!Pattern::new(server, "pattern").try_take("job", TTL));
        free(waiting.await.unwrap()).await;
    });
}

/// Counts who is inside in the server itself: the two sides are different processes.
fn visit_counted(connection: &mut Connection, seeded: &mut Seeded) -> bool {
    let inside = connection.command(&["INCR", "test:inside"]).unwrap().integer().unwrap();
    pause(seeded, 200);
    connection.command(&["DECR", "test:inside"]).unwrap();
    inside == 1
}

#[test]
fn the_lock_of_redis_py_and_leasehold_exclude_each_other() {
    let Some(python) = python::with_redis_py("the_lock_of_redis_py_and_leasehold_exclude_each_other") else {
        return;
    };
    on_each_server("the_lock_of_redis_py_and_leasehold_exclude_each_other", |server| {
        let started = Instant::now();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis/redis_py_lock.py");
        let mut child = std::process::Command::new(&python)
            .args([script, &server.port().to_string(), "lock:order:1001", &PYTHON_ROUNDS.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let ours = std::thread::spawn({
            let (client, mut connection) =
                (block_on(connect(&server.url(), "me")), server.connect().unwrap());
            let ended = Arc::clone(&ended);
            move || leasehold_beside_python(&client, &mut connection, &ended)
        });
        // Its own patience for each round is 30 s, so it ends.
        let status = child.wait().unwrap();
        ended.store(true, Ordering::SeqCst);
        let (ours, overlaps) = ours.join().unwrap();
        let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
        println!(
            "{}: {ours} by Leasehold, redis-py: {} {:?}",
            server.kind(),
            output.trim(),
            started.elapsed()
        );
        assert!(status.success(), "redis-py: {status} {output}");
        assert_eq!(output.trim(), format!("{PYTHON_ROUNDS} rounds, 0 overlaps"));
        assert_eq!(overlaps, 0);
        assert!(ours >= PYTHON_ROUNDS / 10, "Leasehold held the lock {ours} times only");
    });
}

fn leasehold_beside_python(client: &Client, connection: &mut Connection, ended: &AtomicBool) -> (u64, u64) {
    let (mut rounds, mut overlaps, mut seeded) = (0, 0, Seeded(7));
    let lock = client.lock("order:1001").unwrap().ttl(TTL).wait(Duration::from_secs(60)).blocking();
    while !ended.load(Ordering::SeqCst) {
        let attempt = if seeded.below(10) == 0 { lock.acquire() } else { lock.try_acquire() };
        if let blocking::Attempt::Acquired(guard) = attempt.unwrap() {
            rounds += 1;
            overlaps += u64::from(!visit_counted(connection, &mut seeded));
            assert_eq!(guard.release().unwrap(), Released::Freed);
        }
        pause(&mut seeded, 2_000);
    }
    (rounds, overlaps)
}
