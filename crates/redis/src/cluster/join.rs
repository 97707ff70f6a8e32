//! Waiting for several futures at once.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

/// A future on the heap.
pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs all of them at the same time; their results in order, once the last has ended.
pub(super) async fn join_all<T: Send>(futures: Vec<Boxed<'_, T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Some).collect();
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut left = false;
        for (future, result) in running.iter_mut().zip(&mut done) {
            let Some(running) = future else { continue };
            match running.as_mut().poll(context) {
                Poll::Ready(value) => (*future, *result) = (None, Some(value)),
                Poll::Pending => left = true,
            }
        }
        if left { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}
