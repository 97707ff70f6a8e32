//! The exit codes of `leasehold run`, which scripts and schedulers branch on.

use crate::common::{Running, Sandbox, err, out};

#[test]
fn the_command_s_own_code_comes_out() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 3, 255] {
        let output = sandbox.job(&[], &format!("exit {code}")).output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(err(&output), "", "nothing is said when all is well");
    }
}

#[test]
fn a_signal_that_ends_the_command_becomes_128_and_its_number() {
    let sandbox = Sandbox::new();
    for signal in [1, 2, 9, 15, 40] {
        let output = sandbox.job(&[], &format!("kill -{signal} $$")).output().unwrap();
        assert_eq!(output.status.code(), Some(128 + signal));
    }
}

#[test]
fn a_command_that_cannot_be_started_gives_126_or_127_and_leaves_the_name_free() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("data"), "not a program").unwrap();
    for (command, code) in [("./missing", 127), ("no-such-command", 127), ("./data", 126), ("/", 126)] {
        let output = sandbox.output(["run", "job", "--", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", err(&output));
        assert!(err(&output).contains(command), "{}", err(&output));
        assert_eq!(sandbox.shown("job")["holder"], serde_json::Value::Null);
    }
}

/// F078, F084: A taken name ends with 75, or the code of `-E`, and the command is never started.
#[test]
fn f078_f084_a_taken_name_gives_75_or_the_code_asked_for_and_the_command_never_runs() {
    let sandbox = Sandbox::new();
    let _holder = Running::start(&mut sandbox.job(&[], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    for (options, code) in [
        (&["--no-wait"][..], 75),
        (&["-n", "-E", "0"], 0),
        (&["--wait", "0s"], 75),
        (&["--wait", "300ms"], 75),
        (&["--wait", "300ms", "--busy-code", "9"], 9),
    ] {
        let output = sandbox.job(options, "echo > ran").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{options:?}: {}", err(&output));
        assert!(err(&output).contains("job is busy: held by "), "{}", err(&output));
        assert!(!sandbox.path("ran").exists(), "{options:?}");
    }
}

#[test]
fn trap_57_without_a_store_nothing_runs() {
    let sandbox = Sandbox::new();
    for value in [None, Some("")] {
        let mut command = sandbox.job(&[], "echo > ran");
        match value {
            None => command.env_remove("LEASEHOLD_STORE"),
            Some(value) => command.env("LEASEHOLD_STORE", value),
        };
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains("--store local") && err(&output).contains("LEASEHOLD_STORE"));
    }
    let output = sandbox.output(["--store", "memory:", "run", "job", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(2), "a lock that excludes nobody is refused");
    let output = sandbox.output(["--store", "sqlit:x", "run", "job", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn a_store_that_does_not_exist_is_a_misuse() {
    let sandbox = Sandbox::new();
    let store = format!("sqlite:{}", sandbox.path("missing/locks.db").display());
    let output = sandbox.output(["--store", &store, "run", "job", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("create it"), "{}", err(&output));
    assert!(!sandbox.path("ran").exists());
}

/// F084: A store that does not answer ends with 69 within the time it was given.
#[test]
fn f084_a_store_that_cannot_work_gives_69_within_its_timeout() {
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    let _blocked = crate::common::block_store(&sandbox);
    let start = std::time::Instant::now();
    let output =
        sandbox.leasehold(["--store-timeout", "500ms", "run", "job", "--", "touch", "ran"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", err(&output));
    assert!(start.elapsed().as_secs() < 10 + 5, "{:?}", start.elapsed());
    assert!(!sandbox.path("ran").exists());
}

/// Nothing goes on in the background of a process that ends, so nothing is promised.
#[test]
fn a_name_that_cannot_be_given_back_is_told_with_the_time_it_becomes_free() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.leasehold([
        "--store-timeout",
        "500ms",
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "echo > started; until [ -e blocked ]; do sleep 0.05; done; exit 3",
    ]);
    let running = job.stderr(std::process::Stdio::piped()).spawn().unwrap();
    sandbox.wait_for_file("started");
    let _blocked = crate::common::block_store(&sandbox);
    std::fs::write(sandbox.path("blocked"), "").unwrap();
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(3), "the command's own code stands: {said}");
    assert!(said.contains("given back") && said.contains("becomes free in"), "{said}");
    assert!(!said.contains("background"), "{said}");
}

#[test]
fn options_outside_their_limits_are_refused_before_anything_runs() {
    let sandbox = Sandbox::new();
    for (options, word) in [
        (&["--ttl", "0s"][..], "100ms to 24h"),
        (&["--ttl", "99ms"], "100ms to 24h"),
        (&["--ttl", "25h"], "100ms to 24h"),
        (&["--ttl", "-1s"], "1h30m"),
        (&["--wait", "-1s"], "1h30m"),
        (&["--grace", "-5"], "1h30m"),
        (&["--store-timeout", "0s"], "1ms to 24h"),
        (&["--store-timeout", "-1s"], "1h30m"),
        (&["--ttl", "10"], "10s"),
        (&["--ttl", ""], "1h30m"),
        (&["--ttl", "2s", "--grace", "1s"], "--grace"),
        (&["--max-hold", "0s"], "--max-hold"),
        (&["--min-hold", "9s", "--max-hold", "5s"], "min_hold"),
        (&["--wait", "1s", "--no-wait"], "--no-wait"),
        (&["-E", "256"], "256"),
        (&["-E", "-1"], "0..=255"),
        (&["--namespace", "a\nb"], "control"),
    ] {
        let output = sandbox.job(options, "echo > ran").output().unwrap();
        let said = err(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert_eq!(said.lines().count(), 1, "one line: {said}");
        assert!(said.contains(word), "{options:?}: {said}");
        assert!(!sandbox.path("ran").exists());
    }
}

#[test]
fn standard_streams_are_passed_through() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("in"), "from the input").unwrap();
    let output = sandbox
        .job(&[], "cat; echo to the error >&2")
        .stdin(std::fs::File::open(sandbox.path("in")).unwrap())
        .output()
        .unwrap();
    assert_eq!(out(&output), "from the input");
    assert_eq!(err(&output), "to the error\n");
}
