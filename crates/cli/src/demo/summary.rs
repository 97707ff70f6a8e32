//! What happened, as a table and a few sentences for the terminal. The page tells the same with pictures.

use std::fmt::Write;

use super::conduct::{TTL, WORKERS};
use super::events::Events;
use super::lost_update::{IN_STOCK, Scene};
use super::tally::{Outcome, Part, Story};
use super::wire::Step;
use crate::output::{Style, styled};

/// What readers shall leave with.
pub(super) const LESSON: &str = "Two holders can overlap; with the seal a stale write cannot get in. An external API cannot check a \
     fencing token: it needs an idempotency key.";

const HEADINGS: [&str; 7] = [
    "way of running",
    "requests",
    "parcels",
    "duplicates",
    "stale writes\naccepted",
    "stale writes\nrefused",
    "time",
];

/// The whole summary.
pub(super) fn text(outcomes: &[Outcome], scenes: &[Scene], events: &Events, store: &str) -> String {
    let mut text = format!(
        "{} orders in {} payment events ({} delivered twice), each event to {} worker processes.\nStore: {store}. \
         Leases of {TTL:?}, renewed.\n\n",
        grouped(events.distinct),
        grouped(events.orders.len()),
        grouped(events.repeated),
        WORKERS.len()
    );
    text.push_str(&table(outcomes));
    for index in 0..outcomes.iter().map(|outcome| outcome.stories.len()).max().unwrap_or(0) {
        let stories = outcomes.iter().filter_map(|outcome| Some((outcome, outcome.stories.get(index)?)));
        text.push_str(&freeze(index + 1, &stories.collect::<Vec<_>>()));
    }
    text.push_str(&lost_update(scenes));
    text.push('\n');
    text.push_str(&styled(LESSON, Style::Bold));
    text.push('\n');
    text
}

fn table(outcomes: &[Outcome]) -> String {
    let rows: Vec<[String; 7]> = outcomes
        .iter()
        .map(|outcome| {
            [
                outcome.way.title.to_owned(),
                grouped(outcome.requests),
                grouped(outcome.shipments),
                grouped(outcome.duplicates),
                grouped(outcome.stale_accepted),
                if outcome.way.sealed { grouped(outcome.stale_refused) } else { "-".to_owned() },
                format!("{:.1} s", outcome.took.as_secs_f64()),
            ]
        })
        .collect();
    let headings = HEADINGS.map(|heading| heading.split_once('\n').unwrap_or(("", heading)));
    let above = headings.map(|(above, _)| above.to_owned());
    let below = headings.map(|(_, below)| below.to_owned());
    let mut widths = [0; 7];
    for row in rows.iter().chain([&above, &below]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for (number, row) in [&above, &below].into_iter().chain(&rows).enumerate() {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let padded = if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            let bad = number > 1 && matches!(column, 3 | 4) && cell != "0";
            let style = if number < 2 { Some(Style::Bold) } else { bad.then_some(Style::Red) };
            text.push_str(&style.map_or(padded.clone(), |style| styled(&padded, style)));
        }
        text.push('\n');
    }
    text
}

fn freeze(number: usize, stories: &[(&Outcome, &Story)]) -> String {
    let Some((_, first)) = stories.first() else { return String::new() };
    let place = match first.step {
        Step::Post => "between read and POST",
        _ => "between POST and UPDATE",
    };
    let heading = format!(
        "Freeze {number}: {} is stopped {place} of {}, until its lease is over and another worker has done it.",
        first.stale.worker, first.order
    );
    let mut text = format!("\n{}\n", styled(&heading, Style::Bold));
    let width = stories.iter().map(|(outcome, _)| outcome.way.title.len()).max().unwrap_or(0);
    for (outcome, story) in stories {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<width$}  {}", outcome.way.title, sentence(outcome, story));
    }
    text
}

/// What the schedule is, for the table and the page.
pub(super) fn schedule() -> String {
    format!(
        "Lost update: {IN_STOCK} boxes. A holder reads, its lease ends, the next one reads, the first takes a box and \
         writes, the next one takes a box and writes."
    )
}

fn lost_update(scenes: &[Scene]) -> String {
    let mut text = format!("\n{}\n", styled(&schedule(), Style::Bold));
    let width = scenes.iter().map(|scene| scene.title().len()).max().unwrap_or(0);
    for scene in scenes {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<width$}  {}", scene.title(), came_of(scene));
    }
    text
}

fn came_of(scene: &Scene) -> String {
    let (stale, newer) = (scene.stale.to_string(), scene.newer.to_string());
    let (stale, newer) = cut(&stale, &newer);
    let refused = match scene.refused() {
        0 => String::new(),
        refused => format!(", {refused} {} (token {stale} after {newer})", styled("refused", Style::Green)),
    };
    let writes = if scene.accepted == 1 { "write" } else { "writes" };
    let lost = match scene.lost() {
        0 => "nothing is lost".to_owned(),
        1 => styled("an update is lost", Style::Red),
        lost => styled(&format!("{lost} updates are lost"), Style::Red),
    };
    format!("{} {writes} accepted{refused}, {} boxes left: {lost}", scene.accepted, scene.left)
}

/// What became of the frozen worker's request and write.
fn sentence(outcome: &Outcome, story: &Story) -> String {
    let parcels = match story.shipments {
        1 if outcome.way.idempotency_key => format!("asked {}, 1 parcel", count(story.requests)),
        1 => "1 parcel".to_owned(),
        shipments => format!("{shipments} parcels"),
    };
    let Some(newer) = &story.newer else { return format!("{parcels}; nobody else wrote the row") };
    let (own_token, newer_token) = short_tokens(&story.stale, newer);
    let with = |part: &Part, token: Option<&str>| {
        let tracking = part.tracking.as_deref().unwrap_or("nothing");
        token.map_or_else(|| tracking.to_owned(), |token| format!("{tracking} (token {token})"))
    };
    let (own, newer) = (with(&story.stale, own_token.as_deref()), with(newer, newer_token.as_deref()));
    if story.accepted {
        format!("{parcels}; its stale write was {}: {own} replaced {newer}", styled("accepted", Style::Red))
    } else {
        format!(
            "{parcels}; its stale write was {}: {own} came after {newer}",
            styled("refused", Style::Green)
        )
    }
}

/// The tokens of a story, cut to what tells them apart.
fn short_tokens(stale: &Part, newer: &Part) -> (Option<String>, Option<String>) {
    let text = |part: &Part| part.token.map(|token| token.to_string());
    let (Some(own), Some(newer)) = (text(stale), text(newer)) else { return (text(stale), text(newer)) };
    let (own, newer) = cut(&own, &newer);
    (Some(own), Some(newer))
}

/// Two tokens without the beginning that they share.
pub(super) fn cut(own: &str, newer: &str) -> (String, String) {
    const SHOWN_LEAST: usize = 4;
    let same = own.bytes().zip(newer.bytes()).take_while(|(own, newer)| own == newer).count();
    let same = same.min(own.len().saturating_sub(SHOWN_LEAST));
    let cut = |token: &str| if same == 0 { token.to_owned() } else { format!("…{}", &token[same..]) };
    (cut(own), cut(newer))
}

fn count(times: usize) -> String {
    match times {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        times => format!("{times} times"),
    }
}

/// A number with its thousands set apart.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
