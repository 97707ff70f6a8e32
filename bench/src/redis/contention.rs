//! One name, more and more waiting processes: hand-overs per second and server commands per hand-over, beside a
//! release that publishes to everybody. And dead waiters at the head of the queue.

use std::time::{Duration, Instant};

use leasehold::core::{Client, Guard};
use leasehold_testkit::servers::RedisServer;

use super::publish_to_all;
use super::{AnyError, client, client_without_thread, runtime, server};
use crate::measure::median;
use crate::report::{Report, Series, plot};

const WAITERS: [usize; 6] = [2, 8, 32, 128, 512, 2_048];
/// Beyond this, publish-to-all does not get round in any useful time.
const NAIVE_MOST: usize = 512;
const SPAN: Duration = Duration::from_secs(4);
const CALLS_TARGET: f64 = 2.5;
const AT_128_TARGET: f64 = 10.0;
const DEAD: usize = 90;

struct Row {
    waiters: usize,
    rate: f64,
    calls: f64,
    naive_rate: Option<f64>,
    naive_commands: Option<f64>,
}

pub(crate) fn run() -> Result<(), AnyError> {
    let mut rows = Vec::new();
    for waiters in WAITERS {
        let row = measure(waiters)?;
        println!("{waiters} waiters: {:.0} hand-overs/s, {:.2} script calls each", row.rate, row.calls);
        rows.push(row);
    }
    let mut report = Report::new(
        "redis-contention",
        "One name, as many clients with a connection each; everybody takes it, gives it back at once and queues again.",
    );
    let optional = |figure: Option<f64>| figure.map_or("not run".to_owned(), |figure| format!("{figure:.1}"));
    let mut table = vec![
        ["waiters", "hand-overs/s", "script calls each", "publish to all: hand-overs/s", "commands each"]
            .map(str::to_owned)
            .to_vec(),
    ];
    table.extend(rows.iter().map(|row| {
        let naive = [optional(row.naive_rate), optional(row.naive_commands)];
        let ours = [row.waiters.to_string(), format!("{:.0}", row.rate), format!("{:.2}", row.calls)];
        ours.into_iter().chain(naive).collect()
    }));
    report.table(&table);
    let worst = rows.iter().map(|row| row.calls).fold(0.0, f64::max);
    report.target(
        &format!("at most {CALLS_TARGET} script calls per hand-over at every size: {worst:.2}"),
        worst <= CALLS_TARGET,
    );
    let at_128 = rows.iter().find(|row| row.waiters == 128);
    let ratio = at_128.and_then(|row| row.naive_rate.map(|naive| row.rate / naive)).unwrap_or(0.0);
    report.target(
        &format!("at 128 waiters at least {AT_128_TARGET} × publish to all: {ratio:.1}"),
        ratio >= AT_128_TARGET,
    );
    dead_waiters(&mut report)?;
    report.save()?;
    draw(&rows)
}

#[allow(clippy::cast_precision_loss, reason = "a plot needs no more")]
fn draw(rows: &[Row]) -> Result<(), AnyError> {
    let points = |of: &dyn Fn(&Row) -> Option<f64>| {
        rows.iter().filter_map(|row| Some((row.waiters as f64, of(row)?))).collect()
    };
    let rates = [
        Series { label: "leasehold: release hands over".into(), points: points(&|row| Some(row.rate)) },
        Series { label: "release publishes to all".into(), points: points(&|row| row.naive_rate) },
    ];
    plot(
        "redis-contention-rate",
        "Hand-overs per second",
        ("waiting processes", "hand-overs per second"),
        &rates,
    )?;
    let commands = [
        Series { label: "leasehold: script calls".into(), points: points(&|row| Some(row.calls)) },
        Series { label: "publish to all: commands".into(), points: points(&|row| row.naive_commands) },
    ];
    plot(
        "redis-contention-commands",
        "Server commands per hand-over",
        ("waiting processes", "commands per hand-over"),
        &commands,
    )
}

#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
fn measure(waiters: usize) -> Result<Row, AnyError> {
    let server = server()?;
    let runtime = runtime()?;
    let (rate, grants) = runtime.block_on(contend(&server, waiters))?;
    let calls = server.command_stats()?.get("evalsha").map_or(0, |stats| stats.calls);
    let mut row = Row {
        waiters,
        rate,
        calls: calls as f64 / grants.max(1) as f64,
        naive_rate: None,
        naive_commands: None,
    };
    if waiters <= NAIVE_MOST {
        let server = super::server()?;
        let runtime = super::runtime()?;
        let before = commands(&server)?;
        let rate = runtime.block_on(publish_to_all::grants_per_second(&server.url(), waiters, SPAN))?;
        row.naive_rate = Some(rate);
        let grants = rate * SPAN.as_secs_f64();
        row.naive_commands = Some((commands(&server)? - before) as f64 / grants.max(1.0));
    }
    Ok(row)
}

fn commands(server: &RedisServer) -> Result<u64, AnyError> {
    let stats = server.command_stats()?;
    Ok(["set", "eval", "evalsha"].iter().filter_map(|name| stats.get(*name)).map(|stats| stats.calls).sum())
}

/// Hand-overs per second, and how many there were.
async fn contend(server: &RedisServer, waiters: usize) -> Result<(f64, usize), AnyError> {
    let mut clients = Vec::new();
    for _ in 0..waiters {
        clients.push(client_without_thread(&server.url()).await?);
    }
    server.command(&["CONFIG", "RESETSTAT"])?;
    let started = Instant::now();
    let ends = started + SPAN;
    let mut tasks = tokio::task::JoinSet::new();
    for client in clients {
        tasks.spawn(async move { take_turns(&client, ends).await.unwrap_or(0) });
    }
    let grants: usize = tasks.join_all().await.into_iter().sum();
    #[allow(clippy::cast_precision_loss, reason = "counts of grants are small")]
    Ok((grants as f64 / started.elapsed().as_secs_f64(), grants))
}

async fn take_turns(client: &Client, ends: Instant) -> Result<usize, AnyError> {
    let lock = client.lock("order:1001")?.wait_forever();
    let mut grants = 0;
    while Instant::now() < ends {
        let guard: Guard = lock.acquire().await?.into_guard()?;
        grants += 1;
        let _ = guard.release().await?;
    }
    Ok(grants)
}

/// Queue entries whose processes are gone: one release skips them all.
fn dead_waiters(report: &mut Report) -> Result<(), AnyError> {
    let server = server()?;
    let runtime = runtime()?;
    let (without, with) = runtime.block_on(async {
        let (holder, waiter) = (client(&server.url()).await?, client(&server.url()).await?);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            without.push(hand_over(&server, &holder, &waiter, 0).await?);
            with.push(hand_over(&server, &holder, &waiter, DEAD).await?);
        }
        Ok::<_, AnyError>((median(&without), median(&with)))
    })?;
    report.line(&format!(
        "- {DEAD} dead waiters before a live one: release to next holder {with:.2} ms, without them {without:.2} ms, \
         in one and the same request"
    ));
    Ok(())
}

async fn hand_over(
    server: &RedisServer,
    holder: &Client,
    waiter: &Client,
    dead: usize,
) -> Result<f64, AnyError> {
    let queue = format!("lock:~queue:{{{}}}:order:1001", tag(server)?);
    let guard = holder.lock("order:1001")?.acquire().await?.into_guard()?;
    for number in 0..dead {
        let entry = format!("1 deadconnection{number:08} 3000 MDEyMzQ1Njc4OWFiY2RlZg@dead:{number}");
        server.command(&["ZADD", &queue, "1", &entry])?;
    }
    let lock = waiter.lock("order:1001")?.wait_forever();
    let next = tokio::spawn(async move {
        let attempt = lock.acquire().await;
        (Instant::now(), attempt)
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let released = Instant::now();
    let _ = guard.release().await?;
    let (running, attempt) = next.await?;
    let _ = attempt?.into_guard()?.release().await?;
    Ok(running.duration_since(released).as_secs_f64() * 1e3)
}

/// The hash tag of the helper keys of this name, read from a queue of its own.
fn tag(server: &RedisServer) -> Result<String, AnyError> {
    thread_local!(static TAG: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) });
    if let Some(tag) = TAG.with_borrow(Clone::clone) {
        return Ok(tag);
    }
    let runtime = std::thread::scope(|scope| {
        scope
            .spawn(|| -> Result<String, String> {
                let runtime = super::runtime().map_err(|error| error.to_string())?;
                runtime.block_on(find_tag(server)).map_err(|error| error.to_string())
            })
            .join()
    });
    let tag = runtime.map_err(|_| "the search for the tag failed")??;
    TAG.set(Some(tag.clone()));
    Ok(tag)
}

async fn find_tag(server: &RedisServer) -> Result<String, AnyError> {
    let waiter = client(&server.url()).await?;
    let held = waiter.lock("order:1001")?.acquire().await?.into_guard()?;
    let lock = waiter.lock("order:1001")?.wait_forever();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let keys = server.command(&["KEYS", "lock:~queue:*"])?;
        let queue = keys.items().and_then(|keys| keys.first()?.text()).unwrap_or_default();
        if let Some((_, rest)) = queue.split_once('{') {
            waiting.abort();
            let _ = waiting.await;
            let _ = held.release().await?;
            waiter.close(Duration::from_secs(5)).await?;
            return Ok(rest.split('}').next().unwrap_or_default().to_owned());
        }
    }
    Err("no queue appeared".into())
}
