//! A server's folder and process that end with the test process, however that ends. A server that all tests of a
//! process share is never dropped, and a killed process drops nothing: so a small shell waits for this process to
//! close a pipe, then stops the server and removes the folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Waits for the pipe to close, stops what the file names, and removes the folder.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
if pid=$(cat "$0/pid" 2>/dev/null); then
  kill -s "$1" "$pid" 2>/dev/null
  tries=0
  while kill -0 "$pid" 2>/dev/null && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
  kill -s KILL "$pid" 2>/dev/null
fi
rm -rf "$0"
"#;

/// Keeps a folder and the server in it.
#[derive(Debug)]
pub(super) struct Keeper {
    folder: PathBuf,
    // Held open as long as this process lives.
    _pipe: Option<ChildStdin>,
    _shell: Child,
}

impl Keeper {
    /// Makes a folder; a server in it will be stopped with this signal.
    pub(super) fn start(stop_signal: &str) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("leasehold-database-").tempdir()?.keep();
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .arg(&folder)
            .arg(stop_signal)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { folder, _pipe: shell.stdin.take(), _shell: shell })
    }

    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Remembers the server for the shell.
    pub(super) fn watch(&self, server: &Child) -> io::Result<()> {
        fs::write(self.folder.join("pid"), server.id().to_string())
    }
}

/// A user of this machine whom a server runs as that refuses to run as root.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    user: u32,
    group: u32,
}

impl User {
    /// The first of these users that there is; `None` unless this process is root.
    pub(super) fn unless_root_may(names: &[&str]) -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd")?;
        let find = |name: &&str| {
            let fields: Vec<_> = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).collect();
            let line = fields.into_iter().find(|line| line.first() == Some(name))?;
            Some(Self { user: line.get(2)?.parse().ok()?, group: line.get(3)?.parse().ok()? })
        };
        let missing = || io::Error::other(format!("none of the users {names:?} exists"));
        names.iter().find_map(find).map(Some).ok_or_else(missing)
    }

    /// Gives a path to the user.
    pub(super) fn give(self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::chown(path, Some(self.user), Some(self.group))
    }

    /// Lets a command run as the user.
    pub(super) fn run_as(self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        command.uid(self.user).gid(self.group);
    }
}
