//! 100,000 leases kept for ten minutes: none lost, and what that costs in client and server. And how long before
//! the end of its lease a holder that is cut off is told.
//!
//! `LEASEHOLD_BENCH_SECONDS` makes it shorter; only the full time is kept as a result.

use std::time::{Duration, Instant};

use leasehold::core::{Client, Guard, LeaseState, Released};
use leasehold_testkit::servers::RedisServer;

use super::loss_signal;
use super::meters::{Meters, Reading};
use super::{AnyError, client, runtime, server};
use crate::process::Usage;
use crate::report::Report;

const SECONDS: u64 = 600;
const SECONDS_VARIABLE: &str = "LEASEHOLD_BENCH_SECONDS";
const LEASES: usize = 100_000;
const TTL: Duration = Duration::from_secs(30);
const TASKS: usize = 64;
const CLIENT_TARGET: f64 = 15.0;
const SERVER_TARGET: f64 = 10.0;
const MEMORY_TARGET: f64 = 1024.0;

/// The figures of the long hold.
struct Hold {
    span: Duration,
    client: f64,
    thread: f64,
    server: f64,
    bytes_per_lease: f64,
    during: Reading,
    script_microseconds: f64,
    not_held: usize,
    already_lost: usize,
}

pub(crate) fn run() -> Result<(), AnyError> {
    let seconds = match std::env::var(SECONDS_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| format!("{SECONDS_VARIABLE}={text}: write whole seconds"))?,
        Err(_) => SECONDS,
    };
    let server = server()?;
    let runtime = runtime()?;
    let meters = Meters::install()?;
    let ours = runtime.block_on(client(&server.url()))?;
    let hold = runtime.block_on(hold(&ours, &server, meters, Duration::from_secs(seconds)))?;
    let signals = loss_signal::measure(&server, &runtime)?;
    let mut report = Report::new(
        "redis-renewals",
        &format!(
            "{LEASES} leases with a TTL of {} s, held and renewed for {:.0} s; processor time from /proc.",
            TTL.as_secs(),
            hold.span.as_secs_f64()
        ),
    );
    figures(&mut report, &hold);
    loss_signal::report(&mut report, &signals);
    if seconds < SECONDS {
        println!("\nnot kept: {seconds} s instead of {SECONDS} s");
        return Ok(());
    }
    report.save()
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
fn figures(report: &mut Report, hold: &Hold) {
    let seconds = hold.span.as_secs_f64();
    let lag = |percent| format!("{:.1} ms", hold.during.lag.percentile(percent) * 1e3);
    report.table(&[
        vec!["what".into(), "figure".into()],
        vec!["client process, % of one core".into(), format!("{:.1}", hold.client)],
        vec!["of it the client's own thread".into(), format!("{:.1}", hold.thread)],
        vec!["server process, % of one core".into(), format!("{:.1}", hold.server)],
        vec!["renewals per second".into(), format!("{:.0}", hold.during.renewed as f64 / seconds)],
        vec![
            "server time per renewal call, µs by the wall clock".into(),
            format!("{:.2}", hold.script_microseconds),
        ],
        vec!["renewals without a verdict".into(), hold.during.failed.to_string()],
        vec!["renewal sent after it was due, p50".into(), lag(50.0)],
        vec!["the same, p99".into(), lag(99.0)],
        vec!["the same, worst".into(), format!("{:.1} ms", hold.during.lag.worst() * 1e3)],
        vec!["client memory per lease, bytes".into(), format!("{:.0}", hold.bytes_per_lease)],
    ]);
    let lost = hold.not_held + hold.already_lost + usize::try_from(hold.during.lost).unwrap_or(usize::MAX);
    report.target(
        &format!(
            "none lost: {} not held at the end, {} lost when released, {} losses told",
            hold.not_held, hold.already_lost, hold.during.lost
        ),
        lost == 0,
    );
    report.target(
        &format!("client below {CLIENT_TARGET} % of one core: {:.1}", hold.client),
        hold.client < CLIENT_TARGET,
    );
    report.target(
        &format!("server below {SERVER_TARGET} % of one core: {:.1}", hold.server),
        hold.server < SERVER_TARGET,
    );
    report.target(
        &format!("a held lease below {MEMORY_TARGET} bytes of the client: {:.0}", hold.bytes_per_lease),
        hold.bytes_per_lease < MEMORY_TARGET,
    );
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
async fn hold(
    client: &Client,
    server: &RedisServer,
    meters: &'static Meters,
    span: Duration,
) -> Result<Hold, AnyError> {
    let this_process = std::process::id();
    let server_process = server.process_id().ok_or("the server is not running")?;
    drop(acquire(client, "warm-up", TASKS * 16).await?);
    let before = Usage::of(this_process)?;
    let guards = acquire(client, "held", LEASES).await?;
    let bytes_per_lease = (Usage::of(this_process)?.bytes - before.bytes) / LEASES as f64;
    // Until every lease has been renewed once and what taking them left has settled.
    tokio::time::sleep(TTL / 2).await;
    server.command(&["CONFIG", "RESETSTAT"])?;
    let reading = meters.read();
    let began = (Instant::now(), Usage::of(this_process)?, Usage::of(server_process)?);
    tokio::time::sleep(span).await;
    let ended = (Instant::now(), Usage::of(this_process)?, Usage::of(server_process)?);
    let during = meters.read().since(&reading);
    let stats = server.command_stats()?;
    let calls = stats.get("evalsha").ok_or("the server counted no renewals")?;
    let not_held = guards.iter().filter(|guard| guard.state() != LeaseState::Held).count();
    let already_lost = release(guards).await?;
    let span = ended.0.duration_since(began.0);
    let share =
        |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() / span.as_secs_f64() * 100.0;
    Ok(Hold {
        span,
        client: share(began.1.total, ended.1.total),
        thread: share(began.1.thread("leasehold"), ended.1.thread("leasehold")),
        server: share(began.2.total, ended.2.total),
        bytes_per_lease,
        during,
        script_microseconds: calls.total_microseconds as f64 / calls.calls.max(1) as f64,
        not_held,
        already_lost,
    })
}

async fn acquire(client: &Client, prefix: &'static str, count: usize) -> Result<Vec<Guard>, AnyError> {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let mut guards = Vec::with_capacity(count / TASKS + 1);
            for number in (task..count).step_by(TASKS) {
                let lock = client.lock(format!("{prefix}:{number}")).map_err(|error| error.to_string())?;
                let attempt = lock.ttl(TTL).try_acquire().await.map_err(|error| error.to_string())?;
                guards.push(attempt.into_guard().map_err(|error| error.to_string())?);
            }
            Ok::<_, String>(guards)
        });
    }
    let mut guards = Vec::with_capacity(count);
    for part in tasks.join_all().await {
        guards.extend(part?);
    }
    Ok(guards)
}

/// Gives all back; how many were lost before.
async fn release(guards: Vec<Guard>) -> Result<usize, AnyError> {
    let mut tasks = tokio::task::JoinSet::new();
    let mut parts: Vec<Vec<Guard>> = (0..TASKS).map(|_| Vec::new()).collect();
    for (number, guard) in guards.into_iter().enumerate() {
        parts[number % TASKS].push(guard);
    }
    for part in parts {
        tasks.spawn(async move {
            let mut lost = 0;
            for guard in part {
                let released = guard.release().await.map_err(|error| error.to_string())?;
                lost += usize::from(released == Released::AlreadyLost);
            }
            Ok::<_, String>(lost)
        });
    }
    let mut lost = 0;
    for part in tasks.join_all().await {
        lost += part?;
    }
    Ok(lost)
}
