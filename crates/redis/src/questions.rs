//! A second connection for looking at the server: a subscribed one falls under the server's limit for pub/sub
//! output, and a long listing would hold up others. Opened when it is first needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Mutex;

use crate::config::Address;
use crate::failure::{Failure, Refusal};
use crate::handshake::{DriverTask, open_plain};
use crate::primary::named_by_sentinels;
use crate::shared::Shared;

/// Questions may take longer than operations: a listing goes through all keys.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection, once opened.
pub(crate) struct Questions {
    shared: Arc<Shared>,
    open: Mutex<Option<Open>>,
    /// A question was dropped before its answer came: the connection may be dead, and nobody would notice.
    suspect: AtomicBool,
}

struct Open {
    /// The server it leads to, which may have ceased to be the primary.
    address: Address,
    link: MultiplexedConnection,
    driver: DriverTask,
}

impl Questions {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, open: Mutex::new(None), suspect: AtomicBool::new(false) }
    }

    /// Asks one question.
    pub(crate) async fn ask(&self, command: Cmd) -> Result<Value, Failure> {
        let mut pipeline = redis::pipe();
        pipeline.add_command(command);
        let reply = self.ask_all(&pipeline).await?.into_iter().next().ok_or(Failure::BadReply)?;
        match Refusal::in_value(&reply) {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => Ok(reply),
        }
    }

    /// Asks questions together; a reply can be an error of its own.
    pub(crate) async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let mut link = self.link().await.map_err(Failure::NotSent)?;
        let unanswered = Unanswered(&self.suspect);
        let asked = link.send_packed_commands(commands, 0, commands.len());
        let limited = {
            let _inside = self.shared.handle.enter();
            tokio::time::timeout(QUESTION_TIMEOUT, asked)
        };
        match limited.await {
            Ok(Ok(replies)) => {
                unanswered.answered();
                Ok(replies)
            }
            Ok(Err(error)) => {
                self.close().await;
                Err(lost(&error.to_string()))
            }
            Err(_) => {
                self.close().await;
                Err(lost(&format!("no answer within {QUESTION_TIMEOUT:?}")))
            }
        }
    }

    pub(crate) async fn close(&self) {
        *self.open.lock().await = None;
    }

    async fn link(&self) -> Result<MultiplexedConnection, Error> {
        if self.shared.is_closed() {
            return Err(Error::new(ErrorKind::Unavailable, self.shared.at_server("the store was closed")));
        }
        let mut open = self.open.lock().await;
        if self.suspect.swap(false, Ordering::AcqRel) {
            *open = None;
        }
        if let Some(open) = &*open
            && !open.driver.has_ended()
            && self.shared.primary.used().as_ref() == Some(&open.address)
        {
            return Ok(open.link.clone());
        }
        // Sockets belong to the runtime on which they are opened, and the caller may have none.
        let shared = Arc::clone(&self.shared);
        let (address, link, driver) = self
            .shared
            .handle
            .spawn(async move {
                let address = match shared.primary.used() {
                    Some(address) => address,
                    None => shared.primary.find(&shared.config).await?,
                };
                let (link, driver) = open_plain(&shared.config, &address)
                    .await
                    .map_err(|error| named_by_sentinels(&shared.config, &address, error))?;
                Ok((address, link, DriverTask::new(tokio::spawn(driver))))
            })
            .await
            .unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Unavailable, "the runtime of the store has been shut down"))
            })
            .map_err(|error: Error| error.context(self.shared.config.describe()))?;
        *open = Some(Open { address, link: link.clone(), driver });
        Ok(link)
    }
}

/// Marks the connection as suspect unless the answer comes, also when the question is dropped.
struct Unanswered<'a>(&'a AtomicBool);

impl Unanswered<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Questions change nothing, so one without an answer is as good as not asked.
fn lost(why: &str) -> Failure {
    let message = format!("the server gave no answer ({why})");
    Failure::NotSent(Error::new(ErrorKind::Unavailable, message))
}
