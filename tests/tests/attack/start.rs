//! A server that is not there when a client is started: one that comes in time, and one that does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, ErrorKind};
use leasehold_testkit::ports::PortLease;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{Data, RedisServer};

use crate::support::{free, run, run_on_each_server, take, until};

const TTL: Duration = Duration::from_secs(60);
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// How much later than asked a busy machine may let somebody go on.
const LATE: Duration = Duration::from_secs(2);

async fn start(url: &str) -> (Duration, Result<Client, Error>) {
    let started = Instant::now();
    let client = Client::builder().store_timeout(STORE_TIMEOUT).connect(url).await;
    (started.elapsed(), client)
}

fn assert_unavailable(took: Duration, started: Result<Client, Error>, server: &str) {
    let error = started.unwrap_err();
    println!("after {took:?}: {error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(server), "{error}");
    assert!(took + Duration::from_millis(2) >= STORE_TIMEOUT, "gave up early: {took:?}");
    assert!(took < STORE_TIMEOUT + LATE, "{took:?}");
}

#[test]
fn a_server_that_comes_within_the_time_of_the_store_is_used() {
    run_on_each_server("a_server_that_comes_within_the_time", async |server| {
        // Early, and at the last moment.
        for after in
            [Duration::from_millis(500), STORE_TIMEOUT.checked_sub(Duration::from_millis(400)).unwrap()]
        {
            for silent in [false, true] {
                let proxy = Proxy::before(server).unwrap();
                if silent {
                    proxy.stall();
                } else {
                    proxy.refuse().unwrap();
                }
                let url = server.url_through(&proxy);
                let starting = tokio::spawn(async move { start(&url).await });
                tokio::time::sleep(after).await;
                assert!(!starting.is_finished());
                proxy.resume();
                proxy.accept().unwrap();
                let (took, client) = starting.await.unwrap();
                println!("{}: there after {after:?}, connected after {took:?}", server.kind());
                free(take(&client.unwrap(), "job", TTL).await).await;
            }
        }
    });
}

#[test]
fn a_server_that_does_not_come_in_time_is_unavailable_to_the_letter() {
    run(async {
        // Nobody listens.
        let port = PortLease::take().unwrap();
        let address = port.address().to_string();
        let nobody = async {
            let (took, client) = start(&format!("redis://{address}/")).await;
            assert_unavailable(took, client, &address);
        };
        // Somebody listens and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent_address = silent.local_addr().unwrap().to_string();
        let silence = async {
            let (took, client) = start(&format!("redis://{silent_address}/")).await;
            assert_unavailable(took, client, &silent_address);
        };
        tokio::join!(nobody, silence);
    });
}

#[test]
fn a_server_that_is_still_loading_is_waited_for() {
    run_on_each_server("a_server_that_is_still_loading", async |server| {
        let settings = RedisServer::builder(server.kind()).append_only().config("key-load-delay", "150");
        let loading = Arc::new(settings.start().unwrap());
        loading.command(&["DEBUG", "POPULATE", "10000"]).unwrap();
        loading.command(&["BGREWRITEAOF"]).unwrap();
        until("rewritten", || {
            let info = loading.info("persistence").unwrap();
            info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
        })
        .await;
        loading.kill().unwrap();
        let (started, restarting) = (Instant::now(), Arc::clone(&loading));
        let restarting = tokio::task::spawn_blocking(move || restarting.restart(Data::Keep).unwrap());
        let client = Client::connect(&loading.url()).await.unwrap();
        println!("{}: connected after {:?}", server.kind(), started.elapsed());
        assert!(started.elapsed() > Duration::from_secs(1), "it did not have to load for long enough");
        restarting.await.unwrap();
        free(take(&client, "job", TTL).await).await;
    });
}
