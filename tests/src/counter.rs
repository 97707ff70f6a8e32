//! A counter in a file, replaced atomically; beside it the newest fencing token, under a file lock.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::settings::Settings;

/// What became of a write.
pub(crate) enum Write {
    Accepted,
    Refused,
}

/// Additions by worker.
pub(crate) type Tally = BTreeMap<usize, u64>;

/// The counter of all workers, as one worker sees it.
pub(crate) struct Counter {
    folder: PathBuf,
    worker: usize,
}

impl Counter {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { folder: settings.folder.clone(), worker: settings.worker }
    }

    pub(crate) fn read(&self) -> io::Result<Tally> {
        match std::fs::read(self.folder.join("counter.json")) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Tally::new()),
            Err(error) => Err(error),
        }
    }

    /// Adds one to what was read and replaces the file.
    pub(crate) fn write(&self, read: &Tally) -> io::Result<Write> {
        let mut tally = read.clone();
        *tally.entry(self.worker).or_default() += 1;
        self.replace("counter.json", &serde_json::to_vec(&tally)?)?;
        Ok(Write::Accepted)
    }

    /// Records the token as the newest before anything is read; false if a newer one is recorded.
    pub(crate) fn seal(&self, token: u64) -> io::Result<bool> {
        let _guard = self.file_lock()?;
        if self.newest_token()? > token {
            return Ok(false);
        }
        self.replace("token", token.to_string().as_bytes())?;
        Ok(true)
    }

    /// Writes only if no newer token was recorded since.
    pub(crate) fn write_fenced(&self, read: &Tally, token: u64) -> io::Result<Write> {
        let _guard = self.file_lock()?;
        if self.newest_token()? > token { Ok(Write::Refused) } else { self.write(read) }
    }

    /// Adds a line to this worker's log; it survives a kill.
    pub(crate) fn log(&self, line: &str) -> io::Result<()> {
        let path = self.folder.join(format!("log-{}", self.worker));
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    fn newest_token(&self) -> io::Result<u64> {
        match std::fs::read_to_string(self.folder.join("token")) {
            Ok(text) => text.trim().parse().map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, file: &str, content: &[u8]) -> io::Result<()> {
        let new = self.folder.join(format!("{file}.{}.new", self.worker));
        std::fs::write(&new, content)?;
        std::fs::rename(&new, self.folder.join(file))
    }

    /// Held until the file is closed, which a kill does as well.
    fn file_lock(&self) -> io::Result<File> {
        let file = open(&self.folder.join("file-lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path)
}
