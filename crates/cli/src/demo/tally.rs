//! What a run's record comes to: counts, and the story of each freeze. Everything here is computed from what the
//! carrier, the database and the workers recorded; nothing is known in advance.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use super::conduct::{Freeze, Record, WORKERS};
use super::events::Events;
use super::ways::Way;
use super::wire::{Step, Visit};

/// What one way of running came to.
pub(super) struct Outcome {
    pub(super) way: Way,
    pub(super) took: Duration,
    /// Requests the carrier got.
    pub(super) requests: usize,
    /// Parcels that went out.
    pub(super) shipments: usize,
    /// Parcels that went out for an order that had one already.
    pub(super) duplicates: usize,
    /// Requests that were answered from memory, because their key was known.
    pub(super) replayed: usize,
    /// How many orders got how many requests.
    pub(super) requests_per_order: BTreeMap<usize, usize>,
    /// Writes that replaced the tracking number another worker had written.
    pub(super) stale_accepted: usize,
    /// Writes that the seal refused.
    pub(super) stale_refused: usize,
    /// Leases that were lost before they were given back.
    pub(super) leases_lost: usize,
    /// Orders that have a shipment requested in the end.
    pub(super) orders_done: u32,
    /// What the freezes led to.
    pub(super) stories: Vec<Story>,
}

/// What one freeze led to.
pub(super) struct Story {
    pub(super) order: String,
    pub(super) step: Step,
    pub(super) frozen_for: Duration,
    /// The frozen worker.
    pub(super) stale: Part,
    /// The worker whose write the frozen one replaced, or was refused for.
    pub(super) newer: Option<Part>,
    /// Whether the frozen worker's write was accepted in the end.
    pub(super) accepted: bool,
    /// Requests for this order.
    pub(super) requests: usize,
    /// Parcels for this order.
    pub(super) shipments: usize,
    /// The tracking number the row has in the end.
    pub(super) left: Option<String>,
}

/// One worker's part in a story.
pub(super) struct Part {
    pub(super) worker: &'static str,
    pub(super) token: Option<u64>,
    pub(super) tracking: Option<String>,
}

impl Outcome {
    /// Counts.
    pub(super) fn of(record: &Record, events: &Events) -> Self {
        let mut per_order: HashMap<&str, (usize, usize)> = HashMap::new();
        for entered in &record.ledger {
            let (requests, shipments) = per_order.entry(&entered.order).or_default();
            *requests += 1;
            *shipments += usize::from(entered.shipped);
        }
        let mut requests_per_order = BTreeMap::new();
        for (requests, _) in per_order.values() {
            *requests_per_order.entry(*requests).or_default() += 1;
        }
        let shipments = per_order.values().map(|(_, shipments)| shipments).sum();
        let visits = || record.visits.iter().flatten();
        let stories = record.freezes.iter().zip(&record.left);
        Self {
            way: record.way,
            took: Duration::from_micros(record.ended.saturating_sub(record.began)),
            requests: record.ledger.len(),
            shipments,
            duplicates: per_order.values().map(|(_, shipments)| shipments.saturating_sub(1)).sum(),
            replayed: record.ledger.len() - shipments,
            requests_per_order,
            stale_accepted: record.overwrites.len(),
            stale_refused: visits().filter(|visit| visit.written.is_some_and(|it| !it.accepted)).count(),
            leases_lost: visits().filter(|visit| visit.kept == Some(false)).count(),
            orders_done: record.requested,
            stories: stories
                .map(|(freeze, left)| {
                    let order = &events.orders[freeze.stop.position];
                    let (requests, shipments) = per_order.get(order.as_str()).copied().unwrap_or_default();
                    Story { requests, shipments, ..Story::of(record, freeze, order, left.clone()) }
                })
                .collect(),
        }
    }

    /// The outcome for programs.
    pub(super) fn to_json(&self) -> Value {
        let stories: Vec<_> = self.stories.iter().map(Story::to_json).collect();
        json!({
            "way": self.way.key,
            "title": self.way.title,
            "seconds": round(self.took),
            "orders_done": self.orders_done,
            "requests": self.requests,
            "requests_per_order": self.requests_per_order,
            "requests_answered_from_memory": self.replayed,
            "shipments": self.shipments,
            "duplicate_shipments": self.duplicates,
            "stale_writes_accepted": self.stale_accepted,
            "stale_writes_refused": self.stale_refused,
            "leases_lost": self.leases_lost,
            "freezes": stories,
        })
    }
}

impl Story {
    fn of(record: &Record, freeze: &Freeze, order: &str, left: Option<String>) -> Self {
        let visits_here = |worker: usize| {
            record.visits[worker].iter().filter(|visit| visit.position == freeze.stop.position)
        };
        let own = visits_here(0).next();
        let mut others: Vec<(usize, &Visit)> = (1..WORKERS.len())
            .flat_map(|worker| visits_here(worker).map(move |visit| (worker, visit)))
            .filter(|(_, visit)| visit.written.is_some_and(|written| written.accepted))
            .collect();
        // Without a lock several write; the database knows whose write was replaced.
        let replaced = record.overwrites.iter().find(|it| it.order == order && it.writer == WORKERS[0]);
        others.sort_by_key(|(worker, visit)| {
            (replaced.is_some_and(|replaced| replaced.lost_writer == WORKERS[*worker]), visit.over)
        });
        Self {
            order: order.to_owned(),
            step: freeze.stop.step,
            frozen_for: Duration::from_micros(freeze.thawed.saturating_sub(freeze.frozen)),
            stale: Part { worker: WORKERS[0], token: freeze.token, tracking: own.and_then(tracking) },
            newer: others.last().map(|(worker, visit)| Part {
                worker: WORKERS[*worker],
                token: visit.token,
                tracking: tracking(visit),
            }),
            accepted: own.and_then(|visit| visit.written).is_some_and(|written| written.accepted),
            requests: 0,
            shipments: 0,
            left,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "order": self.order,
            "frozen_between": match self.step {
                Step::Update => "POST and UPDATE",
                Step::Post => "read and POST",
                Step::Lock => "event and lock",
            },
            "frozen_seconds": round(self.frozen_for),
            "stale": self.stale.to_json(),
            "newer": self.newer.as_ref().map(Part::to_json),
            "stale_write_accepted": self.accepted,
            "requests": self.requests,
            "shipments": self.shipments,
            "tracking_in_the_end": self.left,
        })
    }
}

impl Part {
    fn to_json(&self) -> Value {
        json!({ "worker": self.worker, "fencing_token": self.token, "tracking": self.tracking })
    }
}

fn tracking(visit: &Visit) -> Option<String> {
    visit.posted.as_ref().map(|posted| posted.tracking.clone())
}

/// Seconds with three digits after the point.
pub(super) fn round(duration: Duration) -> f64 {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}
