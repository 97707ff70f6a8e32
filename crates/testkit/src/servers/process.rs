//! One running server: its process, its folder, its port, and what a test asks or does to it. Owns no
//! configuration (see the builder) and no knowledge of which servers this machine has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::builder::{ServerBuilder, socket_path};
use super::info::{CommandStats, parse, parse_command_stats};
use super::{Monitor, ServerKind, spawn};
use crate::lock;
use crate::ports::PortLease;
use crate::proxy::Proxy;
use crate::resp::{Connection, RespValue};

/// Wide enough for a busy machine that loads data from disk.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const START_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A program of the user's own may take the port between our look and the server's.
const START_ATTEMPTS: u32 = 5;
const LOG_TAIL_LINES: usize = 15;

/// What becomes of the data when a server starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// A running server saves everything first; a killed one comes back with what it had on disk.
    Keep,
    /// The server comes back empty.
    Lose,
}

/// A server of its own for a test: on a free loopback port, with a folder of its own, killed and removed when
/// dropped. On Linux it also dies when the test process is killed.
#[derive(Debug)]
pub struct RedisServer {
    settings: ServerBuilder,
    folder: TempDir,
    port: PortLease,
    child: Mutex<Option<Child>>,
}

impl RedisServer {
    /// Starts a server with default settings: no password, nothing on disk.
    ///
    /// # Errors
    /// When the machine has no such server, or it does not answer within 20 s; the end of its log is in the error.
    pub fn start(kind: ServerKind) -> io::Result<Self> {
        Self::builder(kind).start()
    }

    /// A server with settings.
    pub fn builder(kind: ServerKind) -> ServerBuilder {
        ServerBuilder::new(kind)
    }

    pub(super) fn start_configured(mut settings: ServerBuilder) -> io::Result<Self> {
        let mut attempt = 1;
        loop {
            let folder = tempfile::Builder::new().prefix("leasehold-server-").tempdir()?;
            let server = Self { settings, folder, port: PortLease::take()?, child: Mutex::new(None) };
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(_) if attempt < START_ATTEMPTS && server.log().contains("Address already in use") => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
            settings = server.settings.clone();
        }
    }

    /// What kind of server this is.
    pub fn kind(&self) -> ServerKind {
        self.settings.kind
    }

    /// The port, the same over restarts.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// The loopback address with the port.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// A URL for clients, with the default user's password if there is one.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// As [`url`](Self::url), but leading through a proxy.
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    fn url_at(&self, address: SocketAddr) -> String {
        let login =
            self.settings.password.as_ref().map(|password| format!(":{}@", percent_encoded(password)));
        format!("redis://{}{address}/", login.unwrap_or_default())
    }

    /// The path of the unix socket, if one was asked for.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.settings.unix_socket.then(|| socket_path(self.folder()))
    }

    /// The server's folder: configuration, log, data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id, or `None` while the server is down.
    pub fn process_id(&self) -> Option<u32> {
        lock(&self.child).as_ref().map(Child::id)
    }

    /// What the server wrote to its log so far, restarts included.
    pub fn log(&self) -> String {
        // No log yet is an empty log.
        fs::read(self.log_path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Runs one command on a connection of its own, logged in.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer within 10 s. A refusal is a [`RespValue::Error`].
    pub fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> io::Result<RespValue> {
        self.connect()?.command(arguments)
    }

    /// As [`command`](Self::command), for a command that answers one text or number; null is empty.
    ///
    /// # Errors
    /// Also when the server refuses the command, or answers a list.
    pub fn cli<A: AsRef<[u8]>>(&self, arguments: &[A]) -> io::Result<String> {
        match self.command(arguments)? {
            RespValue::Error(message) => Err(io::Error::other(message)),
            RespValue::Null => Ok(String::new()),
            reply => reply.text().ok_or_else(|| io::Error::other(format!("not one text: {reply:?}"))),
        }
    }

    /// A connection for several commands, logged in.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses the login.
    pub fn connect(&self) -> io::Result<Connection> {
        let mut connection = Connection::open(self.address())?;
        let login = match (&self.settings.login, &self.settings.password) {
            (Some((user, password)), _) => vec!["AUTH", user, password],
            (None, Some(password)) => vec!["AUTH", password],
            (None, None) => return Ok(connection),
        };
        match connection.command(&login)? {
            RespValue::Error(message) => Err(io::Error::other(message)),
            _ => Ok(connection),
        }
    }

    /// The fields of one section of `INFO`.
    ///
    /// # Errors
    /// As [`cli`](Self::cli).
    pub fn info(&self, section: &str) -> io::Result<BTreeMap<String, String>> {
        Ok(parse(&self.cli(&["INFO", section])?))
    }

    /// What each command cost since the server started or `CONFIG RESETSTAT`; commands inside scripts count too.
    ///
    /// # Errors
    /// As [`cli`](Self::cli).
    pub fn command_stats(&self) -> io::Result<BTreeMap<String, CommandStats>> {
        Ok(parse_command_stats(&self.info("commandstats")?))
    }

    /// Collects every command the server executes from now on.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses `MONITOR`.
    pub fn monitor(&self) -> io::Result<Monitor> {
        Monitor::start(self.connect()?, self.connect()?)
    }

    /// Kills the server at once (SIGKILL): nothing is saved, clients see the connection break. Does nothing if it
    /// is down already.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill(&self) -> io::Result<()> {
        let Some(mut child) = lock(&self.child).take() else { return Ok(()) };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Stops the server in the middle of whatever it does (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Errors
    /// When the server is down.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a frozen server go on: it executes what it was sent in the meantime.
    ///
    /// # Errors
    /// When the server is down.
    pub fn thaw(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Starts the server again at the same port, running or not. A running one is killed, after a save if the data
    /// is to be kept.
    ///
    /// # Errors
    /// When saving or starting fails.
    pub fn restart(&self, data: Data) -> io::Result<()> {
        let saves = !self.settings.append_only && !self.settings.is_sentinel;
        if data == Data::Keep && self.process_id().is_some() && saves {
            self.cli(&["SAVE"])?;
        }
        self.kill()?;
        if data == Data::Lose {
            remove_data(self.folder())?;
        }
        self.launch()
    }

    fn launch(&self) -> io::Result<()> {
        let kind = self.kind();
        let Some(program) = kind.executable() else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no {kind} on this machine; run scripts/servers"),
            ));
        };
        self.settings.write_files(self.folder(), self.port())?;
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = spawn::dying_with_us(program);
        command.arg(self.folder().join("redis.conf")).stdin(Stdio::null());
        command.envs(self.settings.environment.iter().cloned());
        if self.settings.is_sentinel {
            command.arg("--sentinel");
        }
        command.stderr(log.try_clone()?).stdout(log);
        let child = spawn::spawn(command)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))?;
        *lock(&self.child) = Some(child);
        self.wait_until_ready().map_err(|error| self.with_log(&error))
    }

    fn wait_until_ready(&self) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let exited = lock(&self.child).as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = exited {
                return Err(io::Error::other(format!("the server ended at once: {status}")));
            }
            let answer =
                Connection::open(self.address()).and_then(|mut connection| connection.command(&["PING"]));
            match answer {
                // A demand for a password is an answer too.
                Ok(RespValue::Error(message)) if message.starts_with("LOADING") => {}
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server is still loading"));
            }
            std::thread::sleep(START_POLL_INTERVAL);
        }
    }

    fn with_log(&self, error: &io::Error) -> io::Error {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n  ");
        io::Error::new(error.kind(), format!("{} on port {}: {error}\n  {tail}", self.kind(), self.port()))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let child = lock(&self.child);
        // The id cannot have been given to another process: the child is reaped only under this lock.
        let id = child.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        let id = id.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the server is down"))?;
        Ok(kill_process(id, signal)?)
    }

    fn log_path(&self) -> PathBuf {
        self.folder().join("server.log")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // A drop cannot report; a server that cannot be killed still dies with this process.
        let _ = self.kill();
    }
}

fn remove_data(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rdb") {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Escapes what has a meaning in a URL.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_escaped_in_the_url() {
        assert_eq!(percent_encoded("a@b/c#d%é"), "a%40b%2Fc%23d%25%C3%A9");
    }
}
