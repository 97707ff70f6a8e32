//! Ends before the end: whatever happens to the demo or to one of its workers, nothing is left.
#![cfg(target_os = "linux")]

use std::fs;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Place, wait_until};

/// The workers of a demo that is under way.
fn workers(demo: &Child) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (stat(process)?.1 == demo.id()).then_some(process)
    });
    processes.collect()
}

/// State and parent of a process.
fn stat(process: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_gone(process: u32) -> bool {
    // Where nobody collects orphans a dead process stays listed, as a zombie.
    stat(process).is_none_or(|(state, _)| state == 'Z')
}

fn signal(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(process).unwrap()).unwrap(), signal).unwrap();
}

/// A demo whose three workers live; with `frozen`, one of them is stopped.
fn under_way(place: &Place, frozen: bool) -> (Child, Vec<u32>) {
    let demo = place.demo(&[]).spawn().unwrap();
    let mut found = Vec::new();
    wait_until("three workers live", || {
        found = workers(&demo);
        let is_frozen = |process: &u32| stat(*process).is_some_and(|(state, _)| state == 'T');
        found.len() == 3 && (!frozen || found.iter().any(is_frozen))
    });
    (demo, found)
}

fn check_nothing_is_left(place: &Place, workers: &[u32]) {
    wait_until("the workers are gone", || workers.iter().all(|worker| is_gone(*worker)));
    wait_until("the temporary files are gone", || place.left_temporary().is_empty());
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn interrupted_it_cleans_up_and_says_by_what() {
    for (number, frozen) in [(Signal::INT, false), (Signal::TERM, true)] {
        let place = Place::new();
        let (demo, workers) = under_way(&place, frozen);
        signal(demo.id(), number);
        let output = demo.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(128 + number.as_raw()));
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
        assert!(output.stdout.is_empty());
        assert!(workers.iter().all(|worker| is_gone(*worker)), "they were waited for");
        assert!(place.left_temporary().is_empty());
        check_nothing_is_left(&place, &workers);
    }
}

#[test]
fn killed_it_takes_its_workers_along_even_a_frozen_one() {
    // As in a container whose first process is a shell: orphans come to a parent in their own session, so the
    // system does not continue those of them that are stopped.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    for frozen in [false, true] {
        let place = Place::new();
        let (mut demo, workers) = under_way(&place, frozen);
        signal(demo.id(), Signal::KILL);
        demo.wait().unwrap();
        check_nothing_is_left(&place, &workers);
    }
}

#[test]
fn a_worker_that_dies_is_named_and_ends_the_demo() {
    let place = Place::new();
    let (demo, workers) = under_way(&place, true);
    let healthy = workers.iter().find(|worker| stat(**worker).is_some_and(|(state, _)| state != 'T'));
    signal(*healthy.unwrap(), Signal::KILL);
    let output = demo.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(70), "{message}");
    assert!(message.contains("shipper-") && message.contains("ended before its work was done"), "{message}");
    assert!(message.contains("signal: 9"), "{message}");
    check_nothing_is_left(&place, &workers);
}
