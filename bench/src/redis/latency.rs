//! Latency of an uncontended pair, one task: the whole client beside two raw script calls through the same
//! client library.

use std::time::{Duration, Instant};

use leasehold::core::{Attempt, Client};

use super::raw::Raw;
use super::{AnyError, client, runtime, server};
use crate::measure::{alternate, median, percentile};
use crate::report::Report;

const ROUNDS: usize = 12;
const PAIRS: u32 = 3_000;
const TARGET: f64 = 1.15;

pub(crate) fn run() -> Result<(), AnyError> {
    let server = server()?;
    let url = server.url();
    let ours_runtime = runtime()?;
    let ours = ours_runtime.block_on(client(&url))?;
    let same_thread = runtime()?;
    let mut raw_same = same_thread.block_on(Raw::connect(&url))?;
    // The driver of this connection runs on a thread of its own, as that of a client does.
    let driver = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let caller = runtime()?;
    let mut raw_apart = driver.block_on(driver.spawn(connect_apart(url)))??;
    let figures = alternate(
        ROUNDS,
        &mut [
            &mut || same_thread.block_on(raw_pairs(&mut raw_same)),
            &mut || caller.block_on(raw_pairs(&mut raw_apart)),
            &mut || ours_runtime.block_on(our_pairs(&ours)),
        ],
    );
    if figures.iter().flatten().any(|figure| figure.is_nan()) {
        return Err("a pair failed: the figures say nothing".into());
    }
    let medians: Vec<f64> = figures.iter().map(|figures| median(figures)).collect();
    let mut report = Report::new(
        "redis-latency",
        "One task takes and gives back a free name, over and over. Microseconds per pair; median and 90th percentile of the rounds.",
    );
    let row = |label: &str, place: usize| {
        vec![
            label.to_owned(),
            format!("{:.1}", medians[place]),
            format!("{:.1}", percentile(&figures[place], 90.0)),
            format!("{:.2}", medians[2] / medians[place]),
        ]
    };
    report.table(&[
        vec!["method".into(), "µs per pair".into(), "p90".into(), "leasehold is × of it".into()],
        row("two raw EVALSHA, connection driven by the caller's thread", 0),
        row("two raw EVALSHA, connection driven by another thread", 1),
        row("leasehold (its connections have a thread of their own)", 2),
    ]);
    let ratio = medians[2] / medians[1];
    report.target(
        &format!("at most {TARGET} × two raw EVALSHA on the same kind of connection: {ratio:.2}"),
        ratio <= TARGET,
    );
    let hop = medians[1] - medians[0];
    report.line(&format!(
        "- the hop between threads costs {hop:.1} µs per pair; it keeps leases alive while the program blocks its runtime"
    ));
    report.save()
}

async fn connect_apart(url: String) -> redis::RedisResult<Raw> {
    Raw::connect(&url).await
}

async fn raw_pairs(raw: &mut Raw) -> f64 {
    let started = Instant::now();
    for _ in 0..PAIRS {
        if !raw.pair("lock:order:1001", "MDEyMzQ1Njc4OWFiY2RlZg@bench:1").await.unwrap_or(false) {
            return f64::NAN;
        }
    }
    micros_per_pair(started)
}

async fn our_pairs(client: &Client) -> f64 {
    let Ok(lock) = client.lock("order:1001") else { return f64::NAN };
    let lock = lock.ttl(Duration::from_secs(30));
    let started = Instant::now();
    for _ in 0..PAIRS {
        let Ok(Attempt::Acquired(guard)) = lock.try_acquire().await else { return f64::NAN };
        if guard.release().await.is_err() {
            return f64::NAN;
        }
    }
    micros_per_pair(started)
}

fn micros_per_pair(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS)
}
