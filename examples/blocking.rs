//! Threads instead of async: each file is imported once, whichever of the workers comes first.
//!
//! `cargo run -p leasehold-examples --bin blocking`

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold::blocking::block_on;
use leasehold::{Client, Lease, LeaseState, RunError};

const FILES: [&str; 4] = ["customers.csv", "orders.csv", "prices.csv", "stock.csv"];

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = std::env::var("LEASEHOLD_STORE")
        .unwrap_or_else(|_| format!("sqlite:{}", dir.path().join("locks.db").display()));
    let client = block_on(Client::connect(&store))?;
    let imported = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        let workers = [(); 3].map(|()| scope.spawn(|| import_all(&client, &imported)));
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    println!("{} files imported by 3 workers", imported.into_inner()?.len());
    block_on(client.close(Duration::from_secs(5)))?;
    Ok(())
}

type Failure = RunError<(), Infallible>;

fn import_all(client: &Client, imported: &Mutex<HashSet<String>>) -> Result<(), Failure> {
    FILES.iter().try_for_each(|file| import(client, file, imported))
}

fn import(client: &Client, file: &str, imported: &Mutex<HashSet<String>>) -> Result<(), Failure> {
    let lock = client.lock(format!("import:{file}")).map_err(RunError::Store)?;
    // Nobody can cancel a thread: `max_hold` sees to it that one that hangs does not keep the name for ever.
    let lock = lock.wait(Duration::from_secs(30)).max_hold(Duration::from_secs(600)).blocking();
    let done = lock.run(|lease| {
        if !has(imported, file) && read_rows(lease) {
            imported.lock().unwrap_or_else(PoisonError::into_inner).insert(file.to_owned());
            println!("{file}: imported under fencing token {}", lease.fencing_token());
        }
        Ok(())
    })?;
    // An error here does not undo the work: it only says that the end could not be confirmed.
    if let Err(error) = done.released {
        eprintln!("{file}: {error}");
    }
    Ok(())
}

/// Long work looks at the lease between its steps. True if it is held to the end.
fn read_rows(lease: &Lease) -> bool {
    (0..5).all(|_| {
        thread::sleep(Duration::from_millis(10));
        !matches!(lease.state(), LeaseState::Lost(_))
    })
}

fn has(imported: &Mutex<HashSet<String>>, file: &str) -> bool {
    imported.lock().unwrap_or_else(PoisonError::into_inner).contains(file)
}
