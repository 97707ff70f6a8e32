//! Collects what a server executes, through `MONITOR`: the truth about round trips and what scripts do, seen from
//! the server. Owns the connection it listens on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lock;
use crate::resp::{Connection, RespValue};

/// How often the listening thread looks whether it should end.
const READ_INTERVAL: Duration = Duration::from_millis(50);
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// One executed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorLine {
    /// The address of the client's end of the connection, or `lua` for a command that a script ran.
    pub client: String,
    /// The command and its arguments.
    pub arguments: Vec<String>,
}

impl MonitorLine {
    /// Whether a script ran it: then it cost no round trip of its own.
    pub fn is_from_script(&self) -> bool {
        self.client == "lua"
    }

    /// The command's name in upper case.
    pub fn command(&self) -> String {
        self.arguments.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Collected {
    lines: Vec<MonitorLine>,
    /// The newest marker of this monitor that came by.
    marker: u64,
    failure: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    collected: Mutex<Collected>,
    changed: Condvar,
    stop: AtomicBool,
}

/// Collects commands until it is dropped. Servers do not show logins and administrative commands here.
#[derive(Debug)]
#[must_use = "collecting ends when this is dropped"]
pub struct Monitor {
    shared: Arc<Shared>,
    control: Mutex<Control>,
    thread: Option<JoinHandle<()>>,
}

/// Sends the markers.
#[derive(Debug)]
struct Control {
    connection: Connection,
    marker_prefix: String,
    last_marker: u64,
}

impl Monitor {
    pub(super) fn start(mut listening: Connection, control: Connection) -> io::Result<Self> {
        if let RespValue::Error(message) = listening.command(&["MONITOR"])? {
            return Err(io::Error::other(message));
        }
        // Several monitors may listen to one server: each knows its own markers by the port they come from.
        let marker_prefix = format!("{MARKER}{}-", control.local_address()?.port());
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let (shared, marker_prefix) = (Arc::clone(&shared), marker_prefix.clone());
            move || collect(&shared, &mut listening, &marker_prefix)
        });
        let control = Mutex::new(Control { connection: control, marker_prefix, last_marker: 0 });
        Ok(Self { shared, control, thread: Some(thread) })
    }

    /// Everything executed up to now, also by this test's own [`command`](super::RedisServer::command).
    ///
    /// # Errors
    /// When the server went away meanwhile.
    pub fn lines(&self) -> io::Result<Vec<MonitorLine>> {
        self.catch_up()?;
        Ok(lock(&self.shared.collected).lines.clone())
    }

    /// The commands that clients sent: those of [`lines`](Self::lines) that no script ran.
    ///
    /// # Errors
    /// As [`lines`](Self::lines).
    pub fn requests(&self) -> io::Result<Vec<MonitorLine>> {
        Ok(self.lines()?.into_iter().filter(|line| !line.is_from_script()).collect())
    }

    /// Forgets everything executed up to now.
    ///
    /// # Errors
    /// As [`lines`](Self::lines).
    pub fn clear(&self) -> io::Result<()> {
        self.catch_up()?;
        lock(&self.shared.collected).lines.clear();
        Ok(())
    }

    /// Waits until everything executed before this call has been collected: until a marker of our own comes by.
    fn catch_up(&self) -> io::Result<()> {
        let mut control = lock(&self.control);
        control.last_marker += 1;
        let marker = control.last_marker;
        let text = format!("{}{marker}", control.marker_prefix);
        control.connection.command(&["ECHO", &text])?;
        let collected = lock(&self.shared.collected);
        let waiting = |collected: &mut Collected| collected.marker < marker && collected.failure.is_none();
        let (collected, timeout) = self
            .shared
            .changed
            .wait_timeout_while(collected, CATCH_UP_TIMEOUT, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match &collected.failure {
            Some(failure) => Err(io::Error::other(failure.clone())),
            None if timeout.timed_out() => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "MONITOR lags behind"))
            }
            None => Ok(()),
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic, and a drop could not report it.
            let _ = thread.join();
        }
    }
}

/// Marks our own commands, which are not collected.
const MARKER: &str = "leasehold-testkit-monitor-";

fn collect(shared: &Shared, connection: &mut Connection, marker_prefix: &str) {
    while !shared.stop.load(Ordering::Relaxed) {
        let line = match connection.read(READ_INTERVAL) {
            Ok(RespValue::Simple(line)) => line,
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(error) => {
                lock(&shared.collected).failure = Some(format!("MONITOR ended: {error}"));
                shared.changed.notify_all();
                return;
            }
        };
        let Some(line) = parse_line(&line) else { continue };
        let mut collected = lock(&shared.collected);
        match line.arguments.get(1).filter(|text| text.starts_with(MARKER)) {
            Some(text) => {
                let own = text.strip_prefix(marker_prefix).and_then(|number| number.parse().ok());
                collected.marker = own.unwrap_or(collected.marker);
            }
            None => collected.lines.push(line),
        }
        drop(collected);
        shared.changed.notify_all();
    }
}

/// `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`
fn parse_line(line: &str) -> Option<MonitorLine> {
    let (_, rest) = line.split_once(" [")?;
    let (source, rest) = rest.split_once("] ")?;
    let (_database, client) = source.split_once(' ')?;
    Some(MonitorLine { client: client.to_owned(), arguments: unquote(rest) })
}

/// Splits `"a" "b\"c\x00"` into its strings.
fn unquote(text: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut bytes = text.bytes();
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut argument = Vec::new();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => argument.extend(escaped(&mut bytes)),
                other => argument.push(other),
            }
        }
        arguments.push(String::from_utf8_lossy(&argument).into_owned());
    }
    arguments
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> Option<u8> {
    Some(match bytes.next()? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'x' => {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            u8::try_from(digit()? * 16 + digit()?).ok()?
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = parse_line(r#"1.5 [0 127.0.0.1:6] "set" "a \"b\"" "\\\x01\xc3\xa9\n""#).unwrap();
        assert_eq!(line.client, "127.0.0.1:6");
        assert_eq!(line.arguments, ["set", "a \"b\"", "\\\u{1}é\n"]);
        assert_eq!(line.command(), "SET");
    }

    #[test]
    fn a_command_of_a_script_is_told_apart() {
        assert!(parse_line(r#"1.5 [0 lua] "get" "k""#).unwrap().is_from_script());
    }
}
