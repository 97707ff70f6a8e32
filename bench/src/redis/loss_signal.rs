//! When a holder that is cut off is told that its lease is lost, and when its body is cancelled: before the end
//! of the lease as it knows it, and before the key ends on the server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::core::{Lease, LeaseState};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::RedisServer;

use super::{AnyError, client};
use crate::measure::median;
use crate::report::Report;

const ROUNDS: u32 = 10;
const TTL: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

/// Milliseconds from one moment to another, of one round.
pub(super) struct Signal {
    before_deadline: f64,
    cancelled_before_deadline: f64,
    cancelled_before_expiry: f64,
}

/// The moment at which a value was dropped.
#[derive(Clone, Default)]
struct DropTime(Arc<Mutex<Option<Instant>>>);

struct NotesItsDrop(DropTime);

impl Drop for NotesItsDrop {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

pub(super) fn measure(
    server: &RedisServer,
    runtime: &tokio::runtime::Runtime,
) -> Result<Vec<Signal>, AnyError> {
    (0..ROUNDS).map(|number| runtime.block_on(round(server, number))).collect()
}

/// Cuts a holder off, each round at another moment between two renewals.
async fn round(server: &RedisServer, number: u32) -> Result<Signal, AnyError> {
    let proxy = Proxy::before(server)?;
    let client = client(&server.url_through(&proxy)).await?;
    let name = format!("cut-off:{number}");
    let key = format!("lock:{name}");
    let dropped = DropTime::default();
    let (send, receive) = tokio::sync::oneshot::channel();
    let note = NotesItsDrop(dropped.clone());
    let work = client.lock(&name)?.ttl(TTL).run(|lease| async move {
        let _note = note;
        drop(send.send(lease));
        std::future::pending::<Result<(), String>>().await
    });
    let work = tokio::spawn(work);
    let lease: Lease = receive.await?;
    tokio::time::sleep(TTL / 3 + TTL / 3 * number / ROUNDS).await;
    proxy.half_open();
    let watched = tokio::spawn(watch(lease));
    // A renewal that was past the proxy may still prolong the key.
    tokio::time::sleep(TTL / 20).await;
    let expires = key_ends(server, &key)?;
    let (told, deadline) = tokio::time::timeout(PATIENCE, watched).await???;
    if tokio::time::timeout(PATIENCE, work).await??.is_ok() {
        return Err("the work was not cancelled".into());
    }
    let cancelled =
        dropped.0.lock().unwrap_or_else(PoisonError::into_inner).ok_or("the body was not dropped")?;
    Ok(Signal {
        before_deadline: milliseconds(told, deadline),
        cancelled_before_deadline: milliseconds(cancelled, deadline),
        cancelled_before_expiry: milliseconds(cancelled, expires),
    })
}

/// When the loss was told, and the last deadline that the lease had before.
async fn watch(lease: Lease) -> Result<(Instant, Instant), String> {
    let mut deadline = None;
    loop {
        if matches!(lease.state(), LeaseState::Held | LeaseState::Uncertain) {
            deadline = Some(Instant::now() + lease.remaining());
        }
        if tokio::time::timeout(Duration::from_millis(1), lease.lost()).await.is_ok() {
            let told = Instant::now();
            return Ok((told, deadline.ok_or("the lease was never held")?));
        }
    }
}

/// When the key ends on the server, as another connection sees it.
fn key_ends(server: &RedisServer, key: &str) -> Result<Instant, AnyError> {
    let left: u64 = server.cli(&["PTTL", key])?.trim().parse()?;
    Ok(Instant::now() + Duration::from_millis(left))
}

fn milliseconds(from: Instant, to: Instant) -> f64 {
    if to >= from { (to - from).as_secs_f64() * 1e3 } else { -(from - to).as_secs_f64() * 1e3 }
}

pub(super) fn report(report: &mut Report, signals: &[Signal]) {
    let column = |of: fn(&Signal) -> f64| signals.iter().map(of).collect::<Vec<_>>();
    let least = |figures: &[f64]| figures.iter().copied().fold(f64::INFINITY, f64::min);
    let row = |what: &str, figures: &[f64]| {
        vec![what.to_owned(), format!("{:.1}", median(figures)), format!("{:.1}", least(figures))]
    };
    let told = column(|signal| signal.before_deadline);
    let cancelled = column(|signal| signal.cancelled_before_deadline);
    let expiry = column(|signal| signal.cancelled_before_expiry);
    report.line("");
    report.line(&format!(
        "A holder is cut off without a word (half-open), TTL {} s, {} times. Milliseconds left.",
        TTL.as_secs(),
        signals.len()
    ));
    report.line("");
    report.table(&[
        vec!["when".into(), "median".into(), "least".into()],
        row("loss told, before the local deadline", &told),
        row("body cancelled, before the local deadline", &cancelled),
        row("body cancelled, before the key ended on the server", &expiry),
    ]);
    report.target("the loss is never told after the local deadline", least(&told) >= 0.0);
    report.target("the body is cancelled before the key ends on the server", least(&expiry) > 0.0);
}
