//! Keys that hold something else: what users are told about it.

use std::sync::Arc;

use leasehold_core::store::{BreakMode, Store};
use leasehold_core::{Client, ClientSettings, ErrorKind};
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::support::{Process, name, owner, run, until};

#[test]
fn trap_46_the_error_says_what_the_key_holds_and_who_wrote_it() {
    for_each_server("trap_46_the_error_says_what_the_key_holds_and_who_wrote_it", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let redisson = "285475da-9152-4c83-822a-67ee2f116a79:52";
            server.command(&["HSET", "lock:redisson", redisson, "1"]).unwrap();
            server.command(&["HSET", "lock:hash", "a", "1"]).unwrap();
            server.command(&["ZADD", "lock:zset", "1", "a"]).unwrap();
            server.command(&["LPUSH", "lock:list", "a"]).unwrap();
            for (job, words) in [
                ("redisson", ["hash", "Redisson"]),
                ("hash", ["hash", "another program"]),
                ("zset", ["zset", "another program"]),
                ("list", ["list", "another program"]),
            ] {
                let error = process.try_acquire(&name(job), &owner("me")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
                for word in words.into_iter().chain([&*format!("lock:{job}")]) {
                    assert!(error.to_string().contains(word), "{word} is not in: {error}");
                }
            }
            let error = process.store.inspect(&name("redisson")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        });
    });
}

#[test]
fn a_queue_or_counter_of_another_type_is_named() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        server.command(&["SET", "lock:~queue:{24d}:order:1001", "x"]).unwrap();
        let error = process.try_acquire(&name("order:1001"), &owner("me")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains("~queue"), "{error}");
        let error = process.store.inspect(&name("order:1001")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains("~queue") && error.to_string().contains("a string"), "{error}");
    });
}

#[test]
fn helper_keys_and_foreign_types_are_not_listed() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        let (job, me) = (name("a"), owner("me"));
        process.take(&job, &me).await;
        process.queue(&job, &owner("waiter")).await;
        server.command(&["HSET", "lock:b", "x", "1"]).unwrap();
        server.command(&["SET", "lock:c", "foreign"]).unwrap();
        server.command(&["SET", "other:d", "x"]).unwrap();
        let listing = process.store.list("", 10).await.unwrap();
        let names: Vec<_> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(listing.entries[0].waiters, ["waiter"]);
        assert!(!listing.more);
        let first = process.store.list("", 1).await.unwrap();
        assert!(first.more && first.entries[0].name == job);
    });
}

#[test]
fn inspection_leaves_out_waiters_whose_process_is_gone() {
    for_each_server("inspection_leaves_out_waiters_whose_process_is_gone", |server| {
        run(async {
            let (live, dead) = (Process::start(&server.url()).await, Process::start(&server.url()).await);
            let (job, holder) = (name("job"), owner("holder"));
            live.take(&job, &holder).await;
            dead.queue(&job, &owner("dead")).await;
            live.queue(&job, &owner("live")).await;
            let waiters = async || live.store.inspect(&job).await.unwrap().unwrap().waiters;
            assert_eq!(waiters().await, ["dead", "live"]);
            dead.store.close().await;
            until("left out", async || waiters().await == ["live"]).await;
        });
    });
}

#[test]
fn an_error_names_the_lock_once_and_as_it_was_written() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let url = server.url();
        let connect = move || {
            let url = url.clone();
            async move { Ok(Arc::new(crate::support::connect(&url).await?) as Arc<dyn Store>) }
        };
        let client = Client::start(ClientSettings::default(), connect).await.unwrap();
        server.command(&["LPUSH", "lock:order:1001", "a"]).unwrap();
        let acquired = client.lock("order:1001").unwrap().try_acquire().await.unwrap_err();
        let inspected = client.inspect("order:1001").await.unwrap_err();
        let broken = client.break_lease("order:1001", BreakMode::Now).await.unwrap_err();
        for said in [acquired, inspected, broken].map(|error| error.to_string()) {
            assert!(said.starts_with("order:1001: the key "), "{said}");
            assert_eq!(said.matches("order:1001").count(), 2, "the name and the key: {said}");
        }
    });
}
