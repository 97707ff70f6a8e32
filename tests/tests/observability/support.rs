//! A world of processes in virtual time, and what they report: metrics and events of one thread only, so that
//! tests do not see each other.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::core::memory::{MemoryStore, MemoryWorld};
use leasehold::core::{Client, ClientSettings, KeeperRuntime, Store, VirtualClock};
use leasehold::{Attempt, Error, Guard, Label};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing::field::{Field, Visit};
use tracing::span::Attributes;
use tracing::{Event, Id, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Lets time pass.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A server in memory, in virtual time.
pub(crate) struct World {
    pub(crate) server: Arc<MemoryWorld>,
    clock: Arc<VirtualClock>,
}

/// A client, and its connection.
pub(crate) struct Process {
    pub(crate) client: Client,
    pub(crate) store: Arc<MemoryStore>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(VirtualClock::start());
        Self { server: MemoryWorld::new(clock.clone()), clock }
    }

    pub(crate) async fn process(&self, label: &str) -> Process {
        self.process_on(MemoryStore::connect(&self.server), label).await
    }

    pub(crate) async fn process_without_push(&self, label: &str) -> Process {
        self.process_on(MemoryStore::connect_without_push(&self.server), label).await
    }

    async fn process_on(&self, store: MemoryStore, label: &str) -> Process {
        let store = Arc::new(store);
        let settings = ClientSettings { clock: self.clock.clone(), ..settings(label) };
        let connection = Arc::clone(&store);
        let connect = move || {
            let store: Arc<dyn Store> = connection.clone();
            async move { Ok(store) }
        };
        Process { client: Client::start(settings, connect).await.unwrap(), store }
    }
}

/// A client that runs where its caller does.
pub(crate) fn settings(label: &str) -> ClientSettings {
    ClientSettings {
        label: Some(Label::new(label).unwrap()),
        keeper: KeeperRuntime::Current,
        ..ClientSettings::default()
    }
}

/// Acquires a name that is free.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    guard(client.lock(name).unwrap().ttl(TTL).try_acquire().await)
}

pub(crate) fn guard(attempt: Result<Attempt, Error>) -> Guard {
    attempt.unwrap().into_guard().unwrap()
}

/// Waits for a name in the background.
pub(crate) fn wait_for(client: &Client, name: &str) -> tokio::task::JoinHandle<Guard> {
    let lock = client.lock(name).unwrap().ttl(TTL).wait_forever();
    tokio::spawn(async move { guard(lock.acquire().await) })
}

/// Everything this thread reports while this exists.
pub(crate) struct Seen {
    metrics: Snapshotter,
    events: Arc<Mutex<Vec<Told>>>,
    _recorder: metrics::LocalRecorderGuard<'static>,
    _subscriber: tracing::subscriber::DefaultGuard,
}

/// An event or a span, as text.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<String, String>,
    /// The span it happened in, or empty.
    pub(crate) inside: String,
}

/// What was counted since the last look, by `name{label="value"}`.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<String, Figure>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Figure {
    Count(u64),
    Level(f64),
    Times(Vec<f64>),
}

impl Seen {
    pub(crate) fn start() -> Self {
        // One per test: a leak that ends with the process.
        let recorder: &'static DebuggingRecorder = Box::leak(Box::new(DebuggingRecorder::new()));
        let events = Arc::default();
        let layer = Listener(Arc::clone(&events));
        Self {
            metrics: recorder.snapshotter(),
            events,
            _recorder: metrics::set_default_local_recorder(recorder),
            _subscriber: tracing::subscriber::set_default(tracing_subscriber::registry().with(layer)),
        }
    }

    /// What was counted since the last call.
    pub(crate) fn figures(&self) -> Figures {
        let read = |value| match value {
            DebugValue::Counter(count) => Figure::Count(count),
            DebugValue::Gauge(level) => Figure::Level(level.into_inner()),
            DebugValue::Histogram(times) => Figure::Times(times.iter().map(|time| **time).collect()),
        };
        let series = self.metrics.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
            let mut text = key.key().name().to_owned();
            for label in key.key().labels() {
                write!(text, "{{{}={}}}", label.key(), label.value()).unwrap();
            }
            (text, read(value))
        });
        Figures(series.collect())
    }

    /// What was told so far.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The event with these words in it, which must have been told once.
    pub(crate) fn told_once(&self, words: &str) -> Told {
        let mut told = self.told();
        told.retain(|event| event.message.contains(words));
        assert_eq!(told.len(), 1, "{words}: {told:#?}");
        told.remove(0)
    }
}

impl Figures {
    /// A counter; 0 if it was never touched.
    pub(crate) fn count(&self, series: &str) -> u64 {
        match self.0.get(series) {
            None => 0,
            Some(Figure::Count(count)) => *count,
            Some(other) => panic!("{series} is {other:?}"),
        }
    }

    /// The values of a histogram.
    pub(crate) fn times(&self, series: &str) -> Vec<f64> {
        match self.0.get(series) {
            None => Vec::new(),
            Some(Figure::Times(times)) => times.clone(),
            Some(other) => panic!("{series} is {other:?}"),
        }
    }

    /// How much a gauge has changed since the last look, which sets it to zero.
    pub(crate) fn change(&self, series: &str) -> f64 {
        match self.0.get(series) {
            None => 0.0,
            Some(Figure::Level(level)) => *level,
            Some(other) => panic!("{series} is {other:?}"),
        }
    }

    pub(crate) fn series(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// About as many seconds: virtual time has a resolution of a millisecond.
pub(crate) fn about(seconds: f64, expected: f64) -> bool {
    (seconds - expected).abs() < 0.02
}

struct Listener(Arc<Mutex<Vec<Told>>>);

impl Listener {
    fn tell(&self, told: Told) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }
}

impl<S: Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>> Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let metadata = attributes.metadata();
        if metadata.target().starts_with("leasehold") {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            let message = format!("span {}", metadata.name());
            self.tell(Told { level: *metadata.level(), message, fields: fields.0, inside: String::new() });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target().starts_with("leasehold") {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let message = fields.0.remove("message").unwrap_or_default();
            let inside = context.event_span(event).map_or_else(String::new, |span| span.name().to_owned());
            self.tell(Told { level: *metadata.level(), message, fields: fields.0, inside });
        }
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}
