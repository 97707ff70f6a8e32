//! A server whose wall clock jumps. Expiry of keys follows that clock, so a jump ends leases early or keeps them: the
//! holder is told, and clients judge their own time by a clock that does not jump.
//!
//! The clock is faked by `libfaketime`, preloaded into a real server. Redis 7 of Debian does not run under it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold::{Attempt, LeaseState, LostCause, Released};
use leasehold_testkit::servers::{RedisServer, SKIP_LOG_VARIABLE, ServerKind, kinds_to_test};

use crate::support::{SLACK, connect, free, guard, number, pttl, run, take, until, until_nothing_is_left};

const TTL: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_secs(3_600);

fn library() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let paths = folders.map(|folder| Path::new(folder).join("faketime/libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.exists())
}

/// A server and the file that says by how much its clock is off.
struct Shifted {
    server: RedisServer,
    file: PathBuf,
}

impl Shifted {
    fn start(kind: ServerKind, library: &Path, folder: &Path) -> Self {
        let file = folder.join(format!("shift-{kind}"));
        fs::write(&file, "+0\n").unwrap();
        let server = RedisServer::builder(kind)
            .environment("LD_PRELOAD", &library.to_string_lossy())
            .environment("FAKETIME_TIMESTAMP_FILE", &file.to_string_lossy())
            .environment("FAKETIME_NO_CACHE", "1")
            .environment("DONT_FAKE_MONOTONIC", "1")
            .start()
            .unwrap();
        Self { server, file }
    }

    /// Moves the server's clock to this far from the true time.
    fn shift(&self, seconds: i64) {
        let before = self.time();
        // Replaced as a whole: the server reads it at any moment.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{seconds:+}s\n")).unwrap();
        fs::rename(&new, &self.file).unwrap();
        let started = Instant::now();
        while (self.time() - before).abs() < 5 {
            assert!(started.elapsed() < SLACK, "the server's clock does not follow");
        }
    }

    fn time(&self) -> i64 {
        self.server.command(&["TIME"]).unwrap().items().unwrap()[0].text().unwrap().parse().unwrap()
    }
}

/// Runs the test on the kinds of servers that bear the library, all at the same time.
fn on_each_shifted_server(test: &str, body: impl AsyncFn(&Shifted) + Sync) {
    let kinds = kinds_to_test(test).into_iter().filter(|kind| *kind != ServerKind::Redis7);
    let Some(library) = library() else { return kinds.for_each(|kind| skip(test, kind)) };
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for kind in kinds {
            let (body, library, folder) = (&body, &library, folder.path());
            scope.spawn(move || run(body(&Shifted::start(kind, library, folder))));
        }
    });
}

fn skip(test: &str, kind: ServerKind) {
    let required = std::env::var("LEASEHOLD_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == "faketime"),
        "{test}: libfaketime is required by LEASEHOLD_REQUIRE={required} but is not on this machine"
    );
    // Written directly: a test that passes has its captured output thrown away.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test} on {kind}: libfaketime is not on this machine");
    if let Some(log) = std::env::var_os(SKIP_LOG_VARIABLE) {
        let mut log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        log.write_all(format!("faketime {test}\n").as_bytes()).unwrap();
    }
}

/// F106: When the server's clock jumps ahead, keys end early; the holder is told at its next renewal, the next one
/// gets in with a larger fencing token, and nothing is renewed by mistake.
#[test]
fn f106_a_server_clock_that_jumps_ahead_ends_leases_and_their_holders_are_told() {
    on_each_shifted_server("f106_a_server_clock_that_jumps_ahead", async |shifted| {
        let server = &shifted.server;
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let held = take(&client, "job", TTL).await;
        let waiting = crate::support::wait_for(&other, "job", TTL);
        crate::support::until_queued(server, "job", 1).await;
        shifted.shift(15);
        let cause = tokio::time::timeout(TTL / 3 + SLACK, held.lost()).await.unwrap();
        assert!([LostCause::Missing, LostCause::Taken].contains(&cause), "{cause:?}");
        let next = tokio::time::timeout(TTL + SLACK, waiting).await.unwrap().unwrap();
        assert!(next.fencing_token() > held.fencing_token());
        assert_eq!(held.release().await.unwrap(), Released::AlreadyLost);
        next.renew().await.unwrap();
        assert!(pttl(server, "job") <= i64::try_from(TTL.as_millis()).unwrap());
        free(next).await;
        until_nothing_is_left(server).await;
    });
}

/// F106: When the server's clock jumps back, keys stay for longer: a living holder is renewed and releases as
/// always, fencing tokens still grow, and what a dead holder left is seen with its time and can be broken.
#[test]
fn f106_a_server_clock_that_jumps_back_keeps_leases_which_are_seen_and_can_be_broken() {
    on_each_shifted_server("f106_a_server_clock_that_jumps_back", async |shifted| {
        let server = &shifted.server;
        let (client, other) = (connect(&server.url(), "a").await, connect(&server.url(), "b").await);
        let held = take(&client, "job", TTL).await;
        // The lease of a client that dies with it.
        let dead = guard(other.lock("dead").unwrap().ttl(TTL).fixed_lease().try_acquire().await);
        let newest = dead.fencing_token();
        shifted.shift(-3_600);
        held.renew().await.unwrap();
        assert_eq!(held.state(), LeaseState::Held);
        assert!(held.remaining() <= TTL, "judged by the server's clock");
        // By its own clock the other has lost it when its time is over, whatever the server says.
        tokio::time::timeout(TTL + SLACK, dead.lost()).await.unwrap();
        assert!(number(server, &["EXISTS", "lock:dead"]) == 1);
        let seen = client.inspect("dead").await.unwrap().unwrap();
        assert!(seen.remaining.unwrap() > HOUR / 2, "{seen:?}");
        let Attempt::Busy(busy) = client.lock("dead").unwrap().try_acquire().await.unwrap() else {
            panic!("it is still there")
        };
        assert!(busy.remaining.unwrap() > HOUR / 2, "{busy}");
        client.break_lease("dead", leasehold::core::store::BreakMode::Now).await.unwrap();
        let again = take(&client, "dead", TTL).await;
        assert!(again.fencing_token() > newest, "a token went back");
        assert!(pttl(server, "dead") <= i64::try_from(TTL.as_millis()).unwrap());
        free(again).await;
        free(held).await;
        until("nothing of the leases is left", || number(server, &["EXISTS", "lock:job", "lock:dead"]) == 0)
            .await;
    });
}
