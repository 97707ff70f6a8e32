//! `ls`, `show`, `break`, `doctor`, `completions` and `man`: what they print, and what they leave alone.

use std::io::Read;
use std::process::Stdio;

use crate::common::{Running, Sandbox, err, out};

/// A job that holds `job`, and one that waits for it.
fn held_and_awaited(sandbox: &Sandbox) -> (Running, Running) {
    let holder = Running::start(&mut sandbox.job(&[], "echo > held; exec sleep 600"));
    sandbox.wait_for_file("held");
    let waiter = Running::start(&mut sandbox.job(&["-q"], "true"));
    sandbox.wait_for_waiter("job");
    (holder, waiter)
}

#[test]
fn ls_and_show_tell_who_holds_and_who_waits() {
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    let nothing = sandbox.output(["ls"]);
    assert_eq!((out(&nothing).as_str(), nothing.status.code()), ("", Some(0)));
    let (holder, waiter) = held_and_awaited(&sandbox);

    let listed = sandbox.output(["ls"]);
    let text = out(&listed);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "HOLDER", "REMAINING", "WAITERS"]);
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[1][0], lines[1][3]), ("job", "1"), "{text}");
    assert!(lines[1][1].ends_with(&format!(":{}", holder.pid())), "{text}");
    assert_eq!(err(&listed), "");

    let other = sandbox.output(["ls", "other:"]);
    assert_eq!(out(&other), "");
    assert!(err(&other).contains("no name that starts with other: is held"), "{}", err(&other));
    let mut json: serde_json::Value =
        serde_json::from_slice(&sandbox.output(["ls", "--json", "jo"]).stdout).unwrap();
    let shown = sandbox.shown("job");
    json["names"][0]["remaining_ms"] = shown["remaining_ms"].clone();
    assert_eq!(json, serde_json::json!({ "more": false, "names": [shown] }));
    assert_eq!(shown["holder"]["kind"], "lease");
    let first = shown["waiters"][0].as_str().unwrap().to_owned();
    assert!(first.ends_with(&format!(":{}", waiter.pid())), "{first}");
    assert!(shown["fencing_token"].as_str().unwrap().parse::<u64>().is_ok());
    let text = out(&sandbox.output(["show", "job"]));
    assert!(text.contains("fencing token") && text.contains("1. "), "{text}");
    assert_eq!(out(&sandbox.output(["show", "free"])), "free is free\n");
}

/// A mistyped path would otherwise seem to be a store where nothing is held.
#[test]
fn looking_creates_no_file() {
    let sandbox = Sandbox::new();
    let missing = sandbox.path("mistyped.db");
    let store = format!("sqlite:{}", missing.display());
    for words in
        [&["ls"][..], &["show", "job"], &["doctor"], &["break", "job", "--yes"], &["once", "--forget", "job"]]
    {
        let output = sandbox.output([&["--store", &store][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", err(&output));
        assert!(err(&output).contains("there is no such file"), "{words:?}: {}", err(&output));
        assert!(!missing.exists());
    }
    let mut local = sandbox.leasehold(["--store", "local", "ls"]);
    let output = local.env("HOME", sandbox.path("home")).env_remove("XDG_STATE_HOME").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "nobody can mistype it: {}", err(&output));
}

#[test]
fn break_asks_and_without_a_terminal_wants_to_be_told() {
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    let free = sandbox.output(["break", "job"]);
    assert_eq!(free.status.code(), Some(0));
    assert!(err(&free).contains("nothing to break"));
    let (mut holder, _waiter) = held_and_awaited(&sandbox);
    let refused = sandbox.output(["break", "job"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("--yes"), "{}", err(&refused));
    assert!(holder.is_running());
    let broken = sandbox.output(["break", "job", "--yes"]);
    assert_eq!(broken.status.code(), Some(0));
    assert!(err(&broken).contains("told at its next renewal"), "{}", err(&broken));
    let kind = sandbox.shown("job")["holder"]["kind"].clone();
    assert_eq!(kind, "broken");
    let now = sandbox.output(["break", "job", "--yes", "--now"]);
    assert!(now.status.success());
}

#[test]
fn doctor_is_content_with_a_sound_store() {
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    let output = sandbox.output(["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", out(&output));
    assert!(out(&output).contains("nothing is wrong"));
    let json: serde_json::Value =
        serde_json::from_slice(&sandbox.output(["doctor", "--json"]).stdout).unwrap();
    assert_eq!(json["fine"], true);
    assert!(json["findings"].as_array().unwrap().iter().all(|finding| finding["severity"] == "fine"));
}

#[test]
fn doctor_exits_with_1_when_something_is_wrong() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    let file = sandbox.path("locks.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let output = sandbox.output(["doctor"]);
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
    assert!(out(&output).contains("permissions"), "{}", out(&output));
}

#[test]
fn doctor_tells_of_a_damaged_file_in_one_line_and_its_advice_in_another() {
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    let file = sandbox.path("locks.db");
    let connection = rusqlite::Connection::open(&file).unwrap();
    let size: u16 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let sound = std::fs::read(&file).unwrap();
    let size = usize::from(size);
    let mut found = 0;
    for page in sound.chunks(size).enumerate().map(|(page, _)| page) {
        let mut bytes = sound.clone();
        // The file's header stays what it is: without it, this is no database at all.
        bytes[(page * size).max(100)..(page + 1) * size].fill(0xAA);
        std::fs::write(&file, bytes).unwrap();
        let output = sandbox.output(["doctor"]);
        let (text, error) = (out(&output), err(&output));
        match output.status.code() {
            Some(1) => {
                let lines: Vec<_> = text.lines().collect();
                assert!(lines[0].starts_with("problem  integrity: the file is damaged"), "{text}");
                assert!(lines[1].starts_with("         stop everything"), "{text}");
                found += 1;
            }
            // Damage in what describes the tables: it cannot be opened.
            Some(2) => assert!(error.contains("the file is damaged: stop everything"), "{error}"),
            code => panic!("page {page}: {code:?}: {text}{error}"),
        }
    }
    assert!(found > 0, "damage in the tables is found by looking");
}

#[test]
fn doctor_prints_the_rights_a_redis_user_needs_without_asking_the_server() {
    let sandbox = Sandbox::new();
    for (args, keys) in [
        (&["--store", "redis://127.0.0.1:1/", "doctor", "--acl"][..], "~lock:* "),
        (&["--store", "redis://127.0.0.1:1/?namespace=a:", "doctor", "--acl"], "~a:* "),
        (&["--store", "redis://127.0.0.1:1/?namespace=a:", "--namespace", "b:", "doctor", "--acl"], "~b:* "),
    ] {
        let output = sandbox.output(args);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        assert!(out(&output).lines().count() == 1 && out(&output).contains(keys), "{}", out(&output));
    }
    assert_eq!(sandbox.output(["doctor", "--acl"]).status.code(), Some(2));
}

#[test]
fn a_reader_that_has_gone_away_is_no_failure_and_a_full_disk_is() {
    let sandbox = Sandbox::new();
    assert!(sandbox.job(&[], "true").status().unwrap().success());
    for args in [&["ls"][..], &["doctor"], &["--help"], &["completions", "bash"], &["man"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output =
            sandbox.leasehold(args).stdout(Stdio::from(writer)).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
        assert!(!err(&output).contains("panicked"), "{args:?}");
    }
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output = sandbox.leasehold(["doctor"]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(70), "{}", err(&output));
    }
}

#[test]
fn closed_standard_streams_do_no_harm() {
    let sandbox = Sandbox::new();
    let script = r#"
        "$0" run job -- true <&- >&- 2>&- || exit 1
        "$0" run job -- sh -c 'echo $$ > child; exec sleep 600' <&- >&- 2>&- &
        while [ ! -s child ]; do sleep 0.01; done
        "$0" run --no-wait job -- true 2>&-; echo "busy:$?"
        kill -9 $!; "$0" ls 2>&- >&-; echo "ls:$?""#;
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_leasehold")])
        .env("LEASEHOLD_STORE", sandbox.store())
        .current_dir(sandbox.path(""))
        .output()
        .unwrap();
    assert_eq!(out(&output), "busy:75\nls:0\n", "{}", err(&output));
    let child = sandbox.pid_of("child");
    crate::common::wait_until("the watchdog kills the command", || !crate::common::is_running(child));
}

#[test]
fn man_pages_and_completions_cover_every_command_but_not_the_hidden_one() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("man");
    let output = sandbox.output(["man", dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    for page in
        ["leasehold.1", "leasehold-run.1", "leasehold-ls.1", "leasehold-break.1", "leasehold-doctor.1"]
    {
        let mut text = String::new();
        std::fs::File::open(dir.join(page)).unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
        assert!(!text.contains("__watchdog"), "{page}");
    }
    assert!(out(&sandbox.output(["man"])).contains(".TH leasehold 1"));
    for shell in ["bash", "zsh", "fish"] {
        let script = out(&sandbox.output(["completions", shell]));
        assert!(script.contains("min-hold") && !script.contains("__watchdog"), "{shell}");
    }
}

#[test]
fn the_watchdog_s_name_is_no_command() {
    let sandbox = Sandbox::new();
    let output = sandbox.output(["__watchdog"]);
    assert_eq!(output.status.code(), Some(0), "its wrapper is gone at once: nothing to do");
    assert_eq!(out(&output) + &err(&output), "");
}
