//! The faults do what they say, and memory stays flat. What a store promises is tested by the conformance suite.

#![allow(clippy::disallowed_methods, reason = "a request that is dropped is what is tested, in virtual time")]

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::{GrantBound, MemoryStore, MemoryWorld, Operation, lock};
use crate::clock::{Clock, Moment, VirtualClock};
use crate::entropy::SystemEntropy;
use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::owner::{Label, OwnerToken};
use crate::store::{
    AcquireReply, AcquireRequest, EventSink, QueueRequest, ReleaseReply, ReleaseRequest, RenewReply,
    RenewRequest, Store, StoreEvent,
};

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Told(Mutex<Vec<StoreEvent>>);

impl EventSink for Told {
    fn event(&self, event: StoreEvent) {
        lock(&self.0).push(event);
    }
}

impl Told {
    fn of(store: &MemoryStore) -> Arc<Self> {
        let told = Arc::new(Self::default());
        let sink: Weak<dyn EventSink> = Arc::downgrade(&told) as Weak<dyn EventSink>;
        store.attach(sink);
        told
    }

    fn kinds(&self) -> Vec<&'static str> {
        let kind = |event: &StoreEvent| match event {
            StoreEvent::Granted { .. } => "granted",
            StoreEvent::First { .. } => "first",
            StoreEvent::Reconnected => "reconnected",
            StoreEvent::AskAgain { .. } | StoreEvent::StepByStep { .. } => "never here",
        };
        lock(&self.0).iter().map(kind).collect()
    }

    fn bounds(&self) -> Vec<Option<Moment>> {
        let bound = |event: &StoreEvent| match event {
            StoreEvent::Granted { granted_after, .. } => Some(*granted_after),
            _ => None,
        };
        lock(&self.0).iter().filter_map(bound).collect()
    }
}

fn world() -> Arc<MemoryWorld> {
    MemoryWorld::new(Arc::new(VirtualClock::start()))
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn owner(label: &str) -> OwnerToken {
    OwnerToken::generate(&SystemEntropy, &Label::new(label).unwrap()).unwrap()
}

async fn acquire(store: &MemoryStore, job: &str, owner: &OwnerToken) -> Result<bool, ErrorKind> {
    ask(store, job, owner, None).await
}

async fn queue(store: &MemoryStore, job: &str, owner: &OwnerToken) -> Result<bool, ErrorKind> {
    ask(store, job, owner, Some(QueueRequest { ticket: None, poll_interval: SECOND })).await
}

async fn ask(
    store: &MemoryStore,
    job: &str,
    owner: &OwnerToken,
    queue: Option<QueueRequest>,
) -> Result<bool, ErrorKind> {
    let request = AcquireRequest { name: &name(job), owner, ttl: TTL, queue, not_after: Moment::NEVER };
    let reply = store.acquire(request).await.map_err(|error| error.kind())?;
    Ok(matches!(reply, AcquireReply::Granted { .. }))
}

async fn release(store: &MemoryStore, job: &str, owner: &OwnerToken) -> Result<ReleaseReply, ErrorKind> {
    let reply = store.release(ReleaseRequest { name: &name(job), owner, keep_for: None }).await;
    reply.map_err(|error| error.kind())
}

async fn is_free(store: &MemoryStore, job: &str) -> bool {
    store.inspect(&name(job)).await.unwrap().is_none()
}

async fn pause(time: Duration) {
    super::store::pause(time).await;
}

#[tokio::test(start_paused = true)]
async fn lost_replies_take_effect_and_lost_requests_do_not() {
    let world = world();
    let (store, other, me) = (MemoryStore::connect(&world), MemoryStore::connect(&world), owner("me"));
    store.lose_next_reply(Operation::Acquire);
    assert_eq!(acquire(&store, "a", &me).await, Err(ErrorKind::Unknown));
    assert_eq!(acquire(&other, "a", &owner("other")).await, Ok(false));
    store.lose_next_request(Operation::Release);
    assert_eq!(release(&store, "a", &me).await, Err(ErrorKind::Unknown));
    assert!(!is_free(&other, "a").await);
    store.lose_next_reply(Operation::Release);
    assert_eq!(release(&store, "a", &me).await, Err(ErrorKind::Unknown));
    assert!(is_free(&other, "a").await);
    assert_eq!(release(&store, "a", &me).await, Ok(ReleaseReply::NotHeld));
}

#[tokio::test(start_paused = true)]
async fn a_late_request_is_executed_later() {
    let (store, me) = (MemoryStore::connect(&world()), owner("me"));
    store.late_request(Operation::Acquire, SECOND);
    assert_eq!(acquire(&store, "a", &me).await, Err(ErrorKind::Unknown));
    assert!(is_free(&store, "a").await);
    pause(2 * SECOND).await;
    assert!(!is_free(&store, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_request_under_way_arrives_though_its_future_is_dropped() {
    let world = world();
    let (store, other, me) = (MemoryStore::connect(&world), MemoryStore::connect(&world), owner("me"));
    store.delay_requests(SECOND);
    let dropped = tokio::time::timeout(SECOND / 2, acquire(&store, "a", &me)).await;
    assert!(dropped.is_err());
    assert!(is_free(&other, "a").await);
    pause(SECOND).await;
    assert!(!is_free(&other, "a").await);
}

#[tokio::test(start_paused = true)]
async fn delays_take_their_time_and_a_late_acquire_does_nothing() {
    let clock = Arc::new(VirtualClock::start());
    let (store, me) = (MemoryStore::connect(&MemoryWorld::new(clock.clone())), owner("me"));
    store.delay_requests(SECOND);
    store.delay_replies(2 * SECOND);
    let start = clock.now();
    assert_eq!(acquire(&store, "a", &me).await, Ok(true));
    assert!(clock.now().since(start) >= 3 * SECOND);
    let (job, not_after) = (name("b"), clock.now().after(SECOND / 2));
    let request = AcquireRequest { name: &job, owner: &me, ttl: TTL, queue: None, not_after };
    let late = store.acquire(request).await.map_err(|error| error.kind());
    assert_eq!(late, Err(ErrorKind::Unavailable));
    assert!(is_free(&store, "b").await);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_connection_and_a_frozen_server_answer_nothing() {
    let world = world();
    let (store, me) = (MemoryStore::connect(&world), owner("me"));
    let a_while = 100 * SECOND;
    store.hang(true);
    assert!(tokio::time::timeout(a_while, acquire(&store, "hung", &me)).await.is_err());
    store.hang(false);
    assert!(is_free(&store, "hung").await, "a request that never left was executed");
    world.freeze(true);
    assert!(tokio::time::timeout(a_while, acquire(&store, "frozen", &me)).await.is_err());
    world.freeze(false);
    pause(SECOND).await;
    assert!(!is_free(&store, "frozen").await, "a request in the frozen server's buffer was not executed");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_is_unavailable_and_forgets_nothing() {
    let (store, me) = (MemoryStore::connect(&world()), owner("me"));
    acquire(&store, "a", &me).await.unwrap();
    store.unreachable(true);
    assert_eq!(acquire(&store, "b", &me).await, Err(ErrorKind::Unavailable));
    store.unreachable(false);
    assert!(is_free(&store, "b").await);
    assert_eq!(release(&store, "a", &me).await, Ok(ReleaseReply::Freed { handed_over: false }));
}

#[tokio::test(start_paused = true)]
async fn a_refused_name_spoils_no_batch() {
    let (store, me) = (MemoryStore::connect(&world()), owner("me"));
    for job in ["a", "b"] {
        acquire(&store, job, &me).await.unwrap();
    }
    store.refuse(&name("a"), Some(ErrorKind::Denied));
    let batch = ["a", "b"].map(|job| RenewRequest { name: name(job), owner: me.clone(), ttl: TTL });
    let replies = store.renew(&batch).await;
    let kinds: Vec<_> = replies.iter().map(|reply| reply.as_ref().map_err(Error::kind)).collect();
    assert_eq!(kinds, [Err(ErrorKind::Denied), Ok(&RenewReply::Renewed)]);
    store.refuse(&name("a"), None);
    assert_eq!(store.renew(&batch).await.iter().filter(|reply| reply.is_ok()).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_is_told_and_leaves_old_waiters_dead() {
    let world = world();
    let (holding, waiting) = (MemoryStore::connect(&world), MemoryStore::connect(&world));
    let (holder, waiter, told) = (owner("holder"), owner("waiter"), Told::of(&waiting));
    acquire(&holding, "a", &holder).await.unwrap();
    queue(&waiting, "a", &waiter).await.unwrap();
    waiting.reconnect();
    let freed = release(&holding, "a", &holder).await;
    assert_eq!(freed, Ok(ReleaseReply::Freed { handed_over: false }));
    acquire(&holding, "a", &holder).await.unwrap();
    queue(&waiting, "a", &waiter).await.unwrap();
    let freed = release(&holding, "a", &holder).await;
    assert_eq!(freed, Ok(ReleaseReply::Freed { handed_over: true }));
    assert_eq!(told.kinds(), ["reconnected", "granted"]);
}

#[tokio::test(start_paused = true)]
async fn pushes_can_be_lost_delayed_and_of_unknown_age() {
    let clock = Arc::new(VirtualClock::start());
    let world = MemoryWorld::new(clock.clone());
    let (holding, waiting) = (MemoryStore::connect(&world), MemoryStore::connect(&world));
    let (holder, waiter, told) = (owner("holder"), owner("waiter"), Told::of(&waiting));
    let hand_over = async || {
        acquire(&holding, "a", &holder).await.unwrap();
        queue(&waiting, "a", &waiter).await.unwrap();
        let freed = release(&holding, "a", &holder).await;
        assert_eq!(freed, Ok(ReleaseReply::Freed { handed_over: true }));
        release(&waiting, "a", &waiter).await.unwrap();
    };
    waiting.lose_pushes(true);
    hand_over().await;
    assert_eq!(told.kinds(), Vec::<&str>::new());
    waiting.lose_pushes(false);
    waiting.delay_pushes(SECOND);
    waiting.set_grant_bound(GrantBound::Unknown);
    hand_over().await;
    assert_eq!(told.kinds(), Vec::<&str>::new());
    waiting.set_grant_bound(GrantBound::Age(2 * SECOND));
    let bound = clock.now().before(2 * SECOND);
    hand_over().await;
    pause(2 * SECOND).await;
    assert_eq!(told.bounds(), [None, Some(bound)]);
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_what_is_under_way() {
    let world = world();
    let (store, other, me) = (MemoryStore::connect(&world), MemoryStore::connect(&world), owner("me"));
    store.delay_replies(SECOND);
    let (granted, ()) = tokio::join!(acquire(&store, "a", &me), store.close());
    assert_eq!(granted, Ok(true));
    assert_eq!(acquire(&store, "a", &me).await, Err(ErrorKind::Unavailable));
    assert!(!is_free(&other, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_gets_no_answer_and_no_grant() {
    let world = world();
    let (holding, waiting) = (MemoryStore::connect(&world), MemoryStore::connect(&world));
    let (holder, waiter) = (owner("holder"), owner("waiter"));
    acquire(&holding, "a", &holder).await.unwrap();
    queue(&waiting, "a", &waiter).await.unwrap();
    waiting.kill();
    let freed = release(&holding, "a", &holder).await;
    assert_eq!(freed, Ok(ReleaseReply::Freed { handed_over: false }));
    assert_eq!(acquire(&waiting, "a", &waiter).await, Err(ErrorKind::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_and_recorded_in_order() {
    let (store, me) = (MemoryStore::connect(&world()), owner("me"));
    acquire(&store, "before", &me).await.unwrap();
    store.start_record();
    acquire(&store, "a", &me).await.unwrap();
    let batch = ["a", "before"].map(|job| RenewRequest { name: name(job), owner: me.clone(), ttl: TTL });
    store.renew(&batch).await;
    release(&store, "a", &me).await.unwrap();
    let record = store.recorded();
    let lines: Vec<_> = record.iter().map(|line| (line.operation, line.name.as_str())).collect();
    let expected = [
        (Operation::Acquire, "a"),
        (Operation::Renew, "a"),
        (Operation::Renew, "before"),
        (Operation::Release, "a"),
    ];
    assert_eq!(lines, expected);
    assert!(record.iter().all(|line| line.owner.as_deref() == Some("me")));
    let counts = [Operation::Acquire, Operation::Renew, Operation::List].map(|each| store.requests(each));
    assert_eq!(counts, [2, 1, 0]);
}

/// Trap 59.
#[tokio::test(start_paused = true)]
async fn leases_that_ended_and_are_never_asked_for_again_are_swept() {
    let world = world();
    let (store, me) = (MemoryStore::connect(&world), owner("me"));
    for number in 0..20_000 {
        acquire(&store, &format!("job-{number}"), &me).await.unwrap();
        if number % 100 == 0 {
            pause(TTL).await;
        }
    }
    assert!(world.stored_names() < 1_000, "{} names are kept", world.stored_names());
}

#[tokio::test(start_paused = true)]
async fn a_queue_nobody_refreshes_is_forgotten() {
    let world = world();
    let (store, holder) = (MemoryStore::connect(&world), owner("holder"));
    acquire(&store, "a", &holder).await.unwrap();
    queue(&store, "a", &owner("abandoned")).await.unwrap();
    pause(59 * SECOND).await;
    assert!(!is_free(&store, "a").await, "forgotten too early");
    pause(2 * SECOND).await;
    assert!(is_free(&store, "a").await);
    let freed = acquire(&store, "a", &holder).await;
    assert_eq!(freed, Ok(true));
}

/// Trap 38.
#[tokio::test(start_paused = true)]
async fn used_up_fencing_tokens_stop_grants_but_no_release() {
    let world = world();
    let (store, holder, waiter) = (MemoryStore::connect(&world), owner("holder"), owner("waiter"));
    acquire(&store, "a", &holder).await.unwrap();
    queue(&store, "a", &waiter).await.unwrap();
    world.set_wall_time(Duration::from_micros(1 << 53));
    assert_eq!(acquire(&store, "b", &waiter).await, Err(ErrorKind::Unavailable));
    let freed = release(&store, "a", &holder).await;
    assert_eq!(freed, Ok(ReleaseReply::Freed { handed_over: false }));
    assert!(is_free(&store, "b").await);
}
