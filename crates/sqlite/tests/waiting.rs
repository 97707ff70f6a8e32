//! Waiting for the file and in the queue: nobody blocks an executor, polls only read, silence is death.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::{POLL, SLACK, TTL, World, ask, name, open, owner, queued, release, renew, take};
use leasehold_core::blocking::block_on;
use leasehold_core::store::{
    AcquireReply, AcquireRequest, Holder, QueueRequest, ReleaseReply, RenewReply, Ticket,
};
use leasehold_core::{Clock, ErrorKind, Moment, Store, SystemClock};
use leasehold_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

/// Another program in a transaction that writes.
struct Blocker(Connection);

impl Blocker {
    fn start(path: &std::path::Path) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.busy_timeout(SLACK).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE; UPDATE fence SET last = last").unwrap();
        Self(connection)
    }

    fn end(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn while_the_file_is_busy_an_operation_waits_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let (job, mine) = (name("job"), owner("mine"));
    take(&store, &job, &mine);
    release(&store, &job, &mine).unwrap();
    let blocker = Blocker::start(&path);
    let started = Instant::now();
    let request =
        AcquireRequest { name: &job, owner: &mine, ttl: TTL, queue: None, not_after: Moment::NEVER };
    let mut acquire = store.acquire(request);
    assert!(poll_once(&mut acquire).is_pending());
    assert!(started.elapsed() < Duration::from_millis(500), "the poll itself took {:?}", started.elapsed());
    std::thread::sleep(Duration::from_millis(100));
    assert!(poll_once(&mut acquire).is_pending());
    blocker.end();
    assert!(matches!(block_on(acquire), Ok(AcquireReply::Granted { .. })));
}

#[test]
fn a_file_that_stays_busy_is_unavailable_and_nothing_was_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let command_timeout = Duration::from_millis(300);
    let store =
        SqliteStore::open(&path, SqliteOptions { command_timeout, ..SqliteOptions::default() }).unwrap();
    let (job, mine) = (name("job"), owner("mine"));
    let blocker = Blocker::start(&path);
    let started = Instant::now();
    let error = ask(&store, &job, &mine).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("locked for too long"), "{error}");
    assert!(started.elapsed() >= command_timeout && started.elapsed() < command_timeout + SLACK);
    blocker.end();
    assert_eq!(block_on(store.inspect(&job)).unwrap(), None);
}

/// Trap 3.
#[test]
fn a_request_whose_time_passes_while_it_waits_for_the_file_does_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let (job, mine) = (name("job"), owner("mine"));
    let blocker = Blocker::start(&path);
    let not_after = SystemClock.now().after(Duration::from_millis(50));
    let request = AcquireRequest { name: &job, owner: &mine, ttl: TTL, queue: None, not_after };
    let mut acquire = store.acquire(request);
    assert!(poll_once(&mut acquire).is_pending());
    std::thread::sleep(Duration::from_millis(100));
    blocker.end();
    assert_eq!(block_on(acquire).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(block_on(store.inspect(&job)).unwrap(), None);
}

#[test]
fn operations_that_wait_are_done_in_order_and_before_the_store_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let (job, mine) = (name("job"), owner("mine"));
    let blocker = Blocker::start(&path);
    let request =
        AcquireRequest { name: &job, owner: &mine, ttl: TTL, queue: None, not_after: Moment::NEVER };
    let mut acquire = store.acquire(request);
    assert!(poll_once(&mut acquire).is_pending());
    let requests = [leasehold_core::store::RenewRequest { name: job.clone(), owner: mine.clone(), ttl: TTL }];
    let mut renewal = store.renew(&requests);
    assert!(poll_once(&mut renewal).is_pending());
    let mut close = store.close();
    assert!(poll_once(&mut close).is_pending());
    blocker.end();
    block_on(close);
    assert!(matches!(block_on(acquire), Ok(AcquireReply::Granted { .. })));
    assert_eq!(block_on(renewal).remove(0).unwrap(), RenewReply::Renewed);
    assert_eq!(renew(&store, &job, &mine).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(matches!(ask(&open(&path), &job, &owner("other")), Ok(AcquireReply::Held(_))));
}

/// Trap 2: an abandoned acquire is not overtaken by its own clean-up.
#[test]
fn a_release_does_not_overtake_an_acquire_that_waits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let (job, mine) = (name("job"), owner("mine"));
    for _ in 0..100 {
        let blocker = Blocker::start(&path);
        let request =
            AcquireRequest { name: &job, owner: &mine, ttl: TTL, queue: None, not_after: Moment::NEVER };
        let mut acquire = store.acquire(request);
        assert!(poll_once(&mut acquire).is_pending());
        blocker.end();
        assert_eq!(release(&store, &job, &mine).unwrap(), ReleaseReply::Freed { handed_over: false });
        assert!(matches!(block_on(acquire), Ok(AcquireReply::Granted { .. })));
    }
}

#[test]
fn many_threads_of_one_store_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("locks.db"));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let (job, mine) = (name(&format!("job-{thread}")), owner("mine"));
                for _ in 0..300 {
                    take(store, &job, &mine);
                    assert_eq!(
                        release(store, &job, &mine).unwrap(),
                        ReleaseReply::Freed { handed_over: false }
                    );
                }
            });
        }
    });
    assert!(block_on(store.list("", 10)).unwrap().entries.is_empty());
}

#[test]
fn a_poll_that_finds_nothing_changed_only_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let (job, waiter) = (name("job"), owner("waiter"));
    take(&store, &job, &owner("holder"));
    let place = queued(&store, &job, &waiter, None).place.unwrap();
    // Nobody can write now, so what is answered at once has written nothing.
    let blocker = Blocker::start(&path);
    let queue = Some(QueueRequest { ticket: Some(place.ticket), poll_interval: POLL });
    let request = AcquireRequest { name: &job, owner: &waiter, ttl: TTL, queue, not_after: Moment::NEVER };
    let mut asked = pin!(store.acquire(request));
    let Poll::Ready(Ok(AcquireReply::Held(held))) = poll_once(&mut asked) else {
        panic!("it wanted to write")
    };
    assert_eq!(held.place, Some(place));
    assert!(place.first && !place.pushed);
    assert_eq!(held.holder, Holder::Lease { label: "holder".into() });
    blocker.end();
}

#[test]
fn a_waiter_lives_as_long_as_it_polls() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new("boot", Duration::from_secs(100), Duration::from_secs(1_800_000_000));
    let store = world.open(&directory.path().join("locks.db"));
    let (job, holder, silent, polling) = (name("job"), owner("holder"), owner("silent"), owner("polling"));
    take(&store, &job, &holder);
    queued(&store, &job, &silent, None);
    let place = queued(&store, &job, &polling, None).place.unwrap();
    assert!(!place.first);
    // As late as the contract lets it be with each of them.
    let mut first = false;
    for _ in 0..400 {
        world.pass(POLL);
        let waiters = block_on(store.inspect(&job)).unwrap().unwrap().waiters;
        assert!(waiters.contains(&"polling".to_owned()), "{waiters:?}");
        first = queued(&store, &job, &polling, Some(place.ticket)).place.unwrap().first;
        assert_eq!(renew(&store, &job, &holder).unwrap(), RenewReply::Renewed);
    }
    assert!(first, "the silent one still counts as alive");
    assert_eq!(release(&store, &job, &holder).unwrap(), ReleaseReply::Freed { handed_over: true });
    let holder = block_on(store.inspect(&job)).unwrap().unwrap();
    assert_eq!(holder.holder, Some(Holder::Lease { label: "polling".into() }));
    assert!(holder.remaining.unwrap() >= 2 * POLL);
}

#[test]
fn a_silent_waiter_that_comes_back_has_its_old_place() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::new("boot", Duration::from_secs(100), Duration::from_secs(1_800_000_000));
    let store = world.open(&directory.path().join("locks.db"));
    let (job, holder, silent, other) = (name("job"), owner("holder"), owner("silent"), owner("other"));
    take(&store, &job, &holder);
    let early = queued(&store, &job, &silent, None).place.unwrap();
    world.pass(Duration::from_secs(5));
    let late = queued(&store, &job, &other, None).place.unwrap();
    assert!(late.first);
    assert!(queued(&store, &job, &silent, Some(early.ticket)).place.unwrap().first);
    assert!(!queued(&store, &job, &other, Some(late.ticket)).place.unwrap().first);
}

#[test]
fn a_ticket_from_the_future_is_of_no_use() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("locks.db"));
    let (job, early, late) = (name("job"), owner("early"), owner("late"));
    take(&store, &job, &owner("holder"));
    let place = queued(&store, &job, &early, Some(Ticket(u64::MAX))).place.unwrap();
    std::thread::sleep(Duration::from_millis(1));
    let behind = queued(&store, &job, &late, None).place.unwrap();
    assert!(place.first && !behind.first && place.ticket < behind.ticket, "{place:?}, {behind:?}");
}
