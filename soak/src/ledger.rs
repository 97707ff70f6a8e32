//! What the lock protects in the soak: a tally in a file, which seals the newest fencing token before it is read
//! and refuses older ones. Replaced atomically, so a kill leaves it whole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The tally of one name.
pub(super) struct Ledger {
    file: PathBuf,
    lock: PathBuf,
    worker: usize,
}

/// What is in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    /// The newest fencing token that was sealed.
    pub(super) token: u64,
    /// Additions by worker.
    pub(super) added: BTreeMap<usize, u64>,
}

impl Ledger {
    pub(super) fn new(folder: &Path, name: &str, worker: usize) -> Self {
        let name = name.replace(':', "-");
        Self { file: folder.join(&name), lock: folder.join(format!("{name}.lock")), worker }
    }

    pub(super) fn read(&self) -> io::Result<Content> {
        match std::fs::read(&self.file) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Content::default()),
            Err(error) => Err(error),
        }
    }

    /// Records the token and reads, in one step; `None` if a newer token is recorded.
    pub(super) fn seal(&self, token: u64) -> io::Result<Option<Content>> {
        let _guard = self.file_lock()?;
        let mut content = self.read()?;
        if content.token > token {
            return Ok(None);
        }
        content.token = token;
        self.replace(&content)?;
        Ok(Some(content))
    }

    /// Replaces everything by what was read plus one; false if a newer token is recorded.
    pub(super) fn add(&self, mut read: Content, token: u64) -> io::Result<bool> {
        let _guard = self.file_lock()?;
        if self.read()?.token > token {
            return Ok(false);
        }
        *read.added.entry(self.worker).or_default() += 1;
        self.replace(&read)?;
        Ok(true)
    }

    fn replace(&self, content: &Content) -> io::Result<()> {
        let new = self.file.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, serde_json::to_vec(content)?)?;
        std::fs::rename(&new, &self.file)
    }

    /// Held until the file is closed, which a kill does as well.
    fn file_lock(&self) -> io::Result<File> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.lock)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_token_gets_in_neither_to_read_nor_to_write() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (Ledger::new(folder.path(), "a", 0), Ledger::new(folder.path(), "a", 1));
        let read = old.seal(1).unwrap().unwrap();
        assert!(new.seal(2).unwrap().is_some());
        assert!(!old.add(read, 1).unwrap());
        assert!(old.seal(1).unwrap().is_none());
        assert_eq!(new.read().unwrap().added, BTreeMap::new());
    }
}
