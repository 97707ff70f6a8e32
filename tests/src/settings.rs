//! The worker's arguments, in the order in which the tests give them.

use std::path::PathBuf;
use std::time::Duration;

/// What a worker is to do.
pub(crate) struct Settings {
    pub(crate) store: String,
    pub(crate) folder: PathBuf,
    pub(crate) worker: usize,
    pub(crate) ttl: Duration,
    /// Seal the fencing token before reading and check it when writing.
    pub(crate) fenced: bool,
    /// Look at the lease's state before writing, as careful code does.
    pub(crate) checks_state: bool,
    /// Stay in the section for this much longer, so that a test can freeze it there.
    pub(crate) linger: Duration,
}

impl Settings {
    pub(crate) fn from_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut next = |what: &str| arguments.next().ok_or_else(|| format!("the argument {what} is missing"));
        let store = next("STORE")?;
        let folder = next("FOLDER")?.into();
        let worker = next("WORKER")?.parse().map_err(|_| "WORKER must be a number")?;
        let ttl = millis(&next("TTL_MS")?)?;
        let mode = next("MODE")?;
        let linger = millis(&next("LINGER_MS")?)?;
        let fenced = mode == "fenced";
        Ok(Self { store, folder, worker, ttl, fenced, checks_state: mode == "careful", linger })
    }
}

fn millis(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_millis).map_err(|_| format!("{text:?} is not a number of milliseconds"))
}
