//! What happens to the command when the process that watches over it is killed or frozen.

use crate::common::{Running, Sandbox, children_of, is_running, state_of, wait_until};
use rustix::process::{Pid, Signal, kill_process};

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
    run.signal(Signal::KILL);
    wait_until("the command is gone", || !is_running(child) && !is_running(grandchild));
}

#[test]
fn the_watchdog_survives_what_is_sent_to_the_group_and_to_itself() {
    let sandbox = Sandbox::new();
    let mut run = Running::start(&mut sandbox.job(&[], DEAF));
    let child = sandbox.pid_of("child");
    let watchdog = watchdog_of(&run);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        kill_process(watchdog, signal).unwrap();
    }
    assert!(run.is_running());
    run.signal(Signal::KILL);
    wait_until("the command is gone", || !is_running(child));
    assert!(!is_running(watchdog) || state_of(watchdog).is_empty());
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
