//! A guard by hand: who is in the way, what is known of the lease, how work stops when it is lost, and how it
//! ends.
//!
//! `cargo run -p leasehold-examples --bin by_hand`

use std::error::Error;
use std::time::Duration;

use leasehold::{Attempt, Client, Guard, Label, Released};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = std::env::var("LEASEHOLD_STORE")
        .unwrap_or_else(|_| format!("sqlite:{}", dir.path().join("locks.db").display()));
    let morning = Client::builder().label(Label::new("morning-shift")?).connect(&store).await?;
    let evening = Client::builder().label(Label::new("evening-shift")?).connect(&store).await?;

    let Attempt::Acquired(guard) = morning.lock("report:daily")?.try_acquire().await? else {
        return Err("somebody else is at it".into());
    };
    // The options are a value: kept, cloned and used again as you like. The other one does not wait at first.
    let lock = evening.lock("report:daily")?.ttl(Duration::from_secs(10));
    if let Attempt::Busy(busy) = lock.try_acquire().await? {
        println!("{busy}");
    }
    println!("{:?} for another {:.0?} without renewal", guard.state(), guard.remaining());

    // The one waits for the name while the other works, and gets it in the moment it is given back.
    let lock = lock.wait(Duration::from_secs(30)).on_waiting(|busy| println!("waiting: {busy}"));
    let (first, second) = tokio::join!(write_report(guard), lock.acquire());
    println!("the first report is {}", if first? { "done" } else { "to be thrown away" });
    let guard = second?.into_guard()?;
    println!("now it is held by {}", evening.label().as_str());

    // A longer job than planned: others follow later after a crash.
    guard.extend(Duration::from_secs(60)).await?;
    drop(guard); // gives it back in the background; `close` waits for that
    evening.close(Duration::from_secs(5)).await?;
    morning.close(Duration::from_secs(5)).await?;
    Ok(())
}

/// Writes page after page, and stops when the lease is lost. True if it was held to the end.
async fn write_report(guard: Guard) -> Result<bool, leasehold::Error> {
    for page in 1..=3 {
        tokio::select! {
            () = write_page(page) => {}
            cause = guard.lost() => {
                println!("stopped at page {page}: {cause}");
                return Ok(false);
            }
        }
    }
    Ok(guard.release().await? == Released::Freed)
}

async fn write_page(page: u32) {
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("page {page}");
}
