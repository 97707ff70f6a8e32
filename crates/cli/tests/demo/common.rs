//! A demo in a directory of its own, so that a test sees everything it leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// Where a demo runs.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["work", "temporary"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    /// The current directory of the demo.
    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// A file outside of it, for input.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// The demo, ready to be started.
    pub(crate) fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .arg("demo")
            .args(arguments)
            .current_dir(self.work())
            .env("TMPDIR", self.directory.path().join("temporary"))
            .env_remove("LEASEHOLD_STORE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the demo to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.demo(arguments).output().unwrap()
    }

    /// Runs the demo, which must do well, and reads what it reports.
    pub(crate) fn report(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{:?}: {errors}", output.status);
        assert_eq!(errors, "", "nothing is said where no terminal is");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The files in the current directory.
    pub(crate) fn left(&self) -> Vec<String> {
        names(&self.work())
    }

    /// What is left in the directory for temporary files.
    pub(crate) fn left_temporary(&self) -> Vec<String> {
        names(&self.directory.path().join("temporary"))
    }
}

fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Events for a few orders, one event each, and the first of them again at the end.
pub(crate) fn few_events(orders: usize) -> Vec<u8> {
    let event = |order: usize| {
        format!(
            "{{\"event_id\":\"evt_{order}\",\"order_id\":\"ORD-{order}\",\"amount\":9.5,\"currency\":\"EUR\",\
             \"paid_at\":\"2026-11-27T08:00:00Z\"}}\n"
        )
    };
    (0..orders).chain([0]).map(event).collect::<String>().into_bytes()
}

/// Waits until something is true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
