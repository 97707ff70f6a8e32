//! A process of a test: a store, what it was told, and short ways to ask.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::store::{
    AcquireReply, AcquireRequest, EventSink, Held, QueueRequest, ReleaseReply, ReleaseRequest, RenewReply,
    RenewRequest, Store, StoreEvent, Ticket,
};
use leasehold_core::{
    COMMAND_TIMEOUT, Clock, Error, FencingToken, Label, Name, OwnerToken, SystemClock, SystemEntropy,
};
use leasehold_redis::{ClusterConfig, ClusterStore};
use leasehold_testkit::servers::{ClusterBuilder, RedisCluster, ServerKind, kinds_to_test};

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// Longer than anything takes on a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(20);

pub(crate) struct Process {
    pub(crate) store: ClusterStore,
    events: Arc<Told>,
}

#[derive(Default)]
struct Told(Mutex<Vec<StoreEvent>>);

impl EventSink for Told {
    fn event(&self, event: StoreEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// Runs a test on a cluster of each kind, all kinds at the same time: most of a test is waiting.
pub(crate) fn on_each_cluster(
    test: &str,
    configure: impl Fn(ClusterBuilder) -> ClusterBuilder + Sync,
    body: impl AsyncFn(&RedisCluster) + Sync,
) {
    std::thread::scope(|scope| {
        for kind in kinds_to_test(test) {
            let (configure, body) = (&configure, &body);
            let thread = std::thread::Builder::new().name(format!("{test} on {kind}"));
            let run_it = move || {
                let cluster = configure(RedisCluster::builder(kind)).start().unwrap();
                run(body(&cluster));
            };
            thread.spawn_scoped(scope, run_it).unwrap();
        }
    });
}

/// The kind for a test that needs one only, if this machine has any.
pub(crate) fn one_kind(test: &str) -> Option<ServerKind> {
    kinds_to_test(test).into_iter().next()
}

/// Runs a test on a runtime of its own.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(100), test).await.unwrap() });
}

pub(crate) async fn connect(url: &str) -> Result<ClusterStore, Error> {
    ClusterStore::connect(ClusterConfig::from_url(url)?).await
}

/// Why a store cannot be connected.
pub(crate) async fn connect_error(url: &str) -> Error {
    match connect(url).await {
        Ok(_) => panic!("{url} is connected"),
        Err(error) => error,
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn owner(label: &str) -> OwnerToken {
    OwnerToken::generate(&SystemEntropy, &Label::new(label).unwrap()).unwrap()
}

/// The slot of a name, and the node that has it.
pub(crate) fn place_of(cluster: &RedisCluster, name: &str) -> (u16, usize) {
    let slot = cluster.slot_of(&format!("lock:{name}")).unwrap();
    (slot, cluster.owner_of(slot).unwrap())
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = SystemClock.now();
    while !is_so().await {
        assert!(SystemClock.now().since(start) < SLACK, "not so after {SLACK:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Process {
    pub(crate) async fn start(url: &str) -> Self {
        let store = connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let events = Arc::new(Told::default());
        store.attach(Arc::downgrade(&events) as Weak<dyn EventSink>);
        Self { store, events }
    }

    async fn ask(
        &self,
        name: &Name,
        owner: &OwnerToken,
        queue: Option<QueueRequest>,
    ) -> Result<AcquireReply, Error> {
        let not_after = SystemClock.now().after(COMMAND_TIMEOUT);
        self.store.acquire(AcquireRequest { name, owner, ttl: TTL, queue, not_after }).await
    }

    pub(crate) async fn try_acquire(&self, name: &Name, owner: &OwnerToken) -> Result<AcquireReply, Error> {
        self.ask(name, owner, None).await
    }

    pub(crate) async fn try_for(
        &self,
        name: &Name,
        owner: &OwnerToken,
        ttl: Duration,
    ) -> Result<AcquireReply, Error> {
        let not_after = SystemClock.now().after(COMMAND_TIMEOUT);
        self.store.acquire(AcquireRequest { name, owner, ttl, queue: None, not_after }).await
    }

    pub(crate) async fn take(&self, name: &Name, owner: &OwnerToken) -> FencingToken {
        match self.try_acquire(name, owner).await.unwrap() {
            AcquireReply::Granted { fencing_token } => fencing_token,
            AcquireReply::Held(held) => panic!("{name} is held: {held:?}"),
        }
    }

    pub(crate) async fn queue(&self, name: &Name, owner: &OwnerToken) -> Held {
        self.queue_with(name, owner, None).await
    }

    pub(crate) async fn queue_with(&self, name: &Name, owner: &OwnerToken, ticket: Option<Ticket>) -> Held {
        let queue = QueueRequest { ticket, poll_interval: Duration::from_secs(1) };
        match self.ask(name, owner, Some(queue)).await.unwrap() {
            AcquireReply::Held(held) => held,
            AcquireReply::Granted { .. } => panic!("{name} was free"),
        }
    }

    pub(crate) async fn release(&self, name: &Name, owner: &OwnerToken) -> Result<ReleaseReply, Error> {
        self.store.release(ReleaseRequest { name, owner, keep_for: None }).await
    }

    pub(crate) async fn free(&self, name: &Name, owner: &OwnerToken) {
        let released = self.release(name, owner).await.unwrap();
        assert!(matches!(released, ReleaseReply::Freed { .. }), "{name} was not held");
    }

    pub(crate) async fn renew(&self, name: &Name, owner: &OwnerToken) -> Result<RenewReply, Error> {
        let request = RenewRequest { name: name.clone(), owner: owner.clone(), ttl: TTL };
        self.store.renew(&[request]).await.pop().unwrap()
    }

    pub(crate) async fn still_holds(&self, name: &Name, owner: &OwnerToken) {
        assert_eq!(self.renew(name, owner).await.unwrap(), RenewReply::Renewed, "{name}");
    }

    /// The fencing tokens of the grants that were pushed to an owner.
    pub(crate) fn grants(&self, to: &OwnerToken) -> Vec<FencingToken> {
        self.find(|event| match event {
            StoreEvent::Granted { owner, fencing_token, granted_after, .. } if owner == to => {
                assert!(granted_after.is_some(), "a grant without a bound");
                Some(*fencing_token)
            }
            _ => None,
        })
    }

    /// How often an owner was told to ask again.
    pub(crate) fn asked_again(&self, whom: &OwnerToken) -> usize {
        self.find(|event| matches!(event, StoreEvent::AskAgain { owner } if owner == whom).then_some(()))
            .len()
    }

    /// What was done step by step.
    pub(crate) fn steps(&self) -> Vec<&'static str> {
        self.find(|event| match event {
            StoreEvent::StepByStep { operation } => Some(*operation),
            _ => None,
        })
    }

    fn find<T>(&self, wanted: impl Fn(&StoreEvent) -> Option<T>) -> Vec<T> {
        self.events.0.lock().unwrap().iter().filter_map(wanted).collect()
    }
}
