//! `leasehold ls` and `leasehold show`: what the store knows of names, as a table, as text, or as JSON.

use std::fmt::Write as _;

use leasehold::{Client, Error, Holder, Inspection, Progress, Recorded};
use serde_json::{Value, json};

use crate::args::{LsArgs, ShowArgs, StoreArgs};
use crate::connect::connect_to_look;
use crate::durations::show as shown;
use crate::failure::Failure;
use crate::output::{self, Style, say, styled};

/// Lists names.
pub(crate) async fn list(store: &StoreArgs, args: &LsArgs) -> Result<(), Failure> {
    let client = connect_to_look(store).await?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let listing = client.list(&args.prefix, limit).await?;
    if args.json {
        let names: Vec<_> = listing.entries.iter().map(as_json).collect();
        return output::json(&json!({ "names": names, "more": listing.more }));
    }
    if listing.entries.is_empty() {
        let store = client.store();
        if args.prefix.is_empty() {
            say(format_args!("nothing is held in {store}"));
        } else {
            say(format_args!("no name that starts with {} is held in {store}", args.prefix));
        }
        return Ok(());
    }
    output::data(&table(&listing.entries))?;
    if listing.more {
        say(format_args!("there are more than {limit}: give a prefix or --limit"));
    }
    Ok(())
}

/// Shows one name.
pub(crate) async fn show(store: &StoreArgs, args: &ShowArgs) -> Result<(), Failure> {
    let client = connect_to_look(store).await?;
    let inspection = client.inspect(&args.name).await?;
    let kept = kept(&client, &args.name).await.unwrap_or_else(|error| {
        say(error);
        None
    });
    let in_progress = |kept: &Recorded| {
        inspection.as_ref().is_some_and(|inspection| {
            let by_this_attempt =
                inspection.fencing_token.is_none_or(|token| token.get() == kept.fencing_token);
            matches!(inspection.holder, Some(Holder::Lease { .. })) && by_this_attempt
        })
    };
    if args.json {
        let free = || json!({ "name": args.name, "holder": Value::Null, "waiters": [] });
        let mut value = inspection.as_ref().map_or_else(free, as_json);
        if let Some(kept) = &kept {
            value["operation"] = operation_as_json(kept, in_progress(kept));
        }
        return output::json(&value);
    }
    let mut shown = inspection.as_ref().map_or_else(|| format!("{} is free\n", args.name), text);
    if let Some(kept) = &kept {
        let _ = writeln!(shown, "{:<14} {}", "operation", operation(kept, in_progress(kept)));
    }
    output::data(&shown)
}

/// What is kept of an operation of this name.
async fn kept(client: &Client, name: &str) -> Result<Option<Recorded>, Error> {
    if client.capabilities().records { client.once(name)?.recorded().await } else { Ok(None) }
}

/// What is kept of an operation, for people.
pub(crate) fn operation(kept: &Recorded, in_progress: bool) -> String {
    let what = match kept.progress {
        Progress::Done { bytes } => format!("done, with a result of {bytes} bytes"),
        Progress::Started if in_progress => "in progress".to_owned(),
        Progress::Retryable => "has not acted".to_owned(),
        _ => "unknown: it may have acted".to_owned(),
    };
    format!("{what} (attempt {})", kept.attempt)
}

fn operation_as_json(kept: &Recorded, in_progress: bool) -> Value {
    let (state, bytes) = match kept.progress {
        Progress::Done { bytes } => ("done", Some(bytes)),
        Progress::Started if in_progress => ("started", None),
        Progress::Retryable => ("retryable", None),
        _ => ("unknown", None),
    };
    json!({ "state": state, "attempt": kept.attempt, "result_bytes": bytes })
}

fn table(entries: &[Inspection]) -> String {
    let mut rows = vec![["NAME", "HOLDER", "REMAINING", "WAITERS"].map(str::to_owned)];
    rows.extend(entries.iter().map(|entry| {
        [
            entry.name.to_string(),
            entry.holder.as_ref().map_or_else(|| "-".to_owned(), Holder::to_string),
            remaining(entry),
            entry.waiters.len().to_string(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::new();
    for (index, [name, holder, remaining, waiters]) in rows.iter().enumerate() {
        let line = format!(
            "{name:<w0$}  {holder:<w1$}  {remaining:<w2$}  {waiters}",
            w0 = widths[0],
            w1 = widths[1],
            w2 = widths[2]
        );
        text.push_str(&if index == 0 { styled(&line, Style::Bold) } else { line });
        text.push('\n');
    }
    text
}

fn text(inspection: &Inspection) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<14} {value}");
    };
    line("name", inspection.name.to_string());
    line("holder", inspection.holder.as_ref().map_or_else(|| "nobody".to_owned(), Holder::to_string));
    line("remaining", remaining(inspection));
    if let Some(token) = inspection.fencing_token {
        line("fencing token", token.to_string());
    }
    line("waiters", inspection.waiters.len().to_string());
    for (place, waiter) in inspection.waiters.iter().enumerate() {
        line("", format!("{}. {waiter}", place + 1));
    }
    text
}

fn remaining(inspection: &Inspection) -> String {
    match (inspection.remaining, &inspection.holder) {
        (Some(remaining), _) => shown(remaining),
        (None, Some(_)) => "no end".to_owned(),
        (None, None) => "-".to_owned(),
    }
}

fn as_json(inspection: &Inspection) -> Value {
    let holder = inspection.holder.as_ref().map(|holder| {
        let (kind, label) = match holder {
            Holder::Lease { label } => ("lease", Some(label)),
            Holder::Kept { by } => ("kept", Some(by)),
            Holder::Broken { by } => ("broken", Some(by)),
            Holder::HandedOver => ("handed_over", None),
            _ => ("foreign", None),
        };
        json!({ "kind": kind, "label": label })
    });
    json!({
        "name": inspection.name.as_str(),
        "holder": holder,
        "remaining_ms": inspection.remaining.map(|remaining| u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX)),
        // Above 2^53 a number would be rounded by many readers; below, both forms are exact.
        "fencing_token": inspection.fencing_token.map(|token| token.to_string()),
        "waiters": inspection.waiters,
    })
}
