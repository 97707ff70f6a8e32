//! The store on a cluster: each operation goes to the node of its name's slot, follows it when it moves, and is done
//! step by step while it migrates.

use std::fmt;
use std::sync::{Arc, Weak};

use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Capabilities, EventSink, Finding, Inspection,
    Listing, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest, Store, StoreFuture, SwapReply,
    SwapRequest,
};
use leasehold_core::{Error, Guarantees, Label, Name, Namespace};
use tokio::runtime::Handle;

use super::config::ClusterConfig;
use super::node::Node;
use super::route::{Route, Turn, call_command, still_migrates};
use super::router::Router;
use super::{doctor, look, renew, steps};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::handshake::command;
use crate::keys::{Keys, NameKeys};
use crate::records;
use crate::scripted;
use crate::store::POLLING;

/// Leases in a Redis or Valkey Cluster.
///
/// What it guarantees: two owners never hold a name at the same time as long as each shard keeps what it was told,
/// and fencing tokens of a name grow with every grant as long as no clock is set back behind the last one, also
/// while slots migrate. What it does not guarantee: exclusion across a failover to a replica that had not received a
/// lease yet (the fencing token tells the stale holder then), nor that fencing tokens of names in different slots
/// can be compared.
pub struct ClusterStore {
    router: Arc<Router>,
    keys: Keys,
}

/// An acquire is sent so often for one request while its slot or its channel changes.
const MOST_TRIES: usize = 10;

impl ClusterStore {
    /// Learns from the nodes of the URL who has which slot, connects to every primary and tries out the user's
    /// rights there.
    ///
    /// Call it inside a Tokio runtime with I/O and time: that runtime reads and writes the connections as long as
    /// the store lives. The store's operations can be awaited anywhere.
    ///
    /// # Errors
    /// `Unavailable` when no node of the URL or no primary can be reached within 5 s each, or slots are without a
    /// node; `Denied` for wrong credentials and missing rights; `Config` for a server that is not part of a cluster
    /// or older than Redis 7.0.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(config: ClusterConfig) -> Result<Self, Error> {
        let handle = Handle::try_current()
            .map_err(|_| Error::config("a Redis store must be connected inside a Tokio runtime"))?;
        let keys = config.template.keys.clone().sharded(0);
        let context = config.describe();
        let router = Router::connect(config, handle).await.map_err(|error| error.context(context))?;
        Ok(Self { router, keys })
    }

    async fn do_acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireReply, Error> {
        let keys = self.keys.of(request.name);
        let mut route = Route::new(&self.router, keys.slot);
        for _ in 0..MOST_TRIES {
            let node = route.node().map_err(Failure::into_error)?;
            let failure = match node.connection().await {
                Ok(connection) => match acquire_at(&node, &connection, &request, &keys).await {
                    Ok(Some(reply)) => return Ok(reply),
                    // Its channel was closed meanwhile: it must know another before it is queued.
                    Ok(None) => continue,
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            match route.after(failure, &node).await {
                Turn::Again => {}
                Turn::StepByStep => {
                    let reply = steps::acquire(&self.router, &request, &keys).await;
                    return reply.map_err(Failure::into_error);
                }
                Turn::Failed(failure) => return Err(explain(&node, &keys, failure).await),
            }
        }
        Err(scripted::came_too_late(&request))
    }

    async fn do_release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseReply, Error> {
        let keys = self.keys.of(request.name);
        let mut route = Route::new(&self.router, keys.slot);
        loop {
            let node = route.node().map_err(Failure::into_error)?;
            let failure = match node.connection().await {
                Ok(connection) => {
                    match scripted::release_at(&node.shared, &connection, &request, &keys).await {
                        Ok(reply) => return Ok(reply),
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            match route.after(failure, &node).await {
                Turn::Again => {}
                Turn::StepByStep => {
                    return steps::release(&self.router, &request, &keys).await.map_err(Failure::into_error);
                }
                Turn::Failed(failure) => return Err(explain(&node, &keys, failure).await),
            }
        }
    }

    async fn do_read_record(&self, name: &Name) -> Result<Option<Vec<u8>>, Error> {
        let (slot, record) = (self.keys.slot(name), self.keys.record_of(name));
        let found = call_command(&self.router, slot, &command(&["GET", &record])).await;
        match found.and_then(records::read_found) {
            Ok(found) => Ok(found),
            Err(failure) => {
                let node = self.router.node_of(slot).map_err(Failure::into_error)?;
                Err(explain_record(&node, name, &record, failure).await)
            }
        }
    }

    async fn do_swap_record(&self, request: SwapRequest<'_>) -> Result<SwapReply, Error> {
        let mut route = Route::new(&self.router, self.keys.slot(request.name));
        loop {
            let node = route.node().map_err(Failure::into_error)?;
            let failure = match node.connection().await {
                Ok(connection) => match records::swap_at(&node.shared, &connection, &request).await {
                    Ok(reply) => return Ok(reply),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            match route.after(failure, &node).await {
                Turn::Again => {}
                // The record and the lock key can be at two nodes, and cannot be changed together then.
                Turn::StepByStep => return Err(still_migrates(&node).into_error()),
                Turn::Failed(failure) => {
                    let record = self.keys.record_of(request.name);
                    return Err(explain_record(&node, request.name, &record, failure).await);
                }
            }
        }
    }

    async fn do_break(&self, name: &Name, mode: BreakMode, by: &Label) -> Result<BreakReply, Error> {
        let keys = self.keys.of(name);
        let mut route = Route::new(&self.router, keys.slot);
        loop {
            let node = route.node().map_err(Failure::into_error)?;
            let failure = match node.connection().await {
                Ok(connection) => {
                    match scripted::break_at(&node.shared, &connection, &keys, mode, by).await {
                        Ok(reply) => return Ok(reply),
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            match route.after(failure, &node).await {
                Turn::Again => {}
                Turn::StepByStep => return Err(still_migrates(&node).into_error()),
                Turn::Failed(failure) => return Err(explain(&node, &keys, failure).await),
            }
        }
    }
}

/// One acquire at one node. Whoever has to queue is subscribed first; `None` when that has ended meanwhile.
async fn acquire_at(
    node: &Node,
    connection: &Connection,
    request: &AcquireRequest<'_>,
    keys: &NameKeys<'_>,
) -> Result<Option<AcquireReply>, Failure> {
    let shared = &node.shared;
    let Some(queue) = request.queue else {
        return scripted::acquire_at(shared, connection, request, keys, None).await.map(Some);
    };
    let mut line = node.wake.at(keys.slot);
    if line.is_none() {
        if queue.ticket.is_none() {
            // Most names are free, so a channel is made for those only that are not.
            let try_first = AcquireRequest { queue: None, ..*request };
            let reply = scripted::acquire_at(shared, connection, &try_first, keys, None).await?;
            if let AcquireReply::Granted { .. } = reply {
                return Ok(Some(reply));
            }
        }
        line = node.wake.subscribe(keys.slot).await?;
    }
    let told_at = line.as_ref().map(|line| line.id.as_str());
    let reply = scripted::acquire_at(shared, connection, request, keys, told_at).await?;
    if let (AcquireReply::Held(_), Some(line)) = (&reply, &line) {
        line.hurry();
        if !line.has(keys.slot) {
            return Ok(None);
        }
    }
    Ok(Some(reply))
}

/// The error for users, with the node that gave it.
async fn explain(node: &Node, keys: &NameKeys<'_>, failure: Failure) -> Error {
    match (failure, node.connection().await) {
        (failure @ Failure::Refused(_), Ok(connection)) => {
            scripted::explain(&node.shared, &connection, keys, failure).await.context(&node.place)
        }
        (failure, _) => failure.into_error(),
    }
}

/// As [`explain`], for the record of an operation.
async fn explain_record(node: &Node, name: &Name, record: &str, failure: Failure) -> Error {
    match (failure, node.connection().await) {
        (failure @ Failure::Refused(_), Ok(connection)) => {
            let error = records::explain_record(&node.shared, &connection, name, record, failure).await;
            error.context(&node.place)
        }
        (failure, _) => failure.into_error(),
    }
}

impl Store for ClusterStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::all(POLLING)
    }

    fn guarantees(&self) -> Guarantees {
        self.router.config.guarantees()
    }

    fn describe(&self) -> String {
        self.router.config.describe()
    }

    fn namespace(&self) -> Namespace {
        self.keys.namespace().clone()
    }

    fn attach(&self, sink: Weak<dyn EventSink>) {
        self.router.events.attach(sink);
    }

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> StoreFuture<'a, Result<AcquireReply, Error>> {
        Box::pin(self.do_acquire(request))
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> StoreFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(self.do_release(request))
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Result<RenewReply, Error>>> {
        Box::pin(renew::renew(&self.router, &self.keys, requests))
    }

    fn renewal_group(&self, name: &Name) -> u64 {
        self.router.node_id(self.keys.slot(name))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Inspection>, Error>> {
        Box::pin(look::inspect(&self.router, &self.keys, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> StoreFuture<'a, Result<Listing, Error>> {
        Box::pin(look::list(&self.router, prefix, limit))
    }

    fn break_lease<'a>(
        &'a self,
        name: &'a Name,
        mode: BreakMode,
        by: &'a Label,
    ) -> StoreFuture<'a, Result<BreakReply, Error>> {
        Box::pin(self.do_break(name, mode, by))
    }

    fn read_record<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(self.do_read_record(name))
    }

    fn swap_record<'a>(&'a self, request: SwapRequest<'a>) -> StoreFuture<'a, Result<SwapReply, Error>> {
        Box::pin(self.do_swap_record(request))
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, Error>> {
        Box::pin(doctor::diagnose(&self.router))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.router.close())
    }
}

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("cluster", &self.describe()).finish_non_exhaustive()
    }
}
