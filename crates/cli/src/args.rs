//! What can be written on the command line. Meaning is given to it elsewhere.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use leasehold::core::{MAX_HOLD_LIMIT, MAX_TTL, MIN_TTL};

use crate::durations;

/// A distributed lock for commands: one runs at a time, is stopped before it can lose its lock, and gets a
/// fencing token.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    subcommand_required = true,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(subcommand)]
    pub(crate) action: Action,
}

const EXAMPLES: &str = "\
Examples:
  export LEASEHOLD_STORE=redis://127.0.0.1/
  leasehold run nightly-report -- ./report.sh     run it on one server at a time
  leasehold once ship:1001 -- ./ship 1001         once in all; later calls print what it printed
  leasehold run --no-wait poll:feed -- ./poll     skip this time if it still runs (exit code 75)
  leasehold --store local run backup -- ./backup  one machine, no server needed
  leasehold ls                                    what is held, by whom, and who waits
  leasehold watch                                 the same, live
  leasehold doctor                                is the store set up for locks?
  leasehold sql postgres                          let a database refuse stale holders
  leasehold demo                                  what a lock prevents, and what it cannot";

/// Where leases live.
#[derive(Args, Debug)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// Where leases live: redis://…, redis+sentinel://…, redis+cluster://…, sqlite:PATH, or local (a file for
    /// this machine); rediss… over TLS
    #[arg(long, global = true, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// How long the store may be unreachable before giving up; one request has 1s of it
    #[arg(
        long,
        global = true,
        value_name = "DURATION",
        allow_hyphen_values = true,
        value_parser = durations::between(LEAST_STORE_TIMEOUT, MAX_TTL),
        default_value = "10s"
    )]
    pub(crate) store_timeout: Duration,
    /// Prefix of every key, `lock:` unless the URL says otherwise
    #[arg(long, global = true, value_name = "PREFIX")]
    pub(crate) namespace: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    Run(RunArgs),
    Once(crate::run::OnceArgs),
    Demo(crate::demo::DemoArgs),
    /// List the names that are held or waited for
    Ls(LsArgs),
    /// Show who holds a name, who waits, and what is kept of an operation
    Show(ShowArgs),
    Watch(crate::watch::WatchArgs),
    Break(BreakArgs),
    /// Check whether the store is set up for locks; exit code 0 only when nothing is wrong
    Doctor(DoctorArgs),
    Sql(crate::sql::SqlArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write all pages into a directory
    Man {
        /// Where to write them
        dir: Option<PathBuf>,
    },
}

/// Run a command while holding a name
///
/// Waits until the name is free, runs the command without a shell in a process group of its own, and gives the
/// name back when all processes of the group have ended. Signals are passed on. If the lease is about to be
/// lost, the command gets TERM, and KILL before the lease can have ended. If this process is killed, so is the
/// command.
#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// How long the lease outlives a crash; it is renewed while the command runs [default: 30s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(LEAST_TTL, MAX_TTL))]
    pub(crate) ttl: Option<Duration>,
    /// Wait at most this long for the name [default: without limit]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit at once with 75 if the name is taken
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// Stop the command and give the name up after this long
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(MIN_TTL, MAX_HOLD_LIMIT))]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the name taken for at least this long, even if the command ends earlier
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::between(MIN_HOLD, MAX_TTL))]
    pub(crate) min_hold: Option<Duration>,
    /// Time between TERM and KILL, less than half of the TTL [default: 5s or a quarter of the TTL]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = durations::parse)]
    pub(crate) grace: Option<Duration>,
    /// Do not renew: the lease ends after the TTL, and the command is stopped before that
    #[arg(long)]
    pub(crate) fixed: bool,
    /// Exit with this code instead of 75 when the name is taken
    #[arg(short = 'E', long, value_name = "CODE", allow_negative_numbers = true, default_value_t = crate::failure::BUSY, hide_default_value = true)]
    pub(crate) busy_code: u8,
    /// Do not say who has the name while it is taken
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// What to lock, for instance order:1001
    pub(crate) name: String,
    /// The command and its arguments, passed on as they are
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The shortest lease that leaves time to renew it, and to stop the command before it ends.
pub(crate) const LEAST_TTL: Duration = Duration::from_millis(100);
/// Nothing answers in less.
const LEAST_STORE_TIMEOUT: Duration = Duration::from_millis(1);
/// The shortest time that a store can keep a name for.
const MIN_HOLD: Duration = Duration::from_millis(1);

const RUN_HELP: &str = "\
Environment of the command:
  LEASEHOLD_NAME           the name
  LEASEHOLD_FENCING_TOKEN  a number that grows with every grant: send it along with every write
  LEASEHOLD_OWNER_TOKEN    a secret that proves ownership
  LEASEHOLD_HELD           all names held around it, so that it cannot wait for itself

Exit codes:
  the command's own; 128+n if signal n ended it; 127 not found, 126 not executable
  75  the name is taken (or -E)      69  the store is unavailable
  77  the store refuses access       79  the lease was lost, whatever the command returned
   2  wrong usage                    70  anything else

Stopping:
  TERM to this process goes to the command, which is killed if it still runs after --grace.
  INT, HUP, QUIT, USR1 and USR2 are passed on and nothing else.
  While waiting, TERM, INT, HUP and QUIT end the wait.
  What the command leaves running gets a second, then TERM, then KILL after --grace; on Linux
  also what left its group. Processes of another user cannot be killed, nor daemons elsewhere.

Examples:
  leasehold run order:1001 -- ./ship 1001
  leasehold run --wait 10s -E 0 nightly -- ./report    not an error if another server does it
  leasehold run --ttl 10m --grace 2m etl -- ./etl      two minutes to stop
  leasehold run --min-hold 30s cron:hourly -- ./job    servers whose clocks differ by less than 30 s";

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// The most names to list
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The name
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a name away from its holder
///
/// The holder is told at its next renewal, and the name stays taken until its present lease would have ended,
/// so nobody works at the same time. Asks first on a terminal.
#[derive(Args, Debug)]
pub(crate) struct BreakArgs {
    /// The name
    pub(crate) name: String,
    /// Free the name at once: its holder may still be working when the next one starts
    #[arg(long)]
    pub(crate) now: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print the rights a Redis user needs instead: one line that can follow ACL SETUSER app on >secret
    #[arg(long, conflicts_with = "json")]
    pub(crate) acl: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
