//! Three servers get every event of a paid order, and each order is shipped once: `run`, and a database that
//! refuses a stale holder by its fencing token.
//!
//! `cargo run -p leasehold-examples --bin shipping`

use std::error::Error;
use std::time::Duration;

use leasehold::{Client, FencingToken, Label};
use rusqlite::Connection;

const ORDERS: u32 = 50;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = std::env::var("LEASEHOLD_STORE")
        .unwrap_or_else(|_| format!("sqlite:{}", dir.path().join("locks.db").display()));
    let database = open_database()?;
    let server = |number| serve(&store, number, &database);
    let shipped = tokio::try_join!(server(1), server(2), server(3))?;
    println!("{} events, {ORDERS} orders; shipped by each server: {shipped:?}", 3 * ORDERS);

    // A holder that was stopped for longer than its TTL comes back with an old token: its write gets nowhere.
    let stale = FencingToken::new(1).ok_or("no such token")?;
    println!("a write with an old token is refused: {}", !begin(&database, 1, stale)?);
    Ok(())
}

/// Handles the event of every order, and returns how many this server has shipped. The events come to each
/// server in another order.
async fn serve(store: &str, number: u32, database: &Connection) -> Result<u32, Box<dyn Error>> {
    let label = Label::new(format!("server-{number}"))?;
    let client = Client::builder().label(label).connect(store).await?;
    let mut shipped = 0;
    for order in (1..=ORDERS).map(|event| (event + 17 * number) % ORDERS + 1) {
        shipped += u32::from(handle(&client, order, database).await?);
    }
    client.close(Duration::from_secs(5)).await?;
    Ok(shipped)
}

/// Ships the order unless that was done already; true if it was done here.
async fn handle(client: &Client, order: u32, database: &Connection) -> Result<bool, Box<dyn Error>> {
    let lock = client.lock(format!("order:{order}"))?.wait(Duration::from_secs(30));
    let done = lock
        .run(|lease| async move {
            let token = lease.fencing_token();
            if !begin(database, order, token)? {
                return Ok(false);
            }
            order_shipment(order).await; // dropped here before the lease can have ended
            finish(database, order, token)
        })
        .await?;
    Ok(done.value)
}

/// What would be a request to a carrier; it carries the order as its idempotency key, as nobody can fence it.
async fn order_shipment(_order: u32) {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

fn open_database() -> rusqlite::Result<Connection> {
    let database = Connection::open_in_memory()?;
    database.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, token INTEGER, shipped BOOLEAN)")?;
    for order in 1..=ORDERS {
        database.execute("INSERT INTO orders VALUES (?1, 0, FALSE)", [order])?;
    }
    Ok(database)
}

/// From here on every older token is refused. False if the order was shipped, or a newer holder has begun.
fn begin(database: &Connection, order: u32, token: FencingToken) -> rusqlite::Result<bool> {
    let sql = "UPDATE orders SET token = ?2 WHERE id = ?1 AND token <= ?2 AND NOT shipped";
    Ok(database.execute(sql, (order, token.get().cast_signed()))? == 1)
}

/// False, and nothing is written, if a newer holder has begun.
fn finish(database: &Connection, order: u32, token: FencingToken) -> rusqlite::Result<bool> {
    let sql = "UPDATE orders SET shipped = TRUE WHERE id = ?1 AND token = ?2 AND NOT shipped";
    Ok(database.execute(sql, (order, token.get().cast_signed()))? == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_event_that_comes_twice_ships_once() {
        let (client, database) = (Client::in_memory().await.unwrap(), open_database().unwrap());
        let (first, second) = tokio::join!(handle(&client, 7, &database), handle(&client, 7, &database));
        assert_eq!([first.unwrap(), second.unwrap()].iter().filter(|shipped| **shipped).count(), 1);
        assert!(!handle(&client, 7, &database).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_was_overtaken_cannot_write() {
        let database = open_database().unwrap();
        let [old, new] = [100, 101].map(|value| FencingToken::new(value).unwrap());
        assert!(begin(&database, 7, old).unwrap());
        assert!(begin(&database, 7, new).unwrap());
        assert!(!finish(&database, 7, old).unwrap() && finish(&database, 7, new).unwrap());
    }
}
