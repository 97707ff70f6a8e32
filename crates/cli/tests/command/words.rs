//! What the command says, word for word: help and errors. `cargo insta review` shows a change of them.

use std::fmt::Write as _;

use crate::common::{Sandbox, err, out};

#[test]
fn help() {
    let sandbox = Sandbox::new();
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help_run", &["run", "--help"]),
        ("help_once", &["once", "--help"]),
        ("help_ls", &["ls", "--help"]),
        ("help_break", &["break", "--help"]),
    ] {
        let output = sandbox.output(args);
        assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
        insta::assert_snapshot!(name, out(&output));
    }
}

#[test]
fn misuse_is_told_in_one_line_that_says_what_to_do() {
    let sandbox = Sandbox::new();
    let mut told = String::new();
    for args in [
        &[][..],
        &["rum"],
        &["--stroe", "local", "ls"],
        &["run"],
        &["run", "job"],
        &["run", "job", "--"],
        &["run", "--ttl", "10", "job", "--", "true"],
        &["run", "--ttl", "soon", "job", "--", "true"],
        &["run", "--ttl", "48h", "job", "--", "true"],
        &["run", "--ttl", "0s", "job", "--", "true"],
        &["run", "--max-hold", "9000h", "job", "--", "true"],
        &["run", "--min-hold", "0s", "job", "--", "true"],
        &["run", "--ttl"],
        &["run", "--tll", "10s", "job", "--", "true"],
        &["run", "--ttl", "10s", "--grace", "5s", "job", "--", "true"],
        &["run", "--wait", "5s", "--no-wait", "job", "--", "true"],
        &["run", "-E", "300", "job", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "~queue", "--", "true"],
        &["run", "job", "--", "./missing"],
        &["run", "job", "--", ""],
        &["once"],
        &["once", "job"],
        &["once", "--print-key", "job", "--", "true"],
        &["once", "--retain", "10ms", "job", "--", "true"],
        &["once", "--retain", "366d", "job", "--", "true"],
        &["once", "--forget", "job", "--", "true"],
        &["once", "--not-acted", "0", "job", "--", "true"],
        &["once", "--wait", "5s", "--no-wait", "job", "--", "true"],
        &["once", "~job", "--", "true"],
        &["show"],
        &["ls", "--limit", "0"],
        &["completions"],
        &["completions", "tcsh"],
        &["--store", "", "ls"],
        &["--store", "memory:", "ls"],
        &["--store", "http://user:secret@host/", "ls"],
    ] {
        let output = sandbox.output(args);
        let said = err(&output);
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(!said.contains("secret"), "{said}");
        writeln!(told, "$ leasehold {}\n{} {said}", args.join(" "), output.status.code().unwrap()).unwrap();
    }
    insta::assert_snapshot!("misuse", told);
}
