//! What many names cost that are used once and never again: nothing that stays.
//!
//! `cargo bench -p leasehold-sqlite --bench names -- 1000000` acquires and releases that many different names
//! (100,000 by default) and prints the sizes of the files before and after.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_core::blocking::block_on;
use leasehold_core::store::{AcquireRequest, ReleaseRequest};
use leasehold_core::{Label, Moment, Name, OwnerToken, Store, SystemEntropy};
use leasehold_sqlite::{SqliteOptions, SqliteStore};

const TTL: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let names = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(100_000_u32);
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("locks.db");
    let store = SqliteStore::open(&path, SqliteOptions::default())?;
    let owner = OwnerToken::generate(&SystemEntropy, &Label::new("bench:1")?)?;
    print_sizes("at the start", &path);
    let started = Instant::now();
    for number in 0..names {
        let name = Name::new(format!("order:{number}"))?;
        let (name, owner) = (&name, &owner);
        let acquire = AcquireRequest { name, owner, ttl: TTL, queue: None, not_after: Moment::NEVER };
        block_on(store.acquire(acquire))?;
        block_on(store.release(ReleaseRequest { name, owner, keep_for: None }))?;
    }
    print_sizes(&format!("after {names} names in {:.1?}", started.elapsed()), &path);
    block_on(store.close());
    print_sizes("after closing", &path);
    Ok(())
}

fn print_sizes(when: &str, path: &Path) {
    let size = |ending: &str| {
        std::fs::metadata(format!("{}{ending}", path.display())).map_or(0, |found| found.len() / 1024)
    };
    println!("{when}: file {} KiB, log {} KiB", size(""), size("-wal"));
}
