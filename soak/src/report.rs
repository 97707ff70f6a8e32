//! The report of a soak in Markdown: what was done, what was seen, and whether everything held that must hold.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::judge::Judge;
use super::line::Micros;
use super::{AnyError, TTL};

/// More than this is growth and not the noise of an allocator.
const CLIENT_MAY_GROW_KIB: i64 = 4 * 1024;
const SERVER_MAY_GROW_KIB: i64 = 1024;
/// A client has its caches filled after this part of the time.
const WARM_UP_DIVISOR: usize = 10;

/// What was seen besides the workers' words.
pub(super) struct Outcome {
    pub(super) command: String,
    pub(super) server: String,
    pub(super) clock: String,
    pub(super) took: Duration,
    pub(super) seed: u64,
    pub(super) workers: usize,
    pub(super) disturbances: BTreeMap<&'static str, u64>,
    pub(super) kills: u64,
    pub(super) server_memory: (u64, u64),
    /// Keys after the last TTL, and after the last queue entry's time.
    pub(super) keys_left: (Vec<String>, Vec<String>),
    /// Updates that were overwritten, and updates that nobody said to have made.
    pub(super) lost_updates: u64,
    pub(super) unlogged: u64,
}

/// Checks what must hold; every line is something that did not.
pub(super) fn failures(outcome: &Outcome, judge: &Judge) -> Vec<String> {
    let mut failures = judge.violations.clone();
    let mut demand = |holds: bool, words: String| {
        if !holds {
            failures.push(words);
        }
    };
    demand(judge.counts.grants > 0, "nothing was ever granted".to_owned());
    demand(outcome.lost_updates == 0, format!("{} updates were overwritten", outcome.lost_updates));
    // A task of a killed worker may have written without having said so.
    let most = outcome.kills * 3;
    demand(outcome.unlogged <= most, format!("{} updates that nobody made", outcome.unlogged));
    let (locks, all) = &outcome.keys_left;
    demand(locks.is_empty(), format!("leases are left after the last TTL: {locks:?}"));
    demand(all.is_empty(), format!("keys are left: {all:?}"));
    let grown = growth(outcome.server_memory);
    demand(grown <= SERVER_MAY_GROW_KIB * 1024, format!("the server's memory grew by {grown} bytes"));
    for (worker, (before, after)) in memory(judge) {
        let grown = growth((before, after));
        demand(grown <= CLIENT_MAY_GROW_KIB, format!("worker {worker}'s memory grew by {grown} KiB"));
    }
    for (worker, load) in &judge.last_loads {
        demand(*load == 0, format!("worker {worker} ended with {load} leases, waiters or clean-ups"));
    }
    failures
}

fn growth((before, after): (u64, u64)) -> i64 {
    i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
}

/// Resident memory of each spared worker after the warm-up and at the end, in KiB.
fn memory(judge: &Judge) -> BTreeMap<usize, (u64, u64)> {
    let first_and_last = |(worker, samples): (&usize, &Vec<(Micros, u64)>)| {
        let warm = samples.get(samples.len() / WARM_UP_DIVISOR)?.1;
        Some((*worker, (warm, samples.last()?.1)))
    };
    judge.memory.iter().filter_map(first_and_last).collect()
}

/// The whole report.
pub(super) fn markdown(
    outcome: &Outcome,
    judge: &mut Judge,
    failures: &[String],
) -> Result<String, AnyError> {
    let mut text = String::new();
    let out = &mut text;
    let minutes = outcome.took.as_secs_f64() / 60.0;
    writeln!(out, "# Soak\n")?;
    writeln!(
        out,
        "{} worker processes compete for three names, and take others once, for {minutes:.0} minutes. Meanwhile \
         they, the server and its clock are killed, stopped, cut off and stepped. The protected resource is a \
         tally in a file that seals fencing tokens.\n",
        outcome.workers
    )?;
    writeln!(out, "Made by `{}`, seed {}.\n", outcome.command, outcome.seed)?;
    writeln!(out, "- Server: {}", outcome.server)?;
    writeln!(out, "- Clock of the server: {}", outcome.clock)?;
    writeln!(out, "- TTL: {} s, renewed\n", TTL.as_secs())?;
    verdict(out, judge, failures)?;
    figures(out, outcome, judge)?;
    times(out, judge)?;
    resources(out, outcome, judge)?;
    table(out, "What was done to them", &["what", "times"], &outcome.disturbances)?;
    Ok(text)
}

fn verdict(out: &mut String, judge: &Judge, failures: &[String]) -> Result<(), AnyError> {
    if failures.is_empty() {
        writeln!(out, "**Everything held that must hold.**\n")?;
        return Ok(());
    }
    let more = judge.violation_count.saturating_sub(judge.violations.len() as u64);
    writeln!(out, "**{} things did not hold:**\n", failures.len() as u64 + more)?;
    for failure in failures {
        writeln!(out, "- {failure}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn figures(out: &mut String, outcome: &Outcome, judge: &Judge) -> Result<(), AnyError> {
    let counts = &judge.counts;
    writeln!(out, "## What happened\n\n| what | count |\n|---|---|")?;
    for (what, count) in [
        ("grants of the three names", counts.grants),
        ("names used once", counts.once),
        ("updates under a lease", counts.added),
        ("stale writes refused by the fencing token", counts.refused),
        ("holders that saw their loss and did not write", counts.stopped),
        ("holders killed", counts.killed_holding),
        ("overlaps: two holders told that they hold, at one moment", counts.overlaps),
        ("of these without lost data or a stepped clock", counts.unexplained_overlaps),
        ("updates overwritten", outcome.lost_updates),
        ("updates made by a worker that was killed before it could say so", outcome.unlogged),
    ] {
        writeln!(out, "| {what} | {count} |")?;
    }
    writeln!(out)?;
    table(out, "Losses by cause", &["cause", "times"], &counts.losses)?;
    let words = "Losses while nothing happened to server or holder (a busy machine)";
    table(out, words, &["cause", "times"], &counts.unexplained_losses)?;
    table(out, "Releases", &["outcome", "times"], &counts.released)?;
    table(out, "Acquisitions without a grant", &["outcome", "times"], &counts.without)
}

fn times(out: &mut String, judge: &mut Judge) -> Result<(), AnyError> {
    writeln!(
        out,
        "## Times\n\n| what | count | median | 99 % | 99.9 % | longest |\n|---|---|---|---|---|---|"
    )?;
    for (what, times) in [
        ("hand-over: release called to the next holder at work, undisturbed", &mut judge.hand_overs),
        ("a holder killed to the next holder at work", &mut judge.take_overs),
    ] {
        times.sort_unstable();
        let at = |per_mille: usize| {
            let index = (times.len().saturating_sub(1)) * per_mille / 1_000;
            times
                .get(index)
                .map_or_else(|| "-".to_owned(), |time| format!("{:.2?}", Duration::from_micros(*time)))
        };
        let count = times.len();
        writeln!(out, "| {what} | {count} | {} | {} | {} | {} |", at(500), at(990), at(999), at(1_000))?;
    }
    writeln!(
        out,
        "\nLongest wait of a worker that was left alone, outages of the server not counted: {:.1?}.\n",
        judge.longest_wait
    )?;
    Ok(())
}

fn resources(out: &mut String, outcome: &Outcome, judge: &Judge) -> Result<(), AnyError> {
    writeln!(out, "## Memory and keys\n\n| whose memory | start | end |\n|---|---|---|")?;
    let (before, after) = outcome.server_memory;
    writeln!(out, "| server (used_memory, no client) | {} KiB | {} KiB |", before / 1024, after / 1024)?;
    for (worker, (before, after)) in memory(judge) {
        writeln!(
            out,
            "| worker {worker} (resident; start: after a tenth of the time) | {before} KiB | {after} KiB |"
        )?;
    }
    let (locks, all) = &outcome.keys_left;
    writeln!(
        out,
        "\nKeys left: {} leases after the last TTL; {} keys in all, the fencing counter not counted, once the \
         last queue entry had its time.\n",
        locks.len(),
        all.len()
    )?;
    Ok(())
}

fn table<K: std::fmt::Display>(
    out: &mut String,
    title: &str,
    head: &[&str; 2],
    rows: &BTreeMap<K, u64>,
) -> Result<(), AnyError> {
    if rows.is_empty() {
        writeln!(out, "{title}: none.\n")?;
        return Ok(());
    }
    writeln!(out, "{title}:\n\n| {} | {} |\n|---|---|", head[0], head[1])?;
    for (what, count) in rows {
        writeln!(out, "| {what} | {count} |")?;
    }
    writeln!(out)?;
    Ok(())
}
