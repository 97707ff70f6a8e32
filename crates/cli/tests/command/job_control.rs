//! `leasehold run` at a terminal: who reads the keyboard, and what Ctrl-C, Ctrl-Z, `fg` and `&` do. A real shell
//! in a real terminal, by way of tmux.

use std::cell::Cell;
use std::process::{Command, Output};

use crate::common::{PATIENCE, Sandbox, is_running, out, read, state_of, wait_until};

/// An interactive shell in a terminal.
struct Screen<'a> {
    sandbox: &'a Sandbox,
    questions: Cell<u32>,
}

impl<'a> Screen<'a> {
    /// Opens one; `None`, and a word about it, when there is no tmux and none is required.
    fn open(sandbox: &'a Sandbox) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|one| one == "tmux"), "tmux is required and not installed");
            eprintln!("skipped: tmux is not installed");
            return None;
        }
        let screen = Self { sandbox, questions: Cell::new(0) };
        let dir = sandbox.path("").display().to_string();
        let shell = format!(
            "env PS1='ready> ' LEASEHOLD_STORE={} lh={} bash --norc --noprofile -i",
            sandbox.store(),
            env!("CARGO_BIN_EXE_leasehold"),
        );
        let opened = screen.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "150",
            "-y",
            "50",
            "-c",
            &dir,
            &shell,
        ]);
        assert!(opened.status.success(), "{opened:?}");
        screen.wait_for("ready>");
        Some(screen)
    }

    /// Types a line.
    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.key("Enter");
    }

    /// Presses a key, by tmux's name for it.
    fn key(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).status.success());
    }

    fn text(&self) -> String {
        out(&self.tmux(&["capture-pane", "-p", "-S", "-"]))
    }

    /// Waits until a line begins with this text, or with it after the echo of Ctrl-C or Ctrl-Z. What is typed
    /// stands after the prompt, so it does not count.
    fn wait_for(&self, text: &str) {
        let start = std::time::Instant::now();
        let echo = |line: &str| line.trim_start_matches("^C").trim_start_matches("^Z").to_owned();
        while !self.text().lines().any(|line| echo(line).starts_with(text)) {
            assert!(start.elapsed() < PATIENCE, "in vain: waited for {text:?}:\n{}", self.text());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Whether the shell has the terminal again.
    fn shell_answers(&self) {
        let number = self.questions.get() + 1;
        self.questions.set(number);
        self.line(&format!("echo answer:$((100+{number}))"));
        self.wait_for(&format!("answer:{}", 100 + number));
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

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn the_command_reads_the_keyboard_and_the_shell_gets_it_back() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line(r#"$lh run job -- sh -c 'echo asks; read x; echo "got:$x"'"#);
    screen.wait_for("asks");
    screen.line("hello");
    screen.wait_for("got:hello");
    screen.shell_answers();
    screen.line("$lh run job -- ./missing; echo code:$?");
    screen.wait_for("code:127");
    screen.shell_answers();
}

#[test]
fn the_command_is_in_the_foreground_from_its_first_moment() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    // Some programs look at this when they start, and do things differently in the background.
    screen.line("$lh run job -- sh -c 'ps -o tpgid=,pgid= -p $$ > groups; echo done:'");
    screen.wait_for("done:");
    let groups = read(&sandbox.path("groups"));
    let mut groups = groups.split_whitespace();
    let (foreground, ours) = (groups.next(), groups.next());
    assert!(foreground.is_some() && foreground == ours, "{foreground:?} {ours:?}");
}

#[test]
fn ctrl_c_ends_the_command_or_the_wait() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line("$lh run job -- sh -c 'echo $$ > child; exec sleep 600'; echo first:$?");
    let child = sandbox.pid_of("child");
    screen.key("C-c");
    screen.wait_for("first:130");
    assert!(!is_running(child));
    screen.line("$lh run -q job -- sleep 600 &");
    wait_until("the name is held", || !sandbox.shown("job")["holder"].is_null());
    screen.line("$lh run job -- true; echo second:$?");
    sandbox.wait_for_waiter("job");
    screen.key("C-c");
    screen.wait_for("second:130");
    screen.line("kill %1; wait %1; echo third:$?");
    screen.wait_for("third:143");
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line(r#"$lh run job -- sh -c 'echo $$ > child; read x; echo "got:$x"'; echo code:$?"#);
    let child = sandbox.pid_of("child");
    for _ in 0..2 {
        screen.key("C-z");
        wait_until("the command is stopped", || state_of(child).starts_with('T'));
        screen.wait_for("leasehold: stopped; the lease of job is lost in ");
        screen.shell_answers();
        screen.line("clear; jobs");
        screen.wait_for("[1]+  Stopped");
        screen.line("clear; fg");
        wait_until("the command goes on", || state_of(child).starts_with('S'));
    }
    screen.line("hello");
    screen.wait_for("got:hello");
    screen.shell_answers();
}

#[test]
fn a_script_that_runs_the_wrapper_is_stopped_with_it() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    std::fs::write(
        sandbox.path("script"),
        "$lh run job -- sh -c 'echo $$ > child; exec sleep 600'; echo end:$?",
    )
    .unwrap();
    screen.line(&format!("export lh; cd {}; sh script", sandbox.path("").display()));
    let child = sandbox.pid_of("child");
    screen.key("C-z");
    wait_until("the command is stopped", || state_of(child).starts_with('T'));
    screen.shell_answers();
    screen.line("fg");
    wait_until("the command goes on", || state_of(child).starts_with('S'));
    screen.key("C-c");
    wait_until("the command ends", || !is_running(child));
    screen.shell_answers();
}

#[test]
fn a_script_has_the_terminal_again_after_the_command_or_its_failed_start() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    for command in ["true", "./missing"] {
        std::fs::write(
            sandbox.path("script"),
            format!("$lh run job -- {command}; echo asks:{command}; read x; echo \"{command}:$x\""),
        )
        .unwrap();
        screen.line("export lh; sh script");
        screen.wait_for(&format!("asks:{command}"));
        screen.line("hello");
        screen.wait_for(&format!("{command}:hello"));
    }
}

#[test]
fn a_job_in_the_background_waits_for_the_keyboard_until_fg() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line(r#"$lh run job -- sh -c 'echo $$ > child; read x; echo "got:$x"' &"#);
    let child = sandbox.pid_of("child");
    wait_until("the command is stopped", || state_of(child).starts_with('T'));
    screen.shell_answers();
    screen.line("fg");
    wait_until("the command goes on", || state_of(child).starts_with('S'));
    screen.line("hello");
    screen.wait_for("got:hello");
    screen.shell_answers();
}

#[test]
fn in_a_pipeline_whoever_reads_the_keyboard_has_it() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line(r#"$lh run job -- seq 3 | (read a; echo listens; read b </dev/tty; echo "neighbour:$a:$b")"#);
    screen.wait_for("listens");
    screen.line("hello");
    screen.wait_for("neighbour:1:hello");
    screen.line(r#"echo x | $lh run job -- sh -c 'echo asks; read y </dev/tty; echo "command:$y"' | cat"#);
    screen.wait_for("asks");
    screen.line("again");
    screen.wait_for("command:again");
    screen.shell_answers();
}

#[test]
fn a_job_that_stays_stopped_loses_its_lease_and_its_command() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line("$lh run --ttl 2s job -- sh -c 'echo $$ > child; exec sleep 600'");
    let child = sandbox.pid_of("child");
    screen.key("C-z");
    wait_until("the watchdog kills the stopped command", || !is_running(child));
    let next = sandbox.output(["run", "job", "--", "true"]);
    assert_eq!(next.status.code(), Some(0));
    screen.line("fg; echo code:$?");
    screen.wait_for("code:79");
    screen.shell_answers();
}

#[test]
fn a_killed_command_leaves_a_usable_terminal() {
    let sandbox = Sandbox::new();
    let Some(screen) = Screen::open(&sandbox) else { return };
    screen.line("$lh run job -- sh -c 'stty -icanon -echo; kill -9 $$'; echo code:$?");
    screen.wait_for("code:137");
    screen.line(&format!("stty -a > {}", sandbox.path("modes").display()));
    screen.shell_answers();
    let modes = read(&sandbox.path("modes"));
    assert!(modes.contains(" icanon") && modes.contains(" echo "), "{modes}");
}
