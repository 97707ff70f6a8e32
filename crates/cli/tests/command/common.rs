//! Shared by the tests of the command: a sandbox with a store of its own, processes that cannot outlive a test,
//! and waiting with a bound wide enough for a busy machine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A directory with a store in it.
pub(crate) struct Sandbox {
    dir: TempDir,
    store: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", dir.path().join("locks.db").display());
        Self { dir, store }
    }

    /// With another store, in the namespace `lock:` of it.
    pub(crate) fn with_store(url: &str) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), store: url.to_owned() }
    }

    /// A file in the sandbox.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// `leasehold` with these arguments, on the sandbox's store and in its directory.
    pub(crate) fn leasehold<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("LEASEHOLD_HELD").env("LEASEHOLD_STORE", self.store());
        command
    }

    /// `leasehold run` of a shell script under the name `job`, with these options.
    pub(crate) fn job(&self, options: &[&str], script: &str) -> Command {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend(["job", "--", "sh", "-c", script]);
        self.leasehold(args)
    }

    /// Runs it to its end.
    pub(crate) fn output<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.leasehold(args).output().unwrap()
    }

    /// Waits until a file exists and has a whole line in it; its text without the end of the line.
    pub(crate) fn line_of(&self, name: &str) -> String {
        let path = self.path(name);
        wait_until(&format!("{name} is written"), || read(&path).contains('\n'));
        read(&path).trim_end().to_owned()
    }

    /// Waits until a file holds the number of a process.
    pub(crate) fn pid_of(&self, name: &str) -> Pid {
        Pid::from_raw(self.line_of(name).parse().unwrap()).unwrap()
    }

    /// Waits until a file exists.
    pub(crate) fn wait_for_file(&self, name: &str) {
        let path = self.path(name);
        wait_until(&format!("{name} exists"), || path.exists());
    }

    /// What the store says of a name.
    pub(crate) fn shown(&self, name: &str) -> serde_json::Value {
        let output = self.output(["show", "--json", name]);
        assert!(output.status.success(), "{}", err(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until somebody waits for the name.
    pub(crate) fn wait_for_waiter(&self, name: &str) {
        wait_until("somebody waits", || self.shown(name)["waiters"] != serde_json::json!([]));
    }
}

/// A store in which nobody can write until this is dropped.
pub(crate) struct Blocked(
    #[expect(dead_code, reason = "its transaction is what blocks")] rusqlite::Connection,
);

/// Blocks a store that exists.
pub(crate) fn block_store(sandbox: &Sandbox) -> Blocked {
    let connection = rusqlite::Connection::open(sandbox.path("locks.db")).unwrap();
    connection.busy_timeout(PATIENCE).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    Blocked(connection)
}

/// A process that is killed when the test is over.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_until("the process ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }

    /// Waits for its end; its exit code and what it said on standard error.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        use std::io::Read;
        let code = self.wait().code();
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (code, said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is true, and fails the test when it takes too long.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "in vain: waited until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process exists and is more than an entry that nobody has collected.
pub(crate) fn is_running(pid: Pid) -> bool {
    let state = state_of(pid);
    !state.is_empty() && !state.starts_with('Z')
}

/// The state of a process as `ps` shows it; empty when there is none.
pub(crate) fn state_of(pid: Pid) -> String {
    let output = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    out(&output).trim().to_owned()
}

/// The children of a process whose command line contains these words.
pub(crate) fn children_of(parent: Pid, words: &str) -> Vec<Pid> {
    let output = Command::new("ps").args(["-A", "-o", "pid=,ppid=,args="]).output().unwrap();
    out(&output)
        .lines()
        .filter(|line| line.contains(words))
        .filter_map(|line| {
            let mut fields = line.split_whitespace().map(|field| field.parse::<i32>().ok());
            let (pid, its_parent) = (fields.next()??, fields.next()??);
            (Pid::from_raw(its_parent) == Some(parent)).then(|| Pid::from_raw(pid))?
        })
        .collect()
}

/// The text of a file; empty when it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
