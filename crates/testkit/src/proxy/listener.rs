//! Takes new connections, or refuses them, and knows every connection there is. Owns the listening socket and
//! what all connections share.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::faults::Plan;
use super::link::Link;
use super::stats::ProxyStats;
use crate::lock;
use crate::ports::PortLease;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the proxy's connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: Mutex<SocketAddr>,
    /// To the server, to the client.
    pub(super) delays: Mutex<(Duration, Duration)>,
    pub(super) plan: Mutex<Plan>,
    pub(super) stats: Mutex<ProxyStats>,
    pub(super) silent: AtomicBool,
    pub(super) stalled: AtomicBool,
    pub(super) is_framed: bool,
    links: Mutex<Vec<Arc<Link>>>,
    /// Accepted while nothing passes: never connected to the server.
    ignored: Mutex<Vec<TcpStream>>,
}

impl Shared {
    pub(super) fn new(upstream: SocketAddr, is_framed: bool) -> Self {
        Self {
            upstream: Mutex::new(upstream),
            delays: Mutex::default(),
            plan: Mutex::default(),
            stats: Mutex::default(),
            silent: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            is_framed,
            links: Mutex::default(),
            ignored: Mutex::default(),
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }

    pub(super) fn for_each_link(&self, action: impl FnMut(&Link)) {
        let mut links = lock(&self.links);
        links.retain(|link| !link.is_finished());
        links.iter().map(AsRef::as_ref).for_each(action);
    }

    pub(super) fn close_ignored(&self) {
        lock(&self.ignored).clear();
    }

    pub(super) fn close(&self) {
        self.close_ignored();
        self.for_each_link(Link::close);
    }

    /// A copy: connecting takes time, and nobody is to wait for the lock meanwhile.
    fn current_upstream(&self) -> SocketAddr {
        *lock(&self.upstream)
    }

    fn take(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        lock(&self.stats).connections_accepted += 1;
        if self.silent.load(Ordering::SeqCst) {
            lock(&self.ignored).push(client);
            return Ok(());
        }
        let server = TcpStream::connect_timeout(&self.current_upstream(), CONNECT_TIMEOUT)?;
        // Whoever changes how things pass does so before it takes this lock: no connection escapes the change.
        let mut links = lock(&self.links);
        links.retain(|link| !link.is_finished());
        let link = Link::start(client, server, self)?;
        if self.silent.load(Ordering::SeqCst) {
            link.silence();
        }
        links.push(link);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Accept,
    Refuse,
    Stop,
}

#[derive(Debug)]
struct Mode {
    wish: Wish,
    is_listening: bool,
}

#[derive(Debug)]
struct Control {
    mode: Mutex<Mode>,
    changed: Condvar,
    address: SocketAddr,
}

/// The thread that accepts connections.
#[derive(Debug)]
pub(super) struct Listener {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
    // The port stays ours while nobody listens on it.
    _port: Arc<PortLease>,
}

impl Listener {
    pub(super) fn start(port: Arc<PortLease>, shared: Arc<Shared>) -> io::Result<Self> {
        let control = Arc::new(Control {
            mode: Mutex::new(Mode { wish: Wish::Accept, is_listening: false }),
            changed: Condvar::new(),
            address: port.address(),
        });
        let thread = std::thread::spawn({
            let control = Arc::clone(&control);
            move || control.serve(&shared)
        });
        let listener = Self { control, thread: Some(thread), _port: port };
        listener.set_accepting(true)?;
        Ok(listener)
    }

    /// Changes what happens to new connections, and waits until it is so.
    pub(super) fn set_accepting(&self, accept: bool) -> io::Result<()> {
        self.control.ask(if accept { Wish::Accept } else { Wish::Refuse });
        let (mode, timeout) = self
            .control
            .changed
            .wait_timeout_while(lock(&self.control.mode), CONTROL_TIMEOUT, |mode| mode.is_listening != accept)
            .unwrap_or_else(PoisonError::into_inner);
        drop(mode);
        if timeout.timed_out() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the proxy's port cannot be opened or closed",
            ));
        }
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        self.control.ask(Wish::Stop);
        if let Some(thread) = self.thread.take() {
            // It does not panic, and this runs in a drop.
            let _ = thread.join();
        }
    }
}

impl Control {
    fn ask(&self, wish: Wish) {
        let mut mode = lock(&self.mode);
        mode.wish = wish;
        let must_wake = mode.is_listening && wish != Wish::Accept;
        drop(mode);
        self.changed.notify_all();
        if must_wake {
            // The only portable way to end a blocked accept is a connection; it is closed at once.
            let _ = TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT);
        }
    }

    fn wish(&self) -> Wish {
        lock(&self.mode).wish
    }

    fn serve(&self, shared: &Arc<Shared>) {
        loop {
            let refusing = |mode: &mut Mode| mode.wish == Wish::Refuse;
            let mode =
                self.changed.wait_while(lock(&self.mode), refusing).unwrap_or_else(PoisonError::into_inner);
            let wish = mode.wish;
            drop(mode);
            if wish == Wish::Stop {
                return;
            }
            let Ok(listener) = bind(self.address) else {
                // Whoever waits for the port times out and says so.
                self.ask(Wish::Refuse);
                continue;
            };
            self.report(true);
            self.accept_while_wanted(&listener, shared);
            drop(listener);
            self.report(false);
        }
    }

    fn accept_while_wanted(&self, listener: &TcpListener, shared: &Arc<Shared>) {
        for client in listener.incoming() {
            if self.wish() != Wish::Accept {
                return;
            }
            // A client that left again, or a server that is down: the client sees its connection close.
            let _ = client.and_then(|client| shared.take(client));
        }
    }

    fn report(&self, is_listening: bool) {
        lock(&self.mode).is_listening = is_listening;
        self.changed.notify_all();
    }
}

/// The port is ours, but connections of a moment ago may still be closing on it.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = Instant::now() + CONTROL_TIMEOUT / 2;
    loop {
        match TcpListener::bind(address) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(BIND_RETRY_INTERVAL),
            result => return result,
        }
    }
}
