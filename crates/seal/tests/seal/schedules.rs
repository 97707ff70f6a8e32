//! Random schedules of two holders with pauses at every step, and leases that end at any moment: the counter is
//! always what was accepted.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_testkit::databases::DatabaseKind;

use crate::databases::World;
use crate::holders::{Hand, Pair, Way};

/// Tokens that each schedule hands out.
const GRANTS: u64 = 4;
const SQLITE_SCHEDULES: u32 = 10_000;
const SERVER_SCHEDULES: u32 = 3_000;
/// Pairs of connections at work at the same time.
const SERVER_PAIRS: u32 = 4;

/// SplitMix64: every schedule follows from its number.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}

#[derive(Default)]
struct Seen {
    accepted: AtomicU32,
    refused: AtomicU32,
    waited: AtomicU32,
    lost: AtomicU32,
}

/// Runs one schedule; how many accepted writes are not in the counter.
fn run(world: &World, hands: &[Hand; 2], way: Way, counter: u32, seen: &Seen) -> (i64, Vec<String>) {
    let mut random = Random(u64::from(counter));
    let mut pair = Pair::new(hands, way, counter);
    // Who holds the lock, as its store sees it. Holders learn nothing of its end.
    let mut holder = None;
    let mut granted = 0;
    loop {
        let idle: Vec<_> = (0..2).filter(|who| pair.is_idle(*who)).collect();
        if holder.is_none() && granted < GRANTS && !idle.is_empty() {
            let who = idle[random.below(idle.len())];
            granted += 1;
            pair.acquire(who, 32 + granted);
            holder = Some(who);
        }
        let able: Vec<_> = (0..2).filter(|who| pair.can_step(*who)).collect();
        if able.is_empty() {
            break;
        }
        match random.below(12) {
            // The lease ends: a pause was too long.
            0..=2 => holder = None,
            3 if random.below(4) == 0 => {
                let who = able[random.below(able.len())];
                pair.give_up(who);
            }
            _ => pair.step(able[random.below(able.len())]),
        }
        if holder.is_some_and(|who| pair.is_idle(who)) {
            holder = None;
        }
    }
    seen.accepted.fetch_add(u32::try_from(pair.accepted).unwrap(), Ordering::Relaxed);
    seen.refused.fetch_add(pair.refused, Ordering::Relaxed);
    seen.waited.fetch_add(pair.waited, Ordering::Relaxed);
    let _ = world;
    (pair.accepted, pair.history)
}

/// Runs schedules `first`, `first + step`, … and compares every counter with what was accepted.
fn run_share(world: &World, way: Way, first: u32, step: usize, last: u32, seen: &Seen) {
    let hands = [Hand::new(world), Hand::new(world)];
    let mut reader = world.session();
    for counter in (first..=last).step_by(step) {
        let (accepted, history) = run(world, &hands, way, counter, seen);
        let value = reader.read(counter);
        if value != accepted {
            seen.lost.fetch_add(1, Ordering::Relaxed);
            assert_eq!(
                way,
                Way::CheckedOnWrite,
                "schedule {counter}: {accepted} accepted, {value} there: {history:#?}"
            );
        }
    }
}

fn run_all(world: &World, way: Way, schedules: u32, pairs: u32) -> Seen {
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for pair in 1..=pairs {
            let seen = &seen;
            scope.spawn(move || run_share(world, way, pair, pairs as usize, schedules, seen));
        }
    });
    eprintln!(
        "{schedules} schedules, {way:?}: {:?} accepted, {:?} refused, {:?} waited, {:?} lost",
        seen.accepted, seen.refused, seen.waited, seen.lost
    );
    seen
}

fn both_forms_hold(world: &World, schedules: u32, pairs: u32) {
    world.make_counters(schedules);
    // The first half in one form, the second in the other, on counters of their own.
    for way in [Way::Sealed, Way::SealedTwice] {
        world.script("UPDATE counters SET value = 0;").unwrap();
        world.script("DELETE FROM leasehold_guard;").unwrap();
        let seen = run_all(world, way, schedules / 2, pairs);
        let [accepted, refused, waited] =
            [&seen.accepted, &seen.refused, &seen.waited].map(|count| count.load(Ordering::Relaxed));
        // Every kind of thing has happened often.
        assert!(accepted > schedules / 2 && refused > schedules / 20 && waited > schedules / 50);
        assert_eq!(seen.lost.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn ten_thousand_schedules_on_sqlite_lose_nothing() {
    both_forms_hold(&World::sqlite(leasehold_seal::sqlite::SCHEMA), SQLITE_SCHEDULES, 1);
}

#[test]
fn the_schedules_find_what_a_check_on_write_loses() {
    let world = World::sqlite(leasehold_seal::sqlite::SCHEMA);
    world.make_counters(500);
    let seen = run_all(&world, Way::CheckedOnWrite, 500, 1);
    assert!(seen.lost.load(Ordering::Relaxed) > 20);
}

#[test]
fn thousands_of_schedules_on_postgres_lose_nothing() {
    if DatabaseKind::Postgres.is_to_be_tested("thousands_of_schedules_on_postgres_lose_nothing") {
        both_forms_hold(&World::postgres(leasehold_seal::postgres::SCHEMA), SERVER_SCHEDULES, SERVER_PAIRS);
    }
}

#[test]
fn thousands_of_schedules_on_mariadb_lose_nothing() {
    if DatabaseKind::MariaDb.is_to_be_tested("thousands_of_schedules_on_mariadb_lose_nothing") {
        both_forms_hold(&World::mariadb(leasehold_seal::mysql::SCHEMA), SERVER_SCHEDULES, SERVER_PAIRS);
    }
}
