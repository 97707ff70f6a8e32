//! What cannot be dropped half-way from outside, a call that blocks its thread, ends early by a panic; so does a
//! body. Nothing is left of either.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use leasehold::blocking::{Attempt, block_on};
use tokio::task::spawn_blocking;

use crate::harness::{Pair, SLACK, TTL, assert_nothing_left, free, take};
use crate::places::on_each_place;

#[test]
fn trap_32_a_body_that_panics_frees_the_name() {
    on_each_place("trap_32_a_body_that_panics_frees_the_name", async |place| {
        let pair = Pair {
            ours: place.connect().await.unwrap(),
            other: place.connect().await.unwrap(),
            place: Arc::clone(&place),
        };
        let lock = pair.ours.lock("async").unwrap().ttl(TTL);
        let run = tokio::spawn(lock.run(async |_| -> Result<(), Infallible> { panic!("as expected") }));
        assert!(run.await.unwrap_err().is_panic());
        free(take(&pair.other, "async").await).await;

        let ours = pair.ours.clone();
        let panicked = spawn_blocking(move || {
            let lock = ours.lock("blocking").unwrap().ttl(TTL).blocking();
            catch_unwind(AssertUnwindSafe(|| {
                lock.run(|_| -> Result<(), Infallible> { panic!("as expected") })
            }))
        });
        assert!(panicked.await.unwrap().is_err());
        free(take(&pair.other, "blocking").await).await;
        assert_nothing_left(&pair, &["async".to_owned(), "blocking".to_owned()]).await;
    });
}

#[test]
fn blocking_calls_that_give_up_leave_nothing() {
    on_each_place("blocking_calls_that_give_up_leave_nothing", async |place| {
        let pair = Pair {
            ours: place.connect().await.unwrap(),
            other: place.connect().await.unwrap(),
            place: Arc::clone(&place),
        };
        let guard = take(&pair.other, "taken").await;
        let ours = pair.ours.clone();
        let asked = spawn_blocking(move || {
            for wait in 0..40 {
                let lock = ours.lock("taken").unwrap().ttl(TTL).wait(Duration::from_millis(wait)).blocking();
                assert!(matches!(lock.acquire(), Ok(Attempt::Busy(_))));
                // A blocking call is a future driven on this thread: given up by whoever drives it.
                let lock = ours.lock("taken").unwrap().ttl(TTL).wait_forever();
                let given_up = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                let waited = given_up.block_on(async {
                    tokio::time::timeout(Duration::from_millis(wait % 8), lock.acquire()).await
                });
                assert!(waited.is_err());
            }
            let lock = ours.lock("taken").unwrap().ttl(TTL).wait(SLACK).blocking();
            let Ok(Attempt::Acquired(guard)) = lock.acquire() else { panic!("something is left") };
            drop(guard);
            block_on(ours.close(SLACK)).unwrap();
        });
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        free(guard).await;
        asked.await.unwrap();
        assert_nothing_left(&pair, &["taken".to_owned()]).await;
    });
}
