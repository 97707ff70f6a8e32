//! Sleeping until a moment of the engine's clock. The only place in the engine that sleeps.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::{Clock, Moment};

/// The runtime's timers stand still while the machine sleeps, the engine's clock does not: after this long it
/// is looked at again. It bounds how late a timer can be after a suspend.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Makes sleeps that any executor can poll; they fire on the engine's runtime.
#[derive(Clone)]
pub(crate) struct Timers {
    clock: Arc<dyn Clock>,
    handle: Handle,
}

impl Timers {
    pub(crate) fn new(clock: Arc<dyn Clock>, handle: Handle) -> Self {
        Self { clock, handle }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A future that is ready at that moment.
    pub(crate) fn sleep_until(&self, at: Moment) -> Sleep {
        Sleep { timers: self.clone(), at, inner: None }
    }

    /// A future that is ready after that long.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now().after(duration))
    }

    /// The future's output, or `None` at that moment.
    pub(crate) async fn before<F: Future>(&self, at: Moment, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut sleep = self.sleep_until(at);
        std::future::poll_fn(move |context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            Pin::new(&mut sleep).poll(context).map(|()| None)
        })
        .await
    }
}

/// See [`Timers::sleep_until`].
pub(crate) struct Sleep {
    timers: Timers,
    at: Moment,
    inner: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if this.at == Moment::NEVER {
                return Poll::Pending;
            }
            let left = this.at.since(this.timers.now());
            if left.is_zero() {
                return Poll::Ready(());
            }
            let inner = this.inner.get_or_insert_with(|| {
                let _context = this.timers.handle.enter();
                #[allow(clippy::disallowed_methods, reason = "this is the place that sleeps")]
                Box::pin(tokio::time::sleep(left.min(LOOK_AGAIN_AFTER)))
            });
            if inner.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            this.inner = None;
        }
    }
}
