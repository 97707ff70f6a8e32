//! A terminal with a shell in it, and `leasehold watch` in that.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::common::{PATIENCE, Sandbox, out};

/// A terminal of 100 columns and 24 lines, unless it is made another size.
pub(crate) struct Terminal<'a> {
    sandbox: &'a Sandbox,
}

impl<'a> Terminal<'a> {
    /// Opens one; `None`, and a word about it, when there is no tmux and none is required.
    pub(crate) fn open(sandbox: &'a Sandbox) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|one| one == "tmux"), "tmux is required and not installed");
            eprintln!("skipped: tmux is not installed");
            return None;
        }
        let terminal = Self { sandbox };
        let shell = format!(
            "env PS1='ready> ' LEASEHOLD_STORE={} lh={} bash --norc --noprofile -i",
            sandbox.store(),
            env!("CARGO_BIN_EXE_leasehold"),
        );
        let directory = sandbox.path("").display().to_string();
        let size = ["-x", "100", "-y", "24"];
        let mut args = vec!["-u", "-f", "/dev/null", "new-session", "-d", "-c", &directory];
        args.extend(size);
        args.push(&shell);
        let opened = terminal.tmux(&args);
        assert!(opened.status.success(), "{opened:?}");
        terminal.shows("ready>");
        Some(terminal)
    }

    /// Opens one and starts a watch in it, with these arguments.
    pub(crate) fn watching(sandbox: &'a Sandbox, args: &str) -> Option<Self> {
        let terminal = Self::open(sandbox)?;
        terminal.watch(args);
        Some(terminal)
    }

    /// Starts a watch. Its exit code is printed when it ends.
    pub(crate) fn watch(&self, args: &str) {
        self.line(&format!("clear; $lh watch {args}; echo ended:$?"));
    }

    /// Types a line.
    pub(crate) fn line(&self, text: &str) {
        self.type_in(text);
        self.key("Enter");
    }

    pub(crate) fn type_in(&self, text: &str) {
        assert!(self.tmux(&["send-keys", "-l", text]).status.success());
    }

    /// Presses a key, by tmux's name for it.
    pub(crate) fn key(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).status.success());
    }

    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        assert!(self.tmux(&["resize-window", "-x", &columns, "-y", &lines]).status.success());
    }

    /// What is on the screen now.
    pub(crate) fn text(&self) -> String {
        out(&self.tmux(&["capture-pane", "-p"]))
    }

    /// Waits until some line has this in it.
    pub(crate) fn shows(&self, text: &str) -> String {
        self.shows_line(text, |line| line.contains(text))
    }

    /// Waits until there is a line with all of these in it.
    pub(crate) fn shows_together(&self, words: &[&str]) -> String {
        self.shows_line(&format!("{words:?}"), |line| words.iter().all(|word| line.contains(word)))
    }

    /// Waits until there is such a line, and returns it.
    pub(crate) fn shows_line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let mut found = String::new();
        self.waits(what, |text| match text.lines().find(|line| is_it(line)) {
            Some(line) => {
                line.clone_into(&mut found);
                true
            }
            None => false,
        });
        found
    }

    /// Waits until the screen is as it should be.
    pub(crate) fn waits(&self, what: &str, mut is_it: impl FnMut(&str) -> bool) {
        let start = Instant::now();
        while !is_it(&self.text()) {
            assert!(start.elapsed() < PATIENCE, "in vain: waited for {what}:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the alternate screen is shown.
    pub(crate) fn is_taken(&self) -> bool {
        out(&self.tmux(&["display-message", "-p", "#{alternate_on}"])).trim() == "1"
    }

    /// Waits for the end of the watch; the terminal must be as it was before, and the shell must have it.
    pub(crate) fn ended_with(&self, code: u8) {
        self.shows_line(&format!("exit code {code}"), |line| line.starts_with(&format!("ended:{code}")));
        self.is_given_back();
    }

    /// The terminal is as a shell leaves it: it echoes, keys make signals, the cursor is seen.
    pub(crate) fn is_given_back(&self) {
        assert!(!self.is_taken(), "the alternate screen is still shown:\n{}", self.text());
        self.line("clear; stty -a > modes; echo answer:$((40+2))");
        self.shows_line("the shell's answer", |line| line.starts_with("answer:42"));
        let modes = crate::common::read(&self.sandbox.path("modes"));
        for mode in ["icanon", "echo", "isig", "opost", "icrnl"] {
            assert!(modes.split_whitespace().any(|one| one == mode), "not {mode}: {modes}");
        }
        assert_eq!(out(&self.tmux(&["display-message", "-p", "#{cursor_flag}"])).trim(), "1");
    }

    /// The process of the shell.
    pub(crate) fn shell(&self) -> Pid {
        let pid = out(&self.tmux(&["display-message", "-p", "#{pane_pid}"]));
        Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
    }

    fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux")
            .args(["-L", "screen"])
            .args(args)
            .env("TMUX_TMPDIR", self.sandbox.path(""))
            .env_remove("TMUX")
            .env_remove("LEASEHOLD_HELD")
            .output()
            .unwrap()
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
