//! A carrier on loopback that honours idempotency keys. Now and then it ships and answers too late, or not at all, or
//! refuses without having shipped.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::Seeded;

/// Longer than the workers wait.
const TOO_LATE: Duration = Duration::from_millis(400);

/// A running carrier; its thread ends with the test process.
pub(crate) struct Carrier {
    pub(crate) address: SocketAddr,
    pub(crate) books: Arc<Books>,
}

/// What it was asked for, and what it did.
#[derive(Default)]
pub(crate) struct Books {
    /// By order: the keys it was asked with.
    pub(crate) keys: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// By key: the order and the tracking number of the parcel.
    pub(crate) parcels: Mutex<BTreeMap<String, (String, String)>>,
    pub(crate) requests: AtomicU64,
    /// Answered too late or not at all, after having acted.
    pub(crate) timeouts: AtomicU64,
    /// Refused without having acted.
    pub(crate) refusals: AtomicU64,
}

impl Carrier {
    pub(crate) fn start(seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, books) = (listener.local_addr().unwrap(), Arc::new(Books::default()));
        let shared = Arc::clone(&books);
        std::thread::spawn(move || {
            let mut seeded = Seeded(seed);
            for stream in listener.incoming().map_while(Result::ok) {
                let (books, mood) = (Arc::clone(&shared), seeded.below(100));
                // A client that has gone away has got no answer: that is what it is for.
                std::thread::spawn(move || drop(books.serve(stream, mood)));
            }
        });
        Self { address, books }
    }
}

impl Books {
    fn serve(&self, mut stream: TcpStream, mood: u64) -> io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let order = first.split(['/', ' ']).nth(3).unwrap_or_default().to_owned();
        let (mut key, mut complete) = (String::new(), false);
        for line in lines.by_ref().map_while(Result::ok) {
            if line.is_empty() {
                complete = true;
                break;
            }
            if let Some(value) = line.strip_prefix("Idempotency-Key: ") {
                value.clone_into(&mut key);
            }
        }
        // A worker that was killed while it asked has asked for nothing.
        if !complete {
            return Ok(());
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.keys.lock().unwrap().entry(order.clone()).or_default().insert(key.clone());
        if mood < 5 {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return stream.write_all(b"HTTP/1.1 503 Try again\r\nConnection: close\r\n\r\n");
        }
        let tracking = {
            let mut parcels = self.parcels.lock().unwrap();
            let number = parcels.len() + 1;
            parcels.entry(key).or_insert_with(|| (order, format!("JD{number:06}"))).1.clone()
        };
        std::thread::sleep(Duration::from_millis(2 + mood % 5));
        if mood < 15 {
            self.timeouts.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(TOO_LATE);
        }
        if mood < 10 {
            return Ok(());
        }
        write!(stream, "HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n{tracking}")
    }
}
