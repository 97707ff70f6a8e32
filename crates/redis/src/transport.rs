//! Opening a byte stream to a server, with the socket options that let a dead connection be noticed. Knows
//! nothing of the protocol spoken on it.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::config::Address;

/// The kernel asks an idle peer after this long …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// … and again after this, three times.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// Bytes that are not acknowledged for this long end the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// An open connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// Opens a connection. The caller limits the time.
///
/// # Errors
/// `Unavailable` when nobody answers, `Config` when TLS cannot be set up.
pub(crate) async fn open(address: &Address) -> Result<Pin<Box<dyn Stream>>, Error> {
    match address {
        Address::Unix(path) => Ok(Box::pin(open_unix(path).await?)),
        Address::Tcp { host, port, tls: None } => Ok(Box::pin(open_tcp(host, *port).await?)),
        #[cfg(feature = "tls")]
        Address::Tcp { host, port, tls: Some(tls) } => {
            Ok(Box::pin(crate::tls::wrap(open_tcp(host, *port).await?, host, tls).await?))
        }
        #[cfg(not(feature = "tls"))]
        Address::Tcp { tls: Some(_), .. } => {
            Err(Error::config("rediss:// needs the feature tls, which this build does not have"))
        }
    }
}

async fn open_tcp(host: &str, port: u16) -> Result<TcpStream, Error> {
    let stream = TcpStream::connect((host, port)).await.map_err(not_reached)?;
    stream.set_nodelay(true).map_err(not_reached)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let keepalive = keepalive.with_retries(3);
    socket.set_tcp_keepalive(&keepalive).map_err(not_reached)?;
    // Elsewhere the heartbeat notices alone.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT)).map_err(not_reached)?;
    Ok(stream)
}

async fn open_unix(path: &Path) -> Result<UnixStream, Error> {
    UnixStream::connect(path).await.map_err(not_reached)
}

fn not_reached(source: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the server cannot be reached ({source}): is it running there?"),
    )
    .with_source(source)
}
