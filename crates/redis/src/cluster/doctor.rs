//! Examines a cluster: whether every slot has a node and every primary a replica, and each node as a single server is
//! examined. Changes nothing.

use std::sync::Arc;

use leasehold_core::store::{Finding, Severity};
use leasehold_core::{COMMAND_TIMEOUT, Error};
use redis::Value;

use super::join::{Boxed, join_all};
use super::node::Node;
use super::router::Router;
use super::slots::{Shard, Table, read_shards};
use crate::doctor::{self, FENCING_COUNTER, SKEW_LIMIT, Server, finding, fine};
use crate::failure::Failure;
use crate::handshake::command;
use crate::hosts::Host;
use crate::questions::Questions;
use crate::reply;
use crate::shared::Shared;

/// What is fine is not told of more nodes once its line is this long, in bytes.
const MOST_OF_A_LINE: usize = 160;

pub(super) async fn diagnose(router: &Arc<Router>) -> Result<Vec<Finding>, Error> {
    let Topology { shards, state, nodes } = topology_of(router).await?;
    let mut findings = vec![coverage(&shards), replicas(&shards), condition(&state)];
    findings.extend(failed(&nodes));
    let (mut examined, mut unreachable) = (Vec::new(), Vec::new());
    for (host, result) in examine_all(router, &shards).await {
        match result {
            Ok(node) => examined.push((host, node)),
            Err(error) => unreachable.push((host, error)),
        }
    }
    findings.push(reached(examined.len(), &unreachable));
    findings.extend([full_coverage(&examined), clocks(&examined)]);
    findings.extend(together(&examined));
    Ok(findings)
}

/// What is found at one node.
struct Examined {
    server: Server,
    findings: Vec<Finding>,
}

/// A cluster as one of its nodes sees it.
struct Topology {
    shards: Vec<Shard>,
    /// What CLUSTER INFO says; empty when that is denied.
    state: String,
    /// What CLUSTER NODES says; empty when that is denied.
    nodes: String,
}

/// The cluster as the first node that answers sees it.
async fn topology_of(router: &Arc<Router>) -> Result<Topology, Error> {
    let mut last = None;
    for node in router.nodes() {
        match ask_topology(&node).await {
            Ok(seen) => return Ok(seen),
            Err(failure) => last = Some(failure.into_error().context(&node.place)),
        }
    }
    Err(last.unwrap_or_else(|| Error::config("the cluster has no nodes")))
}

async fn ask_topology(node: &Node) -> Result<Topology, Failure> {
    let mut asked = redis::pipe();
    for what in ["SLOTS", "INFO", "NODES"] {
        asked.add_command(command(&["CLUSTER", what]));
    }
    let replies = node.questions.ask_all(&asked).await?;
    let [shards, state, nodes] = replies.as_slice() else { return Err(Failure::BadReply) };
    if let Some(refusal) = crate::failure::Refusal::in_value(shards) {
        return Err(Failure::Refused(refusal));
    }
    Ok(Topology { shards: read_shards(shards, &node.place)?, state: text_of(state), nodes: text_of(nodes) })
}

fn text_of(value: &Value) -> String {
    // A user who may not ask is told by the finding.
    reply::text(value).unwrap_or_default().to_owned()
}

/// Examines every node, replicas too: each may be the primary tomorrow.
async fn examine_all(router: &Arc<Router>, shards: &[Shard]) -> Vec<(Host, Result<Examined, Error>)> {
    let mut hosts: Vec<_> = shards.iter().flat_map(|shard| &shard.replicas).cloned().collect();
    let primaries: Vec<_> = shards.iter().map(|shard| (shard.primary.clone(), shard.slots.0)).collect();
    hosts.sort();
    hosts.dedup();
    hosts.retain(|host| primaries.iter().all(|(primary, _)| primary != host));
    let mut nodes: Vec<Boxed<'_, _>> = Vec::new();
    for (at, (host, slot)) in primaries.into_iter().enumerate() {
        // A primary with several ranges is examined once.
        if shards[..at].iter().any(|shard| shard.primary == host) {
            continue;
        }
        nodes.push(Box::pin(async move {
            let node = router.node_at(&host, slot);
            let examined = examine(&node.shared, &node.questions, true).await;
            (host, examined)
        }));
    }
    for host in hosts {
        nodes.push(Box::pin(async move {
            let config = router.config.of_node(&host, 0);
            let shared = Shared::with(
                config,
                router.handle.clone(),
                Arc::clone(&router.waiters),
                Arc::clone(&router.events),
                Arc::default(),
            );
            let shared = Arc::new(shared);
            let questions = Questions::new(Arc::clone(&shared));
            let examined = examine(&shared, &questions, false).await;
            questions.close().await;
            (host, examined)
        }));
    }
    join_all(nodes).await
}

async fn examine(shared: &Shared, questions: &Questions, is_primary: bool) -> Result<Examined, Error> {
    let limited = {
        let _inside = shared.handle.enter();
        // A node that hangs must not hold up what is said about the others for long.
        tokio::time::timeout(COMMAND_TIMEOUT * 3, doctor::look(shared, questions))
    };
    let late = |_| {
        let message = format!("no answer within {:?}", COMMAND_TIMEOUT * 3);
        Err(Failure::NotSent(Error::new(leasehold_core::ErrorKind::Unavailable, message)))
    };
    let server = limited.await.unwrap_or_else(late).map_err(Failure::into_error)?;
    let mut findings = server.findings();
    // There is one for each slot, and no slot tells more than another.
    findings.retain(|found| found.subject != FENCING_COUNTER || found.severity != Severity::Fine);
    if is_primary {
        findings.extend(doctor::rights(shared, questions).await.map_err(Failure::into_error)?);
    }
    Ok(Examined { server, findings })
}

fn coverage(shards: &[Shard]) -> Finding {
    const SUBJECT: &str = "slots";
    let table = Table::of(shards.to_vec());
    match table.uncovered() {
        None => fine(SUBJECT, format!("each is given to one of {} primaries", table.primaries().count())),
        Some((first, last)) => finding(
            Severity::Problem,
            SUBJECT,
            format!(
                "no node has the slots {first} to {last}, and perhaps others: names there cannot be locked"
            ),
            "give every slot to a node: redis-cli --cluster fix, or CLUSTER ADDSLOTSRANGE",
        ),
    }
}

fn replicas(shards: &[Shard]) -> Finding {
    const SUBJECT: &str = "replicas";
    let mut bare: Vec<_> = shards.iter().filter(|shard| shard.replicas.is_empty()).collect();
    bare.dedup_by(|one, other| one.primary == other.primary);
    if bare.is_empty() {
        return fine(SUBJECT, "every primary has one".to_owned());
    }
    let names: Vec<_> = bare.iter().map(|shard| shard.primary.to_string()).collect();
    finding(
        Severity::Warning,
        SUBJECT,
        format!(
            "none follows {}: if it fails, names in its slots cannot be locked until it is back",
            names.join(", ")
        ),
        "add a replica to each primary: CLUSTER REPLICATE on an empty node",
    )
}

fn condition(info: &str) -> Finding {
    const SUBJECT: &str = "cluster state";
    match info.lines().find_map(|line| line.trim_end().strip_prefix("cluster_state:")) {
        Some("ok") => fine(SUBJECT, "ok".to_owned()),
        Some(state) => finding(
            Severity::Problem,
            SUBJECT,
            format!("{state}: nodes refuse requests"),
            "look at CLUSTER INFO and CLUSTER NODES: bring failed nodes back, or give their slots to others",
        ),
        None => finding(
            Severity::Warning,
            SUBJECT,
            "it cannot be seen (CLUSTER INFO is denied)".to_owned(),
            "run the doctor as a user who may use CLUSTER INFO",
        ),
    }
}

/// Nodes that serve no slots are in no answer to CLUSTER SLOTS, failed ones among them.
fn failed(nodes: &str) -> Option<Finding> {
    // <id> <ip:port@cport[,hostname]> <flags> …, as https://redis.io/docs/latest/commands/cluster-nodes/ has it.
    let is_failed = |flags: &str| flags.split(',').any(|flag| matches!(flag, "fail" | "fail?"));
    let failed: Vec<_> = nodes
        .lines()
        .map(|line| line.split(' '))
        .filter_map(|mut words| Some((words.nth(1)?.split('@').next()?, words.next()?)))
        .filter(|(_, flags)| is_failed(flags))
        .map(|(address, _)| address)
        .collect();
    (!failed.is_empty()).then(|| {
        finding(
            Severity::Problem,
            "failed nodes",
            format!("the cluster counts as failed: {}", failed.join(", ")),
            "bring them back, or let the cluster forget them (CLUSTER FORGET) and add others in their place",
        )
    })
}

fn reached(count: usize, unreachable: &[(Host, Error)]) -> Finding {
    const SUBJECT: &str = "nodes";
    if unreachable.is_empty() {
        return fine(SUBJECT, format!("all {count} were reached"));
    }
    let told: Vec<_> = unreachable.iter().map(|(host, error)| format!("{host} ({error})")).collect();
    finding(
        Severity::Problem,
        SUBJECT,
        format!("not reached: {}", told.join(", ")),
        "start them, or have them announce an address that is reached from here (cluster-announce-ip, \
         cluster-announce-port)",
    )
}

fn full_coverage(nodes: &[(Host, Examined)]) -> Finding {
    const SUBJECT: &str = "cluster-require-full-coverage";
    let of = |node: &Examined| node.server.setting(SUBJECT).map(str::to_owned);
    let strict: Vec<_> = nodes
        .iter()
        .filter(|(_, node)| of(node).as_deref() == Some("yes"))
        .map(|(host, _)| host.to_string())
        .collect();
    if !strict.is_empty() {
        return finding(
            Severity::Warning,
            SUBJECT,
            format!(
                "yes on {}: when one shard fails, all nodes refuse requests and every lease is lost",
                strict.join(", ")
            ),
            "set cluster-require-full-coverage to no, so that one shard stops its own names only",
        );
    }
    match nodes.iter().find(|(_, node)| of(node).is_none()) {
        Some((_, node)) => node.server.unknown(SUBJECT, "whether one failed shard stops all"),
        None => fine(SUBJECT, "no: one failed shard stops its own names only".to_owned()),
    }
}

fn clocks(nodes: &[(Host, Examined)]) -> Finding {
    const SUBJECT: &str = "clocks of the nodes";
    let ahead = nodes.iter().filter_map(|(host, node)| Some((node.server.ahead_micros()?, host)));
    let (Some(first), Some(last)) = (ahead.clone().min(), ahead.max()) else {
        return fine(SUBJECT, "no node tells its time".to_owned());
    };
    let apart = std::time::Duration::from_micros(first.0.abs_diff(last.0));
    if apart <= SKEW_LIMIT {
        return fine(SUBJECT, format!("within {apart:.1?} of each other"));
    }
    finding(
        Severity::Warning,
        SUBJECT,
        format!(
            "{} is {apart:.1?} behind {}: after a failover or a slot's move to a node whose clock is behind, fencing \
             tokens could go back if the counter is lost too",
            first.1, last.1
        ),
        "synchronize the clocks of all nodes with NTP",
    )
}

/// What is found at the nodes, once for all that agree.
fn together(nodes: &[(Host, Examined)]) -> Vec<Finding> {
    let mut groups: Vec<(Finding, Vec<String>)> = Vec::new();
    for (host, node) in nodes {
        for found in &node.findings {
            let same = |(known, _): &&mut (Finding, Vec<String>)| {
                (&known.subject, known.severity, &known.message)
                    == (&found.subject, found.severity, &found.message)
            };
            match groups.iter_mut().find(same) {
                Some((_, hosts)) => hosts.push(host.to_string()),
                None => groups.push((found.clone(), vec![host.to_string()])),
            }
        }
    }
    let whole = nodes.len();
    let mut told: Vec<Finding> = Vec::new();
    for (mut found, hosts) in groups {
        let is_fine = found.severity == Severity::Fine;
        let place = match hosts.len() {
            count if count == whole && whole > 1 => "every node".to_owned(),
            count if is_fine && count > 1 => format!("{count} nodes"),
            _ => hosts.join(", "),
        };
        found.message = format!("on {place}: {}", found.message);
        // What is fine on all needs one line, however their figures differ.
        let known = told
            .iter_mut()
            .find(|known| is_fine && known.severity == Severity::Fine && known.subject == found.subject);
        match known {
            Some(known) if known.message.len() < MOST_OF_A_LINE => {
                known.message = format!("{}; {}", known.message, found.message);
            }
            Some(_) => {}
            None => told.push(found),
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(port: u16) -> Host {
        Host { name: "h".to_owned(), port }
    }

    fn shard(slots: (u16, u16), primary: u16, replicas: &[u16]) -> Shard {
        Shard { slots, primary: host(primary), replicas: replicas.iter().copied().map(host).collect() }
    }

    #[test]
    fn slots_without_a_node_and_primaries_without_a_replica_are_named() {
        let whole = [shard((0, 8_191), 1, &[3]), shard((8_192, 16_383), 2, &[4])];
        assert_eq!((coverage(&whole).severity, replicas(&whole).severity), (Severity::Fine, Severity::Fine));
        let holes = [shard((0, 8_191), 1, &[3]), shard((8_193, 16_383), 2, &[])];
        let (slots, bare) = (coverage(&holes), replicas(&holes));
        assert!(slots.severity == Severity::Problem && slots.message.contains("8192 to 8192"), "{slots:?}");
        assert!(bare.severity == Severity::Warning && bare.message.contains("h:2"), "{bare:?}");
    }

    #[test]
    fn nodes_that_the_cluster_counts_as_failed_are_named() {
        let nodes = "07c 127.0.0.1:1@11 myself,master - 0 1 1 connected 0-16383\n\
                     e7d 127.0.0.1:2@12,host master,fail - 1 2 2 disconnected\n\
                     a3f 127.0.0.1:3@13 slave,fail? 07c 1 2 2 disconnected\n";
        let found = failed(nodes).unwrap();
        assert!(
            found.message.contains("127.0.0.1:2, 127.0.0.1:3") && !found.message.contains(":1,"),
            "{found:?}"
        );
        assert!(failed(nodes.lines().next().unwrap()).is_none() && failed("").is_none());
    }

    #[test]
    fn a_cluster_that_is_down_is_a_problem() {
        assert_eq!(condition("cluster_state:ok\r\ncluster_size:3\r\n").severity, Severity::Fine);
        assert_eq!(condition("cluster_state:fail\r\n").severity, Severity::Problem);
        assert_eq!(condition("").severity, Severity::Warning);
    }
}
