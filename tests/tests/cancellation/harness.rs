//! Drops a future at each of its suspension points and at several moments while it is suspended there, and looks at
//! what is left.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::core::{Attempt, Client, Guard, Load, Released};

use crate::places::{EACH_WAY, Place, on_each_place};

/// Long enough that whatever is gone was removed and did not end by itself.
pub(crate) const TTL: Duration = Duration::from_secs(60);
/// As late as anything may be on a busy machine; far less than the TTL.
pub(crate) const SLACK: Duration = Duration::from_secs(10);
/// Points that are tried at the same time.
const POLLS_AT_ONCE: usize = 14;
/// No future here is polled more often before it completes.
const MOST_POLLS: usize = 6 * POLLS_AT_ONCE;
/// How long a future stays suspended before it is dropped: its request is on the way, executed, answered.
const MOMENTS: [Duration; 4] = [Duration::ZERO, EACH_WAY, Duration::from_millis(3), Duration::from_millis(5)];

/// Two processes on one store.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) place: Arc<Place>,
    /// Whose futures are dropped.
    pub(crate) ours: Client,
    pub(crate) other: Client,
}

/// Where one future is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    polls: usize,
    moment: Duration,
}

impl Point {
    /// A name of its own.
    pub(crate) fn name(self, what: &str) -> String {
        format!("{what}:{}:{}", self.polls, self.moment.as_millis())
    }

    /// Polls a future as often as this point says, then drops it: its output if it was ready by then.
    pub(crate) async fn cancel<F: Future>(self, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        let mut left = self.polls;
        let output = poll_fn(|context| {
            left -= 1;
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        if output.is_none() {
            tokio::time::sleep(self.moment).await;
        }
        output
    }

    fn after(polls: usize) -> impl Iterator<Item = Self> {
        (polls + 1..=polls + POLLS_AT_ONCE).flat_map(|polls| MOMENTS.map(|moment| Self { polls, moment }))
    }
}

/// On every store and at every point: `attempt` makes a future about the name it is given, lets the point cancel
/// it, undoes what it did on purpose, and says whether the future completed. Then nothing may be left.
pub(crate) fn cancelled_at_every_point<F>(
    test: &str,
    what: &'static str,
    attempt: impl Fn(Pair, Point) -> F + Sync,
) where
    F: Future<Output = bool> + Send + 'static,
{
    on_each_place(test, async |place| {
        let pair = Pair {
            ours: place.connect().await.unwrap(),
            other: place.connect().await.unwrap(),
            place: Arc::clone(&place),
        };
        let (mut cancelled, mut tried) = (0, 0);
        loop {
            assert!(tried < MOST_POLLS, "{MOST_POLLS} polls are too few");
            let attempts: Vec<_> = Point::after(tried)
                .map(|point| (point, tokio::spawn(attempt(pair.clone(), point))))
                .collect();
            let mut completed = Vec::new();
            for (point, attempt) in attempts {
                completed.push(attempt.await.unwrap_or_else(|error| panic!("{point:?}: {error}")));
            }
            cancelled += completed.iter().filter(|completed| !**completed).count();
            let names: Vec<_> = Point::after(tried).map(|point| point.name(what)).collect();
            assert_nothing_left(&pair, &names).await;
            tried += POLLS_AT_ONCE;
            if completed[completed.len() - MOMENTS.len()..].iter().all(|completed| *completed) {
                break;
            }
        }
        println!("{}: {what} cancelled {cancelled} times", place.name());
        // A store of this process may be done at the first poll.
        assert!(cancelled > 0 || !matches!(*place, Place::Redis(_)), "there was no point to cancel at");
    });
}

/// Waits until neither client has anything to do, and demands that the store has none of the names.
pub(crate) async fn assert_nothing_left(pair: &Pair, names: &[String]) {
    for client in [&pair.ours, &pair.other] {
        let started = Instant::now();
        while client.load() != Load::default() {
            assert!(started.elapsed() < SLACK, "left in the client: {:?}", client.load());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for name in names {
        assert_eq!(pair.other.inspect(name).await.unwrap(), None, "left on {}", pair.place.name());
    }
    assert_eq!(pair.other.list("", 10).await.unwrap().entries, [], "left on {}", pair.place.name());
    assert_eq!(pair.place.left(), Vec::<String>::new(), "left on {}", pair.place.name());
}

/// Waits until the queue of a name that is held is empty.
pub(crate) async fn until_nobody_waits(client: &Client, name: &str) {
    let started = Instant::now();
    loop {
        let waiters = client.inspect(name).await.unwrap().unwrap().waiters;
        if waiters.is_empty() {
            return;
        }
        assert!(started.elapsed() < SLACK, "left in the queue of {name}: {waiters:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes a name that must be free by now.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    let attempt = client.lock(name).unwrap().ttl(TTL).wait(SLACK).acquire().await;
    match attempt.unwrap() {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(busy) => panic!("something is left: {busy}"),
    }
}

/// Gives back a lease that must have been held until now.
pub(crate) async fn free(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}
