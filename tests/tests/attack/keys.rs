//! What is in the keys on real servers: nothing per name that was used once, the owner token byte for byte, and never
//! the key of somebody else.

use std::time::Duration;

use leasehold::{Attempt, Client, Label, LostCause, OwnerToken, Released};
use leasehold_testkit::proxy::{Proxy, RequestMatch};

use crate::support::{
    SLACK, connect, free, guard, keys, pttl, run_on_each_server, take, until, until_nothing_is_left,
};

const TTL: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// F030: One fencing counter serves all names, and when it is deleted the next token is still larger than every
/// one before.
#[test]
fn f030_thousands_of_names_leave_one_counter_and_a_lost_counter_never_goes_back() {
    const NAMES: usize = 3_000;
    run_on_each_server("f030_thousands_of_names_leave_one_counter", async |server| {
        let client = connect(&server.url(), "a").await;
        let visits: Vec<_> = (0..NAMES)
            .map(|number| {
                let lock = client.lock(format!("order:{number}")).unwrap();
                tokio::spawn(async move {
                    let held = guard(lock.try_acquire().await);
                    let token = held.fencing_token();
                    free(held).await;
                    token
                })
            })
            .collect();
        let mut newest = None;
        for visit in visits {
            newest = newest.max(Some(visit.await.unwrap()));
        }
        assert_eq!(keys(server).into_iter().collect::<Vec<_>>(), ["lock:~fence"]);
        // Evicted or deleted, as often as anybody likes, also while the name is held.
        for _ in 0..20 {
            server.command(&["DEL", "lock:~fence"]).unwrap();
            let held = take(&client, "order:0", LONG).await;
            assert!(Some(held.fencing_token()) > newest, "a token went back");
            newest = Some(held.fencing_token());
            server.command(&["DEL", "lock:~fence"]).unwrap();
            held.renew().await.unwrap();
            free(held).await;
        }
        until_nothing_is_left(server).await;
    });
}

/// F052: A release compares and deletes in one step, so one that comes late leaves the next owner's key alone.
#[test]
fn f052_a_release_that_comes_late_leaves_the_next_owner_alone() {
    run_on_each_server("f052_a_release_that_comes_late", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let late = connect(&server.url_through(&proxy), "late").await;
        let next = connect(&server.url(), "next").await;
        for attempt in 0..3 {
            let held = guard(late.lock("job").unwrap().ttl(TTL).fixed_lease().try_acquire().await);
            let release = proxy.hold_next_request(RequestMatch::command("EVALSHA").containing("lock:job"));
            let releasing = tokio::spawn(held.release());
            until("the release is on its way", || release.is_held()).await;
            until("the lease has ended", || pttl(server, "job") == -2).await;
            let taken = take(&next, "job", LONG).await;
            // Dropped after a while, or delivered to the server behind the next owner's acquire.
            if attempt % 2 == 0 {
                // An error means that the connection was given up meanwhile: then nothing arrives at all.
                let _ = release.deliver(SLACK);
            } else {
                drop(release);
            }
            if let Ok(released) = releasing.await.unwrap() {
                assert_eq!(released, Released::AlreadyLost);
            }
            assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), taken.owner_token().expose());
            taken.renew().await.unwrap();
            free(taken).await;
        }
        until_nothing_is_left(server).await;
    });
}

/// F061: The key holds the owner token byte for byte, whatever the label; whoever has the token, through this
/// library or by hand, can resume and release.
#[test]
fn f061_the_owner_token_is_the_same_bytes_for_everybody() {
    const LABELS: [&str; 6] = ["web-1:42", "\"quoted\"", "{\"json\":1}", "back\\slash", "50%25", "~@~"];
    run_on_each_server("f061_the_owner_token_is_the_same_bytes", async |server| {
        let other = connect(&server.url(), "other").await;
        for label in LABELS {
            let builder = Client::builder().label(Label::new(label).unwrap());
            let client = builder.connect(&server.url()).await.unwrap();
            let held = take(&client, "job", LONG).await;
            let raw = server.cli(&["GET", "lock:job"]).unwrap();
            assert_eq!(raw.as_bytes(), held.owner_token().expose().as_bytes());
            held.renew().await.unwrap();
            assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), raw, "renewed");
            // Another process resumes with what it read, and frees the name.
            let token = OwnerToken::parse(&raw).unwrap();
            assert_eq!(token.label(), label);
            let resumed = guard(other.lock("job").unwrap().owner(token).try_acquire().await);
            assert!(resumed.fencing_token() > held.fencing_token());
            assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), raw, "resumed");
            free(resumed).await;
            assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
            // By hand, with the pattern of the documentation.
            let held = take(&client, "job", LONG).await;
            let token = held.owner_token().expose();
            let deleted = server.cli(&["EVAL", COMPARE_AND_DELETE, "1", "lock:job", token]).unwrap();
            assert_eq!(deleted, "1", "{label}");
            let again = held.renew().await;
            assert!(again.is_err(), "renewed what is gone");
            assert_eq!(held.lost().await, LostCause::Missing);
        }
        until_nothing_is_left(server).await;
    });
}

/// F061: What another client wrote with a codec of its own, compressed or wrapped, is a holder like any other and is
/// not touched.
#[test]
fn f061_values_of_other_codecs_are_held_by_somebody_and_left_alone() {
    let token = "MDEyMzQ1Njc4OWFiY2RlZg@web-1:42";
    let json = format!("\"{token}\"");
    let mut java = vec![0xAC, 0xED, 0x00, 0x05, b't', 0x00, 31];
    java.extend(token.bytes());
    let values: [&[u8]; 6] =
        [json.as_bytes(), &java, b"\x1f\x8b\x08\x00\x00\xff", b"\0", b"\xff\xfe", b"s:31:\"x\";"];
    run_on_each_server("f061_values_of_other_codecs", async |server| {
        let client = connect(&server.url(), "a").await;
        for value in values {
            let set: [&[u8]; 6] = [b"SET", b"lock:job", value, b"NX", b"PX", b"60000"];
            server.command(&set).unwrap();
            let attempt = client.lock("job").unwrap().try_acquire().await.unwrap();
            assert!(matches!(attempt, Attempt::Busy(_)), "{value:?}");
            let seen = client.inspect("job").await.unwrap().unwrap();
            assert!(matches!(seen.holder, Some(leasehold::Holder::Foreign)), "{value:?}: {seen:?}");
            let parsed = OwnerToken::parse(token).unwrap();
            let resumed = client.lock("job").unwrap().owner(parsed).try_acquire().await.unwrap();
            assert!(matches!(resumed, Attempt::Busy(_)), "{value:?}");
            let still = server.command(&[&b"STRLEN"[..], b"lock:job"]).unwrap().integer();
            assert_eq!(still.unwrap(), i64::try_from(value.len()).unwrap());
            server.command(&["DEL", "lock:job"]).unwrap();
        }
    });
}
