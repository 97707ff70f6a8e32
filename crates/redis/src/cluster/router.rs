//! Which node has a slot: the table, the nodes in it, and the task that keeps both up to date. Retries nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use leasehold_core::{COMMAND_TIMEOUT, Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::config::ClusterConfig;
use super::node::Node;
use super::slots::Table;
use crate::config::Target;
use crate::events::Events;
use crate::failure::{Failure, Refusal};
use crate::handshake::{CONNECT_TIMEOUT, DriverTask, check_server, command, open_plain};
use crate::hosts::Host;
use crate::random::jittered;
use crate::shared::Shared;
use crate::waiters::Waiters;

/// The table is asked for again this often when nothing happens …
const REFRESH: Duration = Duration::from_secs(5);
/// … this often while a node cannot be reached, so that the replica that takes its place is found soon …
const REFRESH_IN_TROUBLE: Duration = Duration::from_millis(250);
/// … and never more often than this.
const REFRESH_LEAST: Duration = Duration::from_millis(50);
/// Nodes asked for the table in one go.
const MOST_ASKED: usize = 3;
/// A node of the URL has at least this long to tell the table before the next one is asked.
const LEAST_PER_NODE: Duration = Duration::from_secs(1);
/// A node that has no slots any more is left this long after, so that what is under way on it is answered.
const LEAVE_AFTER: Duration = Duration::from_secs(2);

/// The nodes of a cluster.
pub(super) struct Router {
    pub(super) config: ClusterConfig,
    pub(super) handle: Handle,
    pub(super) waiters: Arc<Waiters>,
    pub(super) events: Arc<Events>,
    state: RwLock<State>,
    next_id: AtomicU64,
    /// Whom to ask next.
    turn: AtomicUsize,
    /// Told when the table may be out of date.
    changed: Arc<Notify>,
    closed: AtomicBool,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    table: Table,
    nodes: HashMap<Host, Arc<Node>>,
}

impl Router {
    /// Learns the table from the first node of the URL that tells it, and connects to every primary.
    ///
    /// # Errors
    /// The URL's nodes cannot be reached, are no cluster, or leave slots to nobody; or no primary lets this user in.
    pub(super) async fn connect(config: ClusterConfig, handle: Handle) -> Result<Arc<Self>, Error> {
        let table = learn(&config).await?;
        if let Some((first, last)) = table.uncovered() {
            return Err(Error::new(ErrorKind::Unavailable, uncovered(first, last)));
        }
        let router = Arc::new(Self {
            config,
            handle,
            waiters: Arc::default(),
            events: Arc::default(),
            state: RwLock::new(State { table: Table::of(Vec::new()), nodes: HashMap::new() }),
            next_id: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
            changed: Arc::default(),
            closed: AtomicBool::new(false),
            task: Mutex::new(None),
        });
        router.apply(table);
        router.first_connections().await?;
        let task = router.handle.spawn(keep_current(Arc::downgrade(&router), Arc::clone(&router.changed)));
        *router.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(router)
    }

    /// Waits until each primary was tried: one must let this user in, and none may refuse it.
    async fn first_connections(&self) -> Result<(), Error> {
        let mut unreachable = None;
        let mut live = 0;
        for node in self.nodes() {
            match node.first_try().await {
                Ok(()) => live += 1,
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tracing::warn!(node = %node.place, %error, "a node of the cluster cannot be reached");
                    unreachable = Some((node, error));
                }
                Err(error) => return Err(error),
            }
        }
        match unreachable {
            Some((node, error)) if live == 0 => Err(Error::new(
                error.kind(),
                format!(
                    "the nodes of the cluster cannot be reached at the addresses they announce, {} for instance \
                     ({error}): announce addresses that clients reach (cluster-announce-ip, cluster-announce-port)",
                    node.place
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The node that has a slot.
    ///
    /// # Errors
    /// Nobody has it, as far as is known. Nothing was sent.
    pub(super) fn node_of(&self, slot: u16) -> Result<Arc<Node>, Failure> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Ordering::Acquire) {
            return Err(unavailable(format!("{}: the store was closed", self.config.describe())));
        }
        let node = state.table.owner(slot).and_then(|place| state.nodes.get(place));
        node.cloned()
            .ok_or_else(|| unavailable(format!("{}: {}", self.config.describe(), uncovered(slot, slot))))
    }

    /// The node at a place, which need not be in the table.
    pub(super) fn node_at(self: &Arc<Self>, place: &Host, slot: u16) -> Arc<Node> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        self.node_in(&mut state, place, slot)
    }

    /// Every node that has slots.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut nodes: Vec<_> =
            state.table.primaries().filter_map(|(place, _)| state.nodes.get(place).cloned()).collect();
        nodes.sort_by(|one, other| one.place.cmp(&other.place));
        nodes
    }

    /// The number of the node that has a slot; 0 if nobody has.
    pub(super) fn node_id(&self, slot: u16) -> u64 {
        self.node_of(slot).map_or(0, |node| node.id)
    }

    /// Notes that a slot has moved, as a node said.
    pub(super) fn moved(&self, slot: u16, to: &Host) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.table.moved(slot, to.clone());
        self.node_in(&mut state, to, slot);
        drop(state);
        self.look_again();
    }

    /// Has the table asked for again soon.
    pub(super) fn look_again(&self) {
        self.changed.notify_one();
    }

    fn node_in(&self, state: &mut State, place: &Host, slot: u16) -> Arc<Node> {
        if let Some(node) = state.nodes.get(place) {
            return Arc::clone(node);
        }
        let config = self.config.of_node(place, slot);
        let (waiters, events) = (Arc::clone(&self.waiters), Arc::clone(&self.events));
        let changed = Arc::clone(&self.changed);
        let shared = Arc::new(Shared::with(config, self.handle.clone(), waiters, events, changed));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let node = Arc::new(Node::start(id, place.clone(), shared));
        if self.closed.load(Ordering::Acquire) {
            node.close();
        }
        state.nodes.insert(place.clone(), Arc::clone(&node));
        node
    }

    /// Takes over a table: connects to nodes that are new, and leaves those that have no slots any more.
    fn apply(&self, table: Table) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for (place, slot) in table.primaries() {
            self.node_in(&mut state, place, slot);
        }
        let stays = |place: &Host| table.primaries().any(|(primary, _)| primary == place);
        let left: Vec<_> = state.nodes.keys().filter(|place| !stays(place)).cloned().collect();
        let left: Vec<_> = left.iter().filter_map(|place| state.nodes.remove(place)).collect();
        state.table = table;
        drop(state);
        for node in left {
            tracing::info!(node = %node.place, "a node of the cluster has no slots any more");
            self.handle.spawn(async move {
                if node.is_live() {
                    tokio::time::sleep(LEAVE_AFTER).await;
                }
                node.close();
            });
        }
    }

    /// Asks for the table; false when nobody tells it.
    async fn refresh(&self) -> bool {
        let nodes: Vec<_> = self.nodes().into_iter().filter(|node| node.is_live()).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for step in 0..nodes.len().min(MOST_ASKED) {
            let node = &nodes[(turn + step) % nodes.len()];
            let Ok(connection) = node.connection().await else { continue };
            let question = command(&QUESTION);
            let asked = connection.call(&question);
            let Ok(Ok(answered)) = tokio::time::timeout(COMMAND_TIMEOUT, asked).await else { continue };
            if let Ok(table) = answered.accepted().and_then(|answer| Table::read(&answer, &node.place)) {
                self.apply(table);
                return true;
            }
        }
        // Every primary may have been replaced: replicas and the nodes of the URL know by whom.
        let known = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let seeds = self.config.seeds.iter().cloned();
            let mut known: Vec<_> = state.table.replicas().iter().cloned().chain(seeds).collect();
            let first = turn % known.len().max(1);
            known.rotate_left(first);
            known
        };
        for place in known.iter().take(MOST_ASKED) {
            let asked = ask_for_table(&self.config, place, COMMAND_TIMEOUT);
            if let Ok(Ok(table)) = tokio::time::timeout(COMMAND_TIMEOUT, asked).await
                && table.uncovered().is_none()
            {
                self.apply(table);
                return true;
            }
        }
        false
    }

    /// Waits until nobody uses a connection, as long as one command may take, and ends them.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        let nodes: Vec<_> = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            state.nodes.values().cloned().collect()
        };
        let busy = |node: &Arc<Node>| {
            let live = node.shared.live();
            live.is_ok_and(|(connection, _)| connection.has_pending() && !connection.health().is_dead())
        };
        let mut left = COMMAND_TIMEOUT;
        while nodes.iter().any(busy) && !left.is_zero() {
            self.sleep(CLOSE_CHECK).await;
            left = left.saturating_sub(CLOSE_CHECK);
        }
        for node in nodes {
            node.questions.close().await;
            node.close();
        }
    }

    /// Sleeps on the runtime of the connections, so that no other is needed.
    pub(super) async fn sleep(&self, duration: Duration) {
        let sleep = {
            let _inside = self.handle.enter();
            tokio::time::sleep(duration)
        };
        sleep.await;
    }
}

/// How often closing looks whether everything was answered.
const CLOSE_CHECK: Duration = Duration::from_millis(2);

impl Drop for Router {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// Every version knows it, and it needs one right.
const QUESTION: [&str; 2] = ["CLUSTER", "SLOTS"];

/// Keeps the table up to date until the router is gone.
async fn keep_current(router: std::sync::Weak<Router>, changed: Arc<Notify>) {
    let mut pause = REFRESH;
    loop {
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(jittered(pause)) => {}
        }
        let Some(router) = router.upgrade() else { return };
        let known = router.refresh().await;
        let whole = known && router.nodes().iter().all(|node| node.is_live());
        pause = if whole { REFRESH } else { REFRESH_IN_TROUBLE };
        drop(router);
        tokio::time::sleep(REFRESH_LEAST).await;
    }
}

/// Asks the nodes of the URL in turn.
async fn learn(config: &ClusterConfig) -> Result<Table, Error> {
    let mut first_error = None;
    // All of them together may take as long as one alone, or nearly.
    let count = u32::try_from(config.seeds.len()).unwrap_or(u32::MAX);
    let limit = (CONNECT_TIMEOUT / count).max(LEAST_PER_NODE);
    for seed in &config.seeds {
        match ask_for_table(config, seed, limit).await {
            Ok(table) => return Ok(table),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(first_error.unwrap_or_else(|| Error::config("the URL of the cluster names no host")))
}

/// Asks a node for the table, on a connection of its own.
async fn ask_for_table(config: &ClusterConfig, node: &Host, limit: Duration) -> Result<Table, Error> {
    let settings = config.of_node(node, 0);
    let asked = async {
        let Target::Server(address) = settings.target.clone() else { return Err(Error::config("no node")) };
        let (mut link, driver) = open_plain(&settings, &address).await?;
        let _driver = DriverTask::new(tokio::spawn(driver));
        let mut questions = redis::pipe();
        questions.cmd("HELLO").add_command(command(&QUESTION));
        let answers = link.send_packed_commands(&questions, 0, 2).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the connection was lost ({error})"))
        })?;
        let [hello, table] = answers.as_slice() else { return Err(Failure::BadReply.into_error()) };
        // Any node of a cluster tells, replicas too.
        match check_server(hello, true) {
            Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error),
            _ => {}
        }
        if let Some(refusal) = Refusal::in_value(table) {
            return Err(refusal.into_error());
        }
        Table::read(table, node).map_err(Failure::into_error)
    };
    let late = |_| {
        let message = format!("the node gave no answer within {limit:?} of connecting");
        Err(Error::new(ErrorKind::Unavailable, message))
    };
    let answer = tokio::time::timeout(limit, asked).await.unwrap_or_else(late);
    answer.map_err(|error| error.context(node))
}

fn uncovered(first: u16, last: u16) -> String {
    let slots = if first == last { format!("slot {first}") } else { format!("the slots {first} to {last}") };
    format!(
        "no node of the cluster has {slots}, so names that fall there cannot be locked: give every slot to a \
         node (redis-cli --cluster fix, or CLUSTER ADDSLOTSRANGE)"
    )
}

fn unavailable(message: String) -> Failure {
    Failure::NotSent(Error::new(ErrorKind::Unavailable, message))
}
