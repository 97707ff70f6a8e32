//! The worker process of the cross-process tests: adds to a counter in a file, each time under the lock, until
//! its standard input ends, it is killed or it is frozen.
//!
//! The counter file is replaced atomically and holds a tally for each worker. A line in the worker's own log
//! says what it believes to have added, so a lost update shows as a tally below the log.

mod counter;
mod settings;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::blocking::{Attempt, Guard, Lock, block_on};
use leasehold::{Client, ErrorKind, Label, LeaseState, Released};

use counter::{Counter, Write as Written};
use settings::Settings;

/// How long a section lasts after it has read the counter.
const SECTION: Duration = Duration::from_millis(4);

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let settings = Settings::from_arguments(std::env::args().skip(1))?;
    let stop = Arc::new(AtomicBool::new(false));
    watch_stdin(Arc::clone(&stop));
    let client = block_on(
        Client::builder()
            .label(Label::new(format!("worker-{}", settings.worker))?)
            .store_timeout(Duration::from_secs(60))
            .connect(&settings.store),
    )?;
    let lock = client.lock("counter")?.ttl(settings.ttl).wait_forever().blocking();
    let counter = Counter::new(&settings);
    while !stop.load(Ordering::Relaxed) {
        section(&settings, &counter, &lock)?;
    }
    block_on(client.close(Duration::from_secs(10)))?;
    Ok(())
}

/// One acquisition, one addition, one release, one line in the log: `outcome token wait_ms`.
fn section(settings: &Settings, counter: &Counter, lock: &Lock) -> Result<(), AnyError> {
    let started = Instant::now();
    let guard = match lock.acquire() {
        Ok(Attempt::Acquired(guard)) => guard,
        Ok(Attempt::Busy(busy)) => return Err(format!("waiting for ever ended with: {busy}").into()),
        Err(error) if error.is_retryable() => {
            counter.log(&format!("retry 0 {} {:?}", started.elapsed().as_millis(), error.kind()))?;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let waited = started.elapsed().as_millis();
    let token = guard.fencing_token().get();
    let outcome = add(settings, counter, &guard, token)?;
    let released = match guard.release() {
        Ok(Released::Freed) => "freed",
        Ok(Released::AlreadyLost) => "lost",
        Err(error) if error.kind() == ErrorKind::Unknown => "unknown",
        Err(error) if error.is_retryable() => "unreachable",
        Err(error) => return Err(error.into()),
    };
    counter.log(&format!("{outcome} {token} {waited} {released}"))?;
    Ok(())
}

fn add(settings: &Settings, counter: &Counter, guard: &Guard, token: u64) -> Result<&'static str, AnyError> {
    if settings.fenced && !counter.seal(token)? {
        return Ok("refused");
    }
    let value = counter.read()?;
    // The test freezes some workers just here: after reading, before writing.
    println!("section {token}");
    std::io::stdout().flush()?;
    std::thread::sleep(SECTION + settings.linger);
    if settings.checks_state && matches!(guard.state(), LeaseState::Lost(_)) {
        return Ok("stopped");
    }
    let written =
        if settings.fenced { counter.write_fenced(&value, token)? } else { counter.write(&value)? };
    Ok(match written {
        Written::Accepted => "added",
        Written::Refused => "refused",
    })
}

/// The end of standard input means: finish the section and stop.
fn watch_stdin(stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut sink = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut sink);
        stop.store(true, Ordering::Relaxed);
    });
}
