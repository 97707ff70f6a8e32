//! The soak, `cargo xtask soak`: worker processes compete for a few names on a real server for as long as asked, while they,
//! the server and its clock are disturbed. What must hold is judged from what the workers tell, and reported.

mod crew;
mod faults;
mod judge;
mod ledger;
mod line;
mod random;
mod report;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use leasehold::Client;
use leasehold_testkit::servers::{RedisServer, ServerKind};

use crew::{Crew, News};
use faults::{Faults, Record, ServerClock};
use judge::Judge;
use ledger::Ledger;
use random::Random;
use report::Outcome;

/// An error of this tool.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Short, so that many leases end within an hour; long enough that a busy machine renews in time.
const TTL: Duration = Duration::from_secs(2);
const NAMES: usize = 3;
/// Workers finish their last holds and waits within this time.
const LAST_WORK: Duration = Duration::from_secs(120);
/// The clock of the server may have been put back: leases last as much longer.
const CLOCK_MOST: Duration = Duration::from_secs(13);
/// A queue that nobody refreshes is forgotten after 60 s, and the clock may have been put back.
const QUEUE_EXPIRY: Duration = Duration::from_secs(75);
const PROGRESS: Duration = Duration::from_secs(60);

/// An hour of contention with kills, stops, restarts and clock steps, judged and reported. Exit code 1 when
/// something did not hold that must hold.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask soak")]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
    #[command(subcommand)]
    worker: Option<Worker>,
}

#[derive(Subcommand, Debug)]
enum Worker {
    /// One of the processes that compete.
    #[command(hide = true)]
    Worker(worker::WorkerArguments),
}

/// What can be asked of a soak.
#[derive(Args, Clone, Debug)]
struct Arguments {
    /// How long
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// The server: redis7, redis8 or valkey9
    #[arg(long, default_value = "redis8", value_parser = server_kind)]
    server: ServerKind,
    /// How many worker processes
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Decides what happens when
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes, in Markdown
    #[arg(long, default_value = "docs/soak.md")]
    report: PathBuf,
}

fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    let done = match command_line.worker {
        Some(Worker::Worker(arguments)) => worker::run(arguments).map(|()| true),
        None => run(&command_line.arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn server_kind(name: &str) -> Result<ServerKind, String> {
    let kind = ServerKind::ALL.into_iter().find(|kind| kind.name() == name);
    kind.ok_or_else(|| "redis7, redis8 and valkey9 are known".to_owned())
}

/// One of the contended names.
fn hot_name(random: &mut Random) -> String {
    format!("hot:{}", random.index(NAMES))
}

/// Runs a soak and writes its report. Whether everything held that must hold.
///
/// # Errors
/// When the soak itself cannot be run: no server, no processes, no file for the report.
fn run(arguments: &Arguments) -> Result<bool, AnyError> {
    if arguments.workers <= faults::SPARED {
        return Err(format!(
            "--workers: at least {}, since {} are left alone",
            faults::SPARED + 1,
            faults::SPARED
        )
        .into());
    }
    let folder = tempfile::Builder::new().prefix("leasehold-soak-").tempdir()?;
    let (server, clock, clock_words) = start_server(arguments.server, folder.path())?;
    let server = Arc::new(server);
    warm_up(&server)?;
    let memory_before = used_memory(&server)?;
    let record = Record::default();
    let last_holder = Arc::new(AtomicUsize::new(0));
    let mut judge = Judge::new(record.clone(), Arc::clone(&last_holder));
    let (send, news) = channel();
    let crew = Crew::start(&server.url(), folder.path(), arguments.workers, arguments.seed, send)?;
    let crew = Arc::new(Mutex::new(crew));
    let started = Instant::now();
    let until = started + Duration::from_secs(arguments.minutes * 60);
    let faults = faults(&server, clock, &crew, (&record, last_holder), arguments.seed)?;
    let disturbing = std::thread::spawn(move || faults.run(until));
    listen(&mut judge, &news, &record, started, || disturbing.is_finished());
    disturbing.join().map_err(|_| "the thread that disturbs panicked")??;
    let took = started.elapsed();
    eprintln!("stopping the workers");
    let stopping = Arc::clone(&crew);
    let stopped = std::thread::spawn(move || crew::finish(&stopping, LAST_WORK));
    listen(&mut judge, &news, &record, started, || stopped.is_finished());
    stopped.join().map_err(|_| "the thread that stops the workers panicked")??;
    drop(crew);
    // The readers of the workers' output hold the other ends: this ends when the last line is here.
    for each in &news {
        judge.hear(each);
    }
    judge.conclude();
    let keys_left = keys_left(&server)?;
    let (lost_updates, unlogged) = compare(folder.path(), arguments.workers, &judge)?;
    let disturbances = record.counts();
    let outcome = Outcome {
        command: command(arguments),
        server: describe(&server)?,
        clock: clock_words,
        took,
        seed: arguments.seed,
        workers: arguments.workers,
        kills: disturbances.get("worker killed and replaced").copied().unwrap_or(0),
        disturbances,
        server_memory: (memory_before, used_memory(&server)?),
        keys_left,
        lost_updates,
        unlogged,
    };
    let failures = report::failures(&outcome, &judge);
    let text = report::markdown(&outcome, &mut judge, &failures)?;
    std::fs::write(&arguments.report, &text)?;
    println!("{text}");
    Ok(failures.is_empty())
}

fn command(arguments: &Arguments) -> String {
    format!("cargo xtask soak --minutes {} --server {}", arguments.minutes, arguments.server)
}

/// A server that writes to disk before it answers; on a clock that can be moved, where that works.
fn start_server(
    kind: ServerKind,
    folder: &Path,
) -> Result<(RedisServer, Option<ServerClock>, String), AnyError> {
    // Kills come at any time, so what was answered must be on disk.
    let builder = RedisServer::builder(kind).append_only();
    let library = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .iter()
        .map(|machine| PathBuf::from(format!("/usr/lib/{machine}/faketime/libfaketime.so.1")))
        .find(|library| library.exists());
    let Some(library) = library else {
        let words = "real; it was not stepped, since libfaketime is not installed".to_owned();
        return Ok((builder.start()?, None, words));
    };
    let clock = ServerClock::new(folder.join("clock"))?;
    let faked = builder
        .clone()
        .environment("LD_PRELOAD", &library.to_string_lossy())
        .environment("FAKETIME_TIMESTAMP_FILE", &clock.file.to_string_lossy())
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .environment("FAKETIME_CACHE_DURATION", "1");
    match faked.start() {
        Ok(server) => Ok((server, Some(clock), "faked by libfaketime, stepped by up to 12 s".to_owned())),
        Err(error) => {
            eprintln!("the server does not start on a faked clock: {error}");
            let words = format!("real; it was not stepped, since {kind} does not start under libfaketime");
            Ok((builder.start()?, None, words))
        }
    }
}

/// One client comes and goes, so that what a server allocates once is allocated.
fn warm_up(server: &RedisServer) -> Result<(), AnyError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(&server.url()).await?;
        let guard = client.lock("warm-up")?.try_acquire().await?.into_guard()?;
        let waiting = client.lock("warm-up")?.wait(Duration::from_millis(50)).acquire().await?;
        drop(waiting);
        let _ = guard.release().await?;
        Ok(client.close(LAST_WORK).await?)
    })
}

fn faults(
    server: &Arc<RedisServer>,
    clock: Option<ServerClock>,
    crew: &Arc<Mutex<Crew>>,
    (record, last_holder): (&Record, Arc<AtomicUsize>),
    seed: u64,
) -> Result<Faults, AnyError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let operator = runtime.block_on(Client::connect(&server.url()))?;
    Ok(Faults {
        server: Arc::clone(server),
        clock,
        crew: Arc::clone(crew),
        record: record.clone(),
        last_holder,
        random: Random::new(seed),
        runtime,
        operator,
    })
}

/// Hears what the workers tell until something is over, and says now and then how it goes.
fn listen(
    judge: &mut Judge,
    news: &Receiver<News>,
    record: &Record,
    started: Instant,
    is_over: impl Fn() -> bool,
) {
    let mut next = Instant::now() + PROGRESS;
    while !is_over() {
        if let Ok(each) = news.recv_timeout(Duration::from_millis(100)) {
            judge.hear(each);
        }
        if Instant::now() >= next {
            next += PROGRESS;
            let counts = &judge.counts;
            eprintln!(
                "{:>4} min: {} grants, {} disturbances, {} losses, {} refused, {} overlaps ({} unexplained), {} violations",
                started.elapsed().as_secs() / 60,
                counts.grants,
                record.all().len(),
                counts.losses.values().sum::<u64>(),
                counts.refused,
                counts.overlaps,
                counts.unexplained_overlaps,
                judge.violation_count
            );
        }
    }
}

/// Leases that are left after the last TTL, and whatever is left when the last queue entry has had its time.
fn keys_left(server: &RedisServer) -> Result<(Vec<String>, Vec<String>), AnyError> {
    let keys = || -> Result<Vec<String>, AnyError> {
        let reply = server.command(&["KEYS", "*"])?;
        let keys = reply
            .items()
            .ok_or("KEYS answers no list")?
            .iter()
            .filter_map(leasehold_testkit::resp::RespValue::text);
        Ok(keys.filter(|key| !key.starts_with("lock:~fence")).collect())
    };
    std::thread::sleep(TTL + CLOCK_MOST);
    let leases = keys()?.into_iter().filter(|key| !key.starts_with("lock:~")).collect();
    let ends = Instant::now() + QUEUE_EXPIRY;
    while !keys()?.is_empty() && Instant::now() < ends {
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok((leases, keys()?))
}

/// Compares the tallies with what the workers said: updates lost, and updates nobody said to have made.
fn compare(folder: &Path, workers: usize, judge: &Judge) -> Result<(u64, u64), AnyError> {
    let (mut lost, mut unlogged) = (0, 0);
    for name in (0..NAMES).map(|number| format!("hot:{number}")) {
        let content = Ledger::new(folder, &name, 0).read()?;
        for worker in 0..workers {
            let counted = content.added.get(&worker).copied().unwrap_or(0);
            let said = judge.said.get(&(name.clone(), worker)).copied().unwrap_or(0);
            lost += said.saturating_sub(counted);
            unlogged += counted.saturating_sub(said);
        }
    }
    Ok((lost, unlogged))
}

fn describe(server: &RedisServer) -> Result<String, AnyError> {
    let info = server.info("server")?;
    let version =
        info.get("valkey_version").or_else(|| info.get("redis_version")).ok_or("INFO has no version")?;
    Ok(format!("{} {version}, appendonly, appendfsync always", server.kind()))
}

fn used_memory(server: &RedisServer) -> Result<u64, AnyError> {
    // Connections of clients that just went away are freed by the server's timer.
    std::thread::sleep(Duration::from_secs(2));
    Ok(server.info("memory")?.get("used_memory").ok_or("INFO has no used_memory")?.parse()?)
}

/// Resident memory of a process in KiB, where the system tells (Linux).
fn resident_kib(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").trim().parse().ok()
}
