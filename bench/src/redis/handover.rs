//! How long a hand-over takes with a slow network: from the call of release to the next holder running, beside
//! one round trip of the same network. And how long after a holder's crash the next one runs.

use std::time::{Duration, Instant};

use leasehold::core::{Attempt, Client, Guard};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::RedisServer;

use super::{AnyError, client, runtime, server};
use crate::measure::{median, percentile};
use crate::report::Report;

const ROUNDS: usize = 300;
const DELAY: Duration = Duration::from_millis(1);
const TARGET: f64 = 1.3;
const CRASHES: usize = 20;
const CRASH_TTL: Duration = Duration::from_secs(1);
const CRASH_TARGET: Duration = Duration::from_millis(50);

pub(crate) fn run() -> Result<(), AnyError> {
    let server = server()?;
    let proxies = [Proxy::before(&server)?, Proxy::before(&server)?];
    for proxy in &proxies {
        proxy.set_delay(DELAY, DELAY);
    }
    let runtime = runtime()?;
    let (handovers, round_trips) = runtime.block_on(hand_over(&server, &proxies))?;
    let crashes = runtime.block_on(crash(&server))?;
    let mut report = Report::new(
        "redis-handover",
        "Two clients with connections of their own, 1 ms added each way. Milliseconds.",
    );
    let row = |label: &str, figures: &[f64]| {
        let figure = |percent| format!("{:.2}", percentile(figures, percent));
        vec![label.to_owned(), figure(50.0), figure(90.0), figure(99.0)]
    };
    report.table(&[
        vec!["what".into(), "p50".into(), "p90".into(), "p99".into()],
        row("one round trip (PING)", &round_trips),
        row("release called to next holder running", &handovers),
        row("holder's lease ended after a crash to next holder running, no added delay", &crashes),
    ]);
    let ratio = median(&handovers) / median(&round_trips);
    report.target(&format!("at most {TARGET} × one round trip: {ratio:.2}"), ratio <= TARGET);
    let worst = crashes.iter().copied().fold(0.0, f64::max);
    let met = worst <= CRASH_TARGET.as_secs_f64() * 1e3;
    report.target(&format!("after a crash within TTL + {CRASH_TARGET:?}: TTL + {worst:.1} ms at worst"), met);
    report.save()
}

async fn hand_over(server: &RedisServer, proxies: &[Proxy; 2]) -> Result<(Vec<f64>, Vec<f64>), AnyError> {
    let holder = client(&server.url_through(&proxies[0])).await?;
    let waiter = client(&server.url_through(&proxies[1])).await?;
    let mut raw =
        redis::Client::open(server.url_through(&proxies[0]))?.get_multiplexed_async_connection().await?;
    let (mut handovers, mut round_trips) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let _: String = redis::cmd("PING").query_async(&mut raw).await?;
        round_trips.push(started.elapsed().as_secs_f64() * 1e3);
        let guard = take(&holder).await?;
        let lock = waiter.lock("order:1001")?.wait_forever();
        let next = tokio::spawn(async move {
            let attempt = lock.acquire().await;
            (Instant::now(), attempt)
        });
        tokio::time::sleep(Duration::from_millis(15)).await;
        let released = Instant::now();
        let _ = guard.release().await?;
        let (running, attempt) = next.await?;
        let _ = attempt?.into_guard()?.release().await?;
        handovers.push(running.duration_since(released).as_secs_f64() * 1e3);
    }
    Ok((handovers, round_trips))
}

/// A holder that stops renewing stands for one that crashed: its key is left to the server.
async fn crash(server: &RedisServer) -> Result<Vec<f64>, AnyError> {
    let (holder, waiter) = (client(&server.url()).await?, client(&server.url()).await?);
    let mut late = Vec::new();
    for round in 0..CRASHES {
        let name = format!("crash:{round}");
        let lock = holder.lock(&name)?.ttl(CRASH_TTL).fixed_lease();
        let granted = Instant::now();
        let guard = lock.try_acquire().await?.into_guard()?;
        // A crash runs no destructor.
        std::mem::forget(guard);
        let guard = waiter.lock(&name)?.ttl(CRASH_TTL).wait_forever().acquire().await?.into_guard()?;
        late.push((granted.elapsed().as_secs_f64() - CRASH_TTL.as_secs_f64()) * 1e3);
        let _ = guard.release().await?;
    }
    Ok(late)
}

async fn take(client: &Client) -> Result<Guard, AnyError> {
    match client.lock("order:1001")?.acquire().await? {
        Attempt::Acquired(guard) => Ok(guard),
        Attempt::Busy(busy) => Err(busy.to_string().into()),
    }
}
