//! A plain blocking connection to a server, for asking it what the client under test did. Not a client library:
//! one command at a time, no reconnection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{FrameScanner, RespValue, encode_command};

/// How long a command may take; a server that does not answer fails the test instead of hanging it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// One TCP connection that speaks RESP.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    scanner: FrameScanner,
}

impl Connection {
    /// Connects, without logging in. Commands time out after 10 s.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, COMMAND_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(COMMAND_TIMEOUT))?;
        Ok(Self { stream, scanner: FrameScanner::replies() })
    }

    /// Sends a command and waits for its reply; pushes that arrive before it are skipped.
    ///
    /// # Errors
    /// When the connection breaks or no reply comes within 10 s. A refusal by the server is a
    /// [`RespValue::Error`], not an error.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<RespValue> {
        self.send(arguments)?;
        loop {
            match self.read(COMMAND_TIMEOUT)? {
                RespValue::Push(_) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Sends a command without waiting for its reply.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        self.stream.write_all(&encode_command(arguments))
    }

    /// The next reply or push.
    ///
    /// # Errors
    /// `TimedOut` when none comes in time, `UnexpectedEof` when the server closed the connection.
    pub fn read(&mut self, timeout: Duration) -> io::Result<RespValue> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(frame) = self.scanner.next_frame().map_err(io::Error::other)? {
                return RespValue::decode(&frame).ok_or_else(|| io::Error::other(super::Malformed));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no reply within {timeout:?}")));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
                }
                Ok(bytes) => self.scanner.extend(&chunk[..bytes]),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The local address, as `CLIENT LIST` and `MONITOR` show it.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }
}

/// Platforms differ in how they report a read timeout.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
