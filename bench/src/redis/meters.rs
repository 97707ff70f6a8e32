//! A recorder for the metrics that the benchmark of renewals reads: counts, and how late renewals were sent. It
//! keeps buckets and no samples, so it neither grows nor costs much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::AnyError;

/// Buckets of a tenth of a decade, from a microsecond to a thousand seconds.
const PER_DECADE: f64 = 20.0;
const BUCKETS: usize = 180;
const SMALLEST: f64 = 1e-6;

/// What was counted since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    renewed: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    lag: Arc<Buckets>,
}

/// The counts at one moment, or between two.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) renewed: u64,
    pub(crate) failed: u64,
    pub(crate) lost: u64,
    pub(crate) lag: Lag,
}

/// How often renewals were how late.
#[derive(Clone, Debug)]
pub(crate) struct Lag(Vec<u64>);

#[derive(Debug)]
struct Buckets([AtomicU64; BUCKETS]);

impl Meters {
    /// Makes it the recorder of this process.
    pub(crate) fn install() -> Result<&'static Self, AnyError> {
        let meters: &'static Self = Box::leak(Box::default());
        metrics::set_global_recorder(meters)?;
        Ok(meters)
    }

    pub(crate) fn read(&self) -> Reading {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            renewed: count(&self.renewed),
            failed: count(&self.failed),
            lost: count(&self.lost),
            lag: Lag(self.lag.0.iter().map(count).collect()),
        }
    }
}

impl Reading {
    /// What was counted after an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            renewed: self.renewed - earlier.renewed,
            failed: self.failed - earlier.failed,
            lost: self.lost - earlier.lost,
            lag: Lag(self.lag.0.iter().zip(&earlier.lag.0).map(|(now, then)| now - then).collect()),
        }
    }
}

impl Lag {
    /// Seconds below which this percentage lies, to about a tenth.
    #[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are small")]
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let mut below = 0;
        let place = self.0.iter().position(|count| {
            below += count;
            below as f64 >= all as f64 * percent / 100.0
        });
        upper_end(place.unwrap_or(BUCKETS - 1))
    }

    /// The upper end of the last bucket in use, in seconds.
    pub(crate) fn worst(&self) -> f64 {
        self.0.iter().rposition(|count| *count > 0).map_or(0.0, upper_end)
    }
}

#[allow(clippy::cast_precision_loss, reason = "there are few buckets")]
fn upper_end(bucket: usize) -> f64 {
    SMALLEST * 10_f64.powf((bucket + 1) as f64 / PER_DECADE)
}

impl Default for Buckets {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl HistogramFn for Buckets {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "kept within the buckets")]
    fn record(&self, seconds: f64) {
        let bucket = ((seconds.max(SMALLEST) / SMALLEST).log10() * PER_DECADE) as usize;
        self.0[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for &'static Meters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let label = key.labels().next().map(metrics::Label::value);
        match (key.name(), label) {
            ("leasehold_renewals_total", Some("renewed")) => Counter::from_arc(Arc::clone(&self.renewed)),
            ("leasehold_renewals_total", Some("failed")) => Counter::from_arc(Arc::clone(&self.failed)),
            ("leasehold_lost_total", _) => Counter::from_arc(Arc::clone(&self.lost)),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "leasehold_renewal_lag_seconds" => Histogram::from_arc(Arc::clone(&self.lag)),
            _ => Histogram::noop(),
        }
    }
}
