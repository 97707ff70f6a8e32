//! `leasehold demo`: the main job on real input. Payment events, worker processes, a carrier, a database, and a
//! worker that is frozen past its lease; run without a lock and with more and more of what a lock needs around it.
//!
//! This file owns the order of things and that nothing is left behind.

mod carrier;
mod conduct;
mod crew;
mod events;
mod interrupt;
mod lost_update;
mod page;
mod shipments;
mod summary;
mod tally;
mod ways;
mod wire;
pub(crate) mod worker;

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use leasehold::core::{Entropy, SystemEntropy};
use leasehold::{BreakMode, Client, Label, Namespace};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::args::StoreArgs;
use crate::failure::Failure;
use crate::output;
use conduct::{Record, Stage, TTL, WORKERS};
use events::Events;
use interrupt::Interrupt;
use lost_update::Scene;
use tally::Outcome;
use ways::WAYS;
use wire::StoreJob;

/// Who the demo is when it looks at leases.
const LABEL: &str = "leasehold-demo";
/// The most names freed at the end: in a cluster each of its 16,384 slots can have a fencing token.
const LEFT_MOST: usize = 20_000;
/// How long the client's last work may take.
const CLOSE_MOST: Duration = Duration::from_secs(5);

/// See what a lock prevents, and what it cannot, on real input
///
/// Three worker processes each get 1,150 payment events for 1,000 orders and ship every order through a carrier's
/// HTTP API, once without a lock and three times with one. One of them is frozen past its lease twice. Then two holders
/// update one row, and one update is lost unless the row is sealed before it is read. Takes about half a minute, prints a table, and writes a page with a timeline of who held which order when.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct DemoArgs {
    /// Take the payment events from this file (JSON lines) instead of the shipped ones
    #[arg(long, value_name = "FILE")]
    orders: Option<PathBuf>,
    /// Where to write the page
    #[arg(long, value_name = "FILE", default_value = "leasehold-demo.html")]
    html: PathBuf,
    /// Write no page
    #[arg(long, conflicts_with = "html")]
    no_html: bool,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Without --store (or LEASEHOLD_STORE) it locks in a temporary SQLite file. With it, it locks in that
store, under a namespace of its own (demo:<random>:), and leaves nothing there. Everything else is
on this machine, temporary, and gone at the end: only the page stays.

An event is one line of JSON with at least event_id, order_id, amount, currency and paid_at:
  {\"event_id\":\"evt_1\",\"order_id\":\"A7\",\"amount\":\"12.50\",\"currency\":\"EUR\",\"paid_at\":\"2026-11-27T08:00Z\"}";

/// How many events a file has, and of how many orders; as the demo would read it.
pub(crate) fn count_events(text: &str) -> Result<(usize, usize), Failure> {
    Events::parse(text, "FILE").map(|events| (events.orders.len(), events.distinct))
}

/// Runs the demo.
pub(crate) async fn run(store: &StoreArgs, args: DemoArgs) -> Result<u8, Failure> {
    // Whatever can be wrong with the input is found before anything is started.
    let events = Events::load(args.orders.as_deref())?;
    let page = if args.no_html { None } else { Some(page::Target::check(&args.html)?) };
    let interrupt = Interrupt::listen().map_err(|error| failed("signals cannot be listened to", &error))?;
    let scratch = tempfile::Builder::new()
        .prefix("leasehold-demo-")
        .tempdir()
        .map_err(|error| failed("no temporary directory can be made", &error))?;
    let began = Instant::now();
    let store = choose_store(store, &scratch)?;
    let client = tokio::select! {
        client = connect(&store) => client?,
        failure = interrupt.happens() => return Err(failure),
    };
    let stage = Stage {
        events: &events,
        client: &client,
        store: &store,
        scratch: scratch.path(),
        interrupt: &interrupt,
    };
    let records = run_all(&stage).await;
    let described = described(&client, &store, &scratch);
    let cleaned = leave_nothing(client, &store, &scratch, records.is_ok()).await;
    let removed =
        scratch.close().map_err(|error| failed("the temporary directory cannot be removed", &error));
    let (records, scenes) = records?;
    show(&records, &scenes, &events, &described, page.as_ref(), args.json, began)?;
    cleaned.and(removed).map(|()| 0)
}

/// Writes the page, and prints what happened.
fn show(
    records: &[Record],
    scenes: &[Scene],
    events: &Events,
    store: &str,
    page: Option<&page::Target>,
    as_json: bool,
    began: Instant,
) -> Result<(), Failure> {
    let outcomes: Vec<_> = records.iter().map(|record| Outcome::of(record, events)).collect();
    if let Some(page) = page {
        page.write(&page::render(records, &outcomes, scenes, events, store))?;
    }
    let html = page.map(page::Target::path);
    if as_json {
        return output::json(&report(&outcomes, scenes, events, store, html, began.elapsed()));
    }
    let mut text = summary::text(&outcomes, scenes, events, store);
    if let Some(html) = html {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "Who held which order when: {}", html.display());
    }
    output::data(&text)
}

/// All ways of running, one after the other, then the lost update.
async fn run_all(stage: &Stage<'_>) -> Result<(Vec<Record>, Vec<Scene>), Failure> {
    let bar = progress_bar(stage.events.orders.len() * WORKERS.len() * WAYS.len());
    let mut records = Vec::new();
    for way in WAYS {
        bar.set_message(way.title);
        records.push(conduct::run(stage, way, &|| bar.inc(1)).await?);
    }
    bar.set_message("lost update");
    Ok((records, lost_update::play_both(stage).await?))
}

/// A bar on standard error if that is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64).with_finish(ProgressFinish::AndClear);
    // A form that cannot be read leaves the usual one.
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3} %  {elapsed}  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// The user's store under a namespace of the demo's own, or else a file among the demo's own.
fn choose_store(args: &StoreArgs, scratch: &TempDir) -> Result<StoreJob, Failure> {
    let mut random = [0; 8];
    SystemEntropy.fill(&mut random)?;
    let own = format!("demo:{:016x}:", u64::from_be_bytes(random));
    let url = match args.store.as_deref() {
        Some(url) if url.starts_with("memory:") => {
            return Err(Failure::usage(
                "memory: is the memory of one process, and the demo's workers are processes of their own: leave \
                 out --store",
            ));
        }
        Some(url) if !url.is_empty() => url.to_owned(),
        _ => own_store(scratch.path()),
    };
    // A namespace of the user's goes before the demo's, so that access rules for it cover the demo.
    let namespace = format!("{}{own}", args.namespace.as_deref().unwrap_or_default());
    Ok(StoreJob { url, namespace, timeout: args.store_timeout, ttl: TTL })
}

fn own_store(scratch: &Path) -> String {
    format!("sqlite:{}", scratch.join("locks.db").display())
}

async fn connect(store: &StoreJob) -> Result<Client, Failure> {
    let builder = Client::builder()
        .label(Label::new(LABEL)?)
        .namespace(Namespace::new(&store.namespace)?)
        .store_timeout(store.timeout);
    Ok(builder.connect(&store.url).await?)
}

/// The store as the summary names it.
fn described(client: &Client, store: &StoreJob, scratch: &TempDir) -> String {
    if store.url == own_store(scratch.path()) { "a temporary SQLite file".to_owned() } else { client.store() }
}

/// Ends the client and removes what the demo's namespace still has in the user's store.
async fn leave_nothing(
    client: Client,
    store: &StoreJob,
    scratch: &TempDir,
    completed: bool,
) -> Result<(), Failure> {
    if store.url == own_store(scratch.path()) {
        // Whoever still works in the directory would keep it from being removed.
        return Ok(client.close(CLOSE_MOST).await?);
    }
    // Workers that completed have given everything back; killed ones have not.
    if !completed {
        break_all(&client).await?;
    }
    client.close(CLOSE_MOST).await?;
    // A store may keep its last fencing token per namespace, for ever, since only its user knows when a namespace
    // is done with. Such keys have names that begin with `~`: what is left of this namespace are they.
    let helpers = StoreJob { namespace: format!("{}~", store.namespace), ..store.clone() };
    let helpers = connect(&helpers).await?;
    break_all(&helpers).await?;
    Ok(helpers.close(CLOSE_MOST).await?)
}

/// Frees every name of the client's namespace at once.
async fn break_all(client: &Client) -> Result<(), Failure> {
    for left in client.list("", LEFT_MOST).await?.entries {
        client.break_lease(left.name.as_str(), BreakMode::Now).await?;
    }
    Ok(())
}

/// The outcome for programs.
fn report(
    outcomes: &[Outcome],
    scenes: &[Scene],
    events: &Events,
    store: &str,
    html: Option<&Path>,
    took: Duration,
) -> serde_json::Value {
    let ways: Vec<_> = outcomes.iter().map(Outcome::to_json).collect();
    json!({
        "orders": events.distinct,
        "events": events.orders.len(),
        "events_delivered_again": events.repeated,
        "workers": WORKERS,
        "lease_seconds": TTL.as_secs_f64(),
        "store": store,
        "ways": ways,
        "lost_update": scenes.iter().map(Scene::to_json).collect::<Vec<_>>(),
        "html": html,
        "seconds": tally::round(took),
    })
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::other(format!("{what}: {error}"))
}
