//! The page: one file with everything in it, so that it can be mailed around. It shows what the run recorded.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::conduct::{Freeze, Record, TTL, WORKERS};
use super::events::Events;
use super::lost_update::Scene;
use super::summary::{LESSON, cut, grouped, schedule};
use super::tally::Outcome;
use super::wire::{Step, Visit, micros};
use crate::failure::Failure;

const FRAME: &str = include_str!("page/frame.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Where the page goes.
pub(super) struct Target(PathBuf);

impl Target {
    /// Makes sure, as far as can be told in advance, that the page can be written there.
    pub(super) fn check(path: &Path) -> Result<Self, Failure> {
        let cannot = |problem: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "the page cannot be written to {}: {problem}; name another file with --html, or give --no-html",
                path.display()
            ))
        };
        if path.is_dir() {
            return Err(cannot(&"it is a directory"));
        }
        rustix::fs::access(directory(path), rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
            .map_err(|error| cannot(&error))?;
        Ok(Self(path.to_owned()))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the page, whole or not at all.
    pub(super) fn write(&self, page: &str) -> Result<(), Failure> {
        self.replace(page).map_err(|error| {
            Failure::other(format!("the page cannot be written to {}: {error}", self.0.display()))
        })
    }

    fn replace(&self, page: &str) -> io::Result<()> {
        if self.0.symlink_metadata().is_ok_and(|existing| !existing.is_file()) {
            // A pipe or a link is not ours to replace.
            return std::fs::write(&self.0, page);
        }
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As for any other new file: the user's umask decides.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let mut file = builder.prefix(".leasehold-demo-").tempfile_in(directory(&self.0))?;
        file.write_all(page.as_bytes())?;
        file.persist(&self.0)?;
        Ok(())
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The page as text.
pub(super) fn render(
    records: &[Record],
    outcomes: &[Outcome],
    scenes: &[Scene],
    events: &Events,
    store: &str,
) -> String {
    let runs: Vec<_> =
        records.iter().zip(outcomes).map(|(record, outcome)| run(record, outcome, events)).collect();
    let data = json!({
        "workers": WORKERS,
        "orders": events.orders,
        "lease_ms": TTL.as_millis().to_string(),
        "runs": runs,
    });
    // Within a script element only "</" and "<!" end or change anything.
    let data = data.to_string().replace('<', "\\u003c");
    let facts = format!(
        "{} orders in {} payment events ({} of them delivered twice), each event delivered to {} worker processes. \
         Leases last {} ms and are renewed; they live in {}.",
        grouped(events.distinct),
        grouped(events.orders.len()),
        grouped(events.repeated),
        WORKERS.len(),
        TTL.as_millis(),
        escape(store),
    );
    FRAME
        .replace("/*STYLE*/", STYLE)
        .replace("<!--FACTS-->", &facts)
        .replace("<!--LESSON-->", LESSON)
        .replace("<!--ROWS-->", &outcomes.iter().map(row).collect::<String>())
        .replace("<!--SCHEDULE-->", &escape(&schedule()))
        .replace("<!--SCENES-->", &scenes.iter().map(scene).collect::<String>())
        .replace("/*SCRIPT*/", SCRIPT)
        .replace("/*DATA*/", &data)
}

fn scene(scene: &Scene) -> String {
    let (stale, newer) = cut(&scene.stale.to_string(), &scene.newer.to_string());
    let class = if scene.lost() == 0 { "good" } else { "bad" };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{stale}, {newer}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}\
         </td></tr>\n",
        scene.title(),
        scene.accepted,
        scene.refused(),
        scene.left,
        scene.lost(),
    )
}

fn row(outcome: &Outcome) -> String {
    let bad = |number: usize| {
        let class = if number == 0 { "good" } else { "bad" };
        format!("<td class=\"{class}\">{}</td>", grouped(number))
    };
    let refused = if outcome.way.sealed {
        format!("<td>{}</td>", grouped(outcome.stale_refused))
    } else {
        "<td class=\"none\">no check</td>".to_owned()
    };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td>{}{}{}<td>{:.1} s</td></tr>\n",
        outcome.way.title,
        grouped(outcome.requests),
        grouped(outcome.shipments),
        bad(outcome.duplicates),
        bad(outcome.stale_accepted),
        refused,
        outcome.took.as_secs_f64(),
    )
}

/// One run for the script. Moments are microseconds since its begin.
fn run(record: &Record, outcome: &Outcome, events: &Events) -> Value {
    let first_parcels = first_parcels(record);
    let is_duplicate = |visit: &Visit| {
        let first = first_parcels.get(events.orders[visit.position].as_str());
        visit.posted.as_ref().is_some_and(|posted| first.is_some_and(|first| *first != posted.tracking))
    };
    let base = record.visits.iter().flatten().filter_map(|visit| visit.token).min().unwrap_or(0);
    let lanes: Vec<_> = record
        .visits
        .iter()
        .map(|visits| {
            visits.iter().map(|visit| bar(record, visit, base, is_duplicate(visit))).collect::<Vec<_>>()
        })
        .collect();
    let freezes: Vec<_> = record
        .freezes
        .iter()
        .zip(&outcome.stories)
        .map(|(freeze, story)| {
            let visits = record.visits.iter().enumerate().flat_map(|(worker, visits)| {
                let near = visits.iter().filter(|visit| is_near(visit, freeze));
                near.map(move |visit| (worker, visit))
            });
            let visits: Vec<_> =
                visits.map(|(worker, visit)| detail(record, worker, visit, is_duplicate(visit))).collect();
            json!({
                "position": freeze.stop.position,
                "before_post": freeze.stop.step == Step::Post,
                "token": freeze.token.map(|token| token.to_string()),
                "believed_until": freeze.believed_until.map(|moment| since(record, moment)),
                "frozen": since(record, freeze.frozen),
                "lease_ended": freeze.lease_ended.map(|moment| since(record, moment)),
                "thawed": since(record, freeze.thawed),
                "accepted": story.accepted,
                "requests": story.requests,
                "parcels": story.shipments,
                "visits": visits,
            })
        })
        .collect();
    json!({
        "key": record.way.key,
        "title": record.way.title,
        "lock": record.way.lock,
        "sealed": record.way.sealed,
        "idempotency_key": record.way.idempotency_key,
        "took": record.ended.saturating_sub(record.began),
        "base_token": base.to_string(),
        // Per worker and event: begin, length, 0 nothing to do, 1 shipped, 2 shipped again; token above the base.
        "lanes": lanes,
        "freezes": freezes,
    })
}

/// The tracking number of each order's first parcel.
fn first_parcels(record: &Record) -> std::collections::HashMap<&str, &str> {
    let mut first = std::collections::HashMap::new();
    for entered in record.ledger.iter().filter(|entered| entered.shipped) {
        first.entry(entered.order.as_str()).or_insert(entered.tracking.as_str());
    }
    first
}

fn bar(record: &Record, visit: &Visit, base: u64, duplicate: bool) -> Value {
    let kind = match (&visit.posted, duplicate) {
        (None, _) => 0,
        (Some(_), false) => 1,
        (Some(_), true) => 2,
    };
    let length = visit.over.saturating_sub(visit.held);
    match visit.token {
        Some(token) => json!([since(record, visit.held), length, kind, token.saturating_sub(base)]),
        None => json!([since(record, visit.held), length, kind]),
    }
}

/// Whether a visit is to be seen in the picture of this freeze.
fn is_near(visit: &Visit, freeze: &Freeze) -> bool {
    const AROUND: std::time::Duration = std::time::Duration::from_millis(60);
    let around = micros(AROUND);
    visit.over + around > freeze.frozen && visit.asked < freeze.thawed + around
}

fn detail(record: &Record, worker: usize, visit: &Visit, duplicate: bool) -> Value {
    json!({
        "worker": worker,
        "position": visit.position,
        "token": visit.token.map(|token| token.to_string()),
        "asked": since(record, visit.asked),
        "held": since(record, visit.held),
        "over": since(record, visit.over),
        "sent": visit.posted.as_ref().map(|posted| since(record, posted.sent)),
        "answered": visit.posted.as_ref().map(|posted| since(record, posted.answered)),
        "tracking": visit.posted.as_ref().map(|posted| &posted.tracking),
        "duplicate": duplicate,
        "written": visit.written.map(|written| since(record, written.at)),
        "accepted": visit.written.map(|written| written.accepted),
        "kept": visit.kept,
    })
}

fn since(record: &Record, moment: u64) -> u64 {
    moment.saturating_sub(record.began)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
