//! The contract of `leasehold run` under every kind of parent: shells, process 1 of a container, and a shell
//! that is process 1. Exit codes, signals, orphans, a closed standard input, a wrapper that is killed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "command/common.rs"]
#[allow(dead_code, reason = "each test binary uses its part of this module")]
mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Running, Sandbox, err, read, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Who starts `leasehold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// A shell that waits for it.
    Shell(&'static str),
    /// Nobody: it is process 1 of its process namespace, as in a container.
    Process1,
    /// A shell that is process 1.
    Shell1,
}

const PARENTS: [Parent; 5] =
    [Parent::Shell("sh"), Parent::Shell("dash"), Parent::Shell("bash"), Parent::Process1, Parent::Shell1];

/// What the shells run: it must not be replaced by its only command, so there are two.
const WAITS: &str = r#""$@"; exit $?"#;

impl Parent {
    /// The words before `leasehold`; `None`, and a word about it, where this machine does not have that parent.
    fn words(self) -> Option<Vec<&'static str>> {
        let (probe, words) = match self {
            Self::Shell(shell) => (vec![shell], vec![shell, "-c", WAITS, "sh"]),
            Self::Process1 => (namespace()?, namespace()?),
            Self::Shell1 => (namespace()?, [namespace()?, vec!["sh", "-c", WAITS, "sh"]].concat()),
        };
        let exists = Command::new(probe[0]).args(["-c", "exit 0"]).stderr(Stdio::null()).status();
        if matches!(self, Self::Shell(_)) && exists.is_err() {
            eprintln!("skipped: {self:?} is not on this machine");
            return None;
        }
        Some(words)
    }

    /// `leasehold run` of a script under the name `job`.
    fn run(self, sandbox: &Sandbox, options: &[&str], script: &str) -> Option<Command> {
        let words = self.words()?;
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(env!("CARGO_BIN_EXE_leasehold"))
            .arg("run")
            .args(options)
            .args(["job", "--", "sh", "-c", script])
            .current_dir(sandbox.path(""))
            .env("LEASEHOLD_STORE", sandbox.store())
            .env_remove("LEASEHOLD_HELD")
            .stdin(Stdio::null());
        Some(command)
    }
}

/// The words that make a process namespace, if this user may.
fn namespace() -> Option<Vec<&'static str>> {
    for words in [
        ["unshare", "-fp", "--mount-proc", "--kill-child"],
        ["unshare", "-Urfp", "--mount-proc", "--kill-child"],
    ] {
        let made = Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
        if made.is_ok_and(|status| status.success()) {
            return Some(words.to_vec());
        }
    }
    eprintln!("skipped: no process namespace can be made here, so process 1 is not tested");
    None
}

/// Runs a test under each parent, in a sandbox of its own.
fn under_each(test: impl Fn(Parent, &Sandbox)) {
    for parent in PARENTS {
        if parent.words().is_some() {
            println!("under {parent:?}");
            test(parent, &Sandbox::new());
        }
    }
}

/// The `leasehold run`s of this sandbox, wherever they run.
fn wrappers(sandbox: &Sandbox) -> Vec<Pid> {
    let directory = sandbox.path("").canonicalize().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let folder = entry.ok()?.path();
        let words = std::fs::read(folder.join("cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0);
        let is_one = words.next()? == env!("CARGO_BIN_EXE_leasehold").as_bytes()
            && words.next()? == b"run"
            && std::fs::read_link(folder.join("cwd")).ok()? == directory;
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        is_one.then(|| Pid::from_raw(pid))?
    });
    processes.collect()
}

/// The one that was not there before.
fn wrapper(sandbox: &Sandbox, before: &[Pid]) -> Pid {
    let mut found = None;
    wait_until("the wrapper runs", || {
        found = wrappers(sandbox).into_iter().find(|pid| !before.contains(pid));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn exit_codes_come_out_unchanged() {
    under_each(|parent, sandbox| {
        let code = |options: &[&str], script: &str| {
            let output = parent.run(sandbox, options, script).unwrap().output().unwrap();
            (output.status.code(), err(&output))
        };
        for (script, expected) in
            [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
        {
            let (code, said) = code(&[], script);
            assert_eq!(code, Some(expected), "{parent:?} {script}: {said}");
        }
        assert_eq!(code(&["--ttl", "1"], "exit 0").0, Some(2), "{parent:?}");
        let holder = Running::start(&mut sandbox.job(&[], "echo > held; exec sleep 60"));
        sandbox.wait_for_file("held");
        assert_eq!(code(&["--no-wait"], "exit 0").0, Some(75), "{parent:?}");
        assert_eq!(code(&["--no-wait", "-E", "9"], "exit 0").0, Some(9), "{parent:?}");
        drop(holder);
    });
}

#[test]
fn signals_reach_the_command_and_its_code_comes_out() {
    under_each(|parent, sandbox| {
        for (signal, script, expected) in [
            (Signal::TERM, "trap 'exit 5' TERM; echo > up; while :; do sleep 0.02; done", 5),
            (Signal::INT, "echo > up; exec sleep 60", 130),
            (
                Signal::HUP,
                "trap 'echo > hup' HUP; echo > up; while [ ! -e hup ]; do sleep 0.02; done; exit 6",
                6,
            ),
            (Signal::TERM, "trap '' TERM; echo > up; while :; do sleep 0.02; done", 137),
        ] {
            let _ = std::fs::remove_file(sandbox.path("up"));
            let run = Running::start(&mut parent.run(sandbox, &["--grace", "500ms"], script).unwrap());
            sandbox.wait_for_file("up");
            kill_process(wrapper(sandbox, &[]), signal).unwrap();
            let (code, said) = run.finish();
            assert_eq!(code, Some(expected), "{parent:?} {signal:?} {script}: {said}");
            assert!(sandbox.shown("job")["holder"].is_null(), "{parent:?} {signal:?}");
        }
    });
}

#[test]
fn a_waiting_wrapper_ends_with_a_signal() {
    under_each(|parent, sandbox| {
        let _holder = Running::start(&mut sandbox.job(&[], "echo > held; exec sleep 60"));
        sandbox.wait_for_file("held");
        for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let others = wrappers(sandbox);
            let run = Running::start(&mut parent.run(sandbox, &["--wait", "60s"], "echo > ran").unwrap());
            sandbox.wait_for_waiter("job");
            kill_process(wrapper(sandbox, &others), signal).unwrap();
            let (code, said) = run.finish();
            assert_eq!(code, Some(expected), "{parent:?} {signal:?}: {said}");
        }
        assert!(!sandbox.path("ran").exists());
    });
}

#[test]
fn orphans_are_collected_while_the_command_runs() {
    under_each(|parent, sandbox| {
        // Twenty that are left by their parents at once, and a count of those that nobody collected.
        let script =
            "n=0; while [ $n -lt 20 ]; do (sh -c 'sleep 0.05' &); n=$((n+1)); done; sleep 0.2; tries=0
            while ps -o stat= --ppid $PPID | grep -q '^Z'; do
                tries=$((tries+1)); [ $tries -lt 200 ] || exit 1; sleep 0.05
            done; ps -o pid= --ppid $PPID | wc -l > left; exit 4";
        let output = parent.run(sandbox, &[], script).unwrap().output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{parent:?}: {}", err(&output));
        // The command itself and its watchdog.
        let left: u32 = read(&sandbox.path("left")).trim().parse().unwrap();
        assert!(left <= 2, "{parent:?}: {left}");
        assert!(sandbox.shown("job")["holder"].is_null(), "{parent:?}");
    });
}

#[test]
fn a_closed_standard_input_does_no_harm() {
    under_each(|parent, sandbox| {
        let words = parent.words().unwrap();
        let output = Command::new("sh")
            .args(["-c", r#"exec "$@" <&-"#, "sh"])
            .args(words)
            .args([env!("CARGO_BIN_EXE_leasehold"), "run", "job", "--", "sh", "-c"])
            .arg("read line || echo none > read; echo out; exit 3")
            .current_dir(sandbox.path(""))
            .env("LEASEHOLD_STORE", sandbox.store())
            .env_remove("LEASEHOLD_HELD")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{parent:?}: {}", err(&output));
        assert_eq!(common::out(&output), "out\n", "{parent:?}");
        assert_eq!(read(&sandbox.path("read")), "none\n", "{parent:?}");
    });
}

#[test]
fn a_wrapper_that_is_killed_takes_its_command_along() {
    under_each(|parent, sandbox| {
        let script = "trap '' TERM HUP; echo > up; while :; do echo >> beats; sleep 0.02; done";
        let run = Running::start(&mut parent.run(sandbox, &["--ttl", "2s"], script).unwrap());
        sandbox.wait_for_file("beats");
        kill_process(wrapper(sandbox, &[]), Signal::KILL).unwrap();
        let beats = || read(&sandbox.path("beats")).len();
        wait_until("the command is gone", || {
            let before = beats();
            std::thread::sleep(Duration::from_millis(300));
            beats() == before
        });
        // A shell reports the killed wrapper. `unshare` dies of the same signal, or of the attempt.
        let (code, said) = run.finish();
        assert!(code != Some(0), "{parent:?}: {said}");
        assert!(parent == Parent::Process1 || code == Some(137), "{parent:?}: {code:?} {said}");
        let next = sandbox.output(["run", "--wait", "20s", "job", "--", "true"]);
        assert_eq!(next.status.code(), Some(0), "{parent:?}: {}", err(&next));
    });
}
