//! Signals to `leasehold run`: while it waits, while the command runs, and while the command does not want to
//! end. The times are bounds for a busy machine.

use std::time::Instant;

use crate::common::{Running, Sandbox, is_running, out, read, wait_until};
use rustix::process::Signal;

/// F031: A signal ends the wait at once with 128+n; the command never starts and nothing is left in the
/// store.
#[test]
fn f031_a_signal_ends_the_wait_and_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let _holder = Running::start(&mut sandbox.job(&[], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let waiter = Running::start(&mut sandbox.job(&[], "echo > ran"));
        sandbox.wait_for_waiter("job");
        waiter.signal(signal);
        let (code, said) = waiter.finish();
        assert_eq!(code, Some(128 + signal.as_raw()));
        assert!(said.contains("waiting for job: held by ") && said.contains("interrupted"), "{said}");
        assert_eq!(sandbox.shown("job")["waiters"], serde_json::json!([]));
        assert!(!sandbox.path("ran").exists());
    }
}

#[test]
fn a_quiet_wait_says_nothing_and_other_signals_do_not_end_it() {
    let sandbox = Sandbox::new();
    let holder = Running::start(&mut sandbox.job(&[], "echo > held; while [ ! -e go ]; do sleep 0.01; done"));
    sandbox.wait_for_file("held");
    let waiter = Running::start(&mut sandbox.job(&["--quiet"], "echo > ran"));
    sandbox.wait_for_waiter("job");
    for signal in [Signal::USR1, Signal::USR2, Signal::CONT, Signal::WINCH] {
        waiter.signal(signal);
    }
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(holder.finish().0, Some(0));
    assert_eq!(waiter.finish(), (Some(0), String::new()));
    assert!(sandbox.path("ran").exists());
}

#[test]
fn signals_reach_the_whole_group_of_the_command() {
    let sandbox = Sandbox::new();
    let script = r"
        for s in INT HUP QUIT USR1 USR2 TERM; do trap 'echo '$s' >> got' $s; done
        sh -c 'trap : INT HUP QUIT USR2 TERM; trap '\''echo grandchild >> got'\'' USR1
               echo > ready; while [ ! -e go ]; do sleep 0.01; done' &
        while ! wait; do [ -e go ] && break; done
        while [ ! -e go ]; do sleep 0.01; done";
    let run = Running::start(&mut sandbox.job(&["--ttl", "60s", "--grace", "29s"], script));
    sandbox.wait_for_file("ready");
    let got = || read(&sandbox.path("got"));
    for (signal, words) in [
        (Signal::INT, &["INT"][..]),
        (Signal::HUP, &["HUP"]),
        (Signal::QUIT, &["QUIT"]),
        (Signal::USR2, &["USR2"]),
        (Signal::USR1, &["USR1", "grandchild"]),
        (Signal::TERM, &["TERM"]),
    ] {
        run.signal(signal);
        for word in words {
            wait_until(&format!("{word} arrives, got {:?}", got()), || got().contains(word));
        }
    }
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(run.finish().0, Some(0));
}

/// F133: On TERM the name is kept until the command has stopped, and then given back at once.
#[test]
fn f133_a_stopping_command_keeps_the_name_until_it_has_stopped() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > stopping; sleep 1; echo stopped >> log; exit 5' TERM; echo > ready; while :; do sleep 0.01; done";
    let run = Running::start(&mut sandbox.job(&["--ttl", "300s", "--grace", "60s"], script));
    sandbox.wait_for_file("ready");
    let next = Running::start(&mut sandbox.job(&[], "echo next >> log"));
    sandbox.wait_for_waiter("job");
    run.signal(Signal::TERM);
    sandbox.wait_for_file("stopping");
    assert_eq!(run.finish().0, Some(5));
    assert_eq!(next.finish().0, Some(0));
    assert_eq!(read(&sandbox.path("log")), "stopped\nnext\n");
}

/// F133: A command that ignores TERM is killed after the grace with all its children, and the name is given
/// back.
#[test]
fn f133_a_command_that_ignores_term_is_killed_after_the_grace_with_all_its_children() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; sleep 600 & echo $! > grandchild; echo $$ > child; wait; sleep 600";
    let run = Running::start(&mut sandbox.job(&["--grace", "500ms"], script));
    let (child, grandchild) = (sandbox.pid_of("child"), sandbox.pid_of("grandchild"));
    let start = Instant::now();
    run.signal(Signal::TERM);
    let (code, said) = run.finish();
    assert_eq!(code, Some(137));
    assert!(start.elapsed().as_millis() >= 500, "not before the grace is over");
    assert!(said.contains("killing it"), "{said}");
    assert!(!is_running(child) && !is_running(grandchild));
    assert_eq!(sandbox.shown("job")["holder"], serde_json::Value::Null);
}

#[test]
fn a_stopped_command_can_still_be_ended() {
    let sandbox = Sandbox::new();
    let run = Running::start(
        &mut sandbox.job(&["--ttl", "60s", "--grace", "25s"], "echo $$ > child; kill -STOP $$; sleep 600"),
    );
    let child = sandbox.pid_of("child");
    wait_until("the command is stopped", || crate::common::state_of(child).starts_with('T'));
    run.signal(Signal::TERM);
    assert_eq!(run.finish().0, Some(143), "TERM arrives although the command was stopped");
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let sandbox = Sandbox::new();
    let script =
        r#"trap '' HUP; exec "$0" run job -- sh -c 'kill -HUP $$; kill -HUP $PPID; sleep 0.2; echo alive'"#;
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_leasehold")])
        .env("LEASEHOLD_STORE", sandbox.store())
        .output()
        .unwrap();
    if cfg!(target_os = "linux") {
        assert_eq!(out(&output), "alive\n", "as under nohup: {output:?}");
    }
}
