//! `leasehold once`: what runs, what later calls print, and what a failure leaves.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Running, Sandbox, err, out, read, wait_until};
use rustix::process::Signal;

impl Sandbox {
    /// `leasehold once` of a shell script under the name `ship:1`, with these options.
    fn once(&self, options: &[&str], script: &str) -> Command {
        let mut args = vec!["once"];
        args.extend(options);
        args.extend(["ship:1", "--", "sh", "-c", script]);
        self.leasehold(args)
    }

    fn ship(&self, options: &[&str], script: &str) -> Output {
        self.once(options, script).output().unwrap()
    }

    fn key(&self) -> String {
        out(&self.output(["once", "--print-key", "ship:1"])).trim_end().to_owned()
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {}", err(output)))
}

#[test]
fn a_command_runs_once_and_later_calls_print_what_it_printed() {
    let sandbox = Sandbox::new();
    let script = "echo ran >> log; printf 'tracking \\0 JD1'; echo to stderr >&2";
    let first = sandbox.ship(&[], script);
    assert_eq!((code(&first), &first.stdout[..]), (0, &b"tracking \0 JD1"[..]), "{}", err(&first));
    assert_eq!(err(&first), "to stderr\n");
    for options in [&[][..], &["--no-wait"], &["--quiet"], &["--refuse-unknown"]] {
        let later = sandbox.ship(options, script);
        assert_eq!((code(&later), &later.stdout, err(&later)), (0, &first.stdout, String::new()));
    }
    assert_eq!(read(&sandbox.path("log")), "ran\n");
    let other = sandbox.leasehold(["once", "ship:2", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!((code(&other), read(&sandbox.path("log"))), (0, "ran\nran\n".to_owned()));
    assert!(out(&sandbox.output(["ls"])).is_empty(), "nothing is held");
}

#[test]
fn the_command_finds_the_key_of_the_operation_and_no_other_command_does() {
    let sandbox = Sandbox::new();
    let key = sandbox.key();
    assert_eq!(key.len(), 36, "{key}");
    let show = "echo $LEASEHOLD_IDEMPOTENCY_KEY $LEASEHOLD_ATTEMPT $LEASEHOLD_NAME; exit $1";
    for attempt in 1..=2 {
        let failed = sandbox.ship(&[], &show.replace("$1", "3"));
        assert_eq!((code(&failed), out(&failed)), (3, format!("{key} {attempt} ship:1\n")));
    }
    let done = sandbox.ship(&[], &show.replace("$1", "0"));
    assert_eq!((code(&done), out(&done)), (0, format!("{key} 3 ship:1\n")));
    let token = sandbox.output(["once", "token", "--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN"]);
    let token: u64 = out(&token).trim_end().parse().unwrap();
    assert!(token > 0);
    let run = sandbox.output(["run", "ship:1", "--", "sh", "-c", "echo ${LEASEHOLD_IDEMPOTENCY_KEY-unset}"]);
    assert_eq!(out(&run), "unset\n");
    let elsewhere = sandbox.output(["--namespace", "other:", "once", "--print-key", "ship:1"]);
    assert_ne!(out(&elsewhere).trim_end(), key);
    let without_store = Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["once", "--print-key", "ship:1"])
        .env_remove("LEASEHOLD_STORE")
        .output()
        .unwrap();
    assert_eq!(out(&without_store).trim_end(), key);
}

#[test]
fn trap_56_a_command_that_may_have_acted_is_told_apart_from_one_that_has_not() {
    let sandbox = Sandbox::new();
    let not_acted = ["--refuse-unknown", "--not-acted", "75", "--not-acted", "3"];
    for code_of_command in [3, 75] {
        assert_eq!(code(&sandbox.ship(&not_acted, &format!("exit {code_of_command}"))), code_of_command);
    }
    let missing = sandbox.output(["once", "--refuse-unknown", "ship:1", "--", "./missing"]);
    assert_eq!(code(&missing), 127, "its word is taken that it has not acted: {}", err(&missing));
    assert_eq!(code(&sandbox.ship(&not_acted, "exit 3")), 3, "one that was not started has not acted");
    for (script, its_code) in
        [("echo half; kill -9 $$", 137), ("echo half; exit 3", 3), ("echo half; ./missing", 127)]
    {
        let failed = sandbox.ship(&["--not-acted", "4"], script);
        assert_eq!((code(&failed), out(&failed)), (its_code, "half\n".to_owned()));
        let refused = sandbox.ship(&["--refuse-unknown"], "echo ran");
        assert_eq!((code(&refused), out(&refused)), (80, String::new()), "after {script}");
        let said = err(&refused);
        assert!(
            said.contains("ship:1: an earlier call may have acted") && said.contains("--refuse-unknown"),
            "{said}"
        );
    }
    let again = sandbox.ship(&[], "echo whole");
    assert_eq!((code(&again), out(&again)), (0, "whole\n".to_owned()));
}

/// A service that ends in order when it is told to has not done its work because of that.
#[test]
fn a_command_that_exits_with_0_because_it_was_told_to_stop_is_not_done() {
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let sandbox = Sandbox::new();
        let serves = "trap 'exit 0' TERM INT; echo > held; while :; do sleep 0.01; done";
        let told = Running::start(&mut sandbox.once(&[], serves));
        sandbox.wait_for_file("held");
        told.signal(signal);
        let (its_code, said) = told.finish();
        assert_eq!(its_code, Some(expected), "{said}");
        assert!(said.contains("whether it has done its work is not known"), "{said}");
        assert_eq!(code(&sandbox.ship(&["--refuse-unknown"], "echo ran")), 80);
        assert_eq!(out(&sandbox.ship(&[], "echo whole")), "whole\n");
    }
}

#[test]
fn while_one_call_runs_it_others_wait_for_the_result_or_are_told() {
    let sandbox = Sandbox::new();
    let script = "echo > held; while [ ! -e go ]; do sleep 0.01; done; echo JD1";
    let first = Running::start(&mut sandbox.once(&[], script));
    sandbox.wait_for_file("held");
    for (options, waited) in [(&["--no-wait"][..], false), (&["--wait", "200ms"], true)] {
        let told = sandbox.ship(options, "echo ran");
        assert_eq!((code(&told), out(&told)), (75, String::new()));
        assert!(err(&told).contains("ship:1 is busy: held by "), "{}", err(&told));
        assert_eq!(err(&told).contains("; waited "), waited, "{}", err(&told));
    }
    let waits = sandbox.once(&[], "echo ran").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sandbox.wait_for_waiter("ship:1");
    std::fs::write(sandbox.path("go"), "").unwrap();
    let waits = waits.wait_with_output().unwrap();
    assert_eq!((code(&waits), out(&waits)), (0, "JD1\n".to_owned()), "{}", err(&waits));
    assert!(err(&waits).contains("waiting for ship:1: held by "), "{}", err(&waits));
    assert_eq!(first.finish().0, Some(0));
}

/// F150: a call that is killed frees its operation when its lease ends, and the next one has the same key.
#[test]
fn f150_a_call_that_is_killed_frees_its_operation_within_the_ttl_and_the_key_stays() {
    let sandbox = Sandbox::new();
    let script = "echo $LEASEHOLD_IDEMPOTENCY_KEY >> keys; echo > held; exec sleep 600";
    let first = Running::start(&mut sandbox.once(&["--ttl", "2s"], script));
    sandbox.wait_for_file("held");
    drop(first);
    let started = Instant::now();
    let next = sandbox.ship(&[], "echo $LEASEHOLD_IDEMPOTENCY_KEY >> keys; echo $LEASEHOLD_ATTEMPT");
    assert_eq!((code(&next), out(&next)), (0, "2\n".to_owned()), "{}", err(&next));
    assert!(started.elapsed() < Duration::from_secs(2 + 5), "{:?}", started.elapsed());
    let key = sandbox.key();
    assert_eq!(read(&sandbox.path("keys")), format!("{key}\n{key}\n"));
}

#[test]
fn a_lease_that_is_lost_stops_the_command_and_keeps_nothing() {
    let sandbox = Sandbox::new();
    let first = Running::start(&mut sandbox.once(&["--ttl", "3s"], "echo > held; echo half; exec sleep 600"));
    sandbox.wait_for_file("held");
    assert!(sandbox.output(["break", "ship:1", "--yes", "--now"]).status.success());
    assert_eq!(first.finish().0, Some(79));
    let refused = sandbox.ship(&["--refuse-unknown"], "echo ran");
    assert_eq!(code(&refused), 80, "{}", err(&refused));
}

#[test]
fn a_lost_lease_outweighs_whatever_the_command_returned() {
    let sandbox = Sandbox::new();
    for end in ["exit 0", "exit 3", "kill -9 $$"] {
        let script = format!(r#""$0" break ship:1 --yes --now; {end}"#);
        let program = env!("CARGO_BIN_EXE_leasehold");
        let lost = sandbox.output(["once", "ship:1", "--", "sh", "-c", &script, program]);
        assert_eq!(code(&lost), 79, "{end}: {}", err(&lost));
        assert!(err(&lost).contains("the lease was lost before the outcome could be kept"), "{}", err(&lost));
    }
    let frozen = Running::start(&mut sandbox.once(&["--ttl", "1s"], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    frozen.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(2_500));
    frozen.signal(Signal::CONT);
    let (its_code, said) = frozen.finish();
    assert_eq!(its_code, Some(79), "{said}");
    assert_eq!(code(&sandbox.ship(&["--refuse-unknown"], "echo ran")), 80);
}

#[test]
fn a_call_inside_a_call_of_the_same_name_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let script = r#""$0" once ship:1 -- true"#;
    let output =
        sandbox.output(["once", "ship:1", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("wait for itself"), "{}", err(&output));
}

#[test]
fn trap_56_another_fingerprint_is_refused() {
    let sandbox = Sandbox::new();
    assert_eq!(code(&sandbox.ship(&["--fingerprint", "3 EUR"], "echo paid")), 0);
    for fingerprint in ["5 EUR", "", "-3"] {
        let refused = sandbox.ship(&["--fingerprint", fingerprint], "echo ran");
        assert_eq!((code(&refused), out(&refused)), (80, String::new()));
        assert!(err(&refused).contains("asked for before with another request"), "{}", err(&refused));
    }
    for options in [&["--fingerprint", "3 EUR"][..], &[]] {
        assert_eq!(out(&sandbox.ship(options, "echo ran")), "paid\n");
    }
}

#[test]
fn a_megabyte_is_kept_and_one_byte_more_is_told_and_not_kept() {
    let sandbox = Sandbox::new();
    let print = |bytes: usize| format!("echo ran >> log; head -c {bytes} /dev/zero | tr '\\0' x");
    for bytes in [1_048_577, 3_000_000] {
        let large = sandbox.ship(&[], &print(bytes));
        assert_eq!((code(&large), large.stdout.len()), (81, bytes), "all of it is passed on");
        let told = "ship:1: the command succeeded, but it has printed more than 1 MiB, so nothing is kept: the next call";
        assert!(err(&large).contains(told), "{}", err(&large));
        assert_eq!(code(&sandbox.ship(&["--refuse-unknown"], "echo ran")), 80);
    }
    assert!(out(&sandbox.output(["ls"])).is_empty(), "nothing is held");
    for _ in 0..2 {
        let whole = sandbox.ship(&[], &print(1_048_576));
        assert_eq!((code(&whole), whole.stdout.len()), (0, 1_048_576), "{}", err(&whole));
    }
    assert_eq!(read(&sandbox.path("log")), "ran\nran\nran\n");
}

/// More than a pipe takes without a reader.
const PRINT: &str = "head -c 300000 /dev/zero | tr '\\0' x; echo > printed";

#[test]
fn a_finished_operation_is_kept_before_anybody_has_read_its_output() {
    let sandbox = Sandbox::new();
    let mut unread = Running::start(&mut sandbox.once(&[], PRINT));
    sandbox.wait_for_file("printed");
    let kept = sandbox.ship(&["--wait", "20s"], "echo ran");
    assert_eq!((code(&kept), kept.stdout.len()), (0, 300_000), "{}", err(&kept));
    assert!(unread.is_running(), "it waits for its reader");
    unread.signal(Signal::TERM);
    assert_eq!(unread.finish().0, Some(143));
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut unread = Running::start(&mut sandbox.once(&[], "echo ran"));
        std::thread::sleep(Duration::from_millis(700));
        assert!(unread.is_running(), "it waits for its reader");
        unread.signal(signal);
        assert_eq!(unread.finish().0, Some(expected));
    }
}

#[test]
fn a_call_whose_output_nobody_reads_ends_as_its_command_does_when_it_is_told_to() {
    for print in [PRINT, "yes > /dev/stdout & echo > printed; wait"] {
        let sandbox = Sandbox::new();
        let unread = Running::start(&mut sandbox.once(&[], &format!("{print}; exec sleep 600")));
        sandbox.wait_for_file("printed");
        std::thread::sleep(Duration::from_millis(500));
        unread.signal(Signal::TERM);
        let (its_code, said) = unread.finish();
        assert_eq!(its_code, Some(143), "{said}");
        assert!(out(&sandbox.output(["ls"])).is_empty(), "nothing is held");
    }
}

#[test]
fn output_that_cannot_be_written_is_told_and_the_operation_is_done() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("skipped: there is no /dev/full");
        return;
    }
    let sandbox = Sandbox::new();
    for script in ["echo ran >> log; echo JD1", "echo ran >> log"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let unwritten = sandbox.once(&[], script).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(code(&unwritten), 74);
        assert!(err(&unwritten).contains("standard output cannot be written: "), "{}", err(&unwritten));
    }
    assert_eq!(out(&sandbox.ship(&[], "echo ran >> log")), "JD1\n");
    assert_eq!(read(&sandbox.path("log")), "ran\n");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let args = ["once", "failed", "--", "sh", "-c", "echo half; exit 3"];
    let failed = sandbox.leasehold(args).stdout(full).output().unwrap();
    assert_eq!(code(&failed), 3, "{}", err(&failed));
}

#[test]
fn a_reader_that_goes_away_or_is_slow_changes_nothing_of_what_is_kept() {
    let sandbox = Sandbox::new();
    let print = "for i in 1 2 3 4 5 6 7 8; do head -c 30000 /dev/zero | tr '\\0' $i; done; echo > printed";
    let mut gone = sandbox.once(&[], print).stdout(Stdio::piped()).spawn().unwrap();
    drop(gone.stdout.take());
    wait_until("the command ends", || gone.try_wait().unwrap().is_some());
    assert!(gone.wait().unwrap().success());
    let kept = sandbox.ship(&[], "echo ran").stdout;
    assert_eq!((kept.len(), kept.last()), (240_000, Some(&b'8')));

    let args = ["once", "slow", "--", "sh", "-c", print];
    let mut slow = sandbox.leasehold(args).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(slow.try_wait().unwrap().is_none(), "it waits for its reader");
    let mut all = Vec::new();
    slow.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert!(slow.wait().unwrap().success());
    assert!(all == kept && sandbox.output(args).stdout == kept);
}

#[test]
fn a_process_left_behind_with_the_output_does_not_hold_the_call_up() {
    let sandbox = Sandbox::new();
    let started = Instant::now();
    let output = sandbox.ship(&["--grace", "1s"], "sleep 600 & echo JD1");
    assert_eq!((code(&output), out(&output)), (0, "JD1\n".to_owned()), "{}", err(&output));
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}

#[test]
fn a_signal_ends_the_command_and_leaves_it_to_the_next_call() {
    let sandbox = Sandbox::new();
    let run = Running::start(&mut sandbox.once(&[], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().0, Some(143));
    let next = sandbox.ship(&["--no-wait"], "echo $LEASEHOLD_ATTEMPT");
    assert_eq!((code(&next), out(&next)), (0, "2\n".to_owned()), "{}", err(&next));
}

#[test]
fn a_kept_result_ends_with_its_time() {
    let sandbox = Sandbox::new();
    let script = "echo ran >> log";
    assert_eq!(code(&sandbox.ship(&["--retain", "1s"], script)), 0);
    wait_until("it runs again", || {
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(code(&sandbox.ship(&["--retain", "1h"], script)), 0);
        read(&sandbox.path("log")) == "ran\nran\n"
    });
}

#[test]
fn what_is_kept_is_shown_and_can_be_forgotten() {
    let sandbox = Sandbox::new();
    let forget = || sandbox.output(["once", "--forget", "ship:1"]);
    let operation = || sandbox.shown("ship:1")["operation"].clone();
    let text = || out(&sandbox.output(["show", "ship:1"]));
    assert_eq!(code(&sandbox.output(["once", "ship:2", "--", "true"])), 0);
    assert_eq!((code(&forget()), err(&forget())), (0, "leasehold: nothing is kept of ship:1\n".to_owned()));
    assert_eq!(text(), "ship:1 is free\n");

    assert_eq!(code(&sandbox.ship(&[], "exit 3")), 3);
    assert_eq!(operation(), serde_json::json!({ "state": "unknown", "attempt": 1, "result_bytes": null }));
    assert_eq!(text(), "ship:1 is free\noperation      unknown: it may have acted (attempt 1)\n");
    let refused = sandbox.ship(&["--refuse-unknown"], "echo JD1");
    assert!(err(&refused).contains("leasehold once --forget ship:1"), "{}", err(&refused));
    let answer = forget();
    let told = "leasehold: forgotten: ship:1 was unknown: it may have acted (attempt 1)\n";
    assert_eq!((code(&answer), err(&answer)), (0, told.to_owned()));

    assert_eq!(out(&sandbox.ship(&["--refuse-unknown"], "echo JD1")), "JD1\n");
    assert_eq!(operation()["state"], "done");
    assert!(text().contains("operation      done, with a result of 4 bytes (attempt "), "{}", text());
    assert_eq!(code(&forget()), 0);
    let at_it = Running::start(&mut sandbox.once(&["--ttl", "1s"], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    assert_eq!((operation()["state"].as_str(), code(&forget())), (Some("started"), 75));
    assert!(text().contains("operation      in progress (attempt "), "{}", text());
    drop(at_it);
    wait_until("its lease is over", || operation()["state"] == "unknown");
    assert_eq!(code(&sandbox.ship(&["--refuse-unknown"], "echo ran")), 80);
}

#[test]
fn that_a_call_has_begun_is_known_longer_than_its_result_is_kept() {
    let sandbox = Sandbox::new();
    let script = "echo > held; exec sleep 600";
    let dies = Running::start(&mut sandbox.once(&["--ttl", "1s", "--retain", "1s"], script));
    sandbox.wait_for_file("held");
    std::thread::sleep(Duration::from_millis(1_500));
    drop(dies);
    let refused = sandbox.ship(&["--refuse-unknown"], "echo ran");
    assert_eq!(code(&refused), 80, "{}", err(&refused));
}

/// The guide's shell lines do what it says.
#[test]
fn the_lines_of_the_guide_work() {
    let guide = include_str!("../../../../docs/once.md");
    let mut blocks = guide.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (ship, key) = (blocks.next().unwrap(), blocks.next().unwrap());
    assert_eq!(blocks.next(), None, "a block that no test runs");
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("ship"), "#!/bin/sh\necho ran >> log\necho JD$1\n").unwrap();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let shell = |lines: &str| {
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-ec", lines]).env("PATH", path).env("LEASEHOLD_STORE", sandbox.store());
        shell.current_dir(sandbox.path("")).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(code(&shell("chmod +x ship")), 0);
    for _ in 0..2 {
        let output = shell(ship);
        assert_eq!((code(&output), out(&output)), (0, "JD1001\n".to_owned()), "{}", err(&output));
    }
    assert_eq!(read(&sandbox.path("log")), "ran\n");
    let output = shell("leasehold once --print-key ship:1001");
    assert!(guide.contains(out(&output).trim_end()), "{}", out(&output));
    if shell("command -v python3").status.success() {
        assert_eq!(out(&shell(key)), out(&output));
    }
}
