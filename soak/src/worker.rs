//! A worker process of the soak: tasks that acquire contended names in all sorts of ways, and names that are used
//! once, until standard input ends or somebody kills the process.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use leasehold::{Attempt, Client, ErrorKind, Guard, Label, Lease, LeaseState, LostCause, Released, RunError};

use super::ledger::Ledger;
use super::line::{Beat, End, Line, Micros, now};
use super::random::Random;
use super::{AnyError, TTL, hot_name};

/// Acquisitions that one process has under way at the same time.
const TASKS: usize = 3;
const BEAT: Duration = Duration::from_secs(1);
/// How often a holder looks whether it still holds.
const LOOK: Duration = Duration::from_millis(2);
/// The way of acquiring that keeps the name taken for a while after its release.
const KEPT: u64 = 1;
/// Longer than any outage of the server.
const STORE_TIMEOUT: Duration = Duration::from_secs(120);

/// What a worker is to do.
#[derive(Args, Clone, Debug)]
pub(super) struct WorkerArguments {
    store: String,
    folder: PathBuf,
    worker: usize,
    seed: u64,
}

/// What the tasks of a worker share.
struct Worker {
    arguments: WorkerArguments,
    client: Client,
    stop: AtomicBool,
    /// Since when each task waits; 0 if it does not.
    waits: [AtomicU64; TASKS],
    /// The names this worker has used once so far.
    once: AtomicU64,
    output: Mutex<std::io::Stdout>,
}

/// Runs until standard input ends.
///
/// # Errors
/// When the store cannot be connected, or something fails that a retry cannot help.
pub(super) fn run(arguments: WorkerArguments) -> Result<(), AnyError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::builder()
            .label(Label::new(format!("worker-{}", arguments.worker))?)
            .store_timeout(STORE_TIMEOUT)
            .connect(&arguments.store)
            .await?;
        let worker = Arc::new(Worker {
            arguments,
            client,
            stop: AtomicBool::new(false),
            waits: Default::default(),
            once: AtomicU64::new(0),
            output: Mutex::new(std::io::stdout()),
        });
        watch_stdin(Arc::clone(&worker));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            tasks.spawn(work(Arc::clone(&worker), task));
        }
        let beats = tokio::spawn(beat(Arc::clone(&worker)));
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        beats.abort();
        worker.client.close(STORE_TIMEOUT).await?;
        worker.tell(&worker.beat_line())
    })
}

async fn work(worker: Arc<Worker>, task: usize) -> Result<(), AnyError> {
    let seed = worker.arguments.seed.wrapping_mul(31).wrapping_add(task as u64);
    let mut random = Random::new(seed);
    while !worker.stop.load(Ordering::Relaxed) {
        match random.below(10) {
            0..=6 => contended(&worker, task, &mut random).await?,
            7 => within_run(&worker, task, &mut random).await?,
            _ => once(&worker, &mut random).await?,
        }
        if random.one_in(4) {
            tokio::time::sleep(random.millis(0, 30)).await;
        }
    }
    Ok(())
}

/// Acquires a contended name, waiting in one of several ways, and works under it.
async fn contended(worker: &Worker, task: usize, random: &mut Random) -> Result<(), AnyError> {
    let name = hot_name(random);
    let lock = worker.client.lock(&name)?.ttl(TTL);
    let way = random.below(10);
    let lock = match way {
        0 => lock.wait(random.millis(1, 3_000)),
        KEPT => lock.wait_forever().min_hold(random.millis(1, 100)),
        2 => lock,
        _ => lock.wait_forever(),
    };
    let asked = now();
    worker.waits[task].store(asked, Ordering::Relaxed);
    let attempt = if random.one_in(12) {
        tokio::time::timeout(random.millis(0, 300), lock.acquire()).await.ok()
    } else {
        Some(lock.acquire().await)
    };
    worker.waits[task].store(0, Ordering::Relaxed);
    match attempt {
        None => worker.without("cancelled"),
        Some(Ok(Attempt::Busy(_))) => worker.without("busy"),
        Some(Err(error)) => worker.failed(error.kind(), error.into()),
        Some(Ok(Attempt::Acquired(guard))) => {
            let at = now();
            hold(worker, guard, &name, (asked, at), way == KEPT, random).await
        }
    }
}

/// Works under a lease, now and then for longer than its TTL, and gives it back in one of several ways.
async fn hold(
    worker: &Worker,
    guard: Guard,
    name: &str,
    (asked, at): (Micros, Micros),
    kept: bool,
    random: &mut Random,
) -> Result<(), AnyError> {
    let token = guard.fencing_token().get();
    worker.tell(&Line::Got { name: name.to_owned(), token, asked, at })?;
    let belief = Belief::default();
    let outcome = section(worker, guard.lease(), name, &belief, random).await?;
    match random.below(60) {
        0 => drop(guard.renew().await),
        1 => drop(guard.extend(TTL * 2).await),
        _ => {}
    }
    let let_go = now();
    let released = match random.below(12) {
        0 => {
            drop(guard);
            "dropped"
        }
        1 => match tokio::time::timeout(random.millis(0, 2), guard.release()).await {
            Ok(released) => words(&released),
            Err(_) => "dropped",
        },
        _ => words(&guard.release().await),
    };
    let released = if kept { "kept" } else { released };
    worker.tell(&Line::End(End {
        name: name.to_owned(),
        token,
        outcome: outcome.to_owned(),
        believed: belief.until(),
        let_go,
        released: released.to_owned(),
        cause: belief.cause(),
    }))
}

/// The scoped form: the body is cancelled when the lease is lost.
async fn within_run(worker: &Worker, task: usize, random: &mut Random) -> Result<(), AnyError> {
    let name = hot_name(random);
    let lock = worker.client.lock(&name)?.ttl(TTL).wait_forever();
    let asked = now();
    worker.waits[task].store(asked, Ordering::Relaxed);
    let (token, belief) = (Arc::new(AtomicU64::new(0)), Arc::new(Belief::default()));
    let (body_token, body_belief) = (Arc::clone(&token), Arc::clone(&belief));
    let (body_name, mut body_random) = (name.clone(), random.clone());
    let done = lock
        .run(move |lease| async move {
            let at = now();
            worker.waits[task].store(0, Ordering::Relaxed);
            let token = lease.fencing_token().get();
            worker.tell(&Line::Got { name: body_name.clone(), token, asked, at })?;
            body_token.store(token, Ordering::Relaxed);
            section(worker, &lease, &body_name, &body_belief, &mut body_random).await
        })
        .await;
    let let_go = now();
    worker.waits[task].store(0, Ordering::Relaxed);
    random.below(1);
    let token = token.load(Ordering::Relaxed);
    let (outcome, released) = match done {
        Ok(done) => (done.value, if done.released.is_ok() { "run" } else { "unknown" }),
        Err(RunError::Lost { cause, value, .. }) => {
            belief.lost(cause);
            (value.unwrap_or("stopped"), "lost")
        }
        Err(RunError::Store(error)) => return worker.failed(error.kind(), error.into()),
        Err(RunError::Body(error)) => return Err(error),
        Err(other) => return Err(format!("run ended with {other}").into()),
    };
    let (outcome, released) = (outcome.to_owned(), released.to_owned());
    let (believed, cause) = (belief.until(), belief.cause());
    worker.tell(&Line::End(End { name, token, outcome, believed, let_go, released, cause }))
}

/// Seals, reads, works, writes. Returns what became of the write.
async fn section(
    worker: &Worker,
    lease: &Lease,
    name: &str,
    belief: &Belief,
    random: &mut Random,
) -> Result<&'static str, AnyError> {
    let ledger = Ledger::new(&worker.arguments.folder, name, worker.arguments.worker);
    let token = lease.fencing_token().get();
    belief.look(lease);
    let Some(read) = ledger.seal(token)? else {
        belief.look(lease);
        return Ok("refused");
    };
    let works = if random.one_in(50) { random.millis(200, 1_500) } else { random.millis(1, 20) };
    let until = now() + u64::try_from(works.as_micros())?;
    while now() < until {
        tokio::time::sleep(LOOK).await;
        belief.look(lease);
    }
    // Every second worker does not look whether it still holds: the resource has to refuse it.
    if belief.is_lost() && worker.arguments.worker.is_multiple_of(2) {
        return Ok("stopped");
    }
    let added = ledger.add(read, token)?;
    belief.look(lease);
    Ok(if added { "added" } else { "refused" })
}

/// Until when a holder was told that it holds.
#[derive(Default)]
struct Belief {
    until: AtomicU64,
    lost: Mutex<Option<LostCause>>,
}

impl Belief {
    fn look(&self, lease: &Lease) {
        // Read first: whoever is stopped in between has not looked yet.
        let at = now();
        match lease.state() {
            LeaseState::Held | LeaseState::Uncertain if !self.is_lost() => {
                self.until.store(at, Ordering::Relaxed);
            }
            LeaseState::Lost(cause) => self.lost(cause),
            _ => {}
        }
    }

    fn lost(&self, cause: LostCause) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
    }

    fn is_lost(&self) -> bool {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn until(&self) -> Micros {
        self.until.load(Ordering::Relaxed)
    }

    fn cause(&self) -> String {
        let lost = *self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.map_or("-", LostCause::label).to_owned()
    }
}

/// A name that nobody uses twice.
async fn once(worker: &Worker, random: &mut Random) -> Result<(), AnyError> {
    let number = worker.once.fetch_add(1, Ordering::Relaxed);
    let name = format!("once:{}:{}:{number}", worker.arguments.worker, worker.arguments.seed);
    let lock = worker.client.lock(name)?.ttl(TTL);
    match lock.try_acquire().await {
        Ok(Attempt::Acquired(guard)) if random.one_in(2) => drop(guard),
        Ok(Attempt::Acquired(guard)) => drop(guard.release().await),
        Ok(Attempt::Busy(_)) => return worker.without("busy"),
        Err(error) => return worker.failed(error.kind(), error.into()),
    }
    worker.tell(&Line::Once)
}

async fn beat(worker: Arc<Worker>) {
    loop {
        tokio::time::sleep(BEAT).await;
        if worker.tell(&worker.beat_line()).is_err() {
            return;
        }
    }
}

impl Worker {
    fn beat_line(&self) -> Line {
        let waits = self.waits.iter().map(|wait| wait.load(Ordering::Relaxed));
        let load = self.client.load();
        let load = load.leases + load.waiters + load.names + load.cleanups;
        Line::Beat(Beat {
            at: now(),
            resident_kib: super::resident_kib("self").unwrap_or(0),
            waits_since: waits.filter(|since| *since > 0).min().unwrap_or(0),
            load: load as u64,
        })
    }

    fn without(&self, outcome: &str) -> Result<(), AnyError> {
        self.tell(&Line::Without { outcome: outcome.to_owned() })
    }

    /// An error that may come while the server is in trouble; others end the worker, which fails the soak.
    fn failed(&self, kind: ErrorKind, error: AnyError) -> Result<(), AnyError> {
        match kind {
            ErrorKind::Unavailable => self.without("unavailable"),
            ErrorKind::Unknown => self.without("unknown"),
            _ => Err(error),
        }
    }

    fn tell(&self, line: &Line) -> Result<(), AnyError> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(output, "{line}")?;
        Ok(output.flush()?)
    }
}

fn words(released: &Result<Released, leasehold::Error>) -> &'static str {
    match released {
        Ok(Released::Freed) => "freed",
        Ok(Released::AlreadyLost) => "lost",
        Err(error) if error.kind() == ErrorKind::Unknown => "unknown",
        Err(error) if error.kind() == ErrorKind::Unavailable => "unavailable",
        Err(_) => "failed",
    }
}

/// The end of standard input means: finish what is under way and stop.
fn watch_stdin(worker: Arc<Worker>) {
    std::thread::spawn(move || {
        let mut sink = Vec::new();
        // However it ends, nobody wants more work done.
        let _ = std::io::stdin().read_to_end(&mut sink);
        worker.stop.store(true, Ordering::Relaxed);
    });
}
