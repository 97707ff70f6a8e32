//! The file stays small: free names leave no rows, dead rows are removed, the log begins anew.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{SLACK, World, keep_record, name, open, owner, queued, record, release, take};
use rusqlite::Connection;

fn size(path: &Path, ending: &str) -> u64 {
    fs::metadata(format!("{}{ending}", path.display())).map_or(0, |found| found.len())
}

fn rows(path: &Path, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    Connection::open(path).unwrap().query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn trap_59_names_that_were_used_once_take_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (store, mine) = (open(&path), owner("mine"));
    let use_names = |from: u32, to: u32| {
        for number in from..to {
            let job = name(&format!("job:{number}"));
            take(&store, &job, &mine);
            release(&store, &job, &mine).unwrap();
        }
    };
    use_names(0, 2_000);
    let before = size(&path, "");
    use_names(2_000, 20_000);
    assert_eq!((rows(&path, "lease"), rows(&path, "waiter")), (0, 0));
    let after = size(&path, "");
    assert!(after <= before.max(64 * 1024), "{before} bytes, then {after}");
}

#[test]
fn records_whose_time_is_over_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let world = World::new("boot", Duration::from_secs(100), Duration::from_secs(1_800_000_000));
    let store = world.open(&path);
    for number in 0..1_000 {
        keep_record(&store, &name(&format!("old:{number}")), Duration::from_secs(60));
    }
    world.pass(Duration::from_secs(61));
    keep_record(&store, &name("kept"), Duration::from_secs(3_600));
    let started = Instant::now();
    while rows(&path, "once") > 1 {
        assert!(started.elapsed() < 6 * SLACK, "{} rows are left", rows(&path, "once"));
        for _ in 0..100 {
            keep_record(&store, &name("kept"), Duration::from_secs(3_600));
        }
    }
    assert!(record(&store, &name("kept")).is_some());
}

/// Without a pause in the writing the log cannot begin anew by itself.
#[test]
fn the_log_is_bounded_though_others_write_all_the_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (store, other, mine) = (open(&path), open(&path), owner("mine"));
    let longest = std::thread::scope(|scope| {
        let writers = [&store, &other].map(|store| {
            let path = &path;
            scope.spawn(move || {
                let (job, mine) = (name(&format!("{:p}", std::ptr::from_ref(store))), owner("mine"));
                let mut longest = 0;
                for turn in 0..15_000 {
                    take(store, &job, &mine);
                    release(store, &job, &mine).unwrap();
                    if turn % 100 == 0 {
                        longest = longest.max(size(path, "-wal"));
                    }
                }
                longest
            })
        });
        writers.into_iter().map(|writer| writer.join().unwrap()).max().unwrap()
    });
    eprintln!("30,000 pairs of two stores; the log was at most {} KiB long", longest / 1024);
    // 30,000 pairs write 90,000 pages: 350 MiB, were they kept.
    assert!(longest < 100 * 1024 * 1024, "{longest}");
    // It shrinks again: 8 MiB are kept, and it may grow by some pages before it begins anew.
    let started = Instant::now();
    while size(&path, "-wal") > 12 * 1024 * 1024 {
        assert!(started.elapsed() < 6 * SLACK, "{} bytes are left", size(&path, "-wal"));
        take(&store, &name("job"), &mine);
        release(&store, &name("job"), &mine).unwrap();
    }
}

/// As a command does that runs for a moment and then again.
#[test]
fn the_log_is_bounded_though_no_process_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (job, mine) = (name("job"), owner("mine"));
    let mut longest = 0;
    for _ in 0..1_000 {
        let store = open(&path);
        take(&store, &job, &mine);
        release(&store, &job, &mine).unwrap();
        drop(store);
        longest = longest.max(size(&path, "-wal"));
    }
    eprintln!("the log was at most {} KiB long", longest / 1024);
    assert!(longest < 6 * 1024 * 1024, "{longest}");
}

#[test]
fn rows_of_the_dead_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let world = World::new("boot", Duration::from_secs(100), Duration::from_secs(1_800_000_000));
    let (store, mine) = (world.open(&path), owner("mine"));
    for number in 0..5_000 {
        take(&store, &name(&format!("job:{number}")), &mine);
    }
    queued(&store, &name("job:1"), &owner("waiter"), None);
    world.pass(Duration::from_secs(100));
    take(&store, &name("alive"), &mine);
    assert!(rows(&path, "lease") > 5_000 - 1_000);
    let started = Instant::now();
    // Whatever is written leads to it in the end.
    while (rows(&path, "lease"), rows(&path, "waiter")) != (1, 0) {
        assert!(started.elapsed() < 6 * SLACK, "{} rows are left", rows(&path, "lease"));
        for _ in 0..100 {
            take(&store, &name("busy"), &mine);
            release(&store, &name("busy"), &mine).unwrap();
        }
    }
}
