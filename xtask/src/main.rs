//! `cargo xtask`: the tools of this repository. One subcommand each; the work is done in the library.

use std::process::ExitCode;

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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

impl Writing {
    fn put(&self, path: &str, text: &str, command: &str) -> Result<(), String> {
        let root = xtask::root();
        if self.check { page::check(&root, path, text, command) } else { page::write(&root, path, text) }
    }
}
