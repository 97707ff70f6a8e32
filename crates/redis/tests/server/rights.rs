//! Users with few rights: what is enough, and what is said about what is missing.

use leasehold_core::store::{BreakMode, ReleaseReply, RenewReply, RenewRequest, Store};
use leasehold_core::{ErrorKind, Label, Namespace};
use leasehold_redis::smallest_acl;
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

use crate::support::{Process, TTL, connect_error, name, owner, run, until};

/// Gives a user the rights that `doctor --acl` prints, and some changes to them.
fn set_user(server: &RedisServer, changes: &[&str]) -> String {
    let rules = smallest_acl(&Namespace::default());
    let mut words = vec!["ACL", "SETUSER", "locks", "on", ">PASSWORD"];
    words.extend(rules.split(' ').chain(changes.iter().copied()));
    let reply = server.command(&words).unwrap();
    assert!(!reply.is_error(), "{reply:?}");
    format!("redis://locks:PASSWORD@{}/", server.address())
}

#[test]
fn trap_45_the_rights_we_name_are_enough_and_nothing_else_is_tried() {
    for_each_server("trap_45_the_rights_we_name_are_enough_and_nothing_else_is_tried", |server| {
        run(async {
            let url = set_user(server, &[]);
            let (holding, waiting) = (Process::start(&url).await, Process::start(&url).await);
            let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
            holding.take(&job, &holder).await;
            assert!(waiting.queue(&job, &waiter).await.place.unwrap().pushed);
            holding.renew(&job, &holder).await.unwrap();
            assert_eq!(
                holding.release(&job, &holder).await.unwrap(),
                ReleaseReply::Freed { handed_over: true }
            );
            until("granted", async || waiting.grants(&waiter).len() == 1).await;
            assert_eq!(waiting.store.list("", 10).await.unwrap().entries.len(), 1);
            assert!(waiting.store.inspect(&job).await.unwrap().is_some());
            let by = Label::new("ops").unwrap();
            waiting.store.break_lease(&job, BreakMode::Now, &by).await.unwrap();
            assert_eq!(server.command(&["ACL", "LOG"]).unwrap(), RespValue::Array(Vec::new()));
        });
    });
}

#[test]
fn trap_45_a_missing_right_is_named_when_connecting() {
    for_each_server("trap_45_a_missing_right_is_named_when_connecting", |server| {
        run(async {
            for command in [
                "time", "eval", "evalsha", "get", "set", "del", "exists", "pttl", "pexpire", "zadd", "zrem",
                "zrange", "zrank", "zscore",
            ] {
                let url = set_user(server, &[&format!("-{command}")]);
                server.command(&["SCRIPT", "FLUSH"]).unwrap();
                let error = connect_error(&url).await;
                assert_eq!(error.kind(), ErrorKind::Denied, "{command}: {error}");
                let message = error.to_string().to_lowercase();
                assert!(message.contains(command), "{command} is not in: {message}");
            }
            let url = set_user(server, &["resetkeys", "~other:*"]);
            let error = connect_error(&url).await;
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains("~lock:*"), "{error}");
        });
    });
}

#[test]
fn trap_45_without_channels_release_works_and_waiters_poll() {
    for_each_server("trap_45_without_channels_release_works_and_waiters_poll", |server| {
        run(async {
            for missing in ["resetchannels", "-subscribe"] {
                let url = set_user(server, &[missing]);
                let (holding, waiting) = (Process::start(&url).await, Process::start(&url).await);
                let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
                holding.take(&job, &holder).await;
                assert!(!waiting.store.capabilities().push);
                assert!(!waiting.queue(&job, &waiter).await.place.unwrap().pushed);
                assert_eq!(
                    holding.release(&job, &holder).await.unwrap(),
                    ReleaseReply::Freed { handed_over: true }
                );
                waiting.take(&job, &waiter).await;
                waiting.release(&job, &waiter).await.unwrap();
            }
        });
    });
}

#[test]
fn a_releaser_who_may_not_publish_deletes() {
    for_each_server("a_releaser_who_may_not_publish_deletes", |server| {
        run(async {
            for missing in ["-publish", "-pubsub"] {
                let url = set_user(server, &[missing]);
                let (holding, waiting) = (Process::start(&url).await, Process::start(&server.url()).await);
                let (job, holder, waiter) = (name("job"), owner("holder"), owner("waiter"));
                holding.take(&job, &holder).await;
                assert!(waiting.queue(&job, &waiter).await.place.unwrap().pushed);
                assert_eq!(
                    holding.release(&job, &holder).await.unwrap(),
                    ReleaseReply::Freed { handed_over: false },
                    "{missing}"
                );
                assert_eq!(server.cli(&["EXISTS", "lock:job"]).unwrap(), "0");
                assert!(waiting.grants(&waiter).is_empty());
                waiting.take(&job, &waiter).await;
                waiting.release(&job, &waiter).await.unwrap();
            }
        });
    });
}

#[test]
fn a_right_that_is_taken_away_later_is_named() {
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    run(async {
        let url = set_user(&server, &[]);
        let process = Process::start(&url).await;
        let (job, me) = (name("job"), owner("me"));
        process.take(&job, &me).await;
        set_user(&server, &["-set"]);
        let error = process.try_acquire(&name("another"), &me).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("SET"), "{error}");
        process.release(&job, &me).await.unwrap();
        set_user(&server, &["resetkeys", "~lock:~*"]);
        let error = process.try_acquire(&job, &me).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("key"), "{error}");
    });
}

#[test]
fn trap_16_a_lease_whose_key_is_denied_spoils_no_other_of_its_batch() {
    for_each_server("trap_16_a_lease_whose_key_is_denied_spoils_no_other_of_its_batch", |server| {
        run(async {
            let process = Process::start(&set_user(server, &[])).await;
            let me = owner("me");
            let jobs = [name("a1"), name("b"), name("a2")];
            for job in &jobs {
                process.take(job, &me).await;
            }
            set_user(server, &["resetkeys", "~lock:a*", "~lock:~*"]);
            let requests: Vec<_> = jobs
                .iter()
                .map(|job| RenewRequest { name: job.clone(), owner: me.clone(), ttl: TTL })
                .collect();
            let replies = process.store.renew(&requests).await;
            let [Ok(RenewReply::Renewed), Err(error), Ok(RenewReply::Renewed)] = replies.as_slice() else {
                panic!("{replies:?}");
            };
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        });
    });
}
