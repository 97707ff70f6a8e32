//! Servers that refuse to work, and what users are told about it.

use std::time::Duration;

use leasehold_core::store::{ReleaseReply, RenewReply, Store};
use leasehold_core::{Clock, Error, ErrorKind, SystemClock};
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::support::{Process, SLACK, connect_error, name, owner, run, until};

fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word} is not in: {error}");
    }
}

#[test]
fn trap_36_a_full_server_refuses_new_leases_only() {
    for_each_server("trap_36_a_full_server_refuses_new_leases_only", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let (job, me) = (name("job"), owner("me"));
            process.take(&job, &me).await;
            let waiting = Process::start(&server.url()).await;
            let waiter = owner("waiter");
            waiting.queue(&job, &waiter).await;
            server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
            let error = process.try_acquire(&name("another"), &me).await.unwrap_err();
            assert_says(&error, ErrorKind::Unavailable, &["maxmemory", "OOM"]);
            // A retry by the holder, or by a waiter who was given the lease and polls, is no new lease.
            process.take(&job, &me).await;
            assert_eq!(process.renew(&job, &me).await.unwrap(), RenewReply::Renewed);
            assert_eq!(process.release(&job, &me).await.unwrap(), ReleaseReply::Freed { handed_over: true });
            until("granted", async || waiting.grants(&waiter).len() == 1).await;
            assert_eq!(
                waiting.release(&job, &waiter).await.unwrap(),
                ReleaseReply::Freed { handed_over: false }
            );
        });
    });
}

#[test]
fn trap_72_a_server_without_enough_replicas_refuses_everything_and_says_why() {
    for_each_server("trap_72_a_server_without_enough_replicas_refuses_everything_and_says_why", |server| {
        run(async {
            let process = Process::start(&server.url()).await;
            let (job, me) = (name("job"), owner("me"));
            process.take(&job, &me).await;
            server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();
            for error in [
                process.try_acquire(&name("another"), &me).await.unwrap_err(),
                process.release(&job, &me).await.unwrap_err(),
            ] {
                assert_says(&error, ErrorKind::Unavailable, &["min-replicas-to-write", "NOREPLICAS"]);
            }
            server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
            assert_eq!(process.release(&job, &me).await.unwrap(), ReleaseReply::Freed { handed_over: false });
        });
    });
}

#[test]
fn trap_72_a_server_that_cannot_save_refuses_everything_and_says_why() {
    let server = RedisServer::builder(ServerKind::Redis7)
        .config("save", "3600 1")
        .config("dbfilename", "taken")
        .start()
        .unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        let (job, me) = (name("job"), owner("me"));
        process.take(&job, &me).await;
        // A snapshot to a name that is a folder fails, whoever runs the server.
        std::fs::create_dir(server.folder().join("taken")).unwrap();
        std::fs::write(server.folder().join("taken/file"), "").unwrap();
        server.command(&["BGSAVE"]).unwrap();
        until("the snapshot failed", async || {
            server.info("persistence").unwrap()["rdb_last_bgsave_status"] == "err"
        })
        .await;
        let error = process.release(&job, &me).await.unwrap_err();
        assert_says(&error, ErrorKind::Unavailable, &["stop-writes-on-bgsave-error", "MISCONF"]);
    });
}

#[test]
fn trap_42_a_primary_that_becomes_a_replica_is_left() {
    for_each_server("trap_42_a_primary_that_becomes_a_replica_is_left", |server| {
        run(async {
            let primary = RedisServer::start(server.kind()).unwrap();
            let process = Process::start(&server.url()).await;
            let (job, me) = (name("job"), owner("me"));
            process.take(&job, &me).await;
            let port = primary.port().to_string();
            server.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
            // Reads answer from old data there, so even they must end.
            until("left", async || {
                process.try_acquire(&job, &owner("another")).await.is_err_and(|error| {
                    error.kind() == ErrorKind::Unavailable && error.to_string().contains("replica")
                })
            })
            .await;
            assert_says(&connect_error(&server.url()).await, ErrorKind::Unavailable, &["primary"]);
            server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
            process.until_reconnected(1).await;
            process.take(&name("again"), &me).await;
        });
    });
}

#[test]
fn a_server_busy_with_a_script_of_somebody_else_says_so() {
    let server = RedisServer::builder(ServerKind::Redis7).config("lua-time-limit", "20").start().unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        let port = server.port();
        let busy = std::thread::spawn({
            let mut connection = server.connect().unwrap();
            move || {
                let _ = connection.command(&["EVAL", "while true do end", "0"]);
                port
            }
        });
        let start = SystemClock.now();
        let error = loop {
            assert!(SystemClock.now().since(start) < SLACK, "never busy");
            if let Err(error) = process.try_acquire(&name("job"), &owner("me")).await {
                break error;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_says(&error, ErrorKind::Unavailable, &["SCRIPT KILL", "BUSY"]);
        server.command(&["SCRIPT", "KILL"]).unwrap();
        busy.join().unwrap();
        until("works again", async || process.try_acquire(&name("job-2"), &owner("me")).await.is_ok()).await;
    });
}

#[test]
fn what_is_not_one_server_is_refused_with_the_right_url() {
    run(async {
        let node = RedisServer::builder(ServerKind::Redis7).config("cluster-enabled", "yes").start().unwrap();
        assert_says(&connect_error(&node.url()).await, ErrorKind::Config, &["redis+cluster://"]);
    });
}

#[test]
fn a_database_that_is_not_there_is_named() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let error = connect_error(&format!("{}99", server.url())).await;
        assert_says(&error, ErrorKind::Config, &["database", "/99"]);
    });
}

#[test]
fn a_sentinel_is_refused_with_the_right_url() {
    let Some(program) = ServerKind::Redis7.executable() else { panic!("run scripts/servers") };
    let port = leasehold_testkit::ports::PortLease::take().unwrap();
    let folder = std::env::temp_dir().join(format!("leasehold-sentinel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let settings = folder.join("sentinel.conf");
    std::fs::write(&settings, format!("port {}\nbind 127.0.0.1\n", port.port())).unwrap();
    let mut child = std::process::Command::new(program)
        .arg(&settings)
        .arg("--sentinel")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    run(async {
        let url = format!("redis://127.0.0.1:{}/", port.port());
        until("the Sentinel answers", async || connect_error(&url).await.kind() != ErrorKind::Unavailable)
            .await;
        assert_says(&connect_error(&url).await, ErrorKind::Config, &["redis+sentinel://"]);
    });
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_that_forbids_scripts_names_the_way_out() {
    run(async {
        let renamed = RedisServer::builder(ServerKind::Redis7)
            .config("rename-command", "EVALSHA \"\"")
            .start()
            .unwrap();
        assert_says(&connect_error(&renamed.url()).await, ErrorKind::Config, &["scripting=off", "EVALSHA"]);
        let denied = RedisServer::start(ServerKind::Redis7).unwrap();
        denied.command(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-eval"]).unwrap();
        let url = format!("redis://app:pw@{}/", denied.address());
        assert_says(&connect_error(&url).await, ErrorKind::Denied, &["scripting=off", "EVAL"]);
    });
}

#[test]
fn a_fencing_counter_that_is_no_number_is_foreign_and_stops_no_release() {
    for_each_server("a_fencing_counter_that_is_no_number_is_foreign_and_stops_no_release", |server| {
        run(async {
            let (process, waiting) =
                (Process::start(&server.url()).await, Process::start(&server.url()).await);
            let (job, me) = (name("job"), owner("me"));
            for broken in ["words", "-5", "1.5", "9007199254740991", "1e300", ""] {
                server.command(&["DEL", "lock:~fence"]).unwrap();
                process.take(&job, &me).await;
                waiting.queue(&job, &owner("waiter")).await;
                server.command(&["SET", "lock:~fence", broken]).unwrap();
                let error = process.try_acquire(&name("another"), &me).await.unwrap_err();
                assert_says(&error, ErrorKind::Foreign, &["~fence"]);
                assert_eq!(server.cli(&["EXISTS", "lock:another"]).unwrap(), "0");
                assert_eq!(server.cli(&["GET", "lock:~fence"]).unwrap(), broken, "left untouched");
                process.release(&job, &me).await.unwrap();
                assert_eq!(server.cli(&["EXISTS", "lock:job"]).unwrap(), "0");
            }
            server.command(&["DEL", "lock:~fence"]).unwrap();
            process.take(&job, &me).await;
            waiting.queue(&job, &owner("waiter")).await;
            server.command(&["DEL", "lock:~fence"]).unwrap();
            server.command(&["HSET", "lock:~fence", "a", "b"]).unwrap();
            process.release(&job, &me).await.unwrap();
            assert_eq!(server.cli(&["EXISTS", "lock:job"]).unwrap(), "0");
            let error = process.try_acquire(&name("another"), &me).await.unwrap_err();
            assert_says(&error, ErrorKind::Foreign, &["~fence"]);
            assert_eq!(server.cli(&["TYPE", "lock:~fence"]).unwrap(), "hash", "left untouched");
        });
    });
}

#[test]
fn trap_44_a_wrong_password_is_denied_and_never_shown() {
    let server = RedisServer::builder(ServerKind::Redis7).password("s@cret/#%").start().unwrap();
    run(async {
        let process = Process::start(&server.url()).await;
        process.take(&name("job"), &owner("me")).await;
        assert!(!format!("{:?} {}", process.store, process.store.describe()).contains("cret"));
        for url in [
            format!("redis://:wr0ng-s%40cret@{}/", server.address()),
            format!("redis://nobody:wr0ng-s%40cret@{}/", server.address()),
            format!("redis://{}/", server.address()),
        ] {
            let error = connect_error(&url).await;
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(!format!("{error:?}").contains("cret"), "{error:?}");
        }
        let none = connect_error(&format!("redis://{}/", server.address())).await;
        assert_says(&none, ErrorKind::Denied, &["wants a password", "redis://user:password@host"]);
    });
}
