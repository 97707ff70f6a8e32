//! What happens to the command when the process that watches over it is killed or frozen.

use crate::common::{Running, Sandbox, children_of, is_running, state_of, wait_until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A command with a grandchild, both deaf to TERM.
const DEAF: &str = "trap '' TERM INT HUP; sleep 600 & echo $! > grandchild; echo $$ > child; wait";

fn watchdog_of(run: &Running) -> Pid {
    children_of(run.pid(), "__watchdog")[0]
}

#[test]
fn trap_58_a_killed_wrapper_takes_its_command_along() {
    let sandbox = Sandbox::new();
    let run = Running::start(&mut sandbox.job(&[], DEAF));
    let (child, grandchild) = (sandbox.pid_of("child"), sandbox.pid_of("grandchild"));
    run.signal(Signal::KILL);
    wait_until("the command is gone", || !is_running(child) && !is_running(grandchild));
}

#[test]
fn a_killed_watchdog_is_replaced() {
    let sandbox = Sandbox::new();
    let run = Running::start(&mut sandbox.job(&[], DEAF));
    let (child, grandchild) = (sandbox.pid_of("child"), sandbox.pid_of("grandchild"));
    let first = watchdog_of(&run);
    kill_process(first, Signal::KILL).unwrap();
    wait_until("another watchdog runs", || {
        children_of(run.pid(), "__watchdog").iter().any(|pid| *pid != first)
    });
    // It is told at once which group is its, but a process can be seen before it was told.
    std::thread::sleep(std::time::Duration::from_millis(500));
    run.signal(Signal::KILL);
    wait_until("the command is gone", || !is_running(child) && !is_running(grandchild));
}

#[test]
fn the_watchdog_survives_what_is_sent_to_it_and_to_our_group() {
    use std::os::unix::process::CommandExt;
    let sandbox = Sandbox::new();
    let run = Running::start(sandbox.job(&[], DEAF).process_group(0));
    let (child, grandchild) = (sandbox.pid_of("child"), sandbox.pid_of("grandchild"));
    let watchdog = watchdog_of(&run);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        kill_process(watchdog, signal).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(is_running(watchdog));
    kill_process_group(run.pid(), Signal::KILL).unwrap();
    wait_until("the command is gone", || !is_running(child) && !is_running(grandchild));
}

#[test]
fn no_command_survives_a_wrapper_killed_at_any_moment_of_its_start() {
    let sandbox = Sandbox::new();
    for moment in 0..40 {
        let run = Running::start(&mut sandbox.job(&["--ttl", "1s"], "echo $$ >> children; exec sleep 600"));
        std::thread::sleep(std::time::Duration::from_micros(500 * moment));
        drop(run);
    }
    wait_until("all of them are gone", || {
        let children = crate::common::read(&sandbox.path("children"));
        children.lines().all(|pid| !is_running(Pid::from_raw(pid.parse().unwrap()).unwrap()))
    });
}

#[cfg(target_os = "linux")]
#[test]
fn killed_together_with_its_watchdog_the_wrapper_still_takes_the_command_itself_along() {
    let sandbox = Sandbox::new();
    let run = Running::start(&mut sandbox.job(&[], "echo $$ > child; while :; do sleep 0.05; done"));
    let child = sandbox.pid_of("child");
    let watchdog = watchdog_of(&run);
    run.signal(Signal::STOP);
    kill_process(watchdog, Signal::KILL).unwrap();
    run.signal(Signal::KILL);
    wait_until("the command is gone", || !is_running(child));
}

/// F022: Even if the wrapper itself is frozen, its command is gone before the next one starts.
#[test]
fn f022_a_frozen_wrapper_loses_its_command_before_the_next_one_starts() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; echo $$ > child; while :; do echo first >> log; sleep 0.01; done";
    let run = Running::start(&mut sandbox.job(&["--ttl", "2s"], script));
    let child = sandbox.pid_of("child");
    run.signal(Signal::STOP);
    let next = Running::start(&mut sandbox.job(&[], "echo next >> log; sleep 0.5"));
    assert_eq!(next.finish().0, Some(0));
    assert!(!is_running(child));
    let log = crate::common::read(&sandbox.path("log"));
    assert!(log.ends_with("first\nnext\n"), "the first one worked on: {log}");
    run.signal(Signal::CONT);
    let (code, said) = run.finish();
    assert_eq!(code, Some(79), "{said}");
    assert!(said.contains("killed the command"), "{said}");
}

#[test]
fn the_watchdog_is_gone_and_collected_when_the_wrapper_ends() {
    let sandbox = Sandbox::new();
    let run =
        Running::start(&mut sandbox.job(&[], "echo $$ > child; while [ ! -e go ]; do sleep 0.01; done"));
    sandbox.wait_for_file("child");
    let watchdog = watchdog_of(&run);
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(run.finish().0, Some(0));
    assert_eq!(state_of(watchdog), "");
}

#[test]
fn a_wrapper_that_was_frozen_without_a_watchdog_kills_at_once_when_it_goes_on() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo told > told' TERM; echo $$ > child; while :; do sleep 0.01; done";
    let run = Running::start(&mut sandbox.job(&["--ttl", "2s", "--grace", "900ms"], script));
    let child = sandbox.pid_of("child");
    let watchdog = watchdog_of(&run);
    run.signal(Signal::STOP);
    kill_process(watchdog, Signal::KILL).unwrap();
    let next = sandbox.output(["run", "job", "--", "true"]);
    assert_eq!(next.status.code(), Some(0), "the lease is over");
    assert!(is_running(child), "nobody was left to kill it");
    run.signal(Signal::CONT);
    assert_eq!(run.finish().0, Some(79));
    assert!(!is_running(child));
    assert!(!sandbox.path("told").exists(), "there was no time left for that");
}
