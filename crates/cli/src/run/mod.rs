//! `leasehold run`: acquires a name, runs a command under it, gives the name back, and exits with the command's
//! code. Who may hold a name, and when a lease is lost, the library decides.

mod group;
mod held;
mod once;
mod printed;
mod signals;
mod spawn;
mod supervise;
mod terminal;
mod timing;
pub(crate) mod watchdog;

use std::io;
use std::process::Command;
use std::time::Duration;

use leasehold::core::{Clock, SystemClock};
use leasehold::{Attempt, Busy, Client, DEFAULT_TTL, Error, ErrorKind, Guard, Lock, Namespace, Released};
use rustix::process::Signal;
use tokio::sync::watch;

use crate::args::{RunArgs, StoreArgs};
use crate::connect::{self, connect};
use crate::durations::show;
use crate::failure::{self, Failure};
use crate::output::say;
use group::{End, Group};
use held::Held;
pub(crate) use once::{OnceArgs, once};
use signals::Signals;
use supervise::{Outcome, Supervisor};
use terminal::Terminal;
use timing::Timing;
use watchdog::Watchdog;

/// While it waits, `run` says so again this often.
const REMIND: Duration = Duration::from_secs(60);
/// How long an interrupted wait may take to leave the queue, and a lost lease to be cleaned up.
const CLEAN_UP: Duration = Duration::from_secs(1);

/// Runs the command; the exit code of this process.
pub(crate) async fn run(store: &StoreArgs, args: RunArgs) -> Result<u8, Failure> {
    let timing = Timing::new(args.ttl.unwrap_or(DEFAULT_TTL), args.grace).map_err(Failure::usage)?;
    let mut signals = Signals::watch().map_err(|error| cannot("receive signals", &error))?;
    let client = tokio::select! {
        client = connect(store) => client?,
        signal = signals.next_request_to_end() => return Ok(code_of(signal)),
    };
    let held = Held::from_environment();
    let namespace = connect::namespace(store)?;
    refuse_nested(&held, &client, &namespace, &args.name)?;
    let lock = lock(&client, &args)?;
    let code = match acquire(lock, &args, &mut signals).await? {
        Turn::Busy(code) | Turn::Interrupted(code) => {
            // A bounded wait for the place in the queue to be given up; it lapses by itself otherwise.
            let _ = client.close(CLEAN_UP).await;
            return Ok(code);
        }
        Turn::Acquired(guard) => {
            let variables = [
                ("LEASEHOLD_NAME", args.name.clone()),
                ("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().to_string()),
                ("LEASEHOLD_OWNER_TOKEN", guard.owner_token().expose().to_owned()),
                (held::VARIABLE, held.with(&client.store(), namespace.as_str(), &args.name)),
            ];
            let mut command = Command::new(&args.command[0]);
            command.args(&args.command[1..]).envs(variables);
            under_lease(guard, timing, &args, command, &mut signals).await?
        }
    };
    let _ = client.close(CLEAN_UP).await;
    Ok(code)
}

/// A name that is held around this process would be waited for in vain.
fn refuse_nested(held: &Held, client: &Client, namespace: &Namespace, name: &str) -> Result<(), Failure> {
    if held.contains(&client.store(), namespace.as_str(), name) {
        return Err(Failure::usage(format!(
            "{name} is held by the leasehold run or once that this one was started under, so it would wait for itself: \
             give the inner one another name, or none"
        )));
    }
    Ok(())
}

/// What became of the wait for the name.
enum Turn {
    Acquired(Guard),
    Busy(u8),
    Interrupted(u8),
}

fn lock(client: &Client, args: &RunArgs) -> Result<Lock, Error> {
    let mut lock = client.lock(&args.name)?;
    lock = match args.wait {
        _ if args.no_wait => lock,
        Some(wait) => lock.wait(wait),
        None => lock.wait_forever(),
    };
    if let Some(ttl) = args.ttl {
        lock = lock.ttl(ttl);
    }
    if let Some(max_hold) = args.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(min_hold) = args.min_hold {
        lock = lock.min_hold(min_hold);
    }
    if args.fixed {
        lock = lock.fixed_lease();
    }
    Ok(lock)
}

async fn acquire(lock: Lock, args: &RunArgs, signals: &mut Signals) -> Result<Turn, Failure> {
    let (report, reports) = watch::channel(None::<Busy>);
    let lock = lock.on_waiting(move |busy| {
        report.send_replace(Some(busy.clone()));
    });
    let silent = args.quiet || args.no_wait;
    let (attempt, passed, told) = match waited(lock.acquire(), reports, &args.name, silent, signals).await? {
        Waited::Interrupted(code) => return Ok(Turn::Interrupted(code)),
        Waited::For { outcome, passed, told } => (outcome, passed, told),
    };
    Ok(match attempt {
        Attempt::Acquired(guard) => {
            if told {
                say(format_args!("got {} after {}", args.name, show(passed)));
            }
            Turn::Acquired(guard)
        }
        Attempt::Busy(busy) => {
            if !args.quiet {
                say(busy_message(&busy, (!args.no_wait).then_some(passed)));
            }
            Turn::Busy(args.busy_code)
        }
    })
}

/// What became of a wait.
enum Waited<T> {
    For {
        outcome: T,
        passed: Duration,
        /// Whether the user was told that there is a wait.
        told: bool,
    },
    Interrupted(u8),
}

/// Waits for an outcome, says for whom, and ends when a signal asks this process to.
async fn waited<T>(
    attempt: impl Future<Output = Result<T, Error>>,
    mut reports: watch::Receiver<Option<Busy>>,
    name: &str,
    silent: bool,
    signals: &mut Signals,
) -> Result<Waited<T>, Failure> {
    let started = SystemClock.now();
    let mut attempt = std::pin::pin!(attempt);
    let mut told = false;
    let mut remind_at = tokio::time::interval(REMIND);
    remind_at.reset();
    loop {
        tokio::select! {
            biased;
            signal = signals.next_request_to_end() => {
                say(format_args!("interrupted while waiting for {name}"));
                return Ok(Waited::Interrupted(code_of(signal)));
            }
            outcome = &mut attempt => {
                let passed = SystemClock.now().since(started);
                return Ok(Waited::For { outcome: outcome?, passed, told });
            }
            Ok(()) = reports.changed() => {}
            _ = remind_at.tick() => {}
        }
        if silent {
            continue;
        }
        if let Some(busy) = reports.borrow_and_update().as_ref() {
            let passed = SystemClock.now().since(started);
            let again = if passed < REMIND { String::new() } else { format!(" (for {} now)", show(passed)) };
            say(format_args!("waiting for {name}{again}: {}", described(busy)));
            told = true;
        }
    }
}

/// What is said when somebody else has the name, after a wait if there was one.
fn busy_message(busy: &Busy, waited: Option<Duration>) -> String {
    let tried = waited.map_or_else(String::new, |passed| format!("; waited {}", show(passed)));
    format!("{} is busy: {}{tried}", busy.name, described(busy))
}

fn described(busy: &Busy) -> String {
    let holder = busy.holder.as_deref().unwrap_or("another holder");
    match busy.remaining {
        Some(remaining) if busy.renewable => {
            format!("held by {holder} for another {} unless renewed", show(remaining))
        }
        Some(remaining) => format!("held by {holder} for another {}", show(remaining)),
        None => format!("held by {holder}"),
    }
}

/// Starts the command under the lease, sees it through, and gives the name back.
async fn under_lease(
    guard: Guard,
    timing: Timing,
    args: &RunArgs,
    command: Command,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let outcome = supervised(&guard, timing, !args.fixed, command, signals).await?;
    let code = match outcome.end {
        End::Exited(code) | End::NotStarted(code) => code,
        End::Signaled(signal) => failure::SIGNAL_BASE.saturating_add(signal),
    };
    give_back(guard, outcome.lost, code, signals).await
}

/// Starts the command under the lease, and sees it through.
async fn supervised(
    guard: &Guard,
    timing: Timing,
    renewed: bool,
    command: Command,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    if !timing.allows_start(guard.remaining()) {
        // A lease that was handed over lasts a few seconds until it is confirmed: too short to start with.
        guard.renew().await?;
    }
    let program = command.get_program().display().to_string();
    Ok(match start(guard, timing, command, signals)? {
        Started::Running(group, watchdog, terminal) => {
            Supervisor::new(guard, renewed, timing, group, watchdog, signals, terminal).run().await
        }
        Started::NotStarted(code, error) => {
            // As of a shell variable that is not set.
            let shown = if program.is_empty() { "the command \"\"" } else { &program };
            say(format_args!("{shown} cannot be started: {error}"));
            Outcome::not_started(code)
        }
    })
}

enum Started {
    Running(Group, Watchdog, Option<Terminal>),
    NotStarted(u8, io::Error),
}

fn start(guard: &Guard, timing: Timing, command: Command, signals: &mut Signals) -> Result<Started, Failure> {
    Group::adopt_orphans();
    let mut not_ours = Group::children_now();
    let safe_until = SystemClock.now().after(guard.remaining());
    let mut watchdog = Watchdog::start(safe_until.before(timing.watchdog_margin()))
        .map_err(|error| cannot("start the watchdog", &error))?;
    not_ours.push(watchdog.process());
    let terminal = Terminal::controlling();
    let given = terminal
        .as_ref()
        .filter(|terminal| terminal.is_wanted_at_start())
        .map(Terminal::try_clone)
        .transpose()
        .map_err(|error| cannot("use the terminal", &error))?;
    let given_away = given.is_some();
    let handle = watchdog.handle().map_err(|error| cannot("use the watchdog", &error))?;
    signals.watch_stop().map_err(|error| cannot("receive signals", &error))?;
    match spawn::in_own_group(command, handle, given) {
        Ok(leader) => {
            watchdog.watches(leader);
            Ok(Started::Running(Group::of(leader, not_ours), watchdog, terminal))
        }
        Err(error) => {
            watchdog.dismiss();
            if let Some(terminal) = terminal.filter(|_| given_away) {
                terminal.take_back();
            }
            let code = match error.kind() {
                io::ErrorKind::NotFound => failure::NOT_FOUND,
                _ => failure::NOT_EXECUTABLE,
            };
            Ok(Started::NotStarted(code, error))
        }
    }
}

/// Gives the name back and decides the exit code: a lease that was lost outweighs the command's own.
async fn give_back(guard: Guard, lost: bool, code: u8, signals: &mut Signals) -> Result<u8, Failure> {
    let name = guard.name().clone();
    let lease_ends = guard.remaining();
    if lost {
        // The store no longer counts it as ours, or cannot be reached: only tidying up is left.
        let _ = tokio::time::timeout(CLEAN_UP, guard.release()).await;
        return Ok(failure::LOST);
    }
    let released = tokio::select! {
        released = guard.release() => released,
        _ = signals.next_request_to_end() => {
            say(format_args!(
                "interrupted before {name} was given back: it becomes free in {} at the latest",
                show(lease_ends)
            ));
            return Ok(code);
        }
    };
    match released {
        Ok(Released::Freed) => Ok(code),
        Ok(Released::AlreadyLost) => {
            say(format_args!(
                "the lease of {name} was lost while the command ran: somebody else may have held it too"
            ));
            Ok(failure::LOST)
        }
        Err(error) => {
            // The command had the lease to its end, so its own code stands. Nothing is retried: this process ends.
            let why = match error.kind() {
                ErrorKind::Unavailable => {
                    format!("{name} could not be given back: the store gives no usable answer")
                }
                ErrorKind::Unknown => {
                    format!("whether {name} was given back is not known: the reply was lost")
                }
                _ => failure::with_causes(&error),
            };
            say(format_args!("{why}; {name} becomes free in {} at the latest", show(lease_ends)));
            Ok(code)
        }
    }
}

fn code_of(signal: Signal) -> u8 {
    failure::SIGNAL_BASE.saturating_add(u8::try_from(signal.as_raw()).unwrap_or(u8::MAX))
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::other(format!("cannot {what}: {error}"))
}
