//! Measuring side by side: methods are run in alternation, so that a noisy machine disturbs all of them alike,
//! and medians are compared.

use std::time::{Duration, Instant};

/// The median of some figures; 0 without any.
pub(crate) fn median(figures: &[f64]) -> f64 {
    percentile(figures, 50.0)
}

/// The figure below which this percentage lies.
pub(crate) fn percentile(figures: &[f64], percent: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let place = (percent / 100.0 * (sorted.len().saturating_sub(1)) as f64).round() as usize;
    sorted.get(place).copied().unwrap_or(0.0)
}

/// Runs each method once per round, in an order that rotates; the figures of each, by method.
pub(crate) fn alternate(rounds: usize, methods: &mut [&mut dyn FnMut() -> f64]) -> Vec<Vec<f64>> {
    let mut figures = vec![Vec::new(); methods.len()];
    for round in 0..rounds {
        for turn in 0..methods.len() {
            let method = (round + turn) % methods.len();
            figures[method].push(methods[method]());
        }
    }
    figures
}

/// How often per second something can be done, measured for about this long.
pub(crate) fn rate(span: Duration, mut once: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut times = 0_u32;
    while started.elapsed() < span {
        for _ in 0..16 {
            once();
        }
        times += 16;
    }
    f64::from(times) / started.elapsed().as_secs_f64()
}
