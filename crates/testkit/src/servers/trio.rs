//! Three Sentinels that watch a primary and two replicas, each of the three behind a proxy of its own, so that a
//! test can kill, freeze, cut off and delay every part. Starting one server is in [`RedisServer`].

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{RedisServer, ServerBuilder, ServerKind};
use crate::proxy::Proxy;
use crate::resp::RespValue;

/// The name the Sentinels monitor the servers by.
pub const SERVICE: &str = "orders";
/// How long a failover may take on a busy machine.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(40);
/// After this long a Sentinel gives up a step of a failover, and it begins another one only after twice as long: a
/// busy machine must not need it.
const FAILOVER_STEP_TIMEOUT: Duration = Duration::from_secs(6);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Sentinels that look often make a test short. The last two: a busy machine is no reason to stop for 30 s. The
/// ping period stays: five of them is how old what they know of a replica may be when one is promoted.
const HASTE: [&str; 10] = [
    "info-period",
    "200",
    "ask-period",
    "100",
    "publish-period",
    "200",
    "tilt-trigger",
    "8000",
    "tilt-period",
    "1000",
];

/// Settings of a trio about to be started; see [`SentinelTrio::builder`].
#[must_use = "nothing starts before `start`"]
pub struct TrioBuilder {
    kinds: [ServerKind; 3],
    sentinel_kind: ServerKind,
    password: Option<String>,
    sentinel_password: Option<String>,
    links: bool,
    down_after: Duration,
    failover_timeout: Duration,
    configure: Box<dyn Fn(usize, ServerBuilder) -> ServerBuilder>,
}

impl TrioBuilder {
    /// One of the three servers is of another kind; 0 is the first primary.
    pub fn node_kind(mut self, node: usize, kind: ServerKind) -> Self {
        self.kinds[node] = kind;
        self
    }

    /// The Sentinels are of another kind than the servers.
    pub fn sentinel_kind(mut self, kind: ServerKind) -> Self {
        self.sentinel_kind = kind;
        self
    }

    /// The servers' password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The Sentinels' password.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Each replica gets its data through a proxy of its own until the first failover: [`SentinelTrio::link`].
    pub fn links(mut self) -> Self {
        self.links = true;
        // Sentinels set right a replica that follows another address, after this time.
        self.failover_timeout = Duration::from_secs(60);
        self
    }

    /// How long a server gives no answer until a Sentinel takes it for down; 500 ms unless said otherwise.
    pub fn down_after(mut self, down_after: Duration) -> Self {
        self.down_after = down_after;
        self
    }

    /// Changes settings of the servers by their number.
    pub fn configure(mut self, configure: impl Fn(usize, ServerBuilder) -> ServerBuilder + 'static) -> Self {
        self.configure = Box::new(configure);
        self
    }

    /// Starts everything and waits until the replicas follow and the Sentinels know each other.
    ///
    /// # Errors
    /// When a server does not start, or they do not find each other in time.
    pub fn start(self) -> io::Result<SentinelTrio> {
        let mut nodes = Vec::new();
        let mut links = Vec::new();
        for number in 0..3 {
            let primary: Option<&Node> = nodes.first();
            let follows = match primary {
                Some(primary) if self.links => {
                    links.push(Proxy::start_opaque(primary.server.address())?);
                    links.last().map(Proxy::address)
                }
                primary => primary.map(Node::address),
            };
            nodes.push(self.start_node(number, follows)?);
        }
        let mut sentinels = Vec::new();
        for number in 0..3 {
            sentinels.push(self.start_sentinel(number, &nodes[0])?);
        }
        let proxies = sentinels.iter().map(Proxy::before).collect::<io::Result<_>>()?;
        let trio = SentinelTrio {
            nodes,
            links,
            sentinels,
            proxies,
            password: self.password,
            sentinel_password: self.sentinel_password,
        };
        trio.wait_until_ready()?;
        Ok(trio)
    }

    fn start_node(&self, number: usize, follows: Option<SocketAddr>) -> io::Result<Node> {
        // The address is announced before the server has one: the proxy is told where to lead afterwards.
        let proxy = Proxy::start_opaque(SocketAddr::from(([127, 0, 0, 1], 9)))?;
        let mut settings = RedisServer::builder(self.kinds[number])
            .config("replica-announce-ip", "127.0.0.1")
            .config("replica-announce-port", &proxy.port().to_string())
            // The first replica is promoted first.
            .config("replica-priority", &(number * 10 + 10).to_string())
            .config("repl-diskless-sync-delay", "0")
            .config("repl-ping-replica-period", "1")
            .keep_config();
        if let Some(follows) = follows {
            settings = settings.config("replicaof", &format!("{} {}", follows.ip(), follows.port()));
        }
        if let Some(password) = &self.password {
            settings = settings.password(password).config("masterauth", &format!("\"{password}\""));
        }
        let server = (self.configure)(number, settings).start()?;
        proxy.set_upstream(server.address());
        Ok(Node { server, proxy })
    }

    fn start_sentinel(&self, number: u32, primary: &Node) -> io::Result<RedisServer> {
        let address = primary.address();
        // The last one is slow to take a server for down: three that begin an election at once vote for themselves,
        // and nobody wins for a while.
        let down_after = if number == 2 { self.down_after * 3 } else { self.down_after };
        let mut lines = vec![
            format!("monitor {SERVICE} {} {} 2", address.ip(), address.port()),
            format!("down-after-milliseconds {SERVICE} {}", down_after.as_millis()),
            format!("failover-timeout {SERVICE} {}", self.failover_timeout.as_millis()),
            format!("parallel-syncs {SERVICE} 2"),
        ];
        if let Some(password) = &self.password {
            lines.push(format!("auth-pass {SERVICE} \"{password}\""));
        }
        let mut settings = RedisServer::builder(self.sentinel_kind);
        if let Some(password) = &self.sentinel_password {
            lines.push(format!("sentinel-pass \"{password}\""));
            settings = settings.password(password);
        }
        for line in &lines {
            settings = settings.config("sentinel", line);
        }
        let sentinel = settings.sentinel().start()?;
        hasten(&sentinel)?;
        Ok(sentinel)
    }
}

fn hasten(sentinel: &RedisServer) -> io::Result<()> {
    let words: Vec<_> = ["SENTINEL", "DEBUG"].into_iter().chain(HASTE).collect();
    sentinel.cli(&words).map(drop)
}

/// A primary and two replicas that three Sentinels watch.
#[derive(Debug)]
pub struct SentinelTrio {
    nodes: Vec<Node>,
    links: Vec<Proxy>,
    sentinels: Vec<RedisServer>,
    proxies: Vec<Proxy>,
    password: Option<String>,
    sentinel_password: Option<String>,
}

/// A server that is known by the address of its proxy.
#[derive(Debug)]
struct Node {
    server: RedisServer,
    proxy: Proxy,
}

impl Node {
    fn address(&self) -> SocketAddr {
        self.proxy.address()
    }
}

impl SentinelTrio {
    /// Starts a trio with default settings.
    ///
    /// # Errors
    /// As [`TrioBuilder::start`].
    pub fn start(kind: ServerKind) -> io::Result<Self> {
        Self::builder(kind).start()
    }

    /// A trio with settings.
    pub fn builder(kind: ServerKind) -> TrioBuilder {
        TrioBuilder {
            kinds: [kind; 3],
            sentinel_kind: kind,
            password: None,
            sentinel_password: None,
            links: false,
            down_after: Duration::from_millis(500),
            failover_timeout: FAILOVER_STEP_TIMEOUT,
            configure: Box::new(|_, settings| settings),
        }
    }

    /// A URL for clients, with the passwords if there are any.
    pub fn url(&self) -> String {
        self.url_of(self.sentinels.iter().map(RedisServer::address))
    }

    /// The same, but with the proxies in front of the Sentinels.
    pub fn url_through_proxies(&self) -> String {
        self.url_of(self.proxies.iter().map(Proxy::address))
    }

    fn url_of(&self, hosts: impl Iterator<Item = SocketAddr>) -> String {
        let hosts: Vec<_> = hosts.map(|host| host.to_string()).collect();
        let login = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let parameters = self.sentinel_password.as_ref();
        let parameters = parameters.map(|password| format!("?sentinel_password={password}"));
        format!("redis+sentinel://{login}{}/{SERVICE}{}", hosts.join(","), parameters.unwrap_or_default())
    }

    /// One of the three servers; 0 is the first primary.
    pub fn node(&self, number: usize) -> &RedisServer {
        &self.nodes[number].server
    }

    /// The proxy through which everybody else reaches a server: other servers, Sentinels and clients.
    pub fn proxy(&self, number: usize) -> &Proxy {
        &self.nodes[number].proxy
    }

    /// The proxy through which a replica (1 or 2) gets its data, if [`TrioBuilder::links`] was asked for.
    pub fn link(&self, replica: usize) -> &Proxy {
        &self.links[replica - 1]
    }

    /// One of the three Sentinels.
    pub fn sentinel(&self, number: usize) -> &RedisServer {
        &self.sentinels[number]
    }

    /// The proxy in front of a Sentinel.
    pub fn sentinel_proxy(&self, number: usize) -> &Proxy {
        &self.proxies[number]
    }

    /// The server that a Sentinel names.
    pub fn named_by(&self, sentinel: usize) -> Option<usize> {
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let reply = self.sentinels[sentinel].command(&question).ok()?;
        let port: u16 = reply.items()?.get(1)?.text()?.parse().ok()?;
        self.nodes.iter().position(|node| node.proxy.port() == port)
    }

    /// The server that most Sentinels name and that is a primary.
    pub fn primary(&self) -> Option<usize> {
        self.named_by_most().filter(|number| self.is_primary(*number))
    }

    fn named_by_most(&self) -> Option<usize> {
        let running = (0..3).filter(|number| self.sentinels[*number].process_id().is_some());
        let named: Vec<_> = running.filter_map(|number| self.named_by(number)).collect();
        (0..3).find(|number| named.iter().filter(|named| *named == number).count() >= 2)
    }

    /// Whether a server is a primary as it knows itself.
    pub fn is_primary(&self, number: usize) -> bool {
        let role = self.node(number).process_id().and_then(|_| self.node(number).command(&["ROLE"]).ok());
        role.is_some_and(|role| {
            role.items().and_then(|items| items.first()?.text()).is_some_and(|role| role == "master")
        })
    }

    /// Asks for a failover that nothing makes necessary.
    ///
    /// # Errors
    /// When no Sentinel will.
    pub fn fail_over(&self) -> io::Result<()> {
        let ends = Instant::now() + FAILOVER_TIMEOUT;
        loop {
            match self.sentinels[0].command(&["SENTINEL", "FAILOVER", SERVICE])? {
                // Another one is not long ago, or a replica is not ready.
                RespValue::Error(message) if Instant::now() > ends => return Err(io::Error::other(message)),
                RespValue::Error(_) => std::thread::sleep(POLL_INTERVAL),
                _ => return Ok(()),
            }
        }
    }

    /// Waits until another server than this one is the primary; which.
    ///
    /// # Errors
    /// When that takes longer than 40 s.
    pub fn wait_for_failover_from(&self, old: usize) -> io::Result<usize> {
        let mut new = None;
        self.wait_until("no failover", || {
            // The old one may be frozen: it is not asked.
            new = self.named_by_most().filter(|named| *named != old && self.is_primary(*named));
            new.is_some()
        })?;
        Ok(new.unwrap_or(old))
    }

    /// Waits until the primary has two replicas that follow it and are known to every Sentinel.
    ///
    /// # Errors
    /// When that takes longer than 40 s.
    pub fn wait_until_ready(&self) -> io::Result<()> {
        self.wait_until("the servers and Sentinels have not found each other", || {
            let Some(primary) = self.primary() else { return false };
            let following = self.node(primary).info("replication").is_ok_and(|info| {
                let online = |line: &String| line.contains("state=online");
                (0..2).all(|replica| info.get(&format!("slave{replica}")).is_some_and(online))
            });
            following && self.sentinels.iter().all(knows_everybody)
        })
    }

    fn wait_until(&self, otherwise: &str, mut is_so: impl FnMut() -> bool) -> io::Result<()> {
        let ends = Instant::now() + FAILOVER_TIMEOUT;
        while !is_so() {
            if Instant::now() > ends {
                let log = self.sentinels[0].log();
                let log: Vec<_> = log.lines().rev().take(30).collect();
                return Err(io::Error::other(format!("{otherwise} after {FAILOVER_TIMEOUT:?}: {log:#?}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Starts a Sentinel again, with what it knew.
    ///
    /// # Errors
    /// As [`RedisServer::restart`].
    pub fn restart_sentinel(&self, number: usize) -> io::Result<()> {
        self.sentinels[number].restart(super::Data::Keep)?;
        hasten(&self.sentinels[number])
    }
}

fn knows_everybody(sentinel: &RedisServer) -> bool {
    let Ok(RespValue::Array(fields)) = sentinel.command(&["SENTINEL", "MASTER", SERVICE]) else {
        return false;
    };
    let number = |name: &str| {
        let at = fields.iter().position(|field| field.text().as_deref() == Some(name))?;
        fields.get(at + 1)?.text()?.parse::<u32>().ok()
    };
    let replicas_up = || {
        let reply = sentinel.command(&["SENTINEL", "REPLICAS", SERVICE]).ok();
        reply.is_some_and(|replicas| {
            replicas.items().unwrap_or_default().iter().all(|replica| {
                let words: Vec<_> = replica.items().unwrap_or_default().iter().map(RespValue::text).collect();
                let value = |name: &str| {
                    let at = words.iter().position(|word| word.as_deref() == Some(name))?;
                    words.get(at + 1)?.clone()
                };
                value("flags").as_deref() == Some("slave")
                    && value("master-link-status").as_deref() == Some("ok")
            })
        })
    };
    number("num-other-sentinels") == Some(2) && number("num-slaves") == Some(2) && replicas_up()
}
