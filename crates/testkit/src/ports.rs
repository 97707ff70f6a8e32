//! Free loopback ports that stay ours: over restarts of the server behind them, and over every test process of
//! the machine. Owns no socket that serves anything.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which Linux and macOS take the ports of outgoing connections, so that only another
/// [`PortLease`] or a server of the user's own competes for them.
const FIRST_PORT: u16 = 20_000;
const PORT_COUNT: u16 = 10_000;

/// Where this process looks next; starts at a different place in every process.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback port that no other `PortLease`, in this or any other process, has at the same time.
#[derive(Debug)]
#[must_use = "the port is free for others as soon as this is dropped"]
pub struct PortLease {
    port: u16,
    // Held for its lock, which the operating system drops even if the process is killed.
    _lock: File,
}

impl PortLease {
    /// Takes a port on which nobody listens.
    ///
    /// # Errors
    /// When the folder for the lock files cannot be written, or every port is taken.
    pub fn take() -> io::Result<Self> {
        let folder = lock_folder()?;
        for _ in 0..PORT_COUNT {
            if let Some(lease) = Self::try_take(&folder, next_candidate()) {
                return Ok(lease);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "every loopback port for tests is taken"))
    }

    fn try_take(folder: &Path, port: u16) -> Option<Self> {
        // A file of another user cannot be opened: that port is theirs.
        let lock = File::create(folder.join(port.to_string())).ok()?;
        lock.try_lock().ok()?;
        TcpListener::bind(loopback(port)).ok()?;
        Some(Self { port, _lock: lock })
    }

    /// The port's number.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port on the loopback address.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn next_candidate() -> u16 {
    let start =
        u16::try_from(std::process::id().wrapping_mul(97) % u32::from(PORT_COUNT)).unwrap_or_default();
    FIRST_PORT + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed) % PORT_COUNT) % PORT_COUNT
}

fn lock_folder() -> io::Result<PathBuf> {
    let folder = std::env::temp_dir().join("leasehold-test-ports");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_taken_at_the_same_time_differ() {
        let leases: Vec<_> = (0..50).map(|_| PortLease::take().unwrap()).collect();
        let ports: BTreeSet<_> = leases.iter().map(PortLease::port).collect();
        assert_eq!(ports.len(), leases.len());
    }

    #[test]
    fn a_port_is_free_again_only_when_its_lease_is_dropped() {
        let folder = lock_folder().unwrap();
        let lease = PortLease::take().unwrap();
        let port = lease.port();
        assert!(PortLease::try_take(&folder, port).is_none());
        drop(lease);
        assert!(PortLease::try_take(&folder, port).is_some());
    }

    #[test]
    fn a_port_somebody_listens_on_is_not_handed_out() {
        let lease = PortLease::take().unwrap();
        let port = lease.port();
        let _listener = TcpListener::bind(lease.address()).unwrap();
        drop(lease);
        assert!(PortLease::try_take(&lock_folder().unwrap(), port).is_none());
    }
}
