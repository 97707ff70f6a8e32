//! What becomes of a connection: lost, silent, refused, closed; and of what was under way on it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use leasehold_core::store::{AcquireReply, AcquireRequest, QueueRequest, Store};
use leasehold_core::{Clock, ErrorKind, SystemClock};
use leasehold_testkit::proxy::{AfterDrop, Proxy, RequestMatch};
use leasehold_testkit::servers::{Data, RedisServer, ServerKind, for_each_server};

use crate::support::{Process, SLACK, TTL, connect, connect_error, name, owner, run, until};

/// The queue of `job`.
const QUEUE: &str = "lock:~queue:{5ct}:job";

fn start() -> (RedisServer, Proxy) {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    let proxy = Proxy::before(&server).unwrap();
    (server, proxy)
}

#[test]
fn a_lost_connection_is_made_anew_and_the_engine_is_told() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        let (job, me) = (name("job"), owner("me"));
        for times in 1..=3 {
            proxy.cut();
            process.until_reconnected(times).await;
            process.take(&job, &me).await;
        }
        // Nobody listens on the channels of connections that are gone.
        until("one channel", async || {
            let channels = server.command(&["PUBSUB", "CHANNELS", "lock:~wake:*"]).unwrap();
            channels.items().unwrap().len() == 1
        })
        .await;
    });
}

#[test]
fn a_question_that_was_given_up_leaves_no_dead_connection_behind() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        let job = name("job");
        process.store.inspect(&job).await.unwrap();
        proxy.half_open();
        assert!(tokio::time::timeout(Duration::from_millis(300), process.store.inspect(&job)).await.is_err());
        proxy.heal();
        let again = tokio::time::timeout(Duration::from_secs(3), process.store.inspect(&job)).await;
        assert_eq!(again.expect("the dead connection is still used").unwrap(), None);
    });
}

#[test]
fn requests_while_the_server_is_down_are_certainly_not_executed() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        let (job, me) = (name("job"), owner("me"));
        process.take(&job, &me).await;
        proxy.refuse().unwrap();
        proxy.cut();
        until("unavailable", async || {
            process.try_acquire(&job, &me).await.is_err_and(|error| error.kind() == ErrorKind::Unavailable)
        })
        .await;
        let error = process.renew(&job, &me).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("redis://"), "{error}");
        proxy.accept().unwrap();
        process.until_reconnected(1).await;
        process.renew(&job, &me).await.unwrap();
    });
}

#[test]
fn trap_1_a_request_without_a_reply_is_unknown_and_its_retry_succeeds() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        let (job, me) = (name("job"), owner("me"));
        let lost =
            proxy.drop_reply_to(RequestMatch::command("EVALSHA").containing("lock:job"), AfterDrop::Cut);
        // The server has the script.
        let warm_up = Process::start(&server.url()).await;
        let other = (name("other"), owner("other"));
        warm_up.take(&other.0, &other.1).await;
        let error = process.try_acquire(&job, &me).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        lost.wait(SLACK).unwrap();
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), me.expose());
        process.until_reconnected(1).await;
        process.take(&job, &me).await;
    });
}

#[test]
fn a_silent_connection_is_noticed_when_idle() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        proxy.half_open();
        let silent_since = SystemClock.now();
        until("given up", async || proxy.stats().connections_accepted > 1 || process.reconnections() > 0)
            .await;
        assert!(SystemClock.now().since(silent_since) < Duration::from_secs(4) + SLACK);
        proxy.heal();
        process.until_reconnected(1).await;
    });
}

#[test]
fn a_silent_connection_is_noticed_by_requests_that_are_given_up() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        proxy.half_open();
        let (job, me) = (name("job"), owner("me"));
        // As the engine does: a second for each request, then the future is dropped.
        until("given up", async || {
            let asked = tokio::time::timeout(Duration::from_secs(1), process.try_acquire(&job, &me)).await;
            asked.is_ok_and(|reply| reply.is_err_and(|error| error.kind() != ErrorKind::Busy))
        })
        .await;
        proxy.heal();
        process.until_reconnected(1).await;
        process.take(&job, &me).await;
    });
}

#[test]
fn a_frozen_server_does_not_block_anybody_for_ever() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        server.freeze().unwrap();
        let error = process.try_acquire(&name("job"), &owner("me")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        server.thaw().unwrap();
        process.until_reconnected(1).await;
    });
}

#[test]
fn trap_3_a_request_that_arrives_late_does_nothing() {
    let (server, proxy) = start();
    run(async {
        let process = Process::start(&server.url_through(&proxy)).await;
        let (job, me) = (name("job"), owner("me"));
        // Makes the server keep the script.
        process.take(&name("another"), &me).await;
        let held = proxy.hold_next_request(RequestMatch::any().containing("lock:job"));
        let request = AcquireRequest {
            name: &job,
            owner: &me,
            ttl: TTL,
            queue: None,
            not_after: SystemClock.now().after(Duration::from_millis(300)),
        };
        assert!(
            tokio::time::timeout(Duration::from_millis(400), process.store.acquire(request)).await.is_err()
        );
        assert!(held.is_held());
        held.deliver(SLACK).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(server.cli(&["EXISTS", "lock:job"]).unwrap(), "0");
    });
}

#[test]
fn waiters_of_a_lost_connection_keep_their_place_on_the_next() {
    for_each_server("waiters_of_a_lost_connection_keep_their_place_on_the_next", |server| {
        let proxy = Proxy::before(server).unwrap();
        run(async {
            let holding = Process::start(&server.url()).await;
            let moving = Process::start(&server.url_through(&proxy)).await;
            let staying = Process::start(&server.url()).await;
            let (job, holder, first, second) =
                (name("job"), owner("holder"), owner("first"), owner("second"));
            holding.take(&job, &holder).await;
            let ticket = moving.queue(&job, &first).await.place.unwrap().ticket;
            staying.queue(&job, &second).await;
            proxy.cut();
            moving.until_reconnected(1).await;
            let queue = QueueRequest { ticket: Some(ticket), poll_interval: Duration::from_secs(1) };
            let AcquireReply::Held(held) = moving.ask(&job, &first, TTL, Some(queue)).await.unwrap() else {
                panic!("granted");
            };
            assert!(held.place.unwrap().first);
            holding.release(&job, &holder).await.unwrap();
            until("granted", async || moving.grants(&first).len() == 1).await;
            moving.release(&job, &first).await.unwrap();
            until("granted", async || staying.grants(&second).len() == 1).await;
        });
    });
}

#[test]
fn a_waiter_whose_first_reply_was_lost_keeps_its_place() {
    let (server, proxy) = start();
    run(async {
        let holding = Process::start(&server.url()).await;
        let moving = Process::start(&server.url_through(&proxy)).await;
        let staying = Process::start(&server.url()).await;
        let (job, holder, first, second) = (name("job"), owner("holder"), owner("first"), owner("second"));
        holding.take(&job, &holder).await;
        let lost = proxy.drop_reply_to(RequestMatch::any().containing("lock:job"), AfterDrop::Cut);
        let queue = Some(QueueRequest { ticket: None, poll_interval: Duration::from_secs(1) });
        let error = moving.ask(&job, &first, TTL, queue).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        lost.wait(SLACK).unwrap();
        staying.queue(&job, &second).await;
        moving.until_reconnected(1).await;
        assert!(moving.queue(&job, &first).await.place.unwrap().first);
        assert_eq!(server.cli(&["ZCARD", QUEUE]).unwrap(), "2", "its first entry is gone");
    });
}

#[test]
fn a_withdrawal_takes_the_entries_of_every_connection_along() {
    let (server, proxy) = start();
    run(async {
        let holding = Process::start(&server.url()).await;
        let moving = Process::start(&server.url_through(&proxy)).await;
        let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
        holding.take(&job, &holder).await;
        moving.queue(&job, &waiter).await;
        for times in 1..=2 {
            proxy.cut();
            moving.until_reconnected(times).await;
        }
        assert_eq!(server.cli(&["ZCARD", QUEUE]).unwrap(), "1");
        moving.release(&job, &waiter).await.unwrap();
        assert_eq!(server.cli(&["EXISTS", QUEUE]).unwrap(), "0");
    });
}

#[test]
fn the_next_waiter_is_told_when_the_first_finds_its_own_grant() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let (one, other) = (Process::start(&server.url()).await, Process::start(&server.url()).await);
        let (job, first, second) = (name("job"), owner("first"), owner("second"));
        let holder = owner("holder");
        one.take(&job, &holder).await;
        one.queue(&job, &first).await;
        other.queue(&job, &second).await;
        // Its entry stays at the head although it has the lease: as after a request that was executed twice.
        server.command(&["SET", "lock:job", first.expose(), "PX", "30000"]).unwrap();
        let queue = Some(QueueRequest { ticket: None, poll_interval: Duration::from_secs(1) });
        let reply = one.ask(&job, &first, TTL, queue).await.unwrap();
        assert!(matches!(reply, AcquireReply::Granted { .. }), "{reply:?}");
        until("told", async || other.is_first(&second)).await;
    });
}

#[test]
fn a_restarted_server_without_data_is_used_again() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        let (job, me) = (name("job"), owner("me"));
        let before = process.take(&job, &me).await;
        server.restart(Data::Lose).unwrap();
        process.until_reconnected(1).await;
        // Trap 37: the counter is gone, the clock is not.
        assert!(process.take(&job, &owner("another")).await > before);
    });
}

#[test]
fn operations_are_polled_outside_of_any_runtime() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let process = Arc::new(runtime.block_on(Process::start(&server.url())));
    let outside = std::thread::spawn({
        let process = Arc::clone(&process);
        move || {
            let (job, me) = (name("job"), owner("me"));
            block_on(process.take(&job, &me));
            block_on(process.renew(&job, &me)).unwrap();
            assert!(block_on(process.store.inspect(&job)).unwrap().is_some());
            assert_eq!(block_on(process.store.list("", 10)).unwrap().entries.len(), 1);
            assert!(!block_on(process.store.diagnose()).unwrap().is_empty());
            block_on(process.release(&job, &me)).unwrap();
            block_on(process.store.close());
        }
    });
    outside.join().unwrap();
}

#[test]
fn a_store_whose_runtime_is_gone_is_unavailable() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let process = runtime.block_on(Process::start(&server.url()));
    runtime.shutdown_timeout(SLACK);
    let error = block_on(process.try_acquire(&name("job"), &owner("me"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(block_on(process.store.list("", 1)).unwrap_err().kind(), ErrorKind::Unavailable);
    block_on(process.store.close());
}

#[test]
fn a_closed_store_leaves_no_connection() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        process.store.list("", 1).await.unwrap();
        process.store.close().await;
        let error = process.try_acquire(&name("job"), &owner("me")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("closed"), "{error}");
        assert_eq!(process.store.list("", 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let dropped = Process::start(&server.url()).await;
        drop(dropped);
        until("no connection but the question's own", async || {
            server.info("clients").unwrap()["connected_clients"] == "1"
        })
        .await;
    });
}

#[test]
fn a_unix_socket_and_another_database_work() {
    let server = RedisServer::builder(ServerKind::Redis7).unix_socket().start().unwrap();
    run(async {
        let path = server.unix_socket().unwrap();
        let process = Process::start(&format!("redis+unix://{}?db=3", path.display())).await;
        process.take(&name("job"), &owner("me")).await;
        assert!(server.info("keyspace").unwrap().contains_key("db3"));
    });
}

#[test]
fn a_server_that_is_not_there_is_unavailable_at_once() {
    run(async {
        let port = leasehold_testkit::ports::PortLease::take().unwrap();
        let error = connect_error(&format!("redis://127.0.0.1:{}/", port.port())).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = connect_error("redis+unix:///no/such/socket").await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn something_that_never_answers_is_unavailable_within_the_limit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    run(async {
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let asked = tokio::time::timeout(SLACK, connect(&url)).await.unwrap();
        assert_eq!(asked.err().unwrap().kind(), ErrorKind::Unavailable);
    });
}

/// Drives a future with nothing but this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
