//! One primary of the cluster: its connection and the supervisor that keeps it, its wake connection, and a
//! connection for questions.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::{Clock, Error, SystemClock};
use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::wake::Wake;
use crate::connection::{Answered, Connection};
use crate::failure::{Failure, Refusal};
use crate::handshake::establish;
use crate::hosts::Host;
use crate::questions::Questions;
use crate::script::Script;
use crate::shared::Shared;
use crate::supervisor;

/// One primary.
pub(super) struct Node {
    /// Different for every node that was ever known.
    pub(super) id: u64,
    pub(super) place: Host,
    pub(super) shared: Arc<Shared>,
    pub(super) wake: Wake,
    pub(super) questions: Questions,
    /// Whether the first try to connect has ended, and with which error.
    tried: watch::Receiver<Option<Result<(), Why>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Why the first try failed: kind and message, since it is told to several.
type Why = (leasehold_core::ErrorKind, String);

impl Node {
    /// Begins to connect.
    pub(super) fn start(id: u64, place: Host, shared: Arc<Shared>) -> Self {
        let (tell, tried) = watch::channel(None);
        let task = shared.handle.spawn(keep(Arc::clone(&shared), tell));
        Self {
            id,
            place,
            wake: Wake::new(Arc::clone(&shared)),
            questions: Questions::new(Arc::clone(&shared)),
            shared,
            tried,
            task: Mutex::new(Some(task)),
        }
    }

    /// The connection; waits for the first try to make one.
    ///
    /// # Errors
    /// Why there is none. Nothing was sent.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        match self.shared.live() {
            Ok((connection, _)) => Ok(connection),
            Err(error) if self.tried.borrow().is_some() => Err(Failure::NotSent(error)),
            Err(_) => {
                self.first_try().await.map_err(Failure::NotSent)?;
                self.shared.live().map(|(connection, _)| connection).map_err(Failure::NotSent)
            }
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.shared.live().is_ok_and(|(connection, _)| !connection.health().is_dead())
    }

    /// Waits until the first try to connect has ended.
    pub(super) async fn first_try(&self) -> Result<(), Error> {
        let mut tried = self.tried.clone();
        let result = match tried.wait_for(Option::is_some).await {
            Ok(tried) => tried.clone(),
            Err(_) => None,
        };
        match result {
            Some(Ok(())) => Ok(()),
            Some(Err((kind, message))) => Err(Error::new(kind, message)),
            None => self.shared.live().map(|_| ()),
        }
    }

    /// Calls a script on one key that has already left for this node while its slot still migrates.
    pub(super) async fn ask_script(&self, script: &Script, by_hash: &Cmd) -> Result<Answered, Failure> {
        let connection = self.connection().await?;
        let mut answered = ask(&connection, by_hash).await?;
        if Refusal::in_value(&answered.value).is_some_and(|refusal| refusal.code == "NOSCRIPT") {
            script.text_is_sent_at(SystemClock.now());
            answered = ask(&connection, &script.by_text(by_hash)).await?;
        }
        Ok(answered)
    }

    /// Ends all connections. What is under way on them is not answered.
    pub(super) fn close(&self) {
        self.shared.close();
        self.wake.close();
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sends a command behind ASKING, in one piece: nothing of others may come between.
pub(super) async fn ask(connection: &Connection, command: &Cmd) -> Result<Answered, Failure> {
    let mut asking = redis::pipe();
    asking.cmd("ASKING").add_command(command.clone());
    let sent_at = SystemClock.now();
    match <[Value; 2]>::try_from(connection.call_all(&asking).await?) {
        Ok([_asking, value]) => Ok(Answered { value, sent_at }),
        Err(_) => Err(Failure::BadReply),
    }
}

/// Connects, and stays connected until the node is closed.
async fn keep(shared: Arc<Shared>, tried: watch::Sender<Option<Result<(), Why>>>) {
    let first = match establish(&shared).await {
        Ok(first) => first,
        Err(error) => {
            let error = error.context(shared.config.describe());
            shared.went_down(error.kind(), error.to_string());
            tried.send_replace(Some(Err((error.kind(), error.to_string()))));
            match supervisor::reconnect(&shared).await {
                Some(established) => established,
                None => return,
            }
        }
    };
    shared.went_live(Arc::clone(&first.connection), first.rights);
    tried.send_replace(Some(Ok(())));
    supervisor::run(shared, first).await;
}
