//! Real processes on one file: they start at once, contend, queue, are killed, and fork.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Actor, SLACK, TTL, ask, name, open, owner, queued, release, role, take, until};
use leasehold_core::blocking::block_on;
use leasehold_core::store::AcquireReply;
use leasehold_core::{Attempt, Client, ClientSettings, Guard, Released, Store};
use leasehold_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

/// What children do; nothing in the test program itself.
#[test]
fn child() {
    let Some((role, path)) = role() else { return };
    let (part, detail) = role.split_once(' ').unwrap_or((&role, ""));
    match part {
        "open" => open_with_others(&path),
        "names" => println!("pairs: {}", pairs_until_the_end(&path, detail, false)),
        "one-name" => println!("pairs: {}", pairs_until_the_end(&path, detail, true)),
        "work" => work_for_ever(&path),
        "wait" => wait_and_note(&path, detail),
        "hold" => hold_for_ever(&path),
        other => panic!("there is no part {other}"),
    }
}

fn start(role: &str, path: &Path) -> Actor {
    Actor::start("child", role, path)
}

fn beside(path: &Path, what: &str) -> std::path::PathBuf {
    path.with_extension(what)
}

fn client(path: &Path) -> Client {
    let path = path.to_owned();
    let connect = move || {
        let opened = SqliteStore::open(&path, SqliteOptions::default());
        std::future::ready(opened.map(|store| Arc::new(store) as Arc<dyn Store>))
    };
    block_on(Client::start(ClientSettings::default(), connect)).unwrap()
}

fn acquired(client: &Client, name: &str) -> Guard {
    match block_on(client.lock(name).unwrap().ttl(TTL).wait(TTL + SLACK).acquire()).unwrap() {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(busy) => panic!("{busy:?}"),
    }
}

fn give_back(guard: Guard) {
    assert_eq!(block_on(guard.release()).unwrap(), Released::Freed);
}

fn open_with_others(path: &Path) {
    until("the start", || beside(path, "go").exists());
    let store = open(path);
    println!("opened: {}", ask(&store, &name("job"), &owner("a")).is_ok());
}

#[test]
fn processes_that_start_at_once_create_one_file() {
    for _ in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db");
        let mut children: Vec<_> = (0..6).map(|_| start("open", &path)).collect();
        std::thread::sleep(Duration::from_millis(100));
        fs::write(beside(&path, "go"), "").unwrap();
        for child in &mut children {
            assert_eq!(child.said("opened: "), ["true"]);
        }
        assert_sound(&path);
        // Exactly one of them was first.
        let leases: i64 = raw(&path).query_row("SELECT count(*) FROM lease", [], |row| row.get(0)).unwrap();
        assert_eq!(leases, 1);
    }
}

fn raw(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(SLACK).unwrap();
    connection
}

fn assert_sound(path: &Path) {
    let found: String = raw(path).query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok");
}

/// How long contending processes work.
const CONTEND: Duration = Duration::from_secs(4);

fn pairs_until_the_end(path: &Path, name_of_this: &str, one_name: bool) -> u64 {
    let mut pairs = 0;
    if one_name {
        let client = client(path);
        until("the start", || beside(path, "go").exists());
        let started = Instant::now();
        while started.elapsed() < CONTEND {
            let guard = acquired(&client, "job");
            give_back(guard);
            pairs += 1;
        }
    } else {
        let (store, name, owner) = (open(path), name(name_of_this), owner("contender"));
        until("the start", || beside(path, "go").exists());
        let started = Instant::now();
        while started.elapsed() < CONTEND {
            take(&store, &name, &owner);
            release(&store, &name, &owner).unwrap();
            pairs += 1;
        }
    }
    pairs
}

fn contend(part: &str) -> Vec<u64> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    drop(open(&path));
    let mut children: Vec<_> = (0..4).map(|at| start(&format!("{part} job-{at}"), &path)).collect();
    // All of them have started when they begin.
    std::thread::sleep(Duration::from_secs(1));
    fs::write(beside(&path, "go"), "").unwrap();
    let pairs = children.iter_mut().map(|child| child.said("pairs: ")[0].parse().unwrap()).collect();
    assert_sound(&path);
    pairs
}

fn assert_shared_evenly(pairs: &[u64]) {
    let (least, most) = (pairs.iter().min().unwrap(), pairs.iter().max().unwrap());
    eprintln!("four processes in {CONTEND:?}: {pairs:?} pairs");
    assert!(*least > 0 && *most <= 2 * least, "{pairs:?}");
}

#[test]
fn four_processes_that_contend_for_the_file_share_it_evenly() {
    assert_shared_evenly(&contend("names"));
}

#[test]
fn four_processes_that_contend_for_a_name_share_it_evenly() {
    assert_shared_evenly(&contend("one-name"));
}

fn work_for_ever(path: &Path) {
    let store = open(path);
    println!("ready: yes");
    let names = [name("a"), name("b"), name("c")];
    for turn in 0_usize.. {
        let (job, first, second) = (&names[turn % 3], owner("first"), owner("second"));
        match ask(&store, job, &first).unwrap() {
            AcquireReply::Granted { .. } => {
                queued(&store, job, &second, None);
                release(&store, job, &first).unwrap();
                release(&store, job, &second).unwrap();
            }
            AcquireReply::Held(_) => {
                queued(&store, job, &second, None);
                release(&store, job, &second).unwrap();
            }
        }
    }
}

#[test]
fn a_process_killed_at_any_step_leaves_a_sound_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (job, mine) = (name("job"), owner("mine"));
    let mut last = None;
    for turn in 0..60_u64 {
        // The first ones are killed while they create the file.
        let mut child = start("work", &path);
        let milliseconds = if turn < 20 { 3 + turn } else { 20 + turn * 7 % 60 };
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill();
        let store = open(&path);
        let token = take(&store, &job, &mine);
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        release(&store, &job, &mine).unwrap();
        drop(store);
        assert_sound(&path);
    }
    // At most one lease of each name was left behind.
    let left: i64 = raw(&path).query_row("SELECT count(*) FROM lease", [], |row| row.get(0)).unwrap();
    assert!(left <= 3, "{left}");
}

fn hold_for_ever(path: &Path) {
    let client = client(path);
    let lock = client.lock("job").unwrap().ttl(Duration::from_secs(1));
    let Attempt::Acquired(_guard) = block_on(lock.acquire()).unwrap() else { panic!("it was taken") };
    fs::write(beside(path, "held"), "").unwrap();
    std::thread::sleep(TTL + SLACK);
}

#[test]
fn a_waiter_is_served_when_the_holder_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let mut holder = start("hold", &path);
    until("the holder", || beside(&path, "held").exists());
    let client = client(&path);
    let waited = std::thread::spawn(move || {
        let guard = acquired(&client, "job");
        let served = Instant::now();
        give_back(guard);
        served
    });
    // It is renewed while its holder lives.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!waited.is_finished());
    let killed = Instant::now();
    holder.kill();
    let served = waited.join().unwrap();
    eprintln!("served {:?} after the holder of a lease of 1 s was killed", served - killed);
    assert!(served - killed < Duration::from_secs(1) + SLACK);
}

fn wait_and_note(path: &Path, detail: &str) {
    let client = client(path);
    let lock = client.lock("job").unwrap().wait(TTL + SLACK).on_waiting({
        let waiting = beside(path, &format!("waiting-{detail}"));
        move |_| fs::write(&waiting, "").unwrap()
    });
    let Attempt::Acquired(guard) = block_on(lock.acquire()).unwrap() else { panic!("not served") };
    let mut order = fs::OpenOptions::new().create(true).append(true).open(beside(path, "order")).unwrap();
    order.write_all(format!("{detail} ").as_bytes()).unwrap();
    give_back(guard);
}

#[test]
fn processes_are_served_in_the_order_in_which_they_came() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let client = client(&path);
    let guard = acquired(&client, "job");
    let mut children = Vec::new();
    for detail in ["one", "two", "three", "four"] {
        children.push(start(&format!("wait {detail}"), &path));
        until("a waiter", || beside(&path, &format!("waiting-{detail}")).exists());
    }
    give_back(guard);
    for child in &mut children {
        child.said("none");
    }
    assert_eq!(fs::read_to_string(beside(&path, "order")).unwrap(), "one two three four ");
}
