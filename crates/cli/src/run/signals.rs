//! The signals this process receives, as one stream. Those that were ignored when it started stay ignored, so
//! `nohup` keeps its meaning for the command too.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Passed on to the command. While the lock is waited for, the first four end the wait.
const FORWARDED: [Signal; 8] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
];

/// Receives signals from now on.
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    ignored: u64,
}

impl Signals {
    /// Starts to receive.
    pub(crate) fn watch() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), ignored: ignored_at_start() };
        for one in FORWARDED.into_iter().chain([Signal::CHILD]) {
            signals.add(one)?;
        }
        Ok(signals)
    }

    /// Receives the terminal's stop signal too, which until now stopped this process as it stops any other.
    pub(crate) fn watch_stop(&mut self) -> io::Result<()> {
        self.add(Signal::TSTP)
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// No signal is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (which, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*which);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this process to end.
    ///
    /// # Cancel safety
    /// No such signal is lost when the future is dropped; others are.
    pub(crate) async fn next_request_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if asks_to_end(signal) {
                return signal;
            }
        }
    }

    fn add(&mut self, which: Signal) -> io::Result<()> {
        let number = which.as_raw();
        if which != Signal::CHILD && self.ignored >> (number - 1) & 1 == 1 {
            return Ok(());
        }
        self.streams.push((which, signal(SignalKind::from_raw(number))?));
        Ok(())
    }
}

/// Whether this signal asks a program to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal)
}

/// The signals ignored now, a bit each from the lowest. Where the system has no such file none are known: a
/// `nohup` there must be put after `leasehold run NAME --`.
fn ignored_at_start() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
