//! A Redis or Valkey Cluster for tests: formed with CLUSTER commands, so that no `redis-cli` is needed, and what a
//! test does to it: move slots, fail over, kill, freeze, cut off. Owns no server process; each node is a
//! [`RedisServer`].

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::{RedisServer, ServerKind};
use crate::ports::PortLease;
use crate::proxy::Proxy;
use crate::resp::RespValue;

const SLOTS: u16 = 16_384;
/// A primary that is silent for this long is replaced by its replica.
const NODE_TIMEOUT_MS: &str = "1000";
/// Wide enough for six servers on a busy machine.
const FORM_TIMEOUT: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Settings of a cluster about to be started; see [`RedisCluster::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing starts before `start`"]
pub struct ClusterBuilder {
    kind: ServerKind,
    shards: usize,
    replicas: usize,
    proxies: bool,
    covered: bool,
    lines: Vec<(String, String)>,
}

impl ClusterBuilder {
    /// How many primaries there are, each with an equal part of the slots; 3 unless said otherwise.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// How many replicas each primary has; 1 unless said otherwise.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Puts a proxy before each node, whose address the node announces to everybody, other nodes included; what they
    /// say among themselves on their own bus does not pass it.
    pub fn proxies(mut self) -> Self {
        self.proxies = true;
        self
    }

    /// Leaves the slots of the last shard to nobody.
    pub fn uncovered(mut self) -> Self {
        self.covered = false;
        self
    }

    /// Adds a line to the configuration of every node, later ones win.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.into(), value.into()));
        self
    }

    /// Starts the nodes on free loopback ports and waits until each of them takes the cluster for whole.
    ///
    /// # Errors
    /// When the machine has no such server, or the cluster is not whole in time.
    pub fn start(self) -> io::Result<RedisCluster> {
        let count = self.shards * (1 + self.replicas);
        let nodes = (0..count).map(|_| self.start_node()).collect::<io::Result<Vec<_>>>()?;
        let cluster = RedisCluster { nodes, shards: self.shards };
        cluster.form(&self)?;
        Ok(cluster)
    }

    fn start_node(&self) -> io::Result<Node> {
        let bus = PortLease::take()?;
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, bus.port()));
        let proxy = if self.proxies { Some(Proxy::start_opaque(nowhere)?) } else { None };
        let mut settings = RedisServer::builder(self.kind)
            .config("cluster-enabled", "yes")
            .config("cluster-config-file", "nodes.conf")
            .config("cluster-port", &bus.port().to_string())
            .config("cluster-node-timeout", NODE_TIMEOUT_MS)
            .config("cluster-require-full-coverage", "no")
            .config("cluster-allow-replica-migration", "no")
            .config("cluster-replica-validity-factor", "0")
            .config("repl-diskless-sync-delay", "0");
        if let Some(proxy) = &proxy {
            settings = settings.config("cluster-announce-port", &proxy.port().to_string());
        }
        for (name, value) in &self.lines {
            settings = settings.config(name, value);
        }
        let server = settings.start()?;
        if let Some(proxy) = &proxy {
            proxy.set_upstream(server.address());
        }
        let id = server.cli(&["CLUSTER", "MYID"])?;
        Ok(Node { server, proxy, bus, id })
    }
}

/// One node.
#[derive(Debug)]
struct Node {
    server: RedisServer,
    proxy: Option<Proxy>,
    bus: PortLease,
    id: String,
}

/// A cluster of its own for a test. Node numbers: the primaries first, in the order of their slots, then the first
/// replica of each, and so on; they stay what they are when roles change.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Node>,
    shards: usize,
}

impl RedisCluster {
    /// Three shards with a replica each.
    ///
    /// # Errors
    /// As [`ClusterBuilder::start`].
    pub fn start(kind: ServerKind) -> io::Result<Self> {
        Self::builder(kind).start()
    }

    /// A cluster with settings.
    pub fn builder(kind: ServerKind) -> ClusterBuilder {
        ClusterBuilder { kind, shards: 3, replicas: 1, proxies: false, covered: true, lines: Vec::new() }
    }

    /// What kind of servers these are.
    pub fn kind(&self) -> ServerKind {
        self.nodes[0].server.kind()
    }

    /// A URL for clients that names every node that began as a primary.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = (0..self.shards).map(|node| self.address(node).to_string()).collect();
        format!("redis+cluster://{}/", hosts.join(","))
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node, to kill, freeze, restart and question.
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node].server
    }

    /// The proxy before a node.
    ///
    /// # Panics
    /// When the cluster was started without.
    pub fn proxy(&self, node: usize) -> &Proxy {
        match &self.nodes[node].proxy {
            Some(proxy) => proxy,
            None => panic!("this cluster was started without proxies"),
        }
    }

    /// The address a node announces.
    pub fn address(&self, node: usize) -> SocketAddr {
        let node = &self.nodes[node];
        node.proxy.as_ref().map_or(node.server.address(), Proxy::address)
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// When the first node that runs does not answer.
    pub fn slot_of(&self, key: &str) -> io::Result<u16> {
        let slot = self.any()?.server.cli(&["CLUSTER", "KEYSLOT", key])?;
        slot.parse().map_err(io::Error::other)
    }

    /// The node that serves a slot now, as the nodes that run see it.
    ///
    /// # Errors
    /// When nobody serves it, or nobody answers.
    pub fn owner_of(&self, slot: u16) -> io::Result<usize> {
        for node in self.nodes.iter().filter(|node| node.server.process_id().is_some()) {
            let Ok(text) = node.server.cli(&["CLUSTER", "NODES"]) else { continue };
            let line = text.lines().find(|line| line.contains("myself") && line.contains("master"));
            if line.is_some_and(|line| serves(line, slot)) {
                return Ok(self.number_of(&node.id));
            }
        }
        Err(io::Error::other(format!("nobody serves slot {slot}")))
    }

    /// Sends a command to the node that serves the key, which is its second word.
    ///
    /// # Errors
    /// As [`RedisServer::command`].
    pub fn command(&self, arguments: &[&str]) -> io::Result<RespValue> {
        let owner = self.owner_of(self.slot_of(arguments[1])?)?;
        self.node(owner).command(arguments)
    }

    /// Every key of the nodes that serve slots, as they see it.
    ///
    /// # Errors
    /// When a node does not answer.
    pub fn keys(&self, pattern: &str) -> io::Result<Vec<String>> {
        let mut keys = Vec::new();
        for node in &self.nodes {
            if is_primary(&node.server)?
                && let Some(found) = node.server.command(&["KEYS", pattern])?.items()
            {
                keys.extend(found.iter().filter_map(RespValue::text));
            }
        }
        Ok(keys)
    }

    /// Begins to move a slot: from now on keys that the old node has not are asked for at the new one.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn begin_migration(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let (slot, from, to) = (slot.to_string(), &self.nodes[from], &self.nodes[to]);
        to.server.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id])?;
        from.server.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id])?;
        Ok(())
    }

    /// Moves the keys that the slot has at this moment.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let (from, to) = (&self.nodes[from].server, &self.nodes[to].server);
        let (host, port) = (to.address().ip().to_string(), to.port().to_string());
        loop {
            let reply = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"])?;
            let keys: Vec<_> = reply.items().unwrap_or_default().iter().filter_map(RespValue::text).collect();
            if keys.is_empty() {
                return Ok(());
            }
            let mut words = vec!["MIGRATE", &host, &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            from.cli(&words)?;
        }
    }

    /// Ends the move of a slot: it belongs to the new node.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn finish_migration(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let (slot, id) = (slot.to_string(), &self.nodes[to].id);
        // The new one first: in between, both send clients on to a node that takes them.
        for node in [to, from] {
            self.nodes[node].server.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", id])?;
        }
        Ok(())
    }

    /// Moves a slot with its keys.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn migrate(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        self.begin_migration(slot, from, to)?;
        self.move_keys(slot, from, to)?;
        self.finish_migration(slot, from, to)
    }

    /// Makes a replica the primary of its shard, with the consent of the present one.
    ///
    /// # Errors
    /// When it refuses, or is no primary in time.
    pub fn fail_over_to(&self, replica: usize) -> io::Result<()> {
        self.node(replica).cli(&["CLUSTER", "FAILOVER"])?;
        self.until_primary(replica)
    }

    /// Waits until a node is a primary, and the one whose place it takes has noticed if it runs.
    ///
    /// # Errors
    /// When it is not in time.
    pub fn until_primary(&self, node: usize) -> io::Result<()> {
        until("it is a primary", || {
            // Asked first, for it may become one while the others are asked.
            if !is_primary(self.node(node))? {
                return Ok(false);
            }
            let mut running = self.nodes.iter().filter(|node| node.server.process_id().is_some());
            let primaries = running.try_fold(0, |count, node| {
                Ok::<_, io::Error>(count + usize::from(is_primary(&node.server)?))
            })?;
            Ok(primaries <= self.shards)
        })
    }

    /// Waits until every node that runs takes the cluster for whole, and every replica is in step.
    ///
    /// # Errors
    /// When they do not in time.
    pub fn until_whole(&self) -> io::Result<()> {
        until("the cluster is whole", || {
            for node in self.nodes.iter().filter(|node| node.server.process_id().is_some()) {
                let state = node.server.cli(&["CLUSTER", "INFO"])?;
                let links = node.server.info("replication")?;
                let linked = links.get("master_link_status").is_none_or(|status| status == "up");
                let whole = state.contains("cluster_state:ok") && state.contains("cluster_slots_ok:16384");
                if !linked || !whole || state.contains("cluster_slots_assigned:0") {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn form(&self, settings: &ClusterBuilder) -> io::Result<()> {
        let primaries = &self.nodes[..self.shards];
        for (shard, node) in primaries.iter().enumerate() {
            node.server.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(shard + 1).to_string()])?;
            if settings.covered || shard + 1 < self.shards {
                let (first, last) = self.slots_of(shard);
                let range = [first.to_string(), last.to_string()];
                node.server.cli(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]])?;
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[at + 1..] {
                let address = other.proxy.as_ref().map_or(other.server.address(), Proxy::address);
                let (host, port) = (address.ip().to_string(), address.port().to_string());
                node.server.cli(&["CLUSTER", "MEET", &host, &port, &other.bus.port().to_string()])?;
            }
        }
        until("every node knows all others", || {
            let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
            let mut infos = self.nodes.iter().map(|node| node.server.cli(&["CLUSTER", "INFO"]));
            infos.try_fold(true, |all, info| Ok(all && info?.contains(&known)))
        })?;
        for (at, replica) in self.nodes.iter().enumerate().skip(self.shards) {
            let primary = &self.nodes[at % self.shards].id;
            // It has to have heard of the primary's slots first.
            until("a replica follows", || {
                Ok(!replica.server.command(&["CLUSTER", "REPLICATE", primary])?.is_error())
            })?;
        }
        if settings.covered {
            self.until_whole()?;
        }
        let (_, last) = self.slots_of(if settings.covered { self.shards - 1 } else { self.shards - 2 });
        let assigned = format!("cluster_slots_assigned:{}\r\n", usize::from(last) + 1);
        until("every node knows the slots and replicas of all others", || {
            for node in &self.nodes {
                let nodes = node.server.cli(&["CLUSTER", "NODES"])?;
                let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
                let info = node.server.cli(&["CLUSTER", "INFO"])?;
                if !info.contains(&assigned) || replicas != self.nodes.len() - self.shards {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// The first and the last slot of a shard, as they were given out at the start.
    pub fn slots_of(&self, shard: usize) -> (u16, u16) {
        let at = |shard: usize| u16::try_from(usize::from(SLOTS) * shard / self.shards).unwrap_or(SLOTS);
        (at(shard), at(shard + 1) - 1)
    }

    fn any(&self) -> io::Result<&Node> {
        let mut running = self.nodes.iter().filter(|node| node.server.process_id().is_some());
        running.next().ok_or_else(|| io::Error::other("every node is down"))
    }

    fn number_of(&self, id: &str) -> usize {
        self.nodes.iter().position(|node| node.id == id).unwrap_or_default()
    }
}

fn is_primary(server: &RedisServer) -> io::Result<bool> {
    let role = server.command(&["ROLE"])?;
    Ok(role.items().and_then(|items| items[0].text()).as_deref() == Some("master"))
}

/// Whether the line of a node in `CLUSTER NODES` has the slot among those it serves.
fn serves(line: &str, slot: u16) -> bool {
    line.split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<u16>().ok();
        number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&slot))
    })
}

fn until(what: &str, mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + FORM_TIMEOUT;
    loop {
        let seen = is_so();
        if let Ok(true) = seen {
            return Ok(());
        }
        if Instant::now() > deadline {
            let why = seen.err().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("not so after {FORM_TIMEOUT:?}: {what}{why}"),
            ));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_of_a_node_are_read() {
        let line = "07c3 127.0.0.1:1@2,, myself,master - 0 0 1 connected 0-5460 7000 [9000->-abc]";
        for (slot, there) in [(0, true), (5_460, true), (5_461, false), (7_000, true), (9_000, false)] {
            assert_eq!(serves(line, slot), there, "{slot}");
        }
    }
}
