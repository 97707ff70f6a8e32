//! Field cases that end at a database, with real leases and `guard.seal`.

use std::sync::Arc;
use std::time::Duration;

use ::mysql::prelude::Queryable;
use leasehold::blocking::block_on;
use leasehold::{Attempt, Client, Guard, Released};
use leasehold_seal::{Seal, SealError, SealTarget, Stamp, postgres, sqlite};
use leasehold_testkit::databases::DatabaseKind;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::servers::{RedisServer, ServerKind, kinds_to_test};
use tokio::sync::Mutex;

use crate::databases::{RUNTIME, World, connect_postgres, for_each_database, seal_mysql};

const TTL: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(20);

/// A driver that the crate does not know is taught in a few lines.
struct MySql<'a>(&'a mut ::mysql::Conn);

impl SealTarget for MySql<'_> {
    type Outcome = Result<(), SealError>;

    fn seal_with(self, stamp: Result<Stamp, SealError>) -> Self::Outcome {
        seal_mysql(self.0, &stamp?)
    }
}

/// One transaction of a holder, as its user writes it: seal, then add.
fn add(world: &World, guard: &Guard, amount: i64) -> Result<(), SealError> {
    match world {
        World::Postgres { url, .. } => {
            let mut client = connect_postgres(url);
            RUNTIME.block_on(async {
                let tx = client.transaction().await.unwrap();
                guard.seal(&tx, "counter:1").await?;
                tx.execute("UPDATE counters SET value = value + $1 WHERE id = 1", &[&amount]).await.unwrap();
                tx.commit().await.unwrap();
                Ok(())
            })
        }
        World::MariaDb { url, .. } => {
            let mut connection = ::mysql::Conn::new(::mysql::Opts::from_url(url).unwrap()).unwrap();
            connection.query_drop("START TRANSACTION").unwrap();
            guard.seal(MySql(&mut connection), "counter:1")?;
            connection.exec_drop("UPDATE counters SET value = value + ? WHERE id = 1", (amount,)).unwrap();
            connection.query_drop("COMMIT").unwrap();
            Ok(())
        }
        World::Sqlite { .. } => {
            let mut connection = world.sqlite_connection();
            let tx = connection.transaction().unwrap();
            guard.seal(&tx, "counter:1")?;
            tx.execute("UPDATE counters SET value = value + ?1 WHERE id = 1", [amount]).unwrap();
            tx.commit().unwrap();
            Ok(())
        }
    }
}

fn acquire(client: &Client) -> Guard {
    let lock = client.lock("job:115").unwrap().ttl(TTL).wait(LONG);
    match block_on(lock.acquire()).unwrap() {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(busy) => panic!("{busy}"),
    }
}

/// F073, F115: At the database a stale holder that still reaches it is refused by the seal.
#[test]
fn f073_f115_a_partitioned_holder_is_refused_by_the_database_it_still_reaches() {
    let test = "f073_f115_a_partitioned_holder_is_refused";
    if !kinds_to_test(test).contains(&ServerKind::Redis7) {
        return;
    }
    let redis = RedisServer::start(ServerKind::Redis7).unwrap();
    for_each_database(test, |world| {
        world.make_counters(1);
        let proxy = Proxy::before(&redis).unwrap();
        let stale_client = block_on(Client::connect(&redis.url_through(&proxy))).unwrap();
        let stale = acquire(&stale_client);
        add(world, &stale, 1).unwrap();

        // From Redis only: its link to the database works.
        proxy.half_open();
        let client = block_on(Client::connect(&redis.url())).unwrap();
        let newer = acquire(&client);
        assert!(newer.fencing_token() > stale.fencing_token());
        add(world, &newer, 10).unwrap();

        let refused = add(world, &stale, 100).unwrap_err();
        let SealError::Fenced { mine, newest, .. } = refused else { panic!("{refused:?}") };
        assert_eq!((mine, newest), (stale.fencing_token(), newer.fencing_token()));

        // Its late heartbeat does not take the lease back, and its last write is refused as well.
        proxy.heal();
        assert!(block_on(stale.renew()).is_err());
        assert!(add(world, &stale, 1_000).unwrap_err().is_fenced());
        add(world, &newer, 10).unwrap();
        assert_eq!(block_on(newer.release()).unwrap(), Released::Freed, "it was not disturbed");
        assert_eq!(world.session().read(1), 21);
    });
}

const CALLS: i64 = 50;
/// The case says 200 ms; what matters is that it is much longer than a hand-over.
const SLOW_COMMIT: Duration = Duration::from_millis(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Lock, begin, …, commit, release.
    LockAround,
    /// As an annotation does that ends before the transaction: release, then commit.
    ReleaseFirst { sealed: bool },
}

/// Reads, adds 1 and saves in 50 calls at once; the count in the end.
fn fifty_calls(order: Order) -> i64 {
    let world = World::postgres(postgres::SCHEMA);
    world.make_counters(1);
    let World::Postgres { url, .. } = &world else { unreachable!() };
    // The lock decides who is next; ten connections are enough for those who are still committing.
    let pool: Arc<Vec<_>> = Arc::new((0..10).map(|_| Mutex::new(connect_postgres(url))).collect());
    let client = RUNTIME.block_on(Client::connect("memory:")).unwrap();
    let calls = (0..CALLS).map(|call| {
        let (client, pool) = (client.clone(), Arc::clone(&pool));
        RUNTIME.spawn(async move {
            let lock = client.lock("count").unwrap().wait(LONG);
            let Attempt::Acquired(guard) = lock.acquire().await.unwrap() else { panic!("busy") };
            let mut database = pool[usize::try_from(call).unwrap() % pool.len()].lock().await;
            let tx = database.transaction().await.unwrap();
            if order != (Order::ReleaseFirst { sealed: false }) {
                guard.seal(&tx, "counter:1").await.unwrap();
            }
            let row = tx.query_one("SELECT value FROM counters WHERE id = 1", &[]).await.unwrap();
            let next = row.get::<_, i64>(0) + 1;
            let mut guard = Some(guard);
            if order != Order::LockAround {
                assert_eq!(guard.take().unwrap().release().await.unwrap(), Released::Freed);
            }
            tx.execute("UPDATE counters SET value = $1 WHERE id = 1", &[&next]).await.unwrap();
            tokio::time::sleep(SLOW_COMMIT).await;
            tx.commit().await.unwrap();
            drop(database);
            if let Some(guard) = guard {
                assert_eq!(guard.release().await.unwrap(), Released::Freed);
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        RUNTIME.block_on(call).unwrap();
    }
    world.session().read(1)
}

/// F006: With the seal no update is lost even if the lock was released before the commit.
#[test]
fn f006_trap_55_a_lock_that_is_released_before_the_commit_loses_no_update_with_the_seal() {
    if !DatabaseKind::Postgres.is_to_be_tested("f006_trap_55_a_lock_that_is_released_before_the_commit") {
        return;
    }
    assert_eq!(fifty_calls(Order::LockAround), CALLS);
    assert!(fifty_calls(Order::ReleaseFirst { sealed: false }) < CALLS, "the order that loses updates");
    // The next holder's seal waits for the commit.
    assert_eq!(fifty_calls(Order::ReleaseFirst { sealed: true }), CALLS);
}

#[test]
fn a_lease_can_seal_from_within_run() {
    let world = World::sqlite(sqlite::SCHEMA);
    world.make_counters(1);
    let client = block_on(Client::connect("memory:")).unwrap();
    let mut connection = world.sqlite_connection();
    let done = block_on(client.lock("count").unwrap().run(|lease| async move {
        let tx = connection.transaction().unwrap();
        lease.seal(&tx, "counter:1")?;
        tx.execute("UPDATE counters SET value = 1", ()).unwrap();
        tx.commit().unwrap();
        Ok::<_, SealError>(())
    }));
    done.unwrap();
    assert_eq!(world.session().read(1), 1);
}
