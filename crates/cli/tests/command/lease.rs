//! A command and its lease: renewed while the command runs, and the command is stopped when the lease is lost.

use std::time::{Duration, Instant};

use crate::common::{Running, Sandbox, block_store, err, is_running, read, wait_until};
use rustix::process::Signal;

#[test]
fn a_command_that_outlives_the_ttl_keeps_its_lease() {
    let sandbox = Sandbox::new();
    let mut run = Running::start(&mut sandbox.job(&["--ttl", "3s"], "echo > held; sleep 5"));
    sandbox.wait_for_file("held");
    while run.is_running() {
        let other = sandbox.job(&["--no-wait"], "true").output().unwrap();
        assert!(other.status.code() == Some(75) || !run.is_running());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(run.finish(), (Some(0), String::new()));
}

#[test]
fn a_broken_lease_stops_the_command_and_its_code_is_79() {
    let sandbox = Sandbox::new();
    for how in [&["break", "job", "--yes"][..], &["break", "job", "--yes", "--now"]] {
        let script = "trap 'exit 0' TERM; echo > held; while :; do sleep 0.01; done";
        let run = Running::start(&mut sandbox.job(&["--ttl", "3s"], script));
        sandbox.wait_for_file("held");
        let broken = sandbox.output(how);
        assert!(broken.status.success(), "{}", err(&broken));
        let (code, said) = run.finish();
        assert_eq!(code, Some(79), "although the command ended with 0: {said}");
        assert!(said.contains("the lease of job is lost"), "{said}");
        std::fs::remove_file(sandbox.path("held")).unwrap();
    }
}

/// F022: A command whose name an operator took away is killed, though it ignores TERM, before anybody else
/// gets the name.
#[test]
fn f022_a_command_that_ignores_term_is_killed_before_anybody_else_gets_the_broken_name() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; echo > held; while :; do echo first >> log; sleep 0.01; done";
    let run = Running::start(&mut sandbox.job(&["--ttl", "3s"], script));
    sandbox.wait_for_file("held");
    let next = Running::start(&mut sandbox.job(&[], "echo next >> log; sleep 0.3"));
    sandbox.wait_for_waiter("job");
    assert!(sandbox.output(["break", "job", "--yes"]).status.success());
    assert_eq!(run.finish().0, Some(79));
    assert_eq!(next.finish().0, Some(0));
    let log = read(&sandbox.path("log"));
    assert!(log.ends_with("first\nnext\n"), "{log}");
}

#[test]
fn max_hold_stops_a_command_that_hangs() {
    let sandbox = Sandbox::new();
    let start = Instant::now();
    let output = sandbox
        .job(&["--max-hold", "1s", "--ttl", "2s"], "echo $$ > child; exec sleep 600")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(79));
    assert!(err(&output).contains("max_hold"), "{}", err(&output));
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(!is_running(sandbox.pid_of("child")));
}

#[test]
fn a_max_hold_shorter_than_the_grace_does_not_stop_the_command_early() {
    let sandbox = Sandbox::new();
    let start = Instant::now();
    let output = sandbox.job(&["--max-hold", "2s", "--ttl", "30s"], "exec sleep 600").output().unwrap();
    assert_eq!(output.status.code(), Some(79));
    assert!(err(&output).contains("max_hold"), "{}", err(&output));
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_fixed_lease_ends_on_time() {
    let sandbox = Sandbox::new();
    let output = sandbox.job(&["--fixed", "--ttl", "1s"], "exec sleep 600").output().unwrap();
    assert_eq!(output.status.code(), Some(79));
    assert!(err(&output).contains("--fixed"), "{}", err(&output));
    let output = sandbox.job(&["--fixed", "--ttl", "10s"], "true").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
}

#[test]
fn min_hold_keeps_the_name_after_a_quick_command() {
    let sandbox = Sandbox::new();
    let start = Instant::now();
    let output = sandbox.job(&["--min-hold", "3s"], "true").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    if start.elapsed() < Duration::from_secs(2) {
        let other = sandbox.job(&["--no-wait"], "true").output().unwrap();
        assert_eq!(other.status.code(), Some(75), "{}", err(&other));
    }
    let other = sandbox.job(&[], "true").output().unwrap();
    assert_eq!(other.status.code(), Some(0));
    assert!(start.elapsed() >= Duration::from_secs(3));
}

/// F132: After a wrapper was killed the next one gets the name within one TTL.
#[test]
fn f132_a_killed_job_frees_the_name_within_its_ttl() {
    let sandbox = Sandbox::new();
    let run = Running::start(&mut sandbox.job(&["--ttl", "2s"], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    drop(run);
    let start = Instant::now();
    let next = sandbox.job(&[], "true").output().unwrap();
    assert_eq!(next.status.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2 + 5), "{:?}", start.elapsed());
}

/// F022: When the store stops answering, the command is told and then killed before its lease can have ended.
#[test]
fn f022_when_the_store_stops_answering_the_command_is_told_then_killed_before_its_lease_ends() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo told >> log' TERM; echo > held; while :; do echo first >> log; sleep 0.01; done";
    let run = Running::start(&mut sandbox.job(&["--ttl", "4s", "--grace", "500ms"], script));
    sandbox.wait_for_file("held");
    let blocked = block_store(&sandbox);
    let (code, said) = run.finish();
    assert_eq!(code, Some(79), "{said}");
    assert!(said.contains("could not be renewed in time") && said.contains("killing it"), "{said}");
    // Nobody can have been granted the name yet; what the log says now is all the command ever did.
    let log = read(&sandbox.path("log"));
    let after_told = log.split_once("told\n").unwrap().1;
    assert!(after_told.contains("first"), "it got time to stop: {log}");
    drop(blocked);
    let next = sandbox.job(&["--wait", "20s"], "echo next >> log").output().unwrap();
    assert_eq!(next.status.code(), Some(0));
    assert_eq!(read(&sandbox.path("log")), format!("{log}next\n"));
}

#[test]
fn a_store_that_comes_back_in_time_changes_nothing() {
    let sandbox = Sandbox::new();
    let run = Running::start(&mut sandbox.job(&["--ttl", "12s"], "echo > held; sleep 7; exit 3"));
    sandbox.wait_for_file("held");
    let blocked = block_store(&sandbox);
    std::thread::sleep(Duration::from_millis(5_500));
    drop(blocked);
    assert_eq!(run.finish(), (Some(3), String::new()));
}

#[test]
fn a_signal_ends_the_wait_for_a_release_that_cannot_be_confirmed() {
    let sandbox = Sandbox::new();
    let run = Running::start(
        &mut sandbox.job(&[], "echo $$ > held; while [ ! -e go ]; do sleep 0.01; done; exit 6"),
    );
    let child = sandbox.pid_of("held");
    let _blocked = block_store(&sandbox);
    std::fs::write(sandbox.path("go"), "").unwrap();
    wait_until("the command has ended", || !is_running(child));
    std::thread::sleep(Duration::from_millis(300));
    run.signal(Signal::TERM);
    let (code, said) = run.finish();
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("interrupted before job was given back"), "{said}");
}

#[test]
fn a_loss_that_is_found_at_the_release_gives_79_too() {
    let sandbox = Sandbox::new();
    let script = r#""$0" break job --yes --now"#;
    let output = sandbox.output(["run", "job", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    assert_eq!(output.status.code(), Some(79));
    assert!(err(&output).contains("somebody else may have held it too"), "{}", err(&output));
}

#[test]
fn a_command_granted_by_a_hand_over_runs_undisturbed() {
    let sandbox = Sandbox::new();
    let first = Running::start(&mut sandbox.job(&[], "echo > held; while [ ! -e go ]; do sleep 0.01; done"));
    sandbox.wait_for_file("held");
    let next = Running::start(&mut sandbox.job(&["-q", "--ttl", "60s", "--grace", "25s"], "sleep 2; exit 3"));
    sandbox.wait_for_waiter("job");
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(first.finish().0, Some(0));
    assert_eq!(next.finish(), (Some(3), String::new()));
}
