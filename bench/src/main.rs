//! Benchmarks: each prints the raw limit or the naive method beside ours, as a table, and keeps it in
//! `bench/results/`.

mod measure;
mod once;
mod process;
mod redis;
mod report;
mod seal;
mod sqlite;
mod start;

use clap::{Parser, Subcommand};

/// Benchmarks of Leasehold. Run in release mode: cargo run --release -p leasehold-bench -- all
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Everything, one after the other: about twenty minutes.
    All,
    /// Acquire and release on the embedded store, beside the same two bare SQL statements.
    Sqlite,
    /// The seal at SQLite, PostgreSQL and MariaDB, beside the raw statements.
    Seal,
    /// Start of the command on the embedded store, beside flock.
    Start,
    /// Run once, the first call and a later one, beside the raw statements.
    Once,
    /// Latency of an uncontended pair, beside two raw script calls.
    RedisLatency,
    /// Latency of an uncontended pair on a cluster, beside a single server.
    RedisCluster,
    /// Throughput of 64 tasks, beside the client library alone and redis-benchmark.
    RedisThroughput,
    /// Server time and requests of a pair, beside SET NX PX.
    RedisCost,
    /// Hand-over with 1 ms added each way, beside one round trip; and after a crash.
    RedisHandover,
    /// A failover by Sentinels: how long until names are granted again, beside the Sentinels' own time.
    RedisFailover,
    /// 2 to 2,048 waiters on one name, beside a release that publishes to all.
    RedisContention,
    /// Memory over a million names.
    RedisMemory,
    /// 100,000 leases held for ten minutes, and when a holder that is cut off is told.
    RedisRenewals,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all = [
        (What::Sqlite, sqlite::run as fn() -> Result<(), Box<dyn std::error::Error>>),
        (What::Seal, seal::run),
        (What::Start, start::run),
        (What::Once, once::run),
        (What::RedisLatency, redis::latency::run),
        (What::RedisCluster, redis::cluster::run),
        (What::RedisThroughput, redis::throughput::run),
        (What::RedisCost, redis::cost::run),
        (What::RedisHandover, redis::handover::run),
        (What::RedisFailover, redis::failover::run),
        (What::RedisContention, redis::contention::run),
        (What::RedisMemory, redis::memory::run),
        (What::RedisRenewals, redis::renewals::run),
    ];
    let what = Arguments::parse().what;
    for (each, run) in all {
        if what == What::All || what == each {
            run()?;
        }
    }
    Ok(())
}
