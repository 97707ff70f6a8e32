//! Reboots, steps of the wall clock, power loss and time namespaces: what ends a lease, and what never brings a
//! fencing token back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{
    Actor, TTL, World, ask, keep_record, name, open, owner, queued, record, release, renew, role, take,
};
use leasehold_core::LostCause;
use leasehold_core::store::{AcquireReply, Holder, ReleaseReply, RenewReply};

const WALL: Duration = Duration::from_secs(1_800_000_000);
const YEAR_BEFORE: Duration = Duration::from_secs(1_800_000_000 - 365 * 24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn is_held(reply: &AcquireReply) -> bool {
    matches!(reply, AcquireReply::Held(held) if matches!(held.holder, Holder::Lease { .. }))
}

#[test]
fn trap_6_a_stepped_wall_clock_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new("boot", Duration::from_secs(100), WALL);
    let store = world.open(&directory.path().join("locks.db"));
    let (job, first, second) = (name("job"), owner("first"), owner("second"));
    take(&store, &job, &first);
    world.set_wall(WALL + YEAR);
    assert!(is_held(&ask(&store, &job, &second).unwrap()));
    world.set_wall(YEAR_BEFORE);
    assert!(is_held(&ask(&store, &job, &second).unwrap()));
    world.pass(TTL);
    take(&store, &job, &second);
}

/// Within a boot a step of the wall clock neither ends a record nor lets it stay; after a reboot the wall clock is all
/// there is.
#[test]
fn a_record_outlives_reboots_and_steps_of_the_wall_clock() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (day, job) = (Duration::from_secs(24 * 3_600), name("job"));
    let world = World::new("first", Duration::from_secs(100), WALL);
    let store = world.open(&path);
    keep_record(&store, &job, day);
    for wall in [WALL + YEAR, YEAR_BEFORE] {
        world.set_wall(wall);
        assert!(record(&store, &job).is_some());
    }
    world.set_wall(WALL);
    keep_record(&store, &job, day);
    let rebooted = |after: Duration| World::new("second", Duration::from_secs(5), WALL + after).open(&path);
    assert!(record(&rebooted(day / 2), &job).is_some());
    assert!(record(&rebooted(day * 2), &job).is_none());
    world.pass(day);
    assert!(record(&store, &job).is_none());
    keep_record(&store, &job, day);
    assert!(record(&store, &job).is_some());
}

#[test]
fn a_lease_of_an_earlier_boot_has_ended_whatever_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (job, first, second) = (name("job"), owner("first"), owner("second"));
    take(&World::new("before", Duration::from_secs(1_000_000), WALL).open(&path), &job, &first);
    let after = World::new("after", Duration::from_secs(10), WALL).open(&path);
    assert_eq!(renew(&after, &job, &first).unwrap(), RenewReply::NotHeld(LostCause::Missing));
    assert_eq!(release(&after, &job, &first).unwrap(), ReleaseReply::NotHeld);
    take(&after, &job, &second);
}

#[test]
fn a_waiter_of_an_earlier_boot_is_dead() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (job, first, second, third) = (name("job"), owner("first"), owner("second"), owner("third"));
    let before = World::new("before", Duration::from_secs(1_000_000), WALL).open(&path);
    take(&before, &job, &first);
    queued(&before, &job, &second, None);
    let after = World::new("after", Duration::from_secs(10), WALL).open(&path);
    take(&after, &job, &third);
    assert_eq!(release(&after, &job, &third).unwrap(), ReleaseReply::Freed { handed_over: false });
}

#[test]
fn trap_37_fencing_tokens_grow_though_the_wall_clock_goes_back() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new("boot", Duration::from_secs(100), WALL);
    let store = world.open(&directory.path().join("locks.db"));
    let (job, first) = (name("job"), owner("first"));
    let before = take(&store, &job, &first);
    assert_eq!(u128::from(before.get()), WALL.as_micros());
    world.set_wall(YEAR_BEFORE);
    assert_eq!(take(&store, &job, &first).get(), before.get() + 1);
    world.set_wall(WALL + YEAR);
    assert_eq!(u128::from(take(&store, &job, &first).get()), (WALL + YEAR).as_micros());
}

/// A power loss can take back every commit since the last one that waited for the disk. That one reserved the
/// tokens, so the file as it was right after it stands for the worst that can be found after the reboot.
#[test]
fn fencing_tokens_grow_over_a_power_loss_with_the_wall_clock_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (path, found) = (directory.path().join("locks.db"), directory.path().join("found.db"));
    let world = World::new("before", Duration::from_secs(100), WALL);
    let store = world.open(&path);
    let (job, first) = (name("job"), owner("first"));
    let reserved_by = take(&store, &job, &first);
    copy_with_log(&path, &found);
    let mut last = reserved_by;
    for _ in 0..1_000 {
        last = take(&store, &job, &first);
    }
    assert!(last > reserved_by);
    let after = World::new("after", Duration::from_secs(10), YEAR_BEFORE).open(&found);
    let next = take(&after, &job, &owner("second"));
    assert!(next > last, "{next} after {last}");
}

#[test]
fn tokens_are_reserved_again_before_the_reserved_ones_are_used_up() {
    let directory = tempfile::tempdir().unwrap();
    let (path, found) = (directory.path().join("locks.db"), directory.path().join("found.db"));
    let world = World::new("before", Duration::from_secs(100), WALL);
    let store = world.open(&path);
    let (job, first) = (name("job"), owner("first"));
    take(&store, &job, &first);
    let mut last = None;
    for _ in 0..50 {
        world.pass(Duration::from_secs(60));
        let before = reserved(&path);
        let token = take(&store, &job, &first);
        if reserved(&path) > before {
            copy_with_log(&path, &found);
        }
        last = Some(token);
    }
    let after = World::new("after", Duration::from_secs(10), Duration::ZERO).open(&found);
    assert!(take(&after, &job, &owner("second")) > last.unwrap());
}

fn reserved(path: &Path) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row("SELECT reserved FROM fence", [], |row| row.get(0)).unwrap()
}

fn copy_with_log(from: &Path, to: &Path) {
    let beside = |path: &Path| format!("{}-wal", path.display());
    fs::copy(from, to).unwrap();
    fs::copy(beside(from), beside(to)).unwrap();
}

/// Runs as a child in a time namespace whose clock since boot is far ahead.
#[test]
fn a_process_in_a_time_namespace_sees_leases_as_they_are() {
    if let Some((role, path)) = role() {
        let store = open(&path);
        let held = matches!(ask(&store, &name("job"), &owner("inside")), Ok(AcquireReply::Held(_)));
        println!("{role}: {held}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    take(&store, &name("job"), &owner("outside"));
    let offset = ["--time", "--boottime", "100000", "--fork"];
    if !Command::new("unshare").args(offset).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: time namespaces are not available to this user");
        return;
    }
    let plain = common::actor("a_process_in_a_time_namespace_sees_leases_as_they_are", "held", &path);
    let mut inside = Command::new("unshare");
    inside.args(offset).arg(plain.get_program()).args(plain.get_args());
    inside.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let child = inside.stdout(std::process::Stdio::piped()).spawn().unwrap();
    assert_eq!(Actor(child).said("held: "), ["true"]);
}
