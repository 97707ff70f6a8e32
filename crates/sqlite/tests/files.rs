//! What may be a store's file and what may not: refusals say why, have the right kind, and leave nothing
//! behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Actor, ask, keep_record, name, open, owner, queued, record, release, renew, role, take};
use leasehold_core::blocking::block_on;
use leasehold_core::store::{AcquireReply, Holder, ReleaseReply, RenewReply, Severity};
use leasehold_core::{Error, ErrorKind, LostCause, Store};
use leasehold_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

fn refused(path: &Path) -> Error {
    match SqliteStore::open(path, SqliteOptions::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_refused(path: &Path, kind: ErrorKind, words: &str) {
    let before = listing(path.parent().unwrap());
    let error = refused(path);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    assert_eq!(listing(path.parent().unwrap()), before, "something was left behind or changed");
}

/// Names, sizes and contents of a directory's files.
fn listing(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(path).unwrap_or_default()))
        .collect();
    found.sort();
    found
}

#[test]
fn a_new_file_is_for_its_user_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    take(&open(&path), &name("job"), &owner("a"));
    for ending in ["", "-wal", "-shm"] {
        let mode = fs::metadata(format!("{}{ending}", path.display())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{ending}");
    }
}

#[test]
fn an_empty_file_counts_as_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    File::create(&path).unwrap();
    take(&open(&path), &name("job"), &owner("a"));
}

#[test]
fn paths_that_lead_to_no_file_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    assert_refused(&at("missing/locks.db"), ErrorKind::Config, "does not exist: create it");
    assert!(!at("missing").exists());
    fs::create_dir(at("directory")).unwrap();
    assert_refused(&at("directory"), ErrorKind::Config, "this is a directory");
    fs::write(at("file"), "x").unwrap();
    assert_refused(&at("file/locks.db"), ErrorKind::Config, "Not a directory");
    symlink(at("nowhere"), at("link")).unwrap();
    assert_refused(&at("link"), ErrorKind::Config, "symbolic link");
    let long = at(&"x".repeat(300));
    assert_refused(&long, ErrorKind::Config, "too long");
    assert_eq!(refused(Path::new("")).kind(), ErrorKind::Config);
    assert_eq!(refused(Path::new("a\0b")).kind(), ErrorKind::Config);
    assert_eq!(refused(Path::new("/dev/null")).kind(), ErrorKind::Config);
}

#[test]
fn files_that_are_no_database_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("notes.txt"), "do not touch\n".repeat(1_000)).unwrap();
    assert_refused(&at("notes.txt"), ErrorKind::Config, "not a SQLite database");
    fs::write(at("short"), "x").unwrap();
    assert_refused(&at("short"), ErrorKind::Config, "not a SQLite database");
}

#[test]
fn databases_of_other_programs_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    Connection::open(at("plain.db")).unwrap().execute_batch("CREATE TABLE lease(name)").unwrap();
    assert_refused(&at("plain.db"), ErrorKind::Config, "another program");
    let other = Connection::open(at("other.db")).unwrap();
    other.execute_batch("PRAGMA application_id=7; CREATE TABLE t(a)").unwrap();
    drop(other);
    assert_refused(&at("other.db"), ErrorKind::Config, "another program");
    let used = Connection::open(at("wal.db")).unwrap();
    used.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a)").unwrap();
    drop(used);
    assert_refused(&at("wal.db"), ErrorKind::Config, "another program");
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    drop(open(&path));
    // Before and after the header of the file itself knows of it.
    let newer = Connection::open(&path).unwrap();
    newer.execute_batch("PRAGMA wal_autocheckpoint=0; PRAGMA user_version=2").unwrap();
    let error = refused(&path);
    assert!(error.to_string().contains("update this program"), "{error}");
    newer.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(newer);
    assert_refused(&path, ErrorKind::Config, "format 2, this one knows up to 1");
}

#[test]
fn a_damaged_file_is_refused_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    drop(open(&path));
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..].fill(0xA5);
    fs::write(&path, bytes).unwrap();
    let _ = fs::remove_file(format!("{}-wal", path.display()));
    let store = SqliteStore::open(&path, SqliteOptions::default());
    let error = store.and_then(|store| ask(&store, &name("job"), &owner("a"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[test]
fn a_file_with_two_names_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    drop(open(&path));
    fs::hard_link(&path, directory.path().join("second.db")).unwrap();
    assert_eq!(refused(&path).kind(), ErrorKind::Config);
    assert!(refused(&path).to_string().contains("hard links"));
}

#[test]
fn a_symbolic_link_leads_to_the_same_leases() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (directory.path().join("locks.db"), directory.path().join("link.db"));
    let store = open(&path);
    symlink(&path, &link).unwrap();
    take(&store, &name("job"), &owner("a"));
    assert!(matches!(ask(&open(&link), &name("job"), &owner("b")), Ok(AcquireReply::Held(_))));
}

/// Mounts something for the length of a test; `None` if this user may not.
struct Mount(PathBuf);

impl Mount {
    fn new(arguments: &[&str], target: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        let status = mount.args(arguments).arg(target).stderr(Stdio::null()).status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self(target.to_owned()));
        }
        eprintln!("SKIPPED: this user may not mount");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_file_that_is_mounted_by_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, inside) = (directory.path().join("locks.db"), directory.path().join("inside.db"));
    drop(open(&path));
    File::create(&inside).unwrap();
    let Some(_mount) = Mount::new(&["--bind", path.to_str().unwrap()], &inside) else { return };
    assert_eq!(refused(&inside).kind(), ErrorKind::Config);
    assert!(refused(&inside).to_string().contains("mount the directory"));
}

#[test]
fn a_read_only_file_system_is_denied() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(&["-t", "tmpfs", "-o", "size=1m", "none"], directory.path()) else { return };
    let path = mount.0.join("locks.db");
    drop(open(&path));
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&mount.0).status().unwrap().success());
    assert_refused(&path, ErrorKind::Denied, "Read-only");
    assert_refused(&mount.0.join("other.db"), ErrorKind::Denied, "Read-only");
}

/// Trap 36. The disk is full to the last byte: leases are renewed and released all the same.
#[test]
fn on_a_full_disk_leases_can_still_be_renewed_and_released() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(&["-t", "tmpfs", "-o", "size=1m", "none"], directory.path()) else { return };
    let path = mount.0.join("locks.db");
    let store = open(&path);
    let (job, first) = (name("job"), owner("first"));
    take(&store, &job, &first);
    let filler = fill(&mount.0);
    let mut renewed = 0;
    let long = "x".repeat(200);
    // Enough to come to the end of the log more than once.
    for turn in 0..500 {
        assert_eq!(renew(&store, &job, &first).unwrap(), RenewReply::Renewed, "turn {turn}");
        renewed += 1;
    }
    // New leases fit as long as there is room in the file, then the error says what is wrong.
    let error =
        (0..10_000).find_map(|turn| ask(&store, &name(&format!("{long}{turn}")), &first).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert_eq!(renew(&store, &job, &first).unwrap(), RenewReply::Renewed);
    assert_eq!(release(&store, &job, &first).unwrap(), ReleaseReply::Freed { handed_over: false });
    assert_eq!(renewed, 500);
    let error = refused(&mount.0.join("new.db"));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("disk is full"), "{error}");
    assert!(!mount.0.join("new.db").exists());
    fs::remove_file(filler).unwrap();
    take(&store, &job, &first);
}

fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("filler");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    while file.write_all(&[0; 1]).is_ok() {}
    path
}

#[test]
fn a_file_of_another_user_is_denied() {
    if let Some((_, path)) = role() {
        println!("kind: {:?}", refused(&path).kind());
        return;
    }
    if !rustix::process::geteuid().is_root() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db");
        drop(open(&path));
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert_refused(&path, ErrorKind::Denied, "writable");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    // A copy of this program that another user may run.
    let program = directory.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let at = |name: &str| directory.path().join(name);
    for (of_directory, of_file, file) in [
        (0o755, 0o600, "secret.db"),
        (0o755, 0o666, "shared.db"),
        (0o777, 0o600, "unreadable.db"),
        (0o777, 0o644, "readable.db"),
        (0o755, 0, "new.db"),
    ] {
        if of_file != 0 {
            drop(open(&at(file)));
            fs::set_permissions(at(file), Permissions::from_mode(of_file)).unwrap();
        }
        fs::set_permissions(directory.path(), Permissions::from_mode(of_directory)).unwrap();
        let asked = common::actor("a_file_of_another_user_is_denied", "other", &at(file));
        let mut other = Command::new(&program);
        other.args(asked.get_args()).uid(65_534).gid(65_534).current_dir("/").stdout(Stdio::piped());
        other.envs(asked.get_envs().filter_map(|(key, value)| Some((key, value?))));
        assert_eq!(Actor(other.spawn().unwrap()).said("kind: "), ["Denied"], "{file}");
    }
}

#[test]
fn a_file_that_is_removed_or_replaced_is_opened_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (store, other) = (open(&path), open(&path));
    let (job, first, second) = (name("job"), owner("first"), owner("second"));
    let before = take(&store, &job, &first);
    for ending in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{ending}", path.display())).unwrap();
    }
    // Both go to the new file, so they exclude each other, and the old lease is known to be gone.
    assert!(take(&other, &job, &second) > before);
    assert!(matches!(ask(&store, &job, &first), Ok(AcquireReply::Held(_))));
    assert_eq!(renew(&store, &job, &first).unwrap(), RenewReply::NotHeld(LostCause::Taken));
}

#[test]
fn names_of_other_namespaces_are_other_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let namespace = leasehold_core::Namespace::new("billing:").unwrap();
    let billing = SqliteStore::open(&path, SqliteOptions { namespace, ..SqliteOptions::default() }).unwrap();
    let store = open(&path);
    take(&store, &name("job"), &owner("a"));
    take(&billing, &name("job"), &owner("b"));
    let listing = block_on(billing.list("", 10)).unwrap();
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(listing.entries[0].holder, Some(Holder::Lease { label: "b".into() }));
}

#[test]
fn a_diagnosis_tries_to_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let problem = || {
        let findings = block_on(store.diagnose()).unwrap();
        findings.into_iter().find(|finding| finding.severity == Severity::Problem)
    };
    assert_eq!(problem(), None);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let found = problem().unwrap();
    assert!(found.subject == "writing" && found.message.contains("locked for writing"), "{found:?}");
    other.execute_batch("ROLLBACK; DROP TABLE waiter").unwrap();
    let found = problem().unwrap();
    assert!(found.subject == "writing" && found.message.contains("waiter"), "{found:?}");
}

#[test]
fn a_diagnosis_of_a_sound_file_finds_no_problem_and_one_open_to_all_is_a_problem() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let store = open(&path);
    let (job, first) = (name("job"), owner("first"));
    take(&store, &job, &first);
    queued(&store, &job, &owner("second"), None);
    let findings = block_on(store.diagnose()).unwrap();
    let problem = findings.iter().find(|finding| finding.severity == Severity::Problem);
    assert_eq!(problem, None);
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let findings = block_on(store.diagnose()).unwrap();
    let problem = findings.iter().find(|finding| finding.severity == Severity::Problem).unwrap();
    assert_eq!(problem.subject, "permissions");
    assert!(!problem.advice.is_empty());
}

#[test]
fn a_file_from_before_there_were_records_gets_their_table() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let job = name("job");
    drop(open(&path));
    Connection::open(&path).unwrap().execute_batch("DROP TABLE once").unwrap();
    let store = open(&path);
    keep_record(&store, &job, Duration::from_secs(60));
    assert!(record(&open(&path), &job).is_some());
}
