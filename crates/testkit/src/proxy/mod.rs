//! A TCP proxy in front of a server that injects network faults between whole protocol frames: delay, one lost
//! reply or push, a request that arrives late or twice, silence, broken and refused connections.
//!
//! Owns: the bytes between client and server. Does not own: the server, or what commands mean beyond which reply
//! belongs to which request. It runs on plain threads, so a test may block or pause its async runtime.
//!
//! Not understood, because replies could no longer be told apart: `MONITOR`, `CLIENT REPLY OFF` and `SKIP`,
//! subscribing inside `MULTI`, TLS.
//!
//! ```no_run
//! use leasehold_testkit::proxy::{AfterDrop, Proxy};
//! use leasehold_testkit::servers::{RedisServer, ServerKind};
//! use std::time::Duration;
//!
//! # fn main() -> std::io::Result<()> {
//! let server = RedisServer::start(ServerKind::Redis7)?;
//! let proxy = Proxy::before(&server)?;
//! proxy.set_delay(Duration::from_millis(1), Duration::from_millis(1));
//! let lost = proxy.drop_reply_to("EVALSHA", AfterDrop::Cut);
//! // … let a client acquire through `server.url_through(&proxy)` …
//! lost.wait(Duration::from_secs(5))?;
//! # Ok(())
//! # }
//! ```

mod exchange;
mod faults;
mod line;
mod link;
mod listener;
mod stats;

pub use faults::{AfterDrop, Fault, HeldRequest, RequestMatch};
pub use stats::ProxyStats;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::lock;
use crate::ports::PortLease;
use crate::servers::RedisServer;
use listener::{Listener, Shared};

/// A proxy on a loopback port of its own. Dropping it closes every connection, held requests included.
#[derive(Debug)]
#[must_use = "connections through the proxy end when it is dropped"]
pub struct Proxy {
    port: Arc<PortLease>,
    shared: Arc<Shared>,
    listener: Listener,
}

impl Proxy {
    /// A proxy in front of a server for tests.
    ///
    /// # Errors
    /// When no port is free.
    pub fn before(server: &RedisServer) -> io::Result<Self> {
        Self::start(server.address())
    }

    /// A proxy in front of whatever speaks the Redis protocol at that address.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::listen(Shared::new(upstream, true))
    }

    /// A proxy in front of a server that speaks another protocol: only faults that need no frames take effect
    /// (delay, stall, half-open, cut, refuse).
    ///
    /// # Errors
    /// When no port is free.
    pub fn start_opaque(upstream: SocketAddr) -> io::Result<Self> {
        Self::listen(Shared::new(upstream, false))
    }

    fn listen(shared: Shared) -> io::Result<Self> {
        let (port, shared) = (Arc::new(PortLease::take()?), Arc::new(shared));
        let listener = Listener::start(Arc::clone(&port), Arc::clone(&shared))?;
        Ok(Self { port, shared, listener })
    }

    /// The port clients connect to.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// The address clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Where new connections go from now on: a failover. Open ones stay where they are.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// Adds a constant delay in each direction from now on, as a longer cable would: what is sent back to back
    /// arrives back to back, and throughput stays.
    pub fn set_delay(&self, to_server: Duration, to_client: Duration) {
        *lock(&self.shared.delays) = (to_server, to_client);
    }

    /// Swallows the next reply, whichever it is; pushes do not count.
    pub fn drop_next_reply(&self, after: AfterDrop) -> Fault {
        lock(&self.shared.plan).lose_next_reply(after)
    }

    /// Swallows the reply to the next such request sent after this call: the server has executed it, the client
    /// never learns. For `SUBSCRIBE` and its relatives that is the first confirmation.
    pub fn drop_reply_to(&self, request: impl Into<RequestMatch>, after: AfterDrop) -> Fault {
        lock(&self.shared.plan).lose_reply_to(request.into(), after)
    }

    /// Swallows the next published message. Confirmations of subscriptions do not count. Nothing else is harmed.
    pub fn drop_next_push(&self) -> Fault {
        lock(&self.shared.plan).lose_next_push()
    }

    /// Stops the next such request, and what its connection sends after it, on the way to the server. The
    /// connection to the server stays open even if the client closes its own, so [`HeldRequest::deliver`] can let
    /// the request arrive long after the client gave it up. Other connections go on.
    pub fn hold_next_request(&self, request: impl Into<RequestMatch>) -> HeldRequest {
        lock(&self.shared.plan).hold_request(request.into())
    }

    /// Sends the next such request to the server twice, back to back; the second reply is swallowed.
    pub fn duplicate_next_request(&self, request: impl Into<RequestMatch>) -> Fault {
        lock(&self.shared.plan).duplicate_request(request.into())
    }

    /// From now on nothing arrives in either direction and nobody is told, as after a partition that never heals
    /// or a firewall that forgot the connection. Not even the end of a connection gets through: the server goes on
    /// counting it as a client. New connections are accepted and then ignored.
    pub fn half_open(&self) {
        self.shared.silent.store(true, Ordering::SeqCst);
        self.shared.for_each_link(link::Link::silence);
    }

    /// Lets new connections through after [`half_open`](Self::half_open). Old ones have lost bytes and stay dead.
    pub fn heal(&self) {
        self.shared.silent.store(false, Ordering::SeqCst);
    }

    /// Keeps everything in both directions back, as a partition does that heals before anybody gives up.
    pub fn stall(&self) {
        self.shared.stalled.store(true, Ordering::SeqCst);
    }

    /// Delivers what [`stall`](Self::stall) kept back, in order.
    pub fn resume(&self) {
        self.shared.stalled.store(false, Ordering::SeqCst);
        self.shared.for_each_link(link::Link::wake);
    }

    /// Closes every connection. Requests that are on their way (delayed, stalled or held) still arrive at the
    /// server; replies are lost.
    pub fn cut(&self) {
        self.shared.for_each_link(link::Link::cut);
        self.shared.close_ignored();
    }

    /// Refuses new connections, as a server does that is down. Open ones stay.
    ///
    /// # Errors
    /// When the listening thread does not react within 10 s.
    pub fn refuse(&self) -> io::Result<()> {
        self.listener.set_accepting(false)
    }

    /// Takes new connections again after [`refuse`](Self::refuse).
    ///
    /// # Errors
    /// When the port cannot be opened again within 10 s.
    pub fn accept(&self) -> io::Result<()> {
        self.listener.set_accepting(true)
    }

    /// What passed so far.
    pub fn stats(&self) -> ProxyStats {
        let mut stats = lock(&self.shared.stats).clone();
        self.shared.for_each_link(|_| stats.connections_open += 1);
        stats
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.stop();
        self.shared.close();
    }
}
