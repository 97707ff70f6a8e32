//! How long a failover by Sentinels takes away the lock: from the end of the primary until a name is granted again,
//! beside the time until the Sentinels themselves name another primary.

use std::time::{Duration, Instant};

use leasehold::core::Client;
use leasehold_testkit::servers::{Data, SentinelTrio};

use super::{AnyError, client, runtime, server};
use crate::measure::percentile;
use crate::report::Report;

const ROUNDS: usize = 12;
const TARGET: Duration = Duration::from_secs(2);
/// Between the looks at what Sentinels say.
const LOOK: Duration = Duration::from_millis(5);

/// How the primary ends.
#[derive(Clone, Copy)]
enum End {
    /// The process is killed: connections break.
    Killed,
    /// The process is stopped: connections stay open, and nothing is answered.
    Frozen,
}

pub(crate) fn run() -> Result<(), AnyError> {
    // The kind is that of the other benchmarks.
    let kind = server()?.kind();
    let trio = SentinelTrio::start(kind)?;
    let runtime = runtime()?;
    let mut report = Report::new(
        "redis-failover",
        "Three Sentinels (down-after-milliseconds 500), a primary, two replicas. A client asks for a name as soon as the \
         primary has ended. Seconds.",
    );
    let row = |label: &str, figures: &[f64]| {
        let figure = |percent| format!("{:.2}", percentile(figures, percent));
        vec![label.to_owned(), figure(50.0), figure(90.0), figure(100.0)]
    };
    let mut rows = vec![vec!["what".into(), "p50".into(), "p90".into(), "worst".into()]];
    let mut worst = 0.0_f64;
    for (end, label) in [(End::Killed, "killed"), (End::Frozen, "frozen")] {
        let (mut named, mut granted, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let (by_sentinels, by_us) = fail_over(&runtime, &trio, end, round)?;
            named.push(by_sentinels.as_secs_f64());
            granted.push(by_us.as_secs_f64());
            late.push(by_us.saturating_sub(by_sentinels).as_secs_f64());
        }
        worst = late.iter().copied().fold(worst, f64::max);
        rows.push(row(&format!("{label}: most Sentinels name another primary after"), &named));
        rows.push(row(&format!("{label}: a name is granted after"), &granted));
        rows.push(row(&format!("{label}: the difference"), &late));
    }
    report.table(&rows);
    let met = worst <= TARGET.as_secs_f64();
    report.target(&format!("within the Sentinels' own time + {TARGET:?}: + {worst:.2} s at worst"), met);
    report.save()
}

/// One failover: when most Sentinels named the new primary, and when a name was granted by it.
fn fail_over(
    runtime: &tokio::runtime::Runtime,
    trio: &SentinelTrio,
    end: End,
    round: usize,
) -> Result<(Duration, Duration), AnyError> {
    trio.wait_until_ready()?;
    let old = trio.primary().ok_or("no primary")?;
    let client = runtime.block_on(client(&trio.url()))?;
    runtime.block_on(grant(&client, &format!("before:{round}")))?;
    match end {
        End::Killed => trio.node(old).kill()?,
        End::Frozen => trio.node(old).freeze()?,
    }
    let started = Instant::now();
    let (named, granted) = std::thread::scope(|scope| {
        // Looking blocks, and the client's time is measured on this thread.
        let looking = scope.spawn(|| {
            while (0..3).filter(|&sentinel| trio.named_by(sentinel).is_some_and(|named| named != old)).count()
                < 2
            {
                std::thread::sleep(LOOK);
            }
            started.elapsed()
        });
        let granted = runtime.block_on(grant(&client, &format!("after:{round}")));
        (looking.join(), granted.map(|()| started.elapsed()))
    });
    let named = named.map_err(|_| "the look at the Sentinels ended")?;
    match end {
        End::Killed => trio.node(old).restart(Data::Lose)?,
        End::Frozen => trio.node(old).thaw()?,
    }
    trio.wait_for_failover_from(old)?;
    Ok((named, granted?))
}

async fn grant(client: &Client, name: &str) -> Result<(), AnyError> {
    let guard = client.lock(name)?.try_acquire().await?.into_guard()?;
    let _ = guard.release().await?;
    Ok(())
}
