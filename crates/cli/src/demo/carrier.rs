//! The carrier: a real HTTP server on loopback that ships what it is asked to ship, and keeps a ledger of who
//! asked for what. If it honours idempotency keys, a key it has seen gets the answer it got the first time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

/// Where shipments are asked for.
pub(super) const PATH: &str = "/shipments";
/// The header that names the operation, as in the IETF draft `idempotency-key-header`.
pub(super) const KEY_HEADER: &str = "idempotency-key";
/// The carrier works this long on a label, and up to two more milliseconds depending on the label.
const WORK: Duration = Duration::from_millis(2);

/// What is asked of the carrier. The same for every event of an order: the operation is "ship this order".
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Order {
    /// Which order to ship.
    pub(super) order_id: String,
}

/// The carrier's answer: a parcel is on its way.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Shipment {
    /// The number on the parcel.
    pub(super) tracking: String,
}

/// One request, as the ledger keeps it.
#[derive(Clone, Debug)]
pub(super) struct Entered {
    /// Which order.
    pub(super) order: String,
    /// The number on the parcel.
    pub(super) tracking: String,
    /// Whether a parcel went out for it; otherwise it was answered from memory.
    pub(super) shipped: bool,
}

/// A running carrier. Dropping it ends the server.
pub(super) struct Carrier {
    address: SocketAddr,
    office: Arc<Office>,
    server: JoinHandle<()>,
}

impl Carrier {
    /// Starts a carrier on a free port of the loopback interface.
    pub(super) async fn start(honours_keys: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let office = Arc::new(Office { honours_keys, books: Mutex::default() });
        let router = Router::new().route(PATH, post(ship)).with_state(Arc::clone(&office));
        let server = tokio::spawn(async move {
            // It only returns when it is told to shut down, which nobody does: the task is aborted.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, office, server })
    }

    /// Where to ask for a shipment.
    pub(super) fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Everything that was asked so far, in the order of the answers.
    pub(super) fn ledger(&self) -> Vec<Entered> {
        self.office.books().ledger.clone()
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Office {
    honours_keys: bool,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    parcels: u64,
    ledger: Vec<Entered>,
    answers: HashMap<String, Arc<Remembered>>,
}

/// The first request under a key, and its answer once there is one.
struct Remembered {
    order_id: String,
    answer: OnceCell<Shipment>,
}

impl Office {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a parcel, which takes a while.
    async fn send_parcel(&self) -> Shipment {
        let number = {
            let mut books = self.books();
            books.parcels += 1;
            books.parcels
        };
        tokio::time::sleep(WORK + Duration::from_millis(number % 3)).await;
        Shipment { tracking: format!("TRK-{number:06}") }
    }

    fn enter(&self, order: Order, shipment: &Shipment, shipped: bool) {
        let tracking = shipment.tracking.clone();
        self.books().ledger.push(Entered { order: order.order_id, tracking, shipped });
    }

    /// What is remembered under this key, or an empty place to remember the answer in.
    fn remembered(&self, key: &str, order: &Order) -> Arc<Remembered> {
        match self.books().answers.entry(key.to_owned()) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(place) => {
                let order_id = order.order_id.clone();
                Arc::clone(place.insert(Arc::new(Remembered { order_id, answer: OnceCell::new() })))
            }
        }
    }
}

async fn ship(
    State(office): State<Arc<Office>>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Shipment>), (StatusCode, String)> {
    let key = headers.get(KEY_HEADER).filter(|_| office.honours_keys);
    let Some(key) = key else {
        let shipment = office.send_parcel().await;
        office.enter(order, &shipment, true);
        return Ok((StatusCode::CREATED, Json(shipment)));
    };
    let key = key.to_str().map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    let remembered = office.remembered(key, &order);
    // A key stands for one operation; for another one it is a mistake of the caller.
    if remembered.order_id != order.order_id {
        let problem = format!("the key was used for order {}", remembered.order_id);
        return Err((StatusCode::UNPROCESSABLE_ENTITY, problem));
    }
    let mut shipped = false;
    let parcel = async {
        shipped = true;
        office.send_parcel().await
    };
    // Requests that arrive while the first one is worked on wait for its answer.
    let shipment = remembered.answer.get_or_init(|| parcel).await.clone();
    office.enter(order, &shipment, shipped);
    Ok((StatusCode::CREATED, Json(shipment)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for a shipment; the status and the tracking number.
    fn ask(url: &str, order_id: &str, key: Option<&str>) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut request = agent.post(url).content_type("application/json");
        if let Some(key) = key {
            request = request.header(KEY_HEADER, key);
        }
        let body = serde_json::to_vec(&Order { order_id: order_id.to_owned() }).unwrap();
        let mut response = request.send(&body[..]).unwrap();
        let answer = response.body_mut().read_to_vec().unwrap();
        let tracking = serde_json::from_slice(&answer).map(|shipment: Shipment| shipment.tracking);
        (response.status().as_u16(), tracking.unwrap_or_default())
    }

    async fn asked(
        carrier: &Carrier,
        requests: &[(&'static str, Option<&'static str>)],
    ) -> Vec<(u16, String)> {
        let url = carrier.url();
        let requests: Vec<_> = requests
            .iter()
            .map(|(order, key)| {
                let (url, order, key) = (url.clone(), *order, *key);
                tokio::task::spawn_blocking(move || ask(&url, order, key))
            })
            .collect();
        let mut answers = Vec::new();
        for request in requests {
            answers.push(request.await.unwrap());
        }
        answers
    }

    #[tokio::test]
    async fn requests_at_the_same_time_under_one_key_get_one_parcel() {
        let carrier = Carrier::start(true).await.unwrap();
        let answers = asked(&carrier, &[("o1", Some("k1")); 8]).await;
        assert!(answers.iter().all(|answer| *answer == (201, "TRK-000001".to_owned())), "{answers:?}");
        let ledger = carrier.ledger();
        assert_eq!((ledger.len(), ledger.iter().filter(|entered| entered.shipped).count()), (8, 1));
    }

    #[tokio::test]
    async fn trap_56_a_key_for_another_order_is_refused() {
        let carrier = Carrier::start(true).await.unwrap();
        asked(&carrier, &[("o1", Some("k1"))]).await;
        assert_eq!(asked(&carrier, &[("o2", Some("k1"))]).await[0].0, 422);
        assert_eq!(carrier.ledger().len(), 1);
    }

    #[tokio::test]
    async fn a_plain_carrier_sends_a_parcel_for_every_request() {
        let carrier = Carrier::start(false).await.unwrap();
        let answers = asked(&carrier, &[("o1", Some("k1")), ("o1", Some("k1")), ("o1", None)]).await;
        let numbers: std::collections::HashSet<_> =
            answers.into_iter().map(|(_, tracking)| tracking).collect();
        assert_eq!(numbers.len(), 3);
        assert!(carrier.ledger().iter().all(|entered| entered.shipped));
    }
}
