//! What one acquire costs the server, and how many requests a pair sends.

use leasehold::core::{Attempt, Client};
use leasehold_testkit::servers::{MonitorLine, RedisServer};

use super::{AnyError, client, runtime, server};
use crate::report::Report;

const PAIRS: usize = 20_000;
const TARGET: f64 = 3.0;

pub(crate) fn run() -> Result<(), AnyError> {
    let server = server()?;
    let runtime = runtime()?;
    let ours = runtime.block_on(client(&server.url()))?;
    let requests = requests_per_pair(&server, &runtime, &ours)?;
    let plain = plain_set(&server)?;
    let script = plain_script(&server)?;
    let (acquire, release) = runtime.block_on(scripts(&server, &ours))?;
    let mut report = Report::new(
        "redis-cost",
        "Server time per call (INFO commandstats), one free name at a time, and the requests of one pair (MONITOR).",
    );
    report.table(&[
        vec!["call".into(), "µs on the server".into(), "× plain SET NX PX".into()],
        vec!["SET key token NX PX".into(), format!("{plain:.2}"), "1.0".into()],
        vec!["the same in a script".into(), format!("{script:.2}"), format!("{:.1}", script / plain)],
        vec![
            "acquire, fencing token included".into(),
            format!("{acquire:.2}"),
            format!("{:.1}", acquire / plain),
        ],
        vec!["release".into(), format!("{release:.2}"), format!("{:.1}", release / plain)],
    ]);
    report.target(
        &format!("acquire at most {TARGET} × SET NX PX: {:.1}", acquire / plain),
        acquire / plain <= TARGET,
    );
    report.target(
        &format!("one request to acquire and one to release: {}", requests.join(", ")),
        requests.len() == 2,
    );
    report.save()
}

fn requests_per_pair(
    server: &RedisServer,
    runtime: &tokio::runtime::Runtime,
    ours: &Client,
) -> Result<Vec<String>, AnyError> {
    runtime.block_on(pair(ours, "warm-up"))?;
    let monitor = server.monitor()?;
    runtime.block_on(pair(ours, "order:1001"))?;
    let requests = monitor.requests()?;
    Ok(requests.iter().map(MonitorLine::command).filter(|command| command != "PING").collect())
}

async fn pair(client: &Client, name: &str) -> Result<(), AnyError> {
    let Attempt::Acquired(guard) = client.lock(name)?.try_acquire().await? else { return Err("busy".into()) };
    let _ = guard.release().await?;
    Ok(())
}

fn plain_set(server: &RedisServer) -> Result<f64, AnyError> {
    let mut connection = server.connect()?;
    server.command(&["CONFIG", "RESETSTAT"])?;
    for _ in 0..PAIRS {
        connection.command(&[
            "SET",
            "lock:order:1001",
            "MDEyMzQ1Njc4OWFiY2RlZg@bench:1",
            "NX",
            "PX",
            "30000",
        ])?;
        connection.command(&["DEL", "lock:order:1001"])?;
    }
    per_call(server, "set")
}

/// The least a script can cost: the same SET from Lua.
fn plain_script(server: &RedisServer) -> Result<f64, AnyError> {
    let mut connection = server.connect()?;
    let script = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
    let hash = server.cli(&["SCRIPT", "LOAD", script])?;
    server.command(&["CONFIG", "RESETSTAT"])?;
    for _ in 0..PAIRS {
        let token = "MDEyMzQ1Njc4OWFiY2RlZg@bench:1";
        connection.command(&["EVALSHA", &hash, "1", "lock:order:1001", token, "30000"])?;
        connection.command(&["DEL", "lock:order:1001"])?;
    }
    per_call(server, "evalsha")
}

/// Acquire and release apart: leases are taken on many names, the statistics read, then given back.
async fn scripts(server: &RedisServer, client: &Client) -> Result<(f64, f64), AnyError> {
    let mut guards = Vec::new();
    let mut figures = (Vec::new(), Vec::new());
    for _ in 0..10 {
        server.command(&["CONFIG", "RESETSTAT"])?;
        for number in 0..PAIRS / 10 {
            match client.lock(format!("order:{number}"))?.try_acquire().await? {
                Attempt::Acquired(guard) => guards.push(guard),
                Attempt::Busy(busy) => return Err(busy.to_string().into()),
            }
        }
        figures.0.push(per_call(server, "evalsha")?);
        server.command(&["CONFIG", "RESETSTAT"])?;
        for guard in guards.drain(..) {
            let _ = guard.release().await?;
        }
        figures.1.push(per_call(server, "evalsha")?);
    }
    Ok((crate::measure::median(&figures.0), crate::measure::median(&figures.1)))
}

fn per_call(server: &RedisServer, command: &str) -> Result<f64, AnyError> {
    let stats = server.command_stats()?;
    let stats = stats.get(command).ok_or_else(|| format!("the server counted no {command}"))?;
    #[allow(clippy::cast_precision_loss, reason = "microseconds of a benchmark are small")]
    Ok(stats.total_microseconds as f64 / stats.calls.max(1) as f64)
}
