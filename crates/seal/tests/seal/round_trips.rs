//! What sealing costs on the network: one statement more, in one round trip, or in none of its own where the first
//! read is sent along with it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leasehold_seal::{SealTarget, postgres};
use leasehold_testkit::databases::{DatabaseKind, Postgres};
use tokio_postgres::types::Type;

use crate::databases::{RUNTIME, World, connect_postgres, stamp};

/// Passes bytes on and counts how often the client spoke after the server had.
#[derive(Default)]
struct Relay {
    trips: AtomicU32,
    client_spoke_last: AtomicBool,
}

impl Relay {
    fn start(upstream: u16) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let relay = Arc::new(Self::default());
        let passing = Arc::clone(&relay);
        std::thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let up = Arc::clone(&passing);
            std::thread::spawn(move || {
                pass(from_client, to_server, || {
                    if !up.client_spoke_last.swap(true, Ordering::SeqCst) {
                        up.trips.fetch_add(1, Ordering::SeqCst);
                    }
                });
            });
            pass(server, client, || passing.client_spoke_last.store(false, Ordering::SeqCst));
        });
        (relay, port)
    }

    fn trips(&self) -> u32 {
        self.trips.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, spoke: impl Fn()) {
    let mut buffer = [0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        spoke();
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may be gone already.
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_seal_on_postgres_is_one_round_trip_or_goes_along_with_the_first_read() {
    if !DatabaseKind::Postgres.is_to_be_tested("a_seal_on_postgres_is_one_round_trip") {
        return;
    }
    let world = World::postgres(postgres::SCHEMA);
    world.make_counters(1);
    let World::Postgres { url, .. } = &world else { unreachable!() };
    let real = Postgres::shared().port();
    let (relay, port) = Relay::start(real);
    let mut client = connect_postgres(&url.replace(&format!(":{real}/"), &format!(":{port}/")));
    RUNTIME.block_on(async {
        const READ: &str = "SELECT value FROM counters WHERE id = 1";
        let mut counted = Vec::new();
        for way in ["no seal", "sealed", "along with the read"] {
            let before = relay.trips();
            let tx = client.transaction().await.unwrap();
            if way == "along with the read" {
                let seal = tx.seal_with(Ok(stamp("counter:1", 34)));
                let (sealed, rows) = tokio::join!(seal, tx.query_typed(READ, &[]));
                sealed.unwrap();
                assert_eq!(rows.unwrap()[0].get::<_, i64>(0), 0);
            } else {
                if way == "sealed" {
                    tx.seal_with(Ok(stamp("counter:1", 34))).await.unwrap();
                }
                tx.query_typed(READ, &[]).await.unwrap();
            }
            tx.execute_typed("UPDATE counters SET value = value + $1", &[(&0_i64, Type::INT8)])
                .await
                .unwrap();
            tx.commit().await.unwrap();
            counted.push(relay.trips() - before);
        }
        assert_eq!(counted, [4, 5, 4], "begin, read, update, commit, and the seal");
        // A stale holder that sends its read along reads nothing.
        let tx = client.transaction().await.unwrap();
        let (sealed, rows) =
            tokio::join!(tx.seal_with(Ok(stamp("counter:1", 33))), tx.query_typed(READ, &[]));
        assert!(sealed.unwrap_err().is_fenced());
        assert!(rows.is_err());
    });
}
