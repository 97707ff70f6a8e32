//! Files of the embedded store as other programs may leave them: damaged anywhere, or with values in the tables that
//! no Leasehold wrote.

use std::cell::OnceCell;
use std::path::Path;
use std::time::Duration;

use leasehold_core::blocking::block_on;
use leasehold_core::store::{
    AcquireReply, AcquireRequest, BreakMode, QueueRequest, ReleaseRequest, RenewRequest,
};
use leasehold_core::{Clock, FencingToken, Label, Name, OwnerToken, Store, SystemClock};
use leasehold_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::types::Value;

use crate::assert_sayable;

const OWNERS: [&str; 2] = ["MDEyMzQ1Njc4OWFiY2RlZg@fuzz", "ABCDEFGHIJKLMNOPQRSTUV@other"];
const TTL: Duration = Duration::from_secs(3);

struct World {
    folder: tempfile::TempDir,
    /// A file with a holder and a waiter in it.
    pristine: Vec<u8>,
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pristine.db");
        let store = open(&path).unwrap();
        use_it(&store);
        block_on(store.close());
        drop(store);
        // Everything into the one file.
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        drop(connection);
        Self { pristine: std::fs::read(&path).unwrap(), folder }
    }
}

/// The first byte says how the file came to be: as the rest of the input; with single bytes changed (a place in two
/// bytes, then the new byte); or with values of any type in any column (table and column, type, length, value).
pub fn store_file(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    WORLD.with(|world| {
        let world = world.get_or_init(World::new);
        let path = world.folder.path().join("file.db");
        for ending in ["", "-wal", "-shm", "-journal"] {
            // Whatever the last input has left.
            let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
        }
        match kind % 3 {
            0 => std::fs::write(&path, rest).unwrap(),
            1 => std::fs::write(&path, patched(&world.pristine, rest)).unwrap(),
            _ => {
                std::fs::write(&path, &world.pristine).unwrap();
                put_values(&path, rest);
            }
        }
        match open(&path) {
            Ok(store) => {
                use_it(&store);
                block_on(store.close());
            }
            Err(error) => assert_sayable(&error.to_string()),
        }
    });
}

fn patched(pristine: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = pristine.to_vec();
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[place] = change[2];
    }
    bytes
}

const COLUMNS: [(&str, &str); 15] = [
    ("lease", "name"),
    ("lease", "value"),
    ("lease", "expires"),
    ("lease", "boot"),
    ("lease", "fencing_token"),
    ("waiter", "name"),
    ("waiter", "ticket"),
    ("waiter", "owner"),
    ("waiter", "claim"),
    ("waiter", "seen_until"),
    ("waiter", "boot"),
    ("fence", "last"),
    ("fence", "reserved"),
    ("fence", "boot"),
    ("sweep", "name"),
];

fn put_values(path: &Path, changes: &[u8]) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let mut rest = changes;
    while let [column, kind, length, tail @ ..] = rest {
        let (bytes, next) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = next;
        let mut eight = [0; 8];
        let short = bytes.len().min(8);
        eight[..short].copy_from_slice(&bytes[..short]);
        let value = match kind % 4 {
            0 => Value::Integer(i64::from_le_bytes(eight)),
            1 => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
            2 => Value::Blob(bytes.to_vec()),
            _ => Value::Real(f64::from_le_bytes(eight)),
        };
        let (table, column) = COLUMNS[usize::from(*column) % COLUMNS.len()];
        // The tables are strict: what does not fit its column is refused, and nothing is changed.
        let _ = connection.execute(&format!("UPDATE {table} SET {column} = ?1"), [value]);
    }
}

fn open(path: &Path) -> Result<SqliteStore, leasehold_core::Error> {
    let options = SqliteOptions {
        command_timeout: Duration::from_millis(50),
        any_file_system: true,
        ..Default::default()
    };
    SqliteStore::open(path, options)
}

/// Everything a store is asked for. Errors are right; panics, tokens out of range and secrets in messages are not.
fn use_it(store: &SqliteStore) {
    let name = Name::new("job").unwrap();
    let owners = OWNERS.map(|text| OwnerToken::parse(text).unwrap());
    let not_after = SystemClock.now().after(Duration::from_secs(1));
    let mut said = Vec::new();
    for (owner, queue) in owners.iter().zip([None, Some(QueueRequest { ticket: None, poll_interval: TTL })]) {
        let request = AcquireRequest { name: &name, owner, ttl: TTL, queue, not_after };
        match block_on(store.acquire(request)) {
            Ok(AcquireReply::Granted { fencing_token }) => {
                assert!(FencingToken::new(fencing_token.get()).is_some(), "{fencing_token:?}");
            }
            Ok(AcquireReply::Held(held)) => said.push(held.holder.to_string()),
            Err(error) => said.push(error.to_string()),
        }
    }
    let renewal = RenewRequest { name: name.clone(), owner: owners[0].clone(), ttl: TTL };
    said.extend(
        block_on(store.renew(&[renewal])).into_iter().filter_map(|reply| Some(reply.err()?.to_string())),
    );
    match block_on(store.inspect(&name)) {
        Ok(Some(seen)) => {
            said.extend(seen.waiters);
            said.extend(seen.holder.map(|holder| holder.to_string()));
        }
        Ok(None) => {}
        Err(error) => said.push(error.to_string()),
    }
    said.extend(block_on(store.list("", 3)).err().map(|error| error.to_string()));
    match block_on(store.diagnose()) {
        // Those are made one line where they are shown.
        Ok(findings) => said.extend(findings.into_iter().map(|finding| finding.message.replace('\n', " "))),
        Err(error) => said.push(error.to_string()),
    }
    let by = Label::new("ops").unwrap();
    said.extend(
        block_on(store.break_lease(&name, BreakMode::Notice, &by)).err().map(|error| error.to_string()),
    );
    let release = ReleaseRequest { name: &name, owner: &owners[0], keep_for: None };
    said.extend(block_on(store.release(release)).err().map(|error| error.to_string()));
    for text in said {
        assert_sayable(&text);
        for owner in OWNERS {
            assert!(!text.contains(&owner[..22]), "an owner token in {text:?}");
        }
    }
}
