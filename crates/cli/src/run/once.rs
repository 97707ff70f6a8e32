//! `leasehold once`: runs a command that is to succeed once. What it prints is kept, and later calls print that
//! instead. Who may run it, and what is kept for how long, the library decides.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use leasehold::{
    Claim, Claimed, Client, DEFAULT_TTL, Error, Failed, IfUnknown, MAX_HOLD_LIMIT, MAX_RESULT_BYTES,
    MAX_RETAIN, MAX_TTL, MIN_RETAIN, MIN_TTL, Name, Once, idempotency_key,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::group::End;
use super::held::{self, Held};
use super::signals::Signals;
use super::timing::Timing;
use super::{CLEAN_UP, Waited, busy_message, cannot, code_of, refuse_nested, supervised, waited};
use crate::args::{LEAST_TTL, StoreArgs};
use crate::connect::{self, connect};
use crate::durations;
use crate::failure::{self, Failure};
use crate::output::{data, say};

/// How often it is looked whether a command that prints nothing is gone.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

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
    /// Keep the result for this long
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
    /// Do not run again if an earlier call may have acted: exit with 70
    #[arg(long)]
    refuse_unknown: bool,
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
    #[arg(long, conflicts_with = "command")]
    print_key: bool,
    /// The operation, for instance ship:1001
    name: String,
    /// The command and its arguments, passed on as they are
    #[arg(
        required_unless_present = "print_key",
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
   0  it has succeeded, now or before
  75  another call is at it           2  wrong usage, or another --fingerprint
  70  the output is too large to be kept, or --refuse-unknown applies
  and those of `leasehold run`: the command's own, 69, 77, 79

  A command that exits with another code than 0 has failed: the next call runs it again.
  One that a signal ended, or whose lease was lost, may have acted (--refuse-unknown).

Examples:
  leasehold once ship:1001 -- ./ship 1001
  leasehold once --retain 72h --fingerprint \"$body\" pay:77 -- ./pay \"$body\"
  leasehold once --no-wait mail:7:welcome -- ./send-welcome 7";

/// Runs the command, or prints what it printed; the exit code of this process.
pub(crate) async fn once(store: &StoreArgs, args: OnceArgs) -> Result<u8, Failure> {
    let namespace = connect::namespace(store)?;
    if args.print_key {
        return data(&format!("{}\n", idempotency_key(&namespace, &Name::new(&args.name)?))).map(|()| 0);
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
        Turn::Done(result) => bytes(&result).map(|()| 0),
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
            under_claim(claimed, timing, command, &mut signals).await
        }
    };
    // Bounded: what is left of a lease ends by itself.
    let _ = client.close(CLEAN_UP).await;
    code
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

async fn claim(client: &Client, args: &OnceArgs, signals: &mut Signals) -> Result<Turn, Failure> {
    let (report, reports) = tokio::sync::watch::channel(None);
    let once = operation(client, args)?.on_waiting(move |busy| {
        report.send_replace(Some(busy.clone()));
    });
    let silent = args.quiet || args.no_wait;
    let (claim, passed) = match waited(once.claim(), reports, &args.name, silent, signals).await? {
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

/// Runs the command under the claim, keeps what it prints, and gives the name back.
async fn under_claim(
    claimed: Claimed,
    timing: Timing,
    mut command: Command,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let (reader, writer) = io::pipe().map_err(|error| cannot("make a pipe", &error))?;
    command.stdout(writer);
    let printed = Printed::of(reader).map_err(|error| cannot("start a thread", &error))?;
    // The command's own end of the pipe is closed with it.
    let outcome = supervised(&claimed, timing, true, command, signals).await?;
    if outcome.lost {
        // The next call finds that this one may have acted.
        drop(claimed);
        let _ = tokio::time::timeout(CLEAN_UP, printed.all()).await;
        return Ok(failure::LOST);
    }
    let (code, how) = match outcome.end {
        End::Exited(0) => (0, None),
        End::Exited(code) => (code, Some(Failed::Retryable)),
        End::Signaled(signal) => (failure::SIGNAL_BASE.saturating_add(signal), Some(Failed::Unknown)),
    };
    let name = claimed.name().clone();
    let settled = async {
        let printed = printed.all().await;
        match how {
            None => claimed.complete(printed).await,
            Some(how) => claimed.fail(how).await,
        }
    };
    let settled = tokio::select! {
        settled = settled => settled,
        _ = signals.next_request_to_end() => {
            say(format_args!("interrupted before the outcome of {name} was kept: the next call may run it again"));
            return Ok(code);
        }
    };
    match (settled, how) {
        (Ok(()), _) => Ok(code),
        (Err(error), None) => {
            let Failure { code, message } = Failure::from(error);
            Err(Failure::new(code, format!("the command succeeded, but: {message}")))
        }
        (Err(error), Some(_)) => {
            say(error);
            Ok(code)
        }
    }
}

/// What the command prints, passed on as it comes and kept.
struct Printed {
    kept: Arc<Mutex<Vec<u8>>>,
    command_is_gone: Arc<AtomicBool>,
    end: oneshot::Receiver<()>,
}

impl Printed {
    fn of(reader: PipeReader) -> io::Result<Self> {
        let (kept, command_is_gone) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicBool>::default());
        let (ended, end) = oneshot::channel();
        let (sink, is_gone) = (Arc::clone(&kept), Arc::clone(&command_is_gone));
        std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            copy(reader, &sink, &is_gone);
            // Nobody waits any more if the lease was lost.
            let _ = ended.send(());
        })?;
        Ok(Self { kept, command_is_gone, end })
    }

    /// All of it, now that the command and what it started have ended. A daemon elsewhere that has kept the pipe is
    /// waited for only as long as it goes on printing.
    async fn all(self) -> Vec<u8> {
        self.command_is_gone.store(true, Ordering::Release);
        // It fails only if the thread panicked, which is told.
        let _ = self.end.await;
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Copies what comes out of the pipe to standard output and into `kept`, of which one byte more than is ever kept
/// tells that it is too large.
fn copy(mut reader: PipeReader, kept: &Mutex<Vec<u8>>, command_is_gone: &AtomicBool) {
    let mut buffer = [0; 16 * 1024];
    let mut heard = true;
    loop {
        let gone = command_is_gone.load(Ordering::Acquire);
        match poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&LOOK_AGAIN)) {
            Ok(0) if gone => return,
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        let part = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => &buffer[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        // A reader that has gone away must not end a command whose output is kept.
        heard = heard && pass_on(part).is_ok();
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = (MAX_RESULT_BYTES + 1).saturating_sub(kept.len());
        kept.extend_from_slice(&part[..part.len().min(room)]);
    }
}

fn pass_on(part: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(part)?;
    out.flush()
}

/// Prints a kept result.
fn bytes(result: &[u8]) -> Result<(), Failure> {
    match pass_on(result) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::other(format!("standard output cannot be written: {error}"))),
        Ok(()) => Ok(()),
    }
}
