//! Benchmarks: each prints the raw limit or the naive method beside ours, as a table, and keeps it in
//! `bench/results/`.

mod measure;
mod report;
mod sqlite;

use clap::{Parser, Subcommand};

/// Benchmarks of Leasehold. Run in release mode: cargo run --release -p leasehold-bench -- all
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Copy)]
enum What {
    /// Everything, one after the other.
    All,
    /// Acquire and release on the embedded store, beside the same two bare SQL statements.
    Sqlite,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Arguments::parse().what {
        What::All => {
            sqlite::run()?;
        }
        What::Sqlite => sqlite::run()?,
    }
    Ok(())
}
