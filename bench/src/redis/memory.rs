//! Memory over a million different names, all given back: server and client return to where they were.

use std::time::{Duration, Instant};

use leasehold::core::{Client, Guard};
use leasehold_testkit::servers::RedisServer;

use super::{AnyError, client, runtime, server};
use crate::report::Report;

const NAMES: usize = 1_000_000;
const TASKS: usize = 64;
const HELD: usize = 100_000;
const WAITING: usize = 20_000;
const LEASE_TARGET: f64 = 1024.0;
const WAITER_TARGET: f64 = 2048.0;

pub(crate) fn run() -> Result<(), AnyError> {
    let server = server()?;
    let runtime = runtime()?;
    // First, so that no memory that was given back is used again.
    let crowd = runtime.block_on(client(&server.url()))?;
    let (waiting, waiting_after) = runtime.block_on(wait(&crowd))?;
    let ours = runtime.block_on(client(&server.url()))?;
    runtime.block_on(names(&ours, "warm-up", 20_000))?;
    let before = (server_bytes(&server)?, own_bytes()?);
    let started = Instant::now();
    runtime.block_on(names(&ours, "name", NAMES))?;
    let span = started.elapsed();
    let after = (server_bytes(&server)?, own_bytes()?);
    let keys = server.cli(&["DBSIZE"])?;
    let (held, held_after) = runtime.block_on(hold(&ours))?;
    let mut report =
        Report::new("redis-memory", "Memory of the server (used_memory) and of this process (resident).");
    let kib = |bytes: f64| format!("{:.0} KiB", bytes / 1024.0);
    report.table(&[
        vec!["when".into(), "server".into(), "client".into()],
        vec!["before".into(), kib(before.0), kib(before.1)],
        vec![
            format!("after {NAMES} different names, {:.0} s", span.as_secs_f64()),
            kib(after.0),
            kib(after.1),
        ],
    ]);
    report.line(&format!("- keys left on the server: {keys} (the fencing counter)"));
    report.target(
        &format!("the server is back at its baseline: {:+.0} KiB", (after.0 - before.0) / 1024.0),
        after.0 - before.0 < 256.0 * 1024.0,
    );
    report.target(
        &format!("a held lease below {LEASE_TARGET} bytes of the client: {held:.0}"),
        held < LEASE_TARGET,
    );
    report.target(
        &format!("a waiter below {WAITER_TARGET} bytes of the client: {waiting:.0}"),
        waiting < WAITER_TARGET,
    );
    report.line(&format!(
        "- load of the client after giving all back: {held_after} leases, {waiting_after} waiters and clean-ups"
    ));
    report.save()
}

async fn names(client: &Client, prefix: &'static str, count: usize) -> Result<(), AnyError> {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            for number in (task..count).step_by(TASKS) {
                let lock = client.lock(format!("{prefix}:{number}")).map_err(|error| error.to_string())?;
                let attempt = lock.try_acquire().await.map_err(|error| error.to_string())?;
                let guard = attempt.into_guard().map_err(|error| error.to_string())?;
                let _ = guard.release().await.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        });
    }
    for outcome in tasks.join_all().await {
        outcome?;
    }
    Ok(())
}

/// Bytes of this process per held lease.
#[allow(clippy::cast_precision_loss, reason = "counts are small")]
async fn hold(client: &Client) -> Result<(f64, usize), AnyError> {
    let mut guards: Vec<Guard> = Vec::with_capacity(HELD);
    let before = own_bytes()?;
    for number in 0..HELD {
        guards.push(client.lock(format!("held:{number}"))?.try_acquire().await?.into_guard()?);
    }
    let bytes = (own_bytes()? - before) / HELD as f64;
    for guard in guards {
        let _ = guard.release().await?;
    }
    Ok((bytes, client.load().leases))
}

/// Bytes of this process per waiter of one name, the tasks included.
#[allow(clippy::cast_precision_loss, reason = "counts are small")]
async fn wait(client: &Client) -> Result<(f64, usize), AnyError> {
    let guard = client.lock("crowded")?.try_acquire().await?.into_guard()?;
    let before = own_bytes()?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..WAITING {
        let lock = client.lock("crowded")?.wait_forever();
        tasks.spawn(async move { lock.acquire().await.map(drop) });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let bytes = (own_bytes()? - before) / WAITING as f64;
    tasks.shutdown().await;
    let _ = guard.release().await?;
    client.close(Duration::from_secs(10)).await?;
    let load = client.load();
    Ok((bytes, load.waiters + load.names + load.cleanups))
}

fn server_bytes(server: &RedisServer) -> Result<f64, AnyError> {
    let info = server.info("memory")?;
    Ok(info.get("used_memory").ok_or("INFO has no used_memory")?.parse()?)
}

fn own_bytes() -> Result<f64, AnyError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS: this needs Linux")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0)
}
