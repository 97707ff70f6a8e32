//! Clients dropped while they connect or close: neither a thread nor a connection is left of them.

use std::time::{Duration, Instant};

use leasehold::core::Client;

use crate::harness::{Pair, Point, SLACK, cancelled_at_every_point, free, take};
use crate::places::Place;

/// How many clients are connected to a server; 0 where that cannot be asked.
fn connections(place: &Place) -> usize {
    let Place::Redis(server) = place else { return 0 };
    let clients = server.0.cli(&["CLIENT", "LIST"]).unwrap();
    // Not the one that asks.
    clients.lines().count() - 1
}

#[test]
fn connecting() {
    cancelled_at_every_point("connecting", "connected", async |pair: Pair, point: Point| {
        let done = point.cancel(pair.place.connect()).await;
        let completed = done.map(|client: Result<Client, _>| drop(client.unwrap())).is_some();
        // The two of the pair have a connection for locks and one for questions each at most.
        let started = Instant::now();
        while connections(&pair.place) > 4 {
            assert!(started.elapsed() < SLACK, "{} connections are left", connections(&pair.place));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        completed
    });
}

#[test]
fn closing() {
    cancelled_at_every_point("closing", "closed", async |pair: Pair, point: Point| {
        let name = point.name("closed");
        let client = pair.place.connect().await.unwrap();
        let guard = take(&client, &name).await;
        drop(guard);
        let done = point.cancel(client.close(SLACK)).await;
        let completed = done.map(|closed| closed.unwrap()).is_some();
        assert!(client.lock(&name).unwrap().try_acquire().await.is_err(), "a closed client acquires nothing");
        drop(client);
        free(take(&pair.other, &name).await).await;
        completed
    });
}
