//! Reads recipes, and runs what is in them where it can do no harm.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A fenced block of a recipe.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes")
}

/// The blocks of a recipe; there must be this many, so that none is forgotten by its test.
pub(crate) fn blocks(recipe: &str, count: usize) -> Vec<Block> {
    let text = std::fs::read_to_string(folder().join(recipe)).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language: language.to_owned(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{recipe}: a block is not closed");
    assert_eq!(blocks.len(), count, "{recipe}: a test for every block");
    blocks
}

/// A folder with a store, the real `leasehold`, and programs that only note how they were called.
pub(crate) struct Kitchen {
    folder: TempDir,
    store: String,
}

impl Kitchen {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("locks.db").display());
        Self::on(folder, store)
    }

    pub(crate) fn with_store(url: &str) -> Self {
        Self::on(tempfile::tempdir().unwrap(), url.to_owned())
    }

    fn on(folder: TempDir, store: String) -> Self {
        let kitchen = Self { folder, store };
        std::fs::create_dir(kitchen.path("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_leasehold"), kitchen.path("bin/leasehold")).unwrap();
        let notes = "#!/bin/sh\necho \"$(basename \"$0\") $* token:${LEASEHOLD_FENCING_TOKEN:+yes}\" >> \"$NOTES\"\n\
                     exit \"${STUB_CODE:-0}\"\n";
        for program in ["bin/nightly-report", "bin/poll-feed", "bin/feed-poller", "deploy", "cleanup"] {
            kitchen.program(program, notes);
        }
        kitchen
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A command in the kitchen, which finds the programs there first.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap();
        command
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("NOTES", self.path("notes"))
            .env("LEASEHOLD_STORE", &self.store)
            .env_remove("LEASEHOLD_HELD")
            .env_remove("LEASEHOLD_NAME")
            .stdin(Stdio::null());
        command
    }

    /// Runs a script to its end.
    pub(crate) fn shell(&self, script: &str) -> Output {
        self.command("sh").args(["-euc", script]).output().unwrap()
    }

    /// What the programs noted, in order.
    pub(crate) fn notes(&self) -> Vec<String> {
        let notes = std::fs::read_to_string(self.path("notes")).unwrap_or_default();
        notes.lines().map(str::to_owned).collect()
    }
}

/// What a process printed, both ways.
pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The process exited with this code.
#[track_caller]
pub(crate) fn exited(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
}
