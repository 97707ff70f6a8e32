//! Resources in Redis or Valkey itself: the script, on real servers and in a cluster.

use leasehold_seal::redis::{SCRIPT, guard_key};
use leasehold_testkit::resp::RespValue;
use leasehold_testkit::servers::{RedisServer, ServerKind, for_each_server};

fn guarded(
    server: &RedisServer,
    key: &str,
    fence: &str,
    owner: &str,
    command: &[&str],
) -> Result<String, String> {
    guarded_in(server, key, fence, owner, "lock:", command)
}

fn guarded_in(
    server: &RedisServer,
    key: &str,
    fence: &str,
    owner: &str,
    namespace: &str,
    command: &[&str],
) -> Result<String, String> {
    let guard = guard_key(key).unwrap();
    let mut arguments = vec!["EVAL", SCRIPT, "2", key, &guard, fence, owner, namespace];
    arguments.extend(command);
    match server.command(&arguments).unwrap() {
        RespValue::Error(message) => Err(message),
        RespValue::Null => Ok(String::new()),
        reply => Ok(reply.text().unwrap_or_else(|| format!("{reply:?}"))),
    }
}

/// F073: What is kept in Redis itself can be sealed too: a stale holder neither reads nor writes it.
#[test]
fn f073_a_stale_holder_neither_reads_nor_writes_what_is_kept_in_redis() {
    for_each_server("f073_a_stale_holder_neither_reads_nor_writes", |server| {
        server.cli(&["SET", "stock:7", "10"]).unwrap();
        // The schedule that loses an update with a check on write only: 33 reads, 34 reads, 33 writes, 34 writes.
        assert_eq!(guarded(server, "stock:7", "33", "a", &["GET"]).unwrap(), "10");
        assert_eq!(guarded(server, "stock:7", "34", "b", &["GET"]).unwrap(), "10");
        let refused = guarded(server, "stock:7", "33", "a", &["SET", "9"]).unwrap_err();
        assert_eq!(refused, "LEASEHOLDFENCED mine=33 newest=34");
        assert_eq!(guarded(server, "stock:7", "34", "b", &["SET", "9"]).unwrap(), "OK");
        assert_eq!(server.cli(&["GET", "stock:7"]).unwrap(), "9");
        // Any command of one key, and a holder may write as often as it likes.
        assert_eq!(guarded(server, "stock:7", "34", "b", &["INCRBY", "3"]).unwrap(), "12");
        assert!(
            guarded(server, "stock:7", "34", "somebody", &["INCRBY", "3"]).is_err(),
            "not the same owner"
        );
        assert!(guarded(server, "stock:7", "33", "a", &["DEL"]).is_err());
        assert_eq!(server.cli(&["GET", "stock:7"]).unwrap(), "12");
    });
}

#[test]
fn what_cannot_be_used_changes_nothing() {
    for_each_server("what_cannot_be_used_changes_nothing", |server| {
        for keys in [&["0"][..], &["1", "stock:7"], &["2", "stock:7", "stock:7"]] {
            let arguments = [&["EVAL", SCRIPT], keys, &["34", "a", "lock:", "SET", "9"]].concat();
            let RespValue::Error(refused) = server.command(&arguments).unwrap() else { panic!("{keys:?}") };
            assert!(refused.starts_with("LEASEHOLDARGUMENT"), "{keys:?}: {refused}");
        }
        for fence in
            ["", "0", "-1", "1.5", "1e3", "0x1f", "9007199254740992", "99999999999999999999", " 34", "034"]
        {
            let refused = guarded(server, "stock:7", fence, "a", &["SET", "9"]).unwrap_err();
            assert!(refused.starts_with("LEASEHOLDARGUMENT"), "{fence}: {refused}");
        }
        assert!(guarded(server, "stock:7", "34", "", &["SET", "9"]).is_err());
        assert!(guarded(server, "stock:7", "34", "a", &[]).is_err());
        assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "0");
        assert_eq!(guarded(server, "stock:7", "9007199254740990", "a", &["SET", "9"]).unwrap(), "OK");
        assert!(guarded(server, "stock:7", "9007199254740989", "a", &["SET", "8"]).is_err());
        assert_eq!(guarded(server, "stock:7", "9007199254740991", "b", &["SET", "7"]).unwrap(), "OK");
        let refused = guarded_in(server, "stock:7", "34", "a", "billing:", &["SET", "6"]).unwrap_err();
        assert_eq!(refused, "LEASEHOLDNAMESPACE sealed_under=lock:");
        // A guard that is something else is left as it is, and so is the key.
        server.cli(&["SET", "guard:{stock:8}", "mine"]).unwrap();
        assert!(guarded(server, "stock:8", "34", "a", &["SET", "9"]).unwrap_err().contains("WRONGTYPE"));
        assert_eq!(server.cli(&["EXISTS", "stock:8"]).unwrap(), "0");
        // An error of the command itself is passed on.
        assert!(
            guarded(server, "stock:7", "9007199254740991", "b", &["LPUSH", "x"])
                .unwrap_err()
                .contains("WRONGTYPE")
        );
    });
}

#[test]
fn key_and_guard_are_in_one_slot_of_a_cluster() {
    for_each_server("key_and_guard_are_in_one_slot_of_a_cluster", |server| {
        let node = RedisServer::builder(server.kind()).config("cluster-enabled", "yes").start().unwrap();
        node.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !node.cli(&["CLUSTER", "INFO"]).unwrap().contains("cluster_state:ok") {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        for key in ["stock:7", "{cart:7}:items", "a{b}c{d}", "{a}{b}"] {
            let slot = |key: &str| node.cli(&["CLUSTER", "KEYSLOT", key]).unwrap();
            assert_eq!(slot(key), slot(&guard_key(key).unwrap()), "{key}");
            assert_eq!(guarded(&node, key, "34", "b", &["SET", "1"]).unwrap(), "OK");
            assert!(guarded(&node, key, "33", "a", &["SET", "2"]).is_err());
        }
    });
}

#[test]
fn without_the_comparison_the_stale_write_is_there() {
    if !leasehold_testkit::servers::available().contains(&ServerKind::Redis7) {
        return;
    }
    let part = "not (newest < mine or (newest == mine and seen[2] == owner))";
    assert!(SCRIPT.contains(part));
    let weakened = SCRIPT.replace(part, "false");
    let server = RedisServer::start(ServerKind::Redis7).unwrap();
    for (fence, owner) in [("34", "b"), ("33", "a")] {
        let arguments = ["EVAL", &weakened, "2", "k", "guard:{k}", fence, owner, "lock:", "SET", fence];
        assert_eq!(server.cli(&arguments).unwrap(), "OK");
    }
    assert_eq!(server.cli(&["GET", "k"]).unwrap(), "33");
}
