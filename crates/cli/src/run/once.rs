//! `leasehold once`: runs a command that is to succeed once. What it prints is kept, and later calls print that
//! instead. Who may run it, and what is kept for how long, the library decides.

use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use leasehold::{
    Claim, Claimed, Client, DEFAULT_TTL, Error, ErrorKind, Failed, Forgot, IfUnknown, MAX_HOLD_LIMIT,
    MAX_RETAIN, MAX_TTL, MIN_RETAIN, MIN_TTL, Name, Once, idempotency_key,
};

use super::group::End;
use super::held::{self, Held};
use super::printed::{Captured, Printed};
use super::signals::Signals;
use super::supervise::Outcome;
use super::timing::Timing;
use super::{CLEAN_UP, Waited, busy_message, cannot, code_of, refuse_nested, supervised, waited};
use crate::args::{LEAST_TTL, StoreArgs};
use crate::connect::{self, connect, connect_to_look};
use crate::durations;
use crate::failure::{self, Failure};
use crate::look;
use crate::output::{data, say};

/// Run a command once: later calls print what it printed
///
/// Runs the command unless it has succeeded under this name before, or runs it again if it has failed. What it writes
/// to standard output is passed on and kept, at most 1 MiB; later calls print that and exit with 0. While one call
/// runs the command, others wait for its result. The command runs as under `leasehold run`.
///
/// A call that dies may have acted already, so a command can run more than once. Give what it asks for the key in
/// `LEASEHOLD_IDEMPOTENCY_KEY`: it is the same for every call with this name.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct OnceArgs {
    /// Keep the result for this long; that a call has begun is known for 24h or --max-hold at least
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(MIN_RETAIN, MAX_RETAIN), default_value = "24h")]
    retain: Duration,
    /// Wait at most this long for the result of another call [default: without limit]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::parse, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Do not wait: exit at once with 75 if another call is at it
    #[arg(short, long)]
    no_wait: bool,
    /// What is asked for: a later call with another text is refused
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    fingerprint: Option<OsString>,
    /// Do not run again if an earlier call may have acted: exit with 80
    #[arg(long)]
    refuse_unknown: bool,
    /// The command exits with this code if it has certainly not acted; can be given several times
    #[arg(long, value_name = "CODE", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..))]
    not_acted: Vec<u8>,
    /// How long the lease outlives a crash; it is renewed while the command runs [default: 30s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(LEAST_TTL, MAX_TTL))]
    ttl: Option<Duration>,
    /// Stop the command and give up after this long
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(MIN_TTL, MAX_HOLD_LIMIT))]
    max_hold: Option<Duration>,
    /// Time between TERM and KILL, less than half of the TTL [default: 5s or a quarter of the TTL]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::parse)]
    grace: Option<Duration>,
    /// Do not say who is at it
    #[arg(short, long)]
    quiet: bool,
    /// Print the idempotency key of this name and do nothing else
    #[arg(long, conflicts_with_all = ["command", "forget"])]
    print_key: bool,
    /// Forget the operation and do nothing else: the next call runs it, whatever became of it before
    #[arg(long, conflicts_with = "command")]
    forget: bool,
    /// The operation, for instance ship:1001
    name: String,
    /// The command and its arguments, passed on as they are
    #[arg(
        required_unless_present_any = ["print_key", "forget"],
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

const HELP: &str = "\
Environment of the command:
  LEASEHOLD_IDEMPOTENCY_KEY  the operation's key, a UUID: the same for every call with this name
  LEASEHOLD_ATTEMPT          1, or more if earlier calls have failed
  and what `leasehold run` sets

Exit codes:
   0  it has succeeded, now or before; its output has been passed on
  the command's own if it has failed; 128+n if signal n ended it, or ended this process

  The command ran:
  74  it has succeeded, now or before, and its output could not be written: call again for it
  79  the lease was lost, whatever the command returned
  81  it has succeeded, and its result was not kept, or that is not certain

  The command did not run:
   2  wrong usage                      70  anything else
  69  the store is unavailable         75  another call is at it
  77  the store refuses access        126  not executable, 127 not found
  80  refused: another --fingerprint, or --refuse-unknown applies

  What has not succeeded and been kept, the next call runs again. With --refuse-unknown it does so
  only if the command was not started, or exited with a code given by --not-acted: in any other
  case it may have acted, also if it exited with 0 after a signal had told it to stop.

Examples:
  leasehold once ship:1001 -- ./ship 1001
  leasehold once --retain 72h --fingerprint \"$body\" pay:77 -- ./pay \"$body\"
  leasehold once --no-wait mail:7:welcome -- ./send-welcome 7
  leasehold once --refuse-unknown --not-acted 7 pay:78 -- ./pay 78    7: it could not connect";

/// Runs the command, or prints what it printed; the exit code of this process.
pub(crate) async fn once(store: &StoreArgs, args: OnceArgs) -> Result<u8, Failure> {
    let namespace = connect::namespace(store)?;
    if args.print_key {
        return data(&format!("{}\n", idempotency_key(&namespace, &Name::new(&args.name)?))).map(|()| 0);
    }
    if args.forget {
        return forget(store, &args.name).await;
    }
    let timing = Timing::new(args.ttl.unwrap_or(DEFAULT_TTL), args.grace).map_err(Failure::usage)?;
    let mut signals = Signals::watch().map_err(|error| cannot("receive signals", &error))?;
    let client = tokio::select! {
        client = connect(store) => client?,
        signal = signals.next_request_to_end() => return Ok(code_of(signal)),
    };
    let held = Held::from_environment();
    refuse_nested(&held, &client, &namespace, &args.name)?;
    let code = match claim(&client, &args, &mut signals).await? {
        Turn::Done(result) => match Printed::kept(result) {
            Ok(mut printed) => Ok(passed_on(&mut printed, 0, &mut signals).await),
            Err(error) => Err(cannot("print the result", &error)),
        },
        Turn::Over(code) => Ok(code),
        Turn::Claimed(claimed) => {
            let attempt = claimed.attempt();
            let variables = [
                ("LEASEHOLD_NAME", args.name.clone()),
                ("LEASEHOLD_FENCING_TOKEN", claimed.fencing_token().to_string()),
                ("LEASEHOLD_OWNER_TOKEN", claimed.owner_token().expose().to_owned()),
                ("LEASEHOLD_IDEMPOTENCY_KEY", attempt.idempotency_key().to_string()),
                ("LEASEHOLD_ATTEMPT", attempt.number().to_string()),
                (held::VARIABLE, held.with(&client.store(), namespace.as_str(), &args.name)),
            ];
            let mut command = Command::new(&args.command[0]);
            command.args(&args.command[1..]).envs(variables);
            under_claim(claimed, timing, command, &args, &mut signals).await
        }
    };
    // Bounded: what is left of a lease ends by itself.
    let _ = client.close(CLEAN_UP).await;
    code
}

/// Forgets what is kept of an operation, and tells what that was; the exit code.
async fn forget(store: &StoreArgs, name: &str) -> Result<u8, Failure> {
    let client = connect_to_look(store).await?;
    let forgot = client.once(name)?.forget().await;
    let _ = client.close(CLEAN_UP).await;
    Ok(match forgot? {
        Forgot::Nothing => {
            say(format_args!("nothing is kept of {name}"));
            0
        }
        Forgot::Forgotten(kept) => {
            say(format_args!("forgotten: {name} was {}", look::operation(&kept, false)));
            0
        }
        Forgot::InProgress(busy) => {
            say(busy_message(&busy, None));
            failure::BUSY
        }
    })
}

/// What became of the claim.
enum Turn {
    Claimed(Claimed),
    Done(Vec<u8>),
    Over(u8),
}

fn operation(client: &Client, args: &OnceArgs) -> Result<Once, Error> {
    let mut once = client.once(&args.name)?.retain(args.retain);
    once = match args.wait {
        _ if args.no_wait => once,
        Some(wait) => once.wait(wait),
        None => once.wait_forever(),
    };
    if let Some(request) = &args.fingerprint {
        once = once.fingerprint(request.as_encoded_bytes());
    }
    if args.refuse_unknown {
        once = once.if_unknown(IfUnknown::Refuse);
    }
    if let Some(ttl) = args.ttl {
        once = once.ttl(ttl);
    }
    if let Some(max_hold) = args.max_hold {
        once = once.max_hold(max_hold);
    }
    Ok(once)
}

/// An error as the command names what can be done about it.
fn in_words_of_the_command(error: Error, name: &str) -> Error {
    if error.kind() != ErrorKind::OutcomeUnknown {
        return error;
    }
    Error::new(
        ErrorKind::OutcomeUnknown,
        format!(
            "{name}: an earlier call may have acted, and --refuse-unknown was given, so nothing was run: find out, \
             then run it without --refuse-unknown, or after leasehold once --forget {name}"
        ),
    )
}

async fn claim(client: &Client, args: &OnceArgs, signals: &mut Signals) -> Result<Turn, Failure> {
    let (report, reports) = tokio::sync::watch::channel(None);
    let once = operation(client, args)?.on_waiting(move |busy| {
        report.send_replace(Some(busy.clone()));
    });
    let silent = args.quiet || args.no_wait;
    let claim = async { once.claim().await.map_err(|error| in_words_of_the_command(error, &args.name)) };
    let (claim, passed) = match waited(claim, reports, &args.name, silent, signals).await? {
        Waited::Interrupted(code) => return Ok(Turn::Over(code)),
        Waited::For { outcome, passed, .. } => (outcome, passed),
    };
    Ok(match claim {
        Claim::Claimed(claimed) => Turn::Claimed(claimed),
        Claim::Done(result) => Turn::Done(result),
        Claim::InProgress(busy) => {
            if !args.quiet {
                say(busy_message(&busy, (!args.no_wait).then_some(passed)));
            }
            Turn::Over(failure::BUSY)
        }
    })
}

/// Runs the command under the claim, keeps what it prints, gives the name back, and only then waits for the reader of
/// what it has printed.
async fn under_claim(
    claimed: Claimed,
    timing: Timing,
    command: Command,
    args: &OnceArgs,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let (outcome, mut printed) = match run(&claimed, timing, command, signals).await {
        Ok(ran) => ran,
        Err(failure) => {
            let why = failure.message.clone();
            // Nothing was started. If this cannot be kept, the next call finds that this one may have acted.
            if let Ok(Err(error)) = tokio::time::timeout(CLEAN_UP, claimed.fail(Failed::Retryable)).await
                && error.to_string() != why
            {
                say(error);
            }
            return Err(failure);
        }
    };
    if outcome.lost {
        // The next call finds that this one may have acted.
        drop(claimed);
        let _ = tokio::time::timeout(CLEAN_UP, printed.passed_on()).await;
        return Ok(failure::LOST);
    }
    let (code, how) = verdict(&outcome, args);
    let name = claimed.name().clone();
    let settled = tokio::select! {
        settled = settle(claimed, code, how, &mut printed) => settled,
        _ = signals.next_request_to_end() => {
            let code = if how.is_none() { failure::NOT_KEPT } else { code };
            Failure::new(
                code,
                format!("interrupted before the outcome of {name} was kept: the next call may run it again"),
            )
        }
    };
    if !settled.message.is_empty() {
        say(&settled.message);
    }
    if outcome.asked_to_end.is_some() {
        let _ = tokio::time::timeout(CLEAN_UP, printed.passed_on()).await;
        return Ok(settled.code);
    }
    Ok(passed_on(&mut printed, settled.code, signals).await)
}

/// Runs the command, and captures what it prints.
async fn run(
    claimed: &Claimed,
    timing: Timing,
    mut command: Command,
    signals: &mut Signals,
) -> Result<(Outcome, Printed), Failure> {
    let (reader, writer) = io::pipe().map_err(|error| cannot("make a pipe", &error))?;
    command.stdout(writer);
    let printed = Printed::of(reader).map_err(|error| cannot("pass the output on", &error))?;
    // The command's own end of the pipe is closed with it.
    let outcome = supervised(claimed, timing, true, command, signals).await?;
    printed.command_has_ended();
    Ok((outcome, printed))
}

/// The exit code of a command that had the lease to its end, and how it has failed if so.
fn verdict(outcome: &Outcome, args: &OnceArgs) -> (u8, Option<Failed>) {
    match (outcome.end, outcome.asked_to_end) {
        (End::NotStarted(code), _) => (code, Some(Failed::Retryable)),
        (End::Signaled(signal), _) => (failure::SIGNAL_BASE.saturating_add(signal), Some(Failed::Unknown)),
        // Services end so when they are told to, wherever they were.
        (End::Exited(0), Some(signal)) if outcome.asked_while_it_ran => {
            say(
                "the command exited with 0 because it was told to stop: whether it has done its work is not known",
            );
            (code_of(signal), Some(Failed::Unknown))
        }
        (End::Exited(0), _) => (0, None),
        (End::Exited(code), _) if args.not_acted.contains(&code) => (code, Some(Failed::Retryable)),
        (End::Exited(code), _) => (code, Some(Failed::Unknown)),
    }
}

/// Keeps the outcome and gives the name back; the exit code, and what there is to say.
async fn settle(claimed: Claimed, code: u8, how: Option<Failed>, printed: &mut Printed) -> Failure {
    let name = claimed.name().clone();
    let (how, why) = match how {
        Some(how) => (how, None),
        None => match printed.captured().await {
            Captured::Whole(result) => return kept(claimed.complete(result).await),
            Captured::TooLarge => (Failed::Unknown, Some("it has printed more than 1 MiB")),
            Captured::Broken => (Failed::Unknown, Some("what it has printed could not be read")),
        },
    };
    match (claimed.fail(how).await, why) {
        (Err(error), _) if is_lost(&error) => Failure::new(failure::LOST, failure::with_causes(&error)),
        (_, Some(why)) => Failure::new(
            failure::NOT_KEPT,
            format!(
                "{name}: the command succeeded, but {why}, so nothing is kept: the next call runs it again, or \
                 refuses to with --refuse-unknown; let it print where its result is"
            ),
        ),
        (Err(error), None) => Failure::new(code, failure::with_causes(&error)),
        (Ok(()), None) => Failure::new(code, ""),
    }
}

fn kept(completed: Result<(), Error>) -> Failure {
    let Err(error) = completed else { return Failure::new(0, "") };
    let code = if is_lost(&error) { failure::LOST } else { failure::NOT_KEPT };
    Failure::new(code, format!("the command succeeded, but: {}", failure::with_causes(&error)))
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost(_))
}

/// Waits until the reader has got everything, or a signal comes; the exit code.
async fn passed_on(printed: &mut Printed, code: u8, signals: &mut Signals) -> u8 {
    let passed_on = tokio::select! {
        passed_on = printed.passed_on() => passed_on,
        signal = signals.next_request_to_end() => {
            say("interrupted while the output was written; the outcome was kept before");
            return if code == 0 { code_of(signal) } else { code };
        }
    };
    match passed_on {
        Ok(()) => code,
        Err(error) if code == 0 => {
            say(format_args!(
                "standard output cannot be written: {error}; the result is kept: the next call prints it"
            ));
            failure::NOT_WRITTEN
        }
        Err(error) => {
            say(format_args!("standard output cannot be written: {error}"));
            code
        }
    }
}
