//! What reaches the command: its arguments byte for byte, its environment, its open files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::common::{Sandbox, err, out, read};

/// Prints its arguments, each in brackets.
const PRINT: &str = r#"for one; do printf '[%s]' "$one"; done"#;

/// F135: What follows the name goes to the command byte for byte, with or without `--`, and never through a
/// shell.
#[test]
fn f135_arguments_reach_the_command_byte_for_byte() {
    let sandbox = Sandbox::new();
    let given: Vec<&OsStr> =
        ["-v", "--ttl", "9", "--", "-n", "", " a b ", "$(id)", "'q\"", "*", "--help", "\n"]
            .map(OsStr::new)
            .to_vec();
    let given = [given, vec![OsStr::from_bytes(b"\xff\xfe")]].concat();
    let mut expected = Vec::new();
    for one in &given {
        expected.extend([b"[", one.as_bytes(), b"]"].concat());
    }
    for dashes in [&["--"][..], &[]] {
        let mut args: Vec<OsString> = ["run", "job"].map(OsString::from).to_vec();
        args.extend(dashes.iter().map(OsString::from));
        args.extend(["sh", "-c", PRINT, "sh"].map(OsString::from));
        args.extend(given.iter().map(OsString::from));
        let output = sandbox.output(args);
        assert_eq!(output.stdout, expected, "{}", err(&output));
        assert!(output.status.success());
    }
}

#[test]
fn options_may_follow_the_name_until_the_command_begins() {
    let sandbox = Sandbox::new();
    let output = sandbox.output(["run", "job", "--wait", "1s", "--", "echo", "-n", "--wait"]);
    assert_eq!(out(&output), "--wait");
    let output = sandbox.output(["run", "job", "--ttl", "1s", "grep", "-c", "x"]);
    assert_eq!(out(&output), "0\n");
}

#[test]
fn a_name_that_is_not_utf_8_or_not_allowed_is_refused() {
    let sandbox = Sandbox::new();
    let not_utf_8 = OsStr::from_bytes(b"\xff");
    for name in [not_utf_8, OsStr::new(""), OsStr::new("~x"), OsStr::new("a\tb")] {
        let output = sandbox.output([OsStr::new("run"), name, OsStr::new("--"), OsStr::new("true")]);
        assert_eq!(output.status.code(), Some(2), "{name:?}");
        assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
    }
}

#[test]
fn the_command_knows_its_lease_and_a_nested_one_its_own() {
    let sandbox = Sandbox::new();
    let script = r#"
        echo $LEASEHOLD_NAME $LEASEHOLD_FENCING_TOKEN ${#LEASEHOLD_OWNER_TOKEN}
        "$0" run inner -- sh -c 'echo $LEASEHOLD_NAME $LEASEHOLD_FENCING_TOKEN'
        "$0" show inner "#;
    let output = sandbox.output(["run", "outer", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    let text = out(&output);
    let mut words = text.split_whitespace();
    let mut word = || words.next().unwrap().to_owned();
    assert_eq!(word(), "outer", "{}", err(&output));
    let outer: u64 = word().parse().unwrap();
    assert!(word().parse::<usize>().unwrap() > 22, "a secret and a label");
    assert_eq!(word(), "inner");
    assert!(word().parse::<u64>().unwrap() > outer);
    assert!(text.ends_with("inner is free\n"), "{text}");
}

#[test]
fn fencing_tokens_grow_from_run_to_run() {
    let sandbox = Sandbox::new();
    let mut last = 0;
    for _ in 0..3 {
        let output = sandbox.job(&[], "echo $LEASEHOLD_FENCING_TOKEN").output().unwrap();
        let token: u64 = out(&output).trim().parse().unwrap();
        assert!(token > last);
        last = token;
    }
}

#[test]
fn a_run_of_a_name_inside_a_run_of_the_same_name_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let script = r#""$0" run other -- "$0" run --wait 10s "a b,%" -- touch ran; echo $?"#;
    let output = sandbox.output(["run", "a b,%", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    assert_eq!(out(&output), "2\n");
    assert!(
        err(&output).contains("a b,% is held by the leasehold run or once that this one was started under")
    );
    assert!(!sandbox.path("ran").exists());

    let script = r#""$0" --namespace other: run --wait 10s job -- echo ran"#;
    let output = sandbox.output(["run", "job", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    assert_eq!(out(&output), "ran\n", "another namespace is another lock: {}", err(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn no_file_of_ours_stays_open_in_the_command() {
    let sandbox = Sandbox::new();
    let open = |command: &mut std::process::Command| {
        assert!(command.status().unwrap().success());
        let text = read(&sandbox.path("open"));
        std::fs::remove_file(sandbox.path("open")).unwrap();
        text
    };
    let script = "ls /proc/self/fd > open";
    let with = open(&mut sandbox.job(&[], script));
    let without = open(std::process::Command::new("sh").args(["-c", script]).current_dir(sandbox.path("")));
    assert_eq!(with, without);
}
