//! Signals that end the demo: it cleans up and says so with its exit code, as a shell would report the signal.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::{Failure, SIGNAL_BASE};

/// Tells whether a signal asked the demo to end.
pub(super) struct Interrupt(watch::Receiver<Option<u8>>);

impl Interrupt {
    /// Listens from now on. A signal that was ignored when the demo was started (`nohup`) would end it too.
    pub(super) fn listen() -> io::Result<Self> {
        let (send, receive) = watch::channel(None);
        let mut hang_up = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::spawn(async move {
            let kind = tokio::select! {
                _ = hang_up.recv() => SignalKind::hangup(),
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
            };
            send.send_replace(u8::try_from(kind.as_raw_value()).ok());
            // Later signals change nothing: cleaning up takes a moment and is not broken off.
            send.closed().await;
        });
        Ok(Self(receive))
    }

    /// Waits for a signal. It can be asked any number of times.
    pub(super) async fn happens(&self) -> Failure {
        let mut told = self.0.clone();
        match told.wait_for(Option::is_some).await.map(|number| number.unwrap_or(0)) {
            Ok(number) => Failure::new(SIGNAL_BASE + number, "interrupted: workers and files are gone"),
            // The listener lives as long as this.
            Err(_) => std::future::pending().await,
        }
    }
}
