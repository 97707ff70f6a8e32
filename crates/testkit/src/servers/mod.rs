//! Real Redis and Valkey servers for tests: which there are on this machine, and what a test does about one
//! that is missing. Starting and stopping one is in [`RedisServer`]. Owns no fetching: that is `scripts/servers`.

mod builder;
mod cluster;
mod info;
mod monitor;
mod process;
mod spawn;
mod trio;

pub use builder::ServerBuilder;
pub use cluster::{ClusterBuilder, RedisCluster};
pub use info::CommandStats;
pub use monitor::{Monitor, MonitorLine};
pub use process::{Data, RedisServer};
pub use trio::{SERVICE, SentinelTrio, TrioBuilder};

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A path to a `redis-server` or `valkey-server` that is used in place of the default kind, Redis 7.
pub const SERVER_VARIABLE: &str = "LEASEHOLD_REDIS_SERVER";
/// Kinds, separated by commas, without which a test fails instead of being skipped.
pub const REQUIRE_VARIABLE: &str = "LEASEHOLD_REQUIRE";
/// A file to which one line is added for every skipped variant of a test, so that a test run can count them.
pub const SKIP_LOG_VARIABLE: &str = "LEASEHOLD_SKIP_LOG";

/// A kind of server the tests run against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// Redis 7.0: scripts, sharded pub/sub, RESP3. No `DELEX`, no `DELIFEQ`.
    #[default]
    Redis7,
    /// Redis 8.4 or newer: also `DELEX` and `SET … IFEQ`.
    Redis8,
    /// Valkey 9: also `DELIFEQ` and `SET … IFEQ`.
    Valkey9,
}

impl ServerKind {
    /// Every kind, the default first.
    pub const ALL: [Self; 3] = [Self::Redis7, Self::Redis8, Self::Valkey9];

    /// The name used in [`REQUIRE_VARIABLE`] and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis7 => "redis7",
            Self::Redis8 => "redis8",
            Self::Valkey9 => "valkey9",
        }
    }

    /// The executable, or `None` where this machine has none. Looked for in this order:
    /// [`SERVER_VARIABLE`] (Redis 7 only), `.servers/` in the repository, the search path.
    pub fn executable(self) -> Option<&'static Path> {
        static FOUND: OnceLock<BTreeMap<ServerKind, PathBuf>> = OnceLock::new();
        let found = FOUND
            .get_or_init(|| Self::ALL.into_iter().filter_map(|kind| Some((kind, kind.locate()?))).collect());
        found.get(&self).map(PathBuf::as_path)
    }

    fn locate(self) -> Option<PathBuf> {
        if self == Self::default()
            && let Some(path) = std::env::var_os(SERVER_VARIABLE)
        {
            // Taken as it is, whatever its version: a wrong path should fail loudly when it is started.
            return Some(PathBuf::from(path));
        }
        let fetched = repository().join(".servers").join(self.name()).join(self.program());
        if fetched.exists() {
            return Some(fetched);
        }
        let program = PathBuf::from(self.program());
        let version = Command::new(&program).arg("--version").output().ok()?;
        String::from_utf8_lossy(&version.stdout).contains(self.version_mark()).then_some(program)
    }

    fn program(self) -> &'static str {
        match self {
            Self::Redis7 | Self::Redis8 => "redis-server",
            Self::Valkey9 => "valkey-server",
        }
    }

    /// What `--version` of the right server prints.
    fn version_mark(self) -> &'static str {
        match self {
            Self::Redis7 => "v=7.",
            Self::Redis8 => "v=8.",
            Self::Valkey9 => "v=9.",
        }
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The kinds this machine has.
pub fn available() -> Vec<ServerKind> {
    ServerKind::ALL.into_iter().filter(|kind| kind.executable().is_some()).collect()
}

/// The kinds a test is to run against: those this machine has. For each of the others one line on stderr says
/// that it is skipped, and [`SKIP_LOG_VARIABLE`] counts it.
///
/// # Panics
/// When a kind that [`REQUIRE_VARIABLE`] lists is missing, or a skip cannot be counted.
pub fn kinds_to_test(test: &str) -> Vec<ServerKind> {
    let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
    let (there, missing): (Vec<_>, Vec<_>) =
        ServerKind::ALL.into_iter().partition(|kind| kind.executable().is_some());
    for kind in missing {
        let own = format!(
            "set {SERVER_VARIABLE} to a server of your own (it stands for {})",
            ServerKind::default()
        );
        if let Err(message) = skip(test, kind.name(), &required, &own) {
            panic!("{message}");
        }
    }
    there
}

/// Starts a server of each kind in turn and runs the test against it; kinds this machine does not have are
/// skipped as [`kinds_to_test`] says.
///
/// # Panics
/// When a server does not start, a required kind is missing, or the test panics; which kind it was is on stderr.
pub fn for_each_server(test: &str, mut body: impl FnMut(&RedisServer)) {
    for kind in kinds_to_test(test) {
        eprintln!("{test}: on {kind}");
        match RedisServer::start(kind) {
            Ok(server) => body(&server),
            Err(error) => panic!("{test}: {kind} did not start: {error}"),
        }
    }
}

/// Reports something else that this machine does not have, as [`kinds_to_test`] does; the variable says where one
/// of the user's own is.
pub(crate) fn missing(test: &str, kind: &str, variable: &str) -> Result<(), String> {
    skip(test, kind, &std::env::var(REQUIRE_VARIABLE).unwrap_or_default(), &format!("set {variable}"))
}

/// Reports a test as skipped that needs something else than a server, as [`kinds_to_test`] does.
///
/// # Panics
/// When [`REQUIRE_VARIABLE`] lists it, or the skip cannot be counted.
pub fn skip_without(test: &str, what: &str, otherwise: &str) {
    let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
    if let Err(message) = skip(test, what, &required, otherwise) {
        panic!("{message}");
    }
}

/// Reports a kind as skipped; an error if it is required.
fn skip(test: &str, kind: &str, required: &str, otherwise: &str) -> Result<(), String> {
    if is_required(kind, required) {
        return Err(format!(
            "{test}: {kind} is required by {REQUIRE_VARIABLE}={required} but is not on this machine. \
             Run scripts/servers, or {otherwise}."
        ));
    }
    // Written directly: a test that passes has its captured output thrown away.
    let _ = writeln!(io::stderr(), "SKIPPED {test} on {kind}: not on this machine (see scripts/servers)");
    let Some(log) = std::env::var_os(SKIP_LOG_VARIABLE) else { return Ok(()) };
    count_skip(Path::new(&log), test, kind)
        .map_err(|error| format!("{test}: cannot count a skipped variant in {}: {error}", log.display()))
}

fn is_required(kind: &str, required: &str) -> bool {
    required.split(',').any(|name| name.trim() == kind)
}

fn count_skip(log: &Path, test: &str, kind: &str) -> io::Result<()> {
    // One write of one line: lines of tests that run at the same time do not mix.
    OpenOptions::new().create(true).append(true).open(log)?.write_all(format!("{kind} {test}\n").as_bytes())
}

fn repository() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_kind_that_is_missing_is_an_error_that_says_what_to_do() {
        let message = skip("some_test", "redis8", "redis7, redis8", "set X").unwrap_err();
        assert!(message.contains("redis8 is required"), "{message}");
        assert!(message.contains("scripts/servers"), "{message}");
    }

    #[test]
    fn only_listed_kinds_are_required() {
        let required = |list| ServerKind::ALL.map(|kind| is_required(kind.name(), list));
        assert_eq!(required("redis7, valkey9,postgres"), [true, false, true]);
        assert_eq!(required(""), [false; 3]);
    }

    #[test]
    fn every_skipped_variant_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("skipped");
        count_skip(&log, "one", "redis8").unwrap();
        count_skip(&log, "two", "valkey9").unwrap();
        assert_eq!(std::fs::read_to_string(log).unwrap(), "redis8 one\nvalkey9 two\n");
    }
}
