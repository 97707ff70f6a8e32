//! A holder that was cut off or stopped goes on beside its successor: its heartbeat takes nothing back, and its write
//! is refused by the fencing token.

use std::time::{Duration, Instant};

use leasehold::{LeaseState, LostCause, Released};
use leasehold_testkit::proxy::Proxy;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::Workers;
use crate::support::{
    SLACK, connect, free, guard, on_each_server, run, run_on_each_server, take, until_within,
};

const TTL: Duration = Duration::from_secs(1);

/// What the protected store keeps: the newest token it has seen, and what was written.
#[derive(Default)]
struct Protected {
    newest: u64,
    writes: Vec<&'static str>,
}

impl Protected {
    /// Takes a write unless a newer holder was here.
    fn write(&mut self, token: u64, what: &'static str) -> bool {
        let accepted = token >= self.newest;
        if accepted {
            self.newest = token;
            self.writes.push(what);
        }
        accepted
    }
}

/// F073: A holder that is cut off from the server is told in time, its successor has a larger fencing token, and the
/// protected store refuses what the old one still writes.
#[test]
fn f073_a_holder_that_is_cut_off_is_refused_by_the_protected_store() {
    run_on_each_server("f073_a_holder_that_is_cut_off", async |server| {
        let proxy = Proxy::before(server).unwrap();
        let mut store = Protected::default();
        let (cut_off, next) =
            (connect(&server.url_through(&proxy), "a").await, connect(&server.url(), "b").await);
        let old = take(&cut_off, "row", TTL).await;
        assert!(store.write(old.fencing_token().get(), "a, while it holds"));
        proxy.half_open();
        let new = guard(next.lock("row").unwrap().ttl(TTL * 20).wait(TTL + SLACK).acquire().await);
        assert_eq!(
            old.state(),
            LeaseState::Lost(LostCause::Unreachable),
            "not told before the next one got in"
        );
        assert!(new.fencing_token() > old.fencing_token());
        assert!(store.write(new.fencing_token().get(), "b"));
        assert!(!store.write(old.fencing_token().get(), "a, stale"), "the stale write got in");
        assert!(store.write(new.fencing_token().get(), "b again"));
        assert_eq!(store.writes, ["a, while it holds", "b", "b again"]);
        proxy.heal();
        // On a connection that is still broken its answer may be lost.
        assert_ne!(old.release().await.ok(), Some(Released::Freed));
        free(new).await;
    });
}

/// F115: A worker that was stopped for longer than its lease takes nothing back when it goes on: its heartbeat is
/// refused, its final write too, and its successor keeps the lease.
#[test]
fn f115_a_late_heartbeat_takes_nothing_back_and_the_late_write_is_refused() {
    on_each_server("f115_a_late_heartbeat_takes_nothing_back", |server| {
        let folder = tempfile::tempdir().unwrap();
        let mut workers = Workers::new(&server.url(), folder.path(), TTL, "fenced");
        workers.linger = Duration::from_millis(300);
        workers.start(0);
        assert!(workers.wait_for_section(0), "the worker never got the lock");
        let worker = Pid::from_raw(i32::try_from(workers.process_id(0)).unwrap()).unwrap();
        kill_process(worker, Signal::STOP).unwrap();
        run(async {
            let client = connect(&server.url(), "next").await;
            let lock = client.lock("counter").unwrap().ttl(TTL * 20).wait(TTL * 4 + SLACK);
            let next = guard(lock.acquire().await);
            let token = next.fencing_token().get();
            // What the successor seals, as the workers do.
            std::fs::write(folder.path().join("token"), token.to_string()).unwrap();
            kill_process(worker, Signal::CONT).unwrap();
            let ends = Instant::now() + TTL * 2;
            while Instant::now() < ends {
                assert_eq!(server.cli(&["GET", "lock:counter"]).unwrap(), next.owner_token().expose());
                assert_eq!(next.state(), LeaseState::Held);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let log = || std::fs::read_to_string(folder.path().join("log-0")).unwrap_or_default();
            until_within(SLACK, "the worker has noticed", || log().contains('\n')).await;
            let line = log().lines().next().unwrap().to_owned();
            assert!(line.starts_with("refused ") && line.ends_with(" lost"), "{line}");
            let stale: u64 = line.split(' ').nth(1).unwrap().parse().unwrap();
            assert!(stale < token);
            free(next).await;
        });
        workers.finish();
    });
}
