//! Everything that is logged in this process, as text, for tests that look for what is said, how often, and for what
//! must never be said.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Collects from now on.
pub(crate) fn collect() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| tracing::subscriber::set_global_default(Collector).unwrap());
}

/// The lines that have all of these words.
pub(crate) fn with(words: &[&str]) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).cloned().collect()
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::of(span.metadata());
        span.record(&mut line);
        line.keep();
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, values: &Record<'_>) {
        let mut line = Line(String::new());
        values.record(&mut line);
        line.keep();
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::of(event.metadata());
        event.record(&mut line);
        line.keep();
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

struct Line(String);

impl Line {
    fn of(metadata: &Metadata<'_>) -> Self {
        let level: &Level = metadata.level();
        Self(format!("{level} {} {}", metadata.target(), metadata.name()))
    }

    fn keep(self) {
        LINES.lock().unwrap().push(self.0);
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {field}={value}");
    }
}
