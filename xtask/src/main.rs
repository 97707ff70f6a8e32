//! `cargo xtask`: the tools of this repository. One subcommand each; the work is done in the library.

use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use xtask::{field_cases, guards, page};

/// Tools of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
enum Task {
    /// Write docs/field-cases.md: failures met elsewhere, and what happens here
    FieldCases(Writing),
    /// Write docs/guards.md: every rule that protects a lease, and the test that fails without it
    Guards(Writing),
    /// An hour of contention with kills, stops, restarts and clock steps on a real server; writes docs/soak.md
    #[command(disable_help_flag = true)]
    Soak {
        /// --minutes N, --server redis7|redis8|valkey9, --workers N, --seed N, --report FILE; see --help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// How a page is written.
#[derive(Args, Debug)]
struct Writing {
    /// Write nothing, and fail if the page is not what would be written
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let root = xtask::root();
    let done = match Arguments::parse().task {
        Task::FieldCases(how) => {
            field_cases::page(&root).and_then(|text| how.put(field_cases::PAGE, &text, "field-cases"))
        }
        Task::Guards(how) => guards::page(&root).and_then(|text| how.put(guards::PAGE, &text, "guards")),
        Task::Soak { arguments } => soak(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Its own program, so that the tools above build without a client.
fn soak(arguments: &[String]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(cargo);
    run.args(["run", "--quiet", "--package", "leasehold-soak", "--"]).args(arguments);
    let status = run.status().map_err(|error| format!("the soak could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the soak ended with {status}")) }
}

impl Writing {
    fn put(&self, path: &str, text: &str, command: &str) -> Result<(), String> {
        let root = xtask::root();
        if self.check { page::check(&root, path, text, command) } else { page::write(&root, path, text) }
    }
}
