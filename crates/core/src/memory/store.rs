//! One process' connection to a [`MemoryWorld`]: the [`Store`] that engines use, and the switches for faults
//! that tests use.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{RwLock, watch};

use super::entry::Now;
use super::faults::{Fate, GrantBound, Operation, Recorded};
use super::link::{ConnectionId, Link};
use super::records::Swap;
use super::server::{Acquire, Server};
use super::{MemoryWorld, lock};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::guarantees::{Fault, Guarantees, Outcome, Promise};
use crate::mutation::{Rule, on};
use crate::name::Name;
use crate::owner::{Label, OwnerToken};
use crate::store::{
    AcquireReply, AcquireRequest, BreakMode, BreakReply, Capabilities, EventSink, Finding, Inspection,
    Listing, Polling, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest, Severity, Store, StoreEvent,
    StoreFuture, SwapReply, SwapRequest,
};

/// Polling costs next to nothing here.
const POLLING: Polling = Polling {
    first: Duration::from_millis(10),
    most: Duration::from_millis(100),
    behind: Duration::from_secs(1),
};

/// One process' connection to a [`MemoryWorld`].
///
/// Without faults every operation is done at the first poll of its future, on any executor. Faults that delay
/// need a Tokio runtime; they work in paused time. A request that is under way when its future is dropped
/// still arrives, as on a network. Dropping the store closes the connection, as the death of a process does.
pub struct MemoryStore {
    world: Arc<MemoryWorld>,
    link: Arc<Link>,
    connection: AtomicU64,
    push: bool,
    closed: AtomicBool,
    hanging: watch::Sender<bool>,
    /// Held for reading by every operation, so that closing can wait for them.
    under_way: RwLock<()>,
}

impl MemoryStore {
    /// A connection of a process whose clock is the server's.
    pub fn connect(world: &Arc<MemoryWorld>) -> Self {
        Self::connect_as(world, Arc::clone(&world.clock), true)
    }

    /// A connection on which nothing is pushed: its waiters must poll.
    pub fn connect_without_push(world: &Arc<MemoryWorld>) -> Self {
        Self::connect_as(world, Arc::clone(&world.clock), false)
    }

    /// A connection of a process that has another clock than the server.
    pub fn connect_with_clock(world: &Arc<MemoryWorld>, clock: Arc<dyn Clock>) -> Self {
        Self::connect_as(world, clock, true)
    }

    fn connect_as(world: &Arc<MemoryWorld>, clock: Arc<dyn Clock>, push: bool) -> Self {
        let link = Link::new(clock);
        let id = world.with_server(|server, _| server.connect(&link));
        Self {
            world: Arc::clone(world),
            link,
            connection: AtomicU64::new(id.0),
            push,
            closed: AtomicBool::new(false),
            hanging: watch::Sender::new(false),
            under_way: RwLock::new(()),
        }
    }

    /// The server.
    pub fn world(&self) -> &Arc<MemoryWorld> {
        &self.world
    }

    fn connection(&self) -> ConnectionId {
        ConnectionId(self.connection.load(Ordering::Acquire))
    }
}

/// Faults and observation, for tests.
impl MemoryStore {
    /// Every request takes this long to arrive.
    pub fn delay_requests(&self, delay: Duration) {
        lock(&self.link.faults).request_delay = delay;
    }

    /// Every reply takes this long to arrive.
    pub fn delay_replies(&self, delay: Duration) {
        lock(&self.link.faults).reply_delay = delay;
    }

    /// Every push takes this long to arrive.
    pub fn delay_pushes(&self, delay: Duration) {
        lock(&self.link.faults).push_delay = delay;
    }

    /// The next request of this kind is executed, and its caller gets `Unknown`. Asked for several times, it
    /// befalls as many requests; so do the next two.
    pub fn lose_next_reply(&self, operation: Operation) {
        lock(&self.link.faults).add_fate(operation, Fate::ReplyLost);
    }

    /// The next request of this kind is never executed, and its caller gets `Unknown`.
    pub fn lose_next_request(&self, operation: Operation) {
        lock(&self.link.faults).add_fate(operation, Fate::RequestLost);
    }

    /// The caller of the next request of this kind gets `Unknown`, and the request is executed this much later.
    pub fn late_request(&self, operation: Operation, delay: Duration) {
        lock(&self.link.faults).add_fate(operation, Fate::Late(delay));
    }

    /// While on, every operation fails with `Unavailable`; one that is under way gets `Unknown`.
    pub fn unreachable(&self, on: bool) {
        lock(&self.link.faults).unreachable = on;
    }

    /// While on, nothing that the server pushes arrives, though the server believes so.
    pub fn lose_pushes(&self, on: bool) {
        lock(&self.link.faults).lose_pushes = on;
    }

    /// While on, requests stay in this process and their futures do not resolve; one that is dropped is never
    /// executed.
    pub fn hang(&self, on: bool) {
        self.hanging.send_replace(on);
    }

    /// What later pushed grants say about their time. Without this, their exact moment.
    pub fn set_grant_bound(&self, bound: GrantBound) {
        lock(&self.link.faults).grant_bound = bound;
    }

    /// Requests about this name fail with this kind of error, or no longer. Others of a batch go through.
    pub fn refuse(&self, name: &Name, kind: Option<ErrorKind>) {
        lock(&self.link.faults).refuse(name, kind);
    }

    /// Breaks the connection and makes a new one: the server takes the waiters of the old one for dead, and
    /// the process is told.
    pub fn reconnect(&self) {
        let old = self.connection();
        self.world.with_server(|server, _| {
            server.disconnect(old);
            self.connection.store(server.connect(&self.link).0, Ordering::Release);
            server.push_to(&self.link, StoreEvent::Reconnected);
        });
    }

    /// The process dies: its connection is gone, and operations under way or later fail.
    pub fn kill(&self) {
        self.closed.store(true, Ordering::Release);
        self.unreachable(true);
        self.disconnect();
    }

    fn disconnect(&self) {
        let id = self.connection();
        self.world.with_server(|server, _| server.disconnect(id));
    }

    /// How many requests of this kind were sent; a batch of renewals counts as one.
    pub fn requests(&self, operation: Operation) -> u64 {
        lock(&self.link.faults).requests(operation)
    }

    /// Keeps a record of what is sent from now on.
    pub fn start_record(&self) {
        lock(&self.link.faults).start_record();
    }

    /// What was sent since [`MemoryStore::start_record`], in order.
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.link.faults).recorded()
    }

    fn record(&self, operation: Operation, name: &Name, owner: Option<&OwnerToken>) {
        lock(&self.link.faults).record(|| Recorded {
            at: self.link.clock.now(),
            operation,
            name: name.clone(),
            owner: owner.map(|owner| owner.label().to_owned()),
        });
    }

    fn check_refusal(&self, name: &Name) -> Result<(), Error> {
        let refusal = lock(&self.link.faults).refusal(name);
        refusal.map_or(Ok(()), |kind| Err(Error::new(kind, format!("memory: refused for {name}"))))
    }
}

impl MemoryStore {
    /// Sends one request through whatever faults there are.
    async fn call<T: Send + 'static>(
        &self,
        operation: Operation,
        step: impl FnOnce(&mut Server, Now) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let _under_way = self.under_way.read().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unavailable, "memory: the store is closed"));
        }
        let fate = {
            let mut faults = lock(&self.link.faults);
            faults.count(operation);
            faults.take_fate(operation)
        };
        wait_until_off(&self.hanging).await;
        self.check_reachable()?;
        let delay = lock(&self.link.faults).request_delay;
        let reply = match fate {
            Fate::RequestLost => return Err(reply_lost()),
            Fate::Late(late) => {
                tokio::spawn(arrive(Arc::clone(&self.world), delay + late, step));
                return Err(reply_lost());
            }
            Fate::Answered | Fate::ReplyLost => self.send(delay, step).await?,
        };
        let delay = lock(&self.link.faults).reply_delay;
        if !delay.is_zero() {
            pause(delay).await;
        }
        if fate == Fate::ReplyLost || self.check_reachable().is_err() {
            return Err(reply_lost());
        }
        Ok(reply)
    }

    async fn send<T: Send + 'static>(
        &self,
        delay: Duration,
        step: impl FnOnce(&mut Server, Now) -> T + Send + 'static,
    ) -> Result<T, Error> {
        if delay.is_zero() && !*self.world.frozen.borrow() {
            return Ok(self.world.with_server(step));
        }
        // Once it is under way a request arrives, whether or not its caller still waits.
        let arrival = tokio::spawn(arrive(Arc::clone(&self.world), delay, step));
        arrival.await.map_err(|source| reply_lost().with_source(source))
    }

    fn check_reachable(&self) -> Result<(), Error> {
        if lock(&self.link.faults).unreachable {
            return Err(Error::new(ErrorKind::Unavailable, "memory: the store cannot be reached"));
        }
        Ok(())
    }
}

/// It ends together with everybody who uses it, and nothing else can be lost.
const GUARANTEES: Guarantees = Guarantees::new(
    Promise::always(Outcome::CannotHappen)
        .except(Fault::HolderPause, Outcome::CanBreak)
        .except(Fault::ClockStep, Outcome::Holds),
    Promise::always(Outcome::CannotHappen)
        .except(Fault::HolderPause, Outcome::Holds)
        .except(Fault::ClockStep, Outcome::Holds),
);

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all(POLLING);
        capabilities.push = self.push;
        capabilities
    }

    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }

    fn describe(&self) -> String {
        "memory:".into()
    }

    fn attach(&self, sink: Weak<dyn EventSink>) {
        let first = self.link.attach(sink);
        debug_assert!(first, "a store is attached once");
    }

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> StoreFuture<'a, Result<AcquireReply, Error>> {
        Box::pin(async move {
            self.record(Operation::Acquire, request.name, Some(request.owner));
            self.check_refusal(request.name)?;
            let acquire = Acquire {
                name: request.name.clone(),
                owner: request.owner.clone(),
                ttl: request.ttl,
                queue: request.queue,
                connection: self.push.then(|| self.connection()),
            };
            let (link, not_after) = (Arc::clone(&self.link), request.not_after);
            let step = move |server: &mut Server, now| {
                if link.clock.now() > not_after && on(Rule::NotAfter) {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "memory: the request came too late and was not executed",
                    ));
                }
                server.acquire(&acquire, now)
            };
            self.call(Operation::Acquire, step).await?
        })
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> StoreFuture<'a, Result<ReleaseReply, Error>> {
        Box::pin(async move {
            self.record(Operation::Release, request.name, Some(request.owner));
            self.check_refusal(request.name)?;
            let (name, owner, keep_for) = (request.name.clone(), request.owner.clone(), request.keep_for);
            let step = move |server: &mut Server, now| server.release(&name, &owner, keep_for, now);
            self.call(Operation::Release, step).await?
        })
    }

    fn renew<'a>(&'a self, requests: &'a [RenewRequest]) -> StoreFuture<'a, Vec<Result<RenewReply, Error>>> {
        Box::pin(async move {
            let mut batch = Vec::with_capacity(requests.len());
            for request in requests {
                self.record(Operation::Renew, &request.name, Some(&request.owner));
                batch.push((request.clone(), self.check_refusal(&request.name)));
            }
            let step = move |server: &mut Server, now| {
                batch
                    .into_iter()
                    .map(|(request, checked)| checked.map(|()| server.renew(&request, now)))
                    .collect()
            };
            match self.call(Operation::Renew, step).await {
                Ok(replies) => replies,
                Err(error) => {
                    requests.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect()
                }
            }
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Inspection>, Error>> {
        Box::pin(async move {
            self.record(Operation::Inspect, name, None);
            self.check_refusal(name)?;
            let name = name.clone();
            let step = move |server: &mut Server, now| server.inspect(&name, now);
            self.call(Operation::Inspect, step).await?
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, limit: usize) -> StoreFuture<'a, Result<Listing, Error>> {
        Box::pin(async move {
            let prefix = prefix.to_owned();
            let step = move |server: &mut Server, now| server.list(&prefix, limit, now);
            self.call(Operation::List, step).await
        })
    }

    fn break_lease<'a>(
        &'a self,
        name: &'a Name,
        mode: BreakMode,
        by: &'a Label,
    ) -> StoreFuture<'a, Result<BreakReply, Error>> {
        Box::pin(async move {
            self.record(Operation::Break, name, None);
            self.check_refusal(name)?;
            let (name, by) = (name.clone(), by.clone());
            let step = move |server: &mut Server, now| server.break_lease(&name, mode, &by, now);
            self.call(Operation::Break, step).await?
        })
    }

    fn read_record<'a>(&'a self, name: &'a Name) -> StoreFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move {
            self.record(Operation::ReadRecord, name, None);
            self.check_refusal(name)?;
            let name = name.clone();
            let step = move |server: &mut Server, now| server.records.read(&name, now);
            self.call(Operation::ReadRecord, step).await?
        })
    }

    fn swap_record<'a>(&'a self, request: SwapRequest<'a>) -> StoreFuture<'a, Result<SwapReply, Error>> {
        Box::pin(async move {
            self.record(Operation::SwapRecord, request.name, Some(request.owner));
            self.check_refusal(request.name)?;
            let swap = Swap::new(&request);
            let step = move |server: &mut Server, now| swap.perform(server, now);
            self.call(Operation::SwapRecord, step).await?
        })
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, Error>> {
        Box::pin(async move {
            self.call(Operation::Diagnose, |_, _| ()).await?;
            Ok(vec![Finding {
                severity: Severity::Warning,
                subject: "durability".into(),
                message:
                    "locks are in the memory of this process and end with it; no other process sees them"
                        .into(),
                advice: "use it for tests only".into(),
            }])
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::Release);
            drop(self.under_way.write().await);
            self.disconnect();
        })
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A request that reaches the server after a delay, or when the server goes on.
async fn arrive<T>(world: Arc<MemoryWorld>, delay: Duration, step: impl FnOnce(&mut Server, Now) -> T) -> T {
    pause(delay).await;
    wait_until_off(&world.frozen).await;
    world.with_server(step)
}

async fn wait_until_off(switch: &watch::Sender<bool>) {
    // Fails only without a sender, which the caller has.
    let _ = switch.subscribe().wait_for(|on| !on).await;
}

pub(super) async fn pause(delay: Duration) {
    #[allow(clippy::disallowed_methods, reason = "the delay is the fault a test asked for")]
    tokio::time::sleep(delay).await;
}

fn reply_lost() -> Error {
    Error::new(ErrorKind::Unknown, "memory: the reply was lost; whether the request took effect is not known")
}
