//! Throughput of 64 tasks on different names over one connection: the whole client beside the client library
//! alone, and beside what `redis-benchmark` gets out of the server with the same scripts.

use std::process::Command;
use std::time::Instant;

use leasehold::core::{Attempt, Client};
use leasehold_testkit::servers::RedisServer;

use super::raw::Raw;
use super::{AnyError, client, runtime, server};
use crate::measure::{alternate, median};
use crate::report::Report;

const ROUNDS: usize = 7;
const TASKS: usize = 64;
const PAIRS: usize = 1_000;
const TARGET: f64 = 0.8;

pub(crate) fn run() -> Result<(), AnyError> {
    let server = server()?;
    let url = server.url();
    let ours_runtime = runtime()?;
    let ours = ours_runtime.block_on(client(&url))?;
    let driver = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let caller = runtime()?;
    let raw = driver.block_on(driver.spawn(async move { Raw::connect(&url).await }))??;
    let figures = alternate(
        ROUNDS,
        &mut [
            &mut || redis_benchmark(&server, &raw).unwrap_or(f64::NAN),
            &mut || caller.block_on(raw_pairs(&raw)),
            &mut || ours_runtime.block_on(our_pairs(&ours)),
        ],
    );
    let medians: Vec<f64> = figures.iter().map(|figures| median(figures)).collect();
    if medians[1..].iter().any(|figure| figure.is_nan()) {
        return Err("a pair failed: the figures say nothing".into());
    }
    let mut report = Report::new(
        "redis-throughput",
        "64 tasks take and give back 64 different names over one connection. Pairs per second, median of the rounds.",
    );
    let row = |label: &str, place: usize| {
        vec![
            label.to_owned(),
            format!("{:.0}", medians[place]),
            format!("{:.2}", medians[2] / medians[place]),
        ]
    };
    report.table(&[
        vec!["method".into(), "pairs per second".into(), "leasehold is × of it".into()],
        row("redis-benchmark, the plain scripts, one connection, 64 deep", 0),
        row("the client library, the plain scripts, 64 tasks", 1),
        row("leasehold, fencing tokens included", 2),
    ]);
    let ratio = medians[2] / medians[1];
    report.target(&format!("at least {TARGET} × the client library alone: {ratio:.2}"), ratio >= TARGET);
    report.line(&format!("- beside redis-benchmark, the server's limit: {:.2}", medians[2] / medians[0]));
    report.save()
}

/// Pairs per second from the rates of the two scripts one after the other.
fn redis_benchmark(server: &RedisServer, raw: &Raw) -> Result<f64, AnyError> {
    let (acquire, release) = raw.hashes();
    let key = "lock:order:__rand_int__";
    let token = "MDEyMzQ1Njc4OWFiY2RlZg@bench:1";
    let first = rate(server, &["EVALSHA", acquire, "1", key, token, "30000"])?;
    let second = rate(server, &["EVALSHA", release, "1", key, token])?;
    server.command(&["FLUSHDB"])?;
    Ok(1.0 / (1.0 / first + 1.0 / second))
}

fn rate(server: &RedisServer, command: &[&str]) -> Result<f64, AnyError> {
    let port = server.port().to_string();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../.servers/redis7/redis-benchmark");
    let options = ["-p", &port, "-c", "1", "-P", "64", "-n", "100000", "-r", "100000000", "--csv"];
    let output = Command::new(program).args(options).args(command).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().ok_or("redis-benchmark printed nothing: run scripts/servers")?;
    // "command","requests per second" and six latencies: counted from the end, since a command may hold anything.
    let fields: Vec<&str> = line.split("\",\"").collect();
    let figure = fields.len().checked_sub(7).and_then(|place| fields.get(place));
    let figure = figure.ok_or("redis-benchmark printed no figure")?;
    Ok(figure.parse()?)
}

async fn raw_pairs(raw: &Raw) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let mut raw = raw.clone();
        tasks.spawn(async move {
            let key = format!("lock:order:{task}");
            for _ in 0..PAIRS {
                if !raw.pair(&key, "MDEyMzQ1Njc4OWFiY2RlZg@bench:1").await.unwrap_or(false) {
                    return false;
                }
            }
            true
        });
    }
    pairs_per_second(started, &tasks.join_all().await)
}

async fn our_pairs(client: &Client) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            let Ok(lock) = client.lock(format!("order:{task}")) else { return false };
            for _ in 0..PAIRS {
                let Ok(Attempt::Acquired(guard)) = lock.try_acquire().await else { return false };
                if guard.release().await.is_err() {
                    return false;
                }
            }
            true
        });
    }
    pairs_per_second(started, &tasks.join_all().await)
}

#[allow(clippy::cast_precision_loss, reason = "counts of pairs are small")]
fn pairs_per_second(started: Instant, done: &[bool]) -> f64 {
    if done.contains(&false) {
        return f64::NAN;
    }
    (TASKS * PAIRS) as f64 / started.elapsed().as_secs_f64()
}
