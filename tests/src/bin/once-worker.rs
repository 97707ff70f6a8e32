//! The worker process of the test of run-once: gets events on standard input, a number and an order in each line,
//! has each order shipped once by the carrier, and says on standard output what became of each event.

use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use leasehold::blocking::block_on;
use leasehold::{Client, Label, OnceError, OnceOutcome};

/// Events that one worker handles at a time.
const THREADS: usize = 4;
/// The carrier sometimes takes longer, having shipped already.
const CARRIER_TIMEOUT: Duration = Duration::from_millis(250);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, label, ttl_ms, carrier] = arguments.as_slice() else {
        return Err("STORE LABEL TTL_MS CARRIER are needed".into());
    };
    let builder = Client::builder().label(Label::new(label)?).store_timeout(Duration::from_secs(60));
    let client = block_on(builder.connect(store))?;
    let worker = Worker { client, ttl: Duration::from_millis(ttl_ms.parse()?), carrier: carrier.clone() };
    let (send, receive) = mpsc::channel::<String>();
    let receive = Arc::new(Mutex::new(receive));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (receive, worker) = (Arc::clone(&receive), &worker);
            scope.spawn(move || {
                loop {
                    let next = receive.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(line) = next else { return };
                    let Some((event, order)) = line.split_once(' ') else { continue };
                    let outcome = worker.handle(order);
                    let _ = writeln!(io::stdout().lock(), "{event} {outcome}");
                }
            });
        }
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
        drop(send);
    });
    block_on(worker.client.close(Duration::from_secs(10)))?;
    Ok(())
}

struct Worker {
    client: Client,
    ttl: Duration,
    carrier: String,
}

impl Worker {
    /// `ran TRACKING`, `done TRACKING`, or `again WHY`.
    fn handle(&self, order: &str) -> String {
        let once = match self.client.once(format!("ship:{order}")) {
            Ok(once) => once.ttl(self.ttl).wait(self.ttl * 3).fingerprint(format!("ship {order}")),
            Err(error) => return format!("again {error}"),
        };
        let outcome = once.blocking().run(|attempt| {
            let key = attempt.idempotency_key();
            ask(&self.carrier, order, key.as_str()).inspect_err(|error| {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    attempt.has_not_acted();
                }
            })
        });
        match outcome {
            Ok(OnceOutcome::Ran(tracking)) => format!("ran {tracking}"),
            Ok(OnceOutcome::AlreadyDone(tracking)) => format!("done {}", String::from_utf8_lossy(&tracking)),
            Err(OnceError::Body(error)) => format!("again carrier: {error}"),
            Err(OnceError::Lost { cause, .. }) => format!("again lost: {cause}"),
            Err(OnceError::InProgress(_)) => "again busy".to_owned(),
            Err(error) => format!("again {error}"),
        }
    }
}

/// Asks the carrier to ship an order; the tracking number.
fn ask(carrier: &str, order: &str, key: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(carrier)?;
    stream.set_read_timeout(Some(CARRIER_TIMEOUT))?;
    let request = format!(
        "POST /shipments/{order} HTTP/1.1\r\nHost: carrier\r\nIdempotency-Key: {key}\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, tracking)) if head.starts_with("HTTP/1.1 201 ") => Ok(tracking.to_owned()),
        _ => Err(io::Error::other(answer.lines().next().unwrap_or("no answer").to_owned())),
    }
}
