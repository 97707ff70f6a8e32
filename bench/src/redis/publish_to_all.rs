//! The naive method: a release that deletes the key and publishes to everybody, each of whom then tries again.
//! The same connection library, the same number of connections.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::AnyError;

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) \
                       return redis.call('PUBLISH', ARGV[2], '1') else return -1 end";
const CHANNEL: &str = "naive:wake";
const KEY: &str = "naive:order:1001";

/// One process: a connection that is subscribed to the channel of the lock.
struct Process {
    connection: MultiplexedConnection,
    wakes: UnboundedReceiver<redis::PushInfo>,
    token: String,
}

/// Grants per second while this many processes contend for one name, until the span is over or every process
/// had its turn often enough.
pub(super) async fn grants_per_second(url: &str, processes: usize, span: Duration) -> Result<f64, AnyError> {
    let mut tasks = tokio::task::JoinSet::new();
    let mut ready = Vec::new();
    for number in 0..processes {
        ready.push(connect(url, number).await?);
    }
    let started = Instant::now();
    let ends = started + span;
    for process in ready {
        tasks.spawn(async move { contend(process, ends).await.unwrap_or(0) });
    }
    let grants: usize = tasks.join_all().await.into_iter().sum();
    #[allow(clippy::cast_precision_loss, reason = "counts of grants are small")]
    Ok(grants as f64 / started.elapsed().as_secs_f64())
}

async fn connect(url: &str, number: usize) -> Result<Process, AnyError> {
    let (send, wakes) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(send).set_response_timeout(None);
    let client = redis::Client::open(format!("{url}?protocol=resp3"))?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    connection.subscribe(CHANNEL).await?;
    Ok(Process { connection, wakes, token: format!("process-{number}") })
}

async fn contend(mut process: Process, ends: Instant) -> Result<usize, AnyError> {
    let release = Script::new(RELEASE);
    let mut grants = 0;
    while Instant::now() < ends {
        while process.wakes.try_recv().is_ok() {}
        let taken: Option<String> = redis::cmd("SET")
            .arg(&[KEY, &process.token, "NX", "PX", "5000"])
            .query_async(&mut process.connection)
            .await?;
        if taken.is_none() {
            let _ = tokio::time::timeout(Duration::from_secs(1), process.wakes.recv()).await;
            continue;
        }
        grants += 1;
        let mut call = release.key(KEY);
        let _: i64 = call.arg(&process.token).arg(CHANNEL).invoke_async(&mut process.connection).await?;
    }
    Ok(grants)
}
