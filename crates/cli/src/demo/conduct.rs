//! One run: three workers, one carrier, one database, and the same two freezes in every way of running. What
//! happened is recorded here and counted elsewhere.

use std::path::Path;
use std::time::Duration;

use leasehold::Client;
use tokio::time::{Instant, sleep_until, timeout};

use super::carrier::{Carrier, Entered};
use super::crew::{Crew, Heard};
use super::events::{Events, lock_name};
use super::interrupt::Interrupt;
use super::shipments::{Overwrite, Shipments};
use super::ways::Way;
use super::wire::{Job, Report, Step, Stop, StoreJob, Visit, micros, now};
use crate::failure::Failure;

/// The workers, by the names they hold locks under. The first one is the one that is frozen.
pub(super) const WORKERS: [&str; 3] = ["shipper-1", "shipper-2", "shipper-3"];
const FROZEN: usize = 0;

/// Short, so that the freezes are; long enough that a busy machine does not lose a lease by itself.
pub(super) const TTL: Duration = Duration::from_millis(500);
/// How long starting a worker may take, on top of the time the store may take.
const START_MOST: Duration = Duration::from_secs(30);
/// How long all workers may be silent, on top of the time the store may take.
const SILENCE_MOST: Duration = Duration::from_secs(60);

/// What all runs have in common.
pub(super) struct Stage<'a> {
    /// The events that every worker gets.
    pub(super) events: &'a Events,
    /// A client of the store the workers lock in, to look at leases.
    pub(super) client: &'a Client,
    /// How they reach it.
    pub(super) store: &'a StoreJob,
    /// A directory of the demo's own.
    pub(super) scratch: &'a Path,
    /// Whether somebody wants the demo to end.
    pub(super) interrupt: &'a Interrupt,
}

/// What happened in one run.
pub(super) struct Record {
    /// The way of running.
    pub(super) way: Way,
    /// When the workers were told to begin.
    pub(super) began: u64,
    /// When the last of them was done.
    pub(super) ended: u64,
    /// What each worker did, event by event.
    pub(super) visits: Vec<Vec<Visit>>,
    /// What the carrier was asked for.
    pub(super) ledger: Vec<Entered>,
    /// The writes that replaced another one, as the database saw them.
    pub(super) overwrites: Vec<Overwrite>,
    /// How many orders have a shipment requested in the end.
    pub(super) requested: u32,
    /// The freezes, in the order they happened.
    pub(super) freezes: Vec<Freeze>,
    /// For each freeze, the tracking number that the row of its order has in the end.
    pub(super) left: Vec<Option<String>>,
}

/// One freeze of the frozen worker.
#[derive(Clone, Debug)]
pub(super) struct Freeze {
    /// The event and the step it was frozen at.
    pub(super) stop: Stop,
    /// The fencing token it held.
    pub(super) token: Option<u64>,
    /// Until when it had reason to believe that it held the lock.
    pub(super) believed_until: Option<u64>,
    /// When it was stopped.
    pub(super) frozen: u64,
    /// When its lease ended, as the store has it.
    pub(super) lease_ended: Option<u64>,
    /// When it was continued.
    pub(super) thawed: u64,
}

/// Where the first worker is frozen: once between POST and UPDATE, and once between reading the row and POST, each
/// time at the first event of an order.
pub(super) fn plan(events: &Events) -> Vec<Stop> {
    let orders = events.first_positions.len();
    let (first, second) = (orders / 3, orders * 2 / 3);
    let mut stops = vec![Stop { position: events.first_positions[first], step: Step::Update }];
    if second != first {
        stops.push(Stop { position: events.first_positions[second], step: Step::Post });
    }
    stops
}

/// Runs one way. `progress` is called whenever a worker has done an event.
pub(super) async fn run(stage: &Stage<'_>, way: Way, progress: &dyn Fn()) -> Result<Record, Failure> {
    let database = stage.scratch.join(format!("shipments-{}.db", way.key));
    let orders = stage.events.first_positions.iter().map(|position| stage.events.orders[*position].as_str());
    Shipments::create(&database, orders).map_err(|error| failed(&error))?;
    let carrier = Carrier::start(way.idempotency_key)
        .await
        .map_err(|error| Failure::other(format!("the carrier cannot be started: {error}")))?;
    let jobs: Vec<_> =
        (0..WORKERS.len()).map(|index| job(stage, way, index, &carrier.url(), &database)).collect();
    let mut crew = Crew::start(&jobs).await?;
    let mut conductor = Conductor::new(stage, way, progress);
    let conducted = tokio::select! {
        conducted = conductor.conduct(&mut crew) => conducted,
        failure = stage.interrupt.happens() => Err(failure),
    };
    if let Err(failure) = conducted {
        crew.end().await;
        return Err(failure);
    }
    crew.dismiss().await?;
    let shipments = Shipments::open(&database).map_err(|error| failed(&error))?;
    Ok(Record {
        way,
        began: conductor.began,
        ended: conductor.ended,
        visits: conductor.visits,
        ledger: carrier.ledger(),
        overwrites: shipments.overwrites().map_err(|error| failed(&error))?,
        requested: shipments.requested().map_err(|error| failed(&error))?,
        left: conductor
            .freezes
            .iter()
            .map(|freeze| read_order(stage, &shipments, freeze))
            .collect::<Result<_, _>>()?,
        freezes: conductor.freezes,
    })
}

/// The tracking number that the order of a freeze was left with.
fn read_order(stage: &Stage<'_>, shipments: &Shipments, freeze: &Freeze) -> Result<Option<String>, Failure> {
    let row = shipments.read(&stage.events.orders[freeze.stop.position]).map_err(|error| failed(&error))?;
    Ok(row.and_then(|row| row.tracking))
}

fn job(stage: &Stage<'_>, way: Way, index: usize, carrier: &str, database: &Path) -> Job {
    let mut stops = plan(stage.events);
    if index != FROZEN {
        // The others let the first one go ahead, so that the freeze is the same in every run.
        for stop in &mut stops {
            stop.step = Step::Lock;
        }
    }
    Job {
        label: WORKERS[index].to_owned(),
        store: way.lock.then(|| stage.store.clone()),
        sealed: way.sealed,
        idempotency_key: way.idempotency_key,
        carrier: carrier.to_owned(),
        database: database.to_owned(),
        scratch: stage.scratch.to_owned(),
        orders: stage.events.orders.clone(),
        stops,
    }
}

/// A worker that is frozen now.
struct Frozen {
    freeze: Freeze,
    /// It stays frozen at least this long.
    until: Instant,
    /// Whether another worker has done the order meanwhile.
    done_by_another: bool,
}

struct Conductor<'a> {
    stage: &'a Stage<'a>,
    way: Way,
    progress: &'a dyn Fn(),
    began: u64,
    ended: u64,
    finished: usize,
    visits: Vec<Vec<Visit>>,
    frozen: Option<Frozen>,
    freezes: Vec<Freeze>,
    /// Workers that wait for the first one to be frozen, and where.
    held_back: Vec<(usize, usize)>,
}

impl<'a> Conductor<'a> {
    fn new(stage: &'a Stage<'a>, way: Way, progress: &'a dyn Fn()) -> Self {
        Self {
            stage,
            way,
            progress,
            began: 0,
            ended: 0,
            finished: 0,
            visits: vec![Vec::new(); WORKERS.len()],
            frozen: None,
            freezes: Vec::new(),
            held_back: Vec::new(),
        }
    }

    async fn conduct(&mut self, crew: &mut Crew) -> Result<(), Failure> {
        for _ in WORKERS {
            let (index, heard) = self.next(crew, START_MOST).await?;
            let report = crew.report(index, heard).await?;
            if !matches!(report, Report::Ready) {
                return Err(unexpected(index, &report));
            }
        }
        self.began = now();
        crew.begin().await?;
        while self.finished < WORKERS.len() {
            tokio::select! {
                next = self.next(crew, SILENCE_MOST) => {
                    let (index, heard) = next?;
                    let report = crew.report(index, heard).await?;
                    self.handle(crew, index, report).await?;
                }
                frozen = may_thaw(self.frozen.as_ref()) => {
                    self.thaw(crew, frozen).await?;
                }
            }
        }
        self.ended = now();
        Ok(())
    }

    async fn next(&self, crew: &mut Crew, most: Duration) -> Result<(usize, Heard), Failure> {
        let most = most.saturating_add(self.stage.store.timeout);
        timeout(most, crew.next())
            .await
            .unwrap_or_else(|_| Err(Failure::other(format!("no worker has reported anything for {most:?}"))))
    }

    async fn handle(&mut self, crew: &mut Crew, index: usize, report: Report) -> Result<(), Failure> {
        match report {
            Report::Stopped { stop, .. } if index != FROZEN => {
                if self.is_over_or_frozen(stop.position) {
                    crew.go_on(index).await?;
                } else {
                    self.held_back.push((index, stop.position));
                }
            }
            Report::Stopped { stop, token, held_until } => self.freeze(crew, stop, token, held_until).await?,
            Report::Done(visit) => {
                if let Some(frozen) = &mut self.frozen {
                    frozen.done_by_another |=
                        index != FROZEN && visit.position == frozen.freeze.stop.position;
                }
                self.visits[index].push(visit);
                (self.progress)();
            }
            Report::Finished => self.finished += 1,
            report @ (Report::Ready | Report::Failed { .. }) => return Err(unexpected(index, &report)),
        }
        Ok(())
    }

    fn is_over_or_frozen(&self, position: usize) -> bool {
        let frozen = self.frozen.iter().map(|frozen| &frozen.freeze);
        self.freezes.iter().chain(frozen).any(|freeze| freeze.stop.position == position)
    }

    /// Freezes the first worker, which waits at this stop, and lets the others go on to the order.
    async fn freeze(
        &mut self,
        crew: &mut Crew,
        stop: Stop,
        token: Option<u64>,
        believed_until: Option<u64>,
    ) -> Result<(), Failure> {
        crew.freeze(FROZEN)?;
        let frozen = now();
        let lease_ended = self.lease_ends(stop.position).await?;
        let freeze = Freeze { stop, token, believed_until, frozen, lease_ended, thawed: frozen };
        self.frozen = Some(Frozen { freeze, until: Instant::now() + TTL, done_by_another: false });
        let (here, elsewhere) =
            self.held_back.drain(..).partition(|(_, position)| *position == stop.position);
        self.held_back = elsewhere;
        let here: Vec<(usize, usize)> = here;
        for (index, _) in here {
            crew.go_on(index).await?;
        }
        Ok(())
    }

    /// When the lease of this event's order ends unless it is renewed, which its frozen holder cannot do.
    async fn lease_ends(&self, position: usize) -> Result<Option<u64>, Failure> {
        if !self.way.lock {
            return Ok(None);
        }
        let asked = now();
        let seen = self.stage.client.inspect(lock_name(&self.stage.events.orders[position])).await?;
        Ok(Some(asked + seen.and_then(|seen| seen.remaining).map_or(0, micros)))
    }

    async fn thaw(&mut self, crew: &mut Crew, mut freeze: Freeze) -> Result<(), Failure> {
        self.frozen = None;
        crew.go_on(FROZEN).await?;
        freeze.thawed = now();
        crew.thaw(FROZEN)?;
        self.freezes.push(freeze);
        Ok(())
    }
}

/// Waits until the frozen worker's time is over and another worker has done its order.
async fn may_thaw(frozen: Option<&Frozen>) -> Freeze {
    match frozen {
        Some(frozen) if frozen.done_by_another => {
            sleep_until(frozen.until).await;
            frozen.freeze.clone()
        }
        _ => std::future::pending().await,
    }
}

fn unexpected(index: usize, report: &Report) -> Failure {
    Failure::other(format!("{} reported what it should not now: {report:?}", WORKERS[index]))
}

fn failed(error: &rusqlite::Error) -> Failure {
    Failure::other(format!("the database of the shipments failed: {error}"))
}
