//! Tests that look at their own process run in one of their own, where nothing else opens files, starts threads or
//! uses memory.

use std::process::Command;

const ALONE: &str = "LEASEHOLD_TEST_ALONE";

/// Runs a test in a process of its own. `test` is its path in this binary.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// What a process has of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) open_files: usize,
    pub(crate) threads: usize,
    pub(crate) memory_kib: usize,
}

impl Use {
    pub(crate) fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let open_files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        Self { open_files, threads: number("Threads:"), memory_kib: number("VmRSS:") }
    }
}
