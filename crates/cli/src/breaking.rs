//! `leasehold break`: takes a name away from its holder, after asking, and says what that means.

use std::io::{self, BufRead, IsTerminal, Write};

use leasehold::{BreakMode, BreakReply, Holder};

use crate::args::{BreakArgs, StoreArgs};
use crate::connect::connect_to_look;
use crate::durations::show;
use crate::failure::Failure;
use crate::output::say;

/// Breaks the lease of a name.
pub(crate) async fn break_lease(store: &StoreArgs, args: &BreakArgs) -> Result<(), Failure> {
    let client = connect_to_look(store).await?;
    let holder = client.inspect(&args.name).await?.and_then(|inspection| inspection.holder);
    let Some(holder) = holder else {
        say(format_args!("{} is free: nothing to break", args.name));
        return Ok(());
    };
    if !args.yes && !confirmed(args, &holder)? {
        return Err(Failure::other("not broken"));
    }
    let mode = if args.now { BreakMode::Now } else { BreakMode::Notice };
    match client.break_lease(&args.name, mode).await? {
        BreakReply::Free => say(format_args!("{} is free: nothing to break", args.name)),
        BreakReply::Broken { holder, .. } if args.now => say(format_args!(
            "broken: {} was held by {holder}, which may go on working until its next renewal (a third of its \
             TTL); only the fencing token keeps its writes out until then",
            args.name
        )),
        BreakReply::Broken { holder, remaining } => say(format_args!(
            "broken: {} was held by {holder}, which is told at its next renewal; the name is free in {}",
            args.name,
            show(remaining)
        )),
    }
    Ok(())
}

fn confirmed(args: &BreakArgs, holder: &Holder) -> Result<bool, Failure> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(Failure::usage(format!(
            "{} is held by {holder}: add --yes to break it without being asked",
            args.name
        )));
    }
    let risk = if args.now { " at once, although it may still be working" } else { "" };
    let mut out = io::stderr().lock();
    // If the question cannot be shown, the answer that is read is not yes.
    let _ = write!(out, "Take {} away from {holder}{risk}? [y/N] ", args.name).and_then(|()| out.flush());
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(|error| Failure::other(format!("no answer: {error}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
