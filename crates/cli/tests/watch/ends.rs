//! How a watch ends, and that it leaves the terminal as it was.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Sandbox, children_of, err, out, wait_until};
use crate::terminal::Terminal;

#[test]
fn without_a_terminal_it_says_what_to_use_instead() {
    let sandbox = Sandbox::new();
    let output = sandbox.output(["watch"]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""));
    assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
    assert!(err(&output).contains("leasehold ls --json"), "{}", err(&output));
    let Some(terminal) = Terminal::open(&sandbox) else { return };
    terminal.line("$lh watch | cat; echo piped:${PIPESTATUS[0]}; $lh watch < /dev/null; echo fed:$?");
    terminal.shows("piped:2");
    terminal.shows("fed:2");
    terminal.line("TERM=dumb $lh watch; echo dumb:$?");
    terminal.shows("dumb:2");
    assert!(!sandbox.path("locks.db").exists(), "nothing was touched");
}

#[test]
fn misuse_is_told_in_one_line_and_starts_nothing() {
    let sandbox = Sandbox::new();
    for (args, words) in [
        (&["watch", "--interval", "10"][..], "10 has no unit"),
        (&["watch", "--interval", "10ms"], "100ms to 1h are allowed"),
        (&["watch", "--interval", "2h"], "100ms to 1h are allowed"),
        (&["watch", "--limit", "0"], "0 is not in 1"),
        (&["watch", "a", "b"], "unexpected argument 'b'"),
        (&["--store", "", "watch"], "no store"),
        (&["--namespace", "a\nb", "watch"], "namespace"),
    ] {
        let output = sandbox.leasehold(args).stderr(Stdio::piped()).output().unwrap();
        let said = err(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    assert!(!sandbox.path("locks.db").exists(), "nothing was touched");
    let Some(terminal) = Terminal::open(&sandbox) else { return };
    terminal.line("url=http://user:secret@host/; clear");
    terminal.line("$lh --store $url watch; echo ended:$?");
    let said = terminal.shows("is not known");
    assert!(said.starts_with("leasehold: ") && !said.contains("secret"), "{said}");
    terminal.ended_with(2);
}

#[test]
fn signals_end_it_and_the_terminal_is_given_back() {
    let sandbox = used();
    let Some(terminal) = Terminal::open(&sandbox) else { return };
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        terminal.watch("");
        terminal.shows("0 held");
        kill_process(watcher(&terminal), signal).unwrap();
        terminal.ended_with(code);
    }
}

#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again() {
    let sandbox = used();
    let Some(terminal) = Terminal::watching(&sandbox, "") else { return };
    for _ in 0..2 {
        terminal.shows("0 held");
        terminal.key("C-z");
        terminal.shows("Stopped");
        terminal.is_given_back();
        terminal.line("clear; fg; echo ended:$?");
    }
    terminal.shows("0 held");
    terminal.key("q");
    terminal.ended_with(0);
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let sandbox = used();
    let Some(terminal) = Terminal::watching(&sandbox, "") else { return };
    terminal.shows("0 held");
    let watcher = watcher(&terminal);
    drop(terminal);
    wait_until("the watch ends", || !crate::common::is_running(watcher));
}

/// A store that is there, and nothing is held in it.
fn used() -> Sandbox {
    let sandbox = Sandbox::new();
    let output = sandbox.leasehold(["run", "first", "--", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    sandbox
}

/// The process of the watch that runs in the terminal.
fn watcher(terminal: &Terminal<'_>) -> Pid {
    let mut found = None;
    wait_until("the watch runs", || {
        found = children_of(terminal.shell(), " watch").first().copied();
        found.is_some()
    });
    found.unwrap()
}
