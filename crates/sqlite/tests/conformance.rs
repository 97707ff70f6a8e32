//! The suite every store passes, on a real file with the system's clock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sqlite {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use leasehold_core::{Clock, Name, Namespace, Store, SystemClock};
    use leasehold_sqlite::{Environment, SqliteOptions, SqliteStore};
    use leasehold_testkit::conformance::{Fixture, Skipped};
    use rusqlite::{Connection, OptionalExtension, params};

    /// A file of its own, whose time of day can be put back.
    struct File {
        directory: tempfile::TempDir,
        put_back: Arc<AtomicI64>,
    }

    impl File {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap(), put_back: Arc::default() }
        }

        fn path(&self) -> PathBuf {
            self.directory.path().join("locks.db")
        }

        /// What another program that knows the tables sees.
        fn raw(&self) -> Connection {
            let connection = Connection::open(self.path()).unwrap();
            connection.busy_timeout(Duration::from_secs(5)).unwrap();
            connection
        }

        fn execute(&self, sql: &str, parameters: impl rusqlite::Params) {
            self.raw().execute(sql, parameters).unwrap();
        }

        fn environment(&self) -> Environment {
            let system = Environment::system().unwrap();
            let (wall_clock, put_back) = (Arc::clone(&system.wall_clock), Arc::clone(&self.put_back));
            let shown = move || {
                let back = u64::try_from(put_back.load(Ordering::Relaxed)).unwrap();
                wall_clock().saturating_sub(Duration::from_micros(back))
            };
            Environment { wall_clock: Arc::new(shown), ..system }
        }
    }

    impl Fixture for File {
        async fn connect(&self) -> Arc<dyn Store> {
            let environment = Some(self.environment());
            let options = SqliteOptions { environment, ..SqliteOptions::default() };
            Arc::new(SqliteStore::open(self.path(), options).unwrap())
        }

        /// Nothing is ever pushed here, so every connection is one.
        async fn connect_without_push(&self) -> Result<Arc<dyn Store>, Skipped> {
            Ok(self.connect().await)
        }

        fn clock(&self) -> Arc<dyn Clock> {
            Arc::new(SystemClock)
        }

        fn raw_set(&self, name: &Name, value: &str, ttl: Option<Duration>) -> Result<(), Skipped> {
            let now = SystemClock.now().since_origin();
            let expires = ttl.map_or(i64::MAX, |ttl| i64::try_from((now + ttl).as_micros()).unwrap());
            self.execute(
                "INSERT OR REPLACE INTO lease VALUES(?1, ?2, ?3, ?4, ?5, 0)",
                params![Namespace::DEFAULT, name.as_str(), value, expires, this_boot()],
            );
            Ok(())
        }

        fn raw_get(&self, name: &Name) -> Result<Option<String>, Skipped> {
            let now = i64::try_from(SystemClock.now().since_origin().as_micros()).unwrap();
            let found = self.raw().query_row(
                "SELECT value FROM lease WHERE namespace = ?1 AND name = ?2 AND expires > ?3",
                params![Namespace::DEFAULT, name.as_str(), now],
                |row| row.get(0),
            );
            Ok(found.optional().unwrap())
        }

        fn evict(&self, name: &Name) -> Result<(), Skipped> {
            self.execute(
                "DELETE FROM lease WHERE namespace = ?1 AND name = ?2",
                (Namespace::DEFAULT, name.as_str()),
            );
            Ok(())
        }

        fn flush(&self) -> Result<(), Skipped> {
            self.raw()
                .execute_batch(
                    "BEGIN IMMEDIATE; DELETE FROM lease; DELETE FROM waiter;
                     UPDATE fence SET last = 0, reserved = 0, boot = x''; COMMIT",
                )
                .unwrap();
            Ok(())
        }

        fn lose_queue(&self, name: &Name) -> Result<(), Skipped> {
            self.execute(
                "DELETE FROM waiter WHERE namespace = ?1 AND name = ?2",
                (Namespace::DEFAULT, name.as_str()),
            );
            Ok(())
        }

        fn step_clock_back(&self, by: Duration) -> Result<(), Skipped> {
            self.put_back.fetch_add(i64::try_from(by.as_micros()).unwrap(), Ordering::Relaxed);
            Ok(())
        }

        fn stored_entries(&self) -> Result<usize, Skipped> {
            let entries = self.raw().query_row(
                "SELECT (SELECT count(*) FROM lease) + (SELECT count(*) FROM waiter)",
                [],
                |row| row.get::<_, i64>(0),
            );
            Ok(usize::try_from(entries.unwrap()).unwrap())
        }
    }

    fn this_boot() -> Vec<u8> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let id = text.trim().replace('-', "");
        u128::from_str_radix(&id, 16).unwrap().to_be_bytes().to_vec()
    }

    leasehold_testkit::conformance_tests!(File::new());
}
