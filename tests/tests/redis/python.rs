//! The Python with `redis-py` that `scripts/servers python` fetches.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use leasehold_testkit::servers::{REQUIRE_VARIABLE, SKIP_LOG_VARIABLE};

/// The program; without it the test is skipped and counted, or fails if `LEASEHOLD_REQUIRE` lists `python`.
pub(crate) fn with_redis_py(test: &str) -> Option<PathBuf> {
    let program = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.servers/python/python"));
    if program.exists() {
        return Some(program);
    }
    let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == "python"),
        "{test}: python is required by {REQUIRE_VARIABLE}={required} but is not there: run scripts/servers python"
    );
    let _ =
        writeln!(std::io::stderr(), "SKIPPED {test} on python: not on this machine (see scripts/servers)");
    if let Some(log) = std::env::var_os(SKIP_LOG_VARIABLE) {
        let mut log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        log.write_all(format!("python {test}\n").as_bytes()).unwrap();
    }
    None
}
