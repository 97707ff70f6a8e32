//! Latency of an uncontended pair on a cluster of three shards, beside the same on a single server; and what two raw
//! script calls cost on both, which is the part that is not ours.

use std::time::{Duration, Instant};

use leasehold::core::{Attempt, Client};
use leasehold_testkit::servers::RedisCluster;

use super::raw::Raw;
use super::{AnyError, client, client_of_cluster, kind, runtime, server};
use crate::measure::{alternate, median, percentile};
use crate::report::Report;

/// Many short ones, one of each kind after the other: what else the machine does hits all of them alike.
const ROUNDS: usize = 100;
const PAIRS: u32 = 250;
/// Names in as many slots, so that all shards take their part.
const NAMES: u32 = 500;
const TARGET: f64 = 1.1;

pub(crate) fn run() -> Result<(), AnyError> {
    let single = server()?;
    let cluster = RedisCluster::builder(kind()?).replicas(0).start()?;
    let (one, other) = (runtime()?, runtime()?);
    let alone = one.block_on(client(&single.url()))?;
    let sharded = other.block_on(client_of_cluster(&cluster.url()))?;
    // Driven by a thread of its own, as the clients' connections are.
    let wires = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let connect = |url: String| wires.block_on(wires.spawn(async move { Raw::connect(&url).await }));
    let mut raw_alone = [connect(single.url())??];
    let mut raw_sharded = Vec::new();
    for node in 0..3 {
        raw_sharded.push(connect(cluster.node(node).url())??);
    }
    let keys: Vec<String> = (0..NAMES).map(|name| format!("raw:{name}")).collect();
    let owners = keys.iter().map(|key| cluster.owner_of(cluster.slot_of(key)?));
    let owners = owners.collect::<std::io::Result<Vec<usize>>>()?;
    let nobody = vec![0; keys.len()];
    let figures = alternate(
        ROUNDS,
        &mut [
            &mut || one.block_on(raw_pairs(&mut raw_alone, &keys, &nobody)),
            &mut || one.block_on(raw_pairs(&mut raw_sharded, &keys, &owners)),
            &mut || one.block_on(pairs(&alone, Waits::No)),
            &mut || other.block_on(pairs(&sharded, Waits::No)),
            &mut || one.block_on(pairs(&alone, Waits::IfTaken)),
            &mut || other.block_on(pairs(&sharded, Waits::IfTaken)),
            &mut || other.block_on(pairs_of(&sharded, "{order}", Waits::No)),
        ],
    );
    if figures.iter().flatten().any(|figure| figure.is_nan()) {
        return Err("a pair failed: the figures say nothing".into());
    }
    let medians: Vec<f64> = figures.iter().map(|figures| median(figures)).collect();
    let mut report = Report::new(
        "redis-cluster",
        "One task takes and gives back free names, 500 in turn, on one server and on a cluster of three. Microseconds \
         per pair; median and 90th percentile of the rounds, \
         and the median of the ratios within each round.",
    );
    let row = |label: &str, place: usize, beside: usize| {
        vec![
            label.to_owned(),
            format!("{:.1}", medians[place]),
            format!("{:.1}", percentile(&figures[place], 90.0)),
            format!("{:.2}", ratio(&figures, place, beside)),
        ]
    };
    report.table(&[
        vec!["method".into(), "µs per pair".into(), "p90".into(), "× of one server".into()],
        row("two raw scripts, one server", 0, 0),
        row("two raw scripts, cluster", 1, 0),
        row("one server, does not wait", 2, 2),
        row("cluster, does not wait", 3, 2),
        row("one server, would wait", 4, 4),
        row("cluster, would wait", 5, 4),
        row("cluster, all names on one of its servers", 6, 2),
    ]);
    for (what, ratio) in [("without waiting", ratio(&figures, 3, 2)), ("with a wait", ratio(&figures, 5, 4))]
    {
        report.target(&format!("at most {TARGET} × one server, {what}: {ratio:.2}"), ratio <= TARGET);
    }
    report.save()
}

/// The median of the ratios within each round.
fn ratio(figures: &[Vec<f64>], of: usize, to: usize) -> f64 {
    let ratios: Vec<f64> = figures[of].iter().zip(&figures[to]).map(|(of, to)| of / to).collect();
    median(&ratios)
}

/// Two plain script calls for each name, at the connection that its place in `owners` says.
async fn raw_pairs(connections: &mut [Raw], keys: &[String], owners: &[usize]) -> f64 {
    let started = Instant::now();
    for pair in 0..PAIRS {
        let name = (pair % NAMES) as usize;
        let pair = connections[owners[name]].pair(&keys[name], "MDEyMzQ1Njc4OWFiY2RlZg@bench:1");
        if !matches!(pair.await, Ok(true)) {
            return f64::NAN;
        }
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS)
}

#[derive(Clone, Copy)]
enum Waits {
    No,
    IfTaken,
}

async fn pairs(client: &Client, waits: Waits) -> f64 {
    pairs_of(client, "order", waits).await
}

async fn pairs_of(client: &Client, prefix: &str, waits: Waits) -> f64 {
    let started = Instant::now();
    for pair in 0..PAIRS {
        let Ok(lock) = client.lock(format!("{prefix}:{}", pair % NAMES)) else { return f64::NAN };
        let lock = lock.ttl(Duration::from_secs(30));
        let acquired = match waits {
            Waits::No => lock.try_acquire().await,
            Waits::IfTaken => lock.wait(Duration::from_secs(5)).acquire().await,
        };
        let Ok(Attempt::Acquired(guard)) = acquired else { return f64::NAN };
        if guard.release().await.is_err() {
            return f64::NAN;
        }
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS)
}
