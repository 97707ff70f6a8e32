//! What a failover can break: a lease that the new primary never heard of is granted twice. Fencing tokens tell the
//! two apart, and a guarded resource refuses the stale one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{FencingToken, LeaseState, LostCause};
use leasehold_testkit::servers::{SentinelTrio, ServerKind, TrioBuilder};

use crate::support::{SLACK, connect, free, on_kind, on_one_kind, run, take, until};

const TTL: Duration = Duration::from_secs(12);

/// What is written under the lock: it takes a write only with the newest fencing token it has seen.
#[derive(Default)]
struct Resource {
    newest: Option<FencingToken>,
    value: &'static str,
}

impl Resource {
    fn write(&mut self, token: FencingToken, value: &'static str) -> bool {
        let accepted = self.newest.is_none_or(|newest| token >= newest);
        if accepted {
            (self.newest, self.value) = (Some(token), value);
        }
        accepted
    }
}

/// A lease that no replica has heard of, and a failover: both tokens, and what a guarded resource is left with when
/// the first holder writes after the second.
async fn grant_twice(trio: &SentinelTrio) -> (FencingToken, FencingToken, Resource) {
    let (client, other) = (connect(&trio.url(), "a").await, connect(&trio.url(), "b").await);
    trio.link(1).stall();
    let first = take(&client, "job", TTL).await;
    trio.node(0).kill().unwrap();
    assert_eq!(trio.wait_for_failover_from(0).unwrap(), 1);
    let second = take(&other, "job", TTL).await;
    assert_eq!(second.state(), LeaseState::Held);
    // The first one has not asked yet; the name is held twice now.
    let mut resource = Resource::default();
    assert!(resource.write(second.fencing_token(), "second"));
    resource.write(first.fencing_token(), "first");
    // It is told as soon as its client has found the new primary, not only when its time is over.
    let cause = tokio::time::timeout(SLACK, first.lost()).await.unwrap();
    assert!(matches!(cause, LostCause::Taken | LostCause::Missing), "{cause}");
    let tokens = (first.fencing_token(), second.fencing_token());
    free(second).await;
    (tokens.0, tokens.1, resource)
}

#[test]
fn a_lease_that_was_not_replicated_is_granted_twice_and_the_stale_write_is_refused() {
    on_one_kind("a_lease_that_was_not_replicated", TrioBuilder::links, |trio| {
        run(async {
            let (first, second, resource) = grant_twice(trio).await;
            assert!(second > first, "{second} after {first}");
            assert_eq!(resource.value, "second");
        });
    });
}

/// What the documentation says of clocks that are apart, shown: the new primary's clock is behind the old one's last
/// token, the counter was lost with the old primary, and so the second token is smaller.
#[test]
fn a_primary_whose_clock_was_ahead_takes_growing_tokens_with_it() {
    let test = "a_primary_whose_clock_was_ahead";
    let Some(library) = faketime(test) else { return };
    let ahead = move |trio: TrioBuilder| {
        let library = library.clone();
        trio.links().configure(move |number, settings| match number {
            0 => settings
                .environment("LD_PRELOAD", &library.to_string_lossy())
                .environment("FAKETIME", "+1h")
                .environment("DONT_FAKE_MONOTONIC", "1"),
            _ => settings,
        })
    };
    on_kind(test, ServerKind::Valkey9, ahead, |trio| {
        run(async {
            let (first, second, resource) = grant_twice(trio).await;
            assert!(second < first, "the clock was not ahead: {second} after {first}");
            assert_eq!(resource.value, "first", "the stale write came through, since its token was larger");
        });
    });
}

/// The library that fakes a process' clock; without it the test is skipped, or fails where it is required.
fn faketime(test: &str) -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join("faketime/libfaketimeMT.so.1"));
    let found = paths.find(|path| path.exists());
    if found.is_none() {
        leasehold_testkit::servers::skip_without(test, "faketime", "install libfaketime");
    }
    found
}

/// Trap 35, trap 37: whatever else is evicted, tokens go on from the clock.
#[test]
fn an_evicted_counter_goes_on_from_the_clock() {
    on_one_kind(
        "an_evicted_counter_goes_on",
        |trio| trio,
        |trio| {
            run(async {
                let client = connect(&trio.url(), "a").await;
                let held = take(&client, "job", Duration::from_secs(1)).await;
                let newest = take(&client, "other", TTL).await.fencing_token();
                // What an eviction does, on the primary and on all that follow it.
                trio.node(0).command(&["DEL", "lock:~fence", "lock:job"]).unwrap();
                let cause = tokio::time::timeout(SLACK, held.lost()).await.unwrap();
                assert_eq!(cause, LostCause::Missing);
                let next = take(&client, "job", TTL).await;
                assert!(next.fencing_token() > newest);
                free(next).await;
            });
        },
    );
}

/// Trap 60: a primary that Sentinels and replicas cannot reach goes on granting to whoever still asks it. Clients of
/// the Sentinels leave it, although it answers them.
#[test]
fn trap_60_an_old_primary_that_still_answers_is_left_when_the_sentinels_name_another() {
    let test = "an_old_primary_that_still_answers_is_left";
    on_one_kind(
        test,
        |trio| trio,
        |trio| {
            for number in 0..3 {
                let user = ["ACL", "SETUSER", "app", "on", ">app", "~*", "&*", "+@all"];
                trio.node(number).command(&user).unwrap();
            }
            run(async {
                let client = connect(&trio.url().replace("://", "://app:app@"), "a").await;
                let stubborn = format!("redis://app:app@{}/", trio.node(0).address());
                let stubborn = connect(&stubborn, "stubborn").await;
                // What Sentinels ask is refused from now on; clients have another user.
                trio.node(0).command(&["ACL", "SETUSER", "default", "-ping"]).unwrap();
                assert_eq!(trio.wait_for_failover_from(0).unwrap(), 1);
                assert!(trio.is_primary(0), "it does not know yet");
                let asked_now = async || {
                    let probe = take(&client, "probe", TTL).await;
                    let here = trio.node(1).cli(&["EXISTS", "lock:probe"]).unwrap() == "1";
                    // One that was granted on the other side is lost here, or the answer is.
                    let _any = probe.release().await;
                    here
                };
                let ends = std::time::Instant::now() + SLACK;
                while !asked_now().await {
                    assert!(std::time::Instant::now() < ends, "the old primary is still asked");
                }
                let held = take(&client, "job", TTL).await;
                // Granted twice, until the old primary learns of it.
                let stale = take(&stubborn, "job", TTL).await;
                assert_eq!((held.state(), stale.state()), (LeaseState::Held, LeaseState::Held));
                trio.node(0).command(&["ACL", "SETUSER", "default", "+ping"]).unwrap();
                until("it is told", || !trio.is_primary(0)).await;
                tokio::time::timeout(TTL + SLACK, stale.lost()).await.unwrap();
                assert_eq!(held.state(), LeaseState::Held);
                free(held).await;
            });
        },
    );
}
