//! `cargo xtask`: the tools of this repository. One subcommand each; the work is done in the library.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Say where the repository is.
    Root,
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Root => {
            println!("{}", xtask::root().display());
            ExitCode::SUCCESS
        }
    }
}
