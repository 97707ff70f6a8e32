//! The `leasehold` command: arguments in, the library does the work, output and exit code out. Rules of locking
//! are the library's; what is decided here is how a command runs under a lease, and how things are told.

mod args;
mod breaking;
mod connect;
mod demo;
mod doctor;
mod durations;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod look;
mod manual;
mod output;
mod run;
mod sql;
mod usage;
mod watch;

use std::process::ExitCode;

use args::{Action, Cli};
use failure::Failure;
use output::say;

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == run::watchdog::ARGUMENT) {
        return run::watchdog::main();
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == demo::worker::ARGUMENT) {
        return demo::worker::main();
    }
    let cli = match usage::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match act(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            say(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

fn act(cli: Cli) -> Result<u8, Failure> {
    // Everything the command does by itself fits one thread; the library has its own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("the runtime cannot be started: {error}")))?;
    let store = cli.store;
    runtime.block_on(async {
        match cli.action {
            Action::Run(args) => run::run(&store, args).await,
            Action::Once(args) => run::once(&store, args).await,
            Action::Demo(args) => demo::run(&store, args).await,
            Action::Ls(args) => look::list(&store, &args).await.map(|()| 0),
            Action::Show(args) => look::show(&store, &args).await.map(|()| 0),
            Action::Watch(args) => watch::watch(&store, &args).await,
            Action::Break(args) => breaking::break_lease(&store, &args).await.map(|()| 0),
            Action::Doctor(args) => doctor::examine(&store, &args).await,
            Action::Sql(args) => sql::print(&args).map(|()| 0),
            Action::Completions { shell } => manual::completions(shell).map(|()| 0),
            Action::Man { dir } => manual::pages(dir.as_deref()).map(|()| 0),
        }
    })
}
