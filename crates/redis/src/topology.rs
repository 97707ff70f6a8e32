//! What the doctor finds around the server in use: the Sentinels that watch it, and the replicas that may take its
//! place. A part that cannot be looked at is a finding. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::store::{Finding, Severity};
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;

use crate::config::{Address, Sentinels, Target};
use crate::doctor::{self, Server, finding, fine};
use crate::handshake::open_plain;
use crate::hosts::Host;
use crate::sentinel::{self, Seen};
use crate::shared::Shared;

/// With fewer, the loss of one leaves nobody who may fail over.
const FEWEST_SENTINELS: u64 = 3;
/// Clocks that are further apart make fencing tokens go back if one server takes the other's place at once.
const SKEW_LIMIT: Duration = Duration::from_millis(500);
/// A replica that was last heard of longer ago, in whole seconds, has lost what happened since.
const LAG_LIMIT_SECONDS: u64 = 2;
/// Changes that a replica has not confirmed yet, in bytes; leases are a hundred bytes each.
const BEHIND_LIMIT: u64 = 1_000_000;
/// More replicas of one primary are not looked at.
const MOST_REPLICAS: usize = 50;
/// How long a server around the one in use may take to tell.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// Looks at Sentinels and replicas. Sockets belong to the store's runtime, so it looks there.
pub(crate) async fn look_around(shared: &Arc<Shared>, primary: &Server) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Target::Sentinel(sentinels) = &shared.config.target {
        let (asked, used) = (sentinels.clone(), shared.primary.used());
        let seen = shared.handle.spawn(async move { look_at_sentinels(&asked, used.as_ref()).await });
        findings.extend(seen.await.unwrap_or_default());
    }
    let replicas = replicas_of(primary);
    if replicas.is_empty() && matches!(shared.config.target, Target::Sentinel(_)) {
        findings.push(finding(
            Severity::Problem,
            "replicas",
            "the primary has none, so nothing can take its place".to_owned(),
            "start a replica, or look why it does not follow (INFO replication there)",
        ));
    }
    for replica in replicas {
        findings.extend(look_at_replica(shared, primary, replica).await);
    }
    findings
}

async fn look_at_sentinels(sentinels: &Sentinels, used: Option<&Address>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for host in &sentinels.hosts {
        let seen = timeout(LOOK_TIMEOUT, sentinel::examine(sentinels, host)).await;
        findings.extend(match seen {
            Ok(Ok(seen)) => judge_sentinel(sentinels, host, &seen, used),
            Ok(Err(error)) => vec![unseen(&subject_of(host), &error.to_string())],
            Err(_) => vec![unseen(&subject_of(host), "no answer")],
        });
    }
    findings
}

fn subject_of(host: &Host) -> String {
    format!("sentinel {host}")
}

fn unseen(subject: &str, why: &str) -> Finding {
    finding(
        Severity::Warning,
        subject,
        format!("it does not tell anything ({why})"),
        "start it or let it be reached, or take it out of the URL",
    )
}

fn judge_sentinel(sentinels: &Sentinels, host: &Host, seen: &Seen, used: Option<&Address>) -> Vec<Finding> {
    let subject = subject_of(host);
    let place = seen.place.as_ref().map(|place| sentinels.address(place));
    let Some(place) = place else {
        return vec![finding(
            Severity::Problem,
            &subject,
            format!("it does not monitor {:?}", sentinels.service),
            "let it monitor the service, or take it out of the URL",
        )];
    };
    let mut findings = Vec::new();
    if used != Some(&place) {
        findings.push(finding(
            Severity::Warning,
            &subject,
            format!("it names {place} as the primary, another one than the newest that is known"),
            "look whether it reaches the other Sentinels and the servers; after a failover it takes a moment",
        ));
    }
    if let Some(why) = &seen.no_quorum {
        findings.push(finding(
            Severity::Problem,
            &subject,
            format!("no failover is possible: {why}"),
            "start the missing Sentinels, and let them reach each other",
        ));
    }
    let together = seen.others.map_or(FEWEST_SENTINELS, |others| others + 1);
    if together < FEWEST_SENTINELS {
        findings.push(finding(
            Severity::Warning,
            &subject,
            format!("{together} Sentinels know of each other: after the loss of one no failover is possible"),
            "run three, on three machines",
        ));
    }
    if findings.is_empty() {
        let others = seen.others.map_or_else(|| "?".to_owned(), |others| others.to_string());
        findings.push(fine(&subject, format!("it names {place}, and knows {others} other Sentinels")));
    }
    findings
}

/// A replica as its primary tells of it.
#[derive(Debug, PartialEq, Eq)]
struct Replica {
    host: Host,
    state: String,
    lag_seconds: u64,
    behind: u64,
}

/// The lines `slave0:ip=…,port=…,state=online,offset=…,lag=…` of `INFO replication`.
fn replicas_of(primary: &Server) -> Vec<Replica> {
    let offset = primary.info("master_repl_offset").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let read = |line: &str| {
        let field = |name: &str| {
            line.split(',')
                .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
                .map(|pair| pair.1)
        };
        let number = |name| field(name).and_then(|text| text.parse::<u64>().ok());
        Some(Replica {
            host: Host { name: field("ip")?.to_owned(), port: field("port")?.parse().ok()? },
            state: field("state")?.to_owned(),
            lag_seconds: number("lag").unwrap_or(0),
            behind: offset.saturating_sub(number("offset").unwrap_or(0)),
        })
    };
    let lines = (0..MOST_REPLICAS).map_while(|number| primary.info(&format!("slave{number}")));
    lines.filter_map(read).collect()
}

async fn look_at_replica(shared: &Arc<Shared>, primary: &Server, replica: Replica) -> Vec<Finding> {
    let subject = format!("replica {}", replica.host);
    let mut findings = vec![judge_lag(&subject, &replica)];
    let tls = match &shared.config.target {
        Target::Server(Address::Tcp { tls, .. }) => tls.clone(),
        Target::Server(Address::Unix(_)) => None,
        Target::Sentinel(sentinels) => sentinels.tls.clone(),
    };
    let address = Address::Tcp { host: replica.host.name, port: replica.host.port, tls };
    let looking = Arc::clone(shared);
    let seen = shared.handle.spawn(async move {
        let looked = timeout(LOOK_TIMEOUT, look_at(&looking, &address)).await;
        looked.unwrap_or_else(|_| Err(format!("no answer within {LOOK_TIMEOUT:?}")))
    });
    match seen.await.unwrap_or_else(|_| Err("the runtime of the store has been shut down".to_owned())) {
        Err(why) => findings.push(finding(
            Severity::Warning,
            &subject,
            format!("it cannot be looked at from here ({why})"),
            "let clients reach it with the same user and password: they will have to after a failover",
        )),
        Ok(server) => {
            findings.push(judge_skew(&subject, primary, &server));
            for mut found in [doctor::eviction(&server), doctor::persistence(&server)] {
                found.subject = format!("{subject}: {}", found.subject);
                findings.push(found);
            }
        }
    }
    findings
}

async fn look_at(shared: &Shared, address: &Address) -> Result<Server, String> {
    let (link, driver) = open_plain(&shared.config, address).await.map_err(|error| error.to_string())?;
    let asking = async |mut link: MultiplexedConnection| {
        let asked = doctor::questions(shared);
        let replies = link.send_packed_commands(&asked, 0, asked.len()).await;
        doctor::read(&replies.map_err(|error| error.to_string())?)
            .ok_or_else(|| "its answers are odd".to_owned())
    };
    tokio::select! {
        seen = asking(link) => seen,
        () = driver => Err("it closed the connection".to_owned()),
    }
}

fn judge_lag(subject: &str, replica: &Replica) -> Finding {
    const ADVICE: &str = "look at its log and its network: what it has not heard of is lost if it takes over";
    let Replica { state, lag_seconds, behind, .. } = replica;
    if state != "online" {
        let message = format!("it does not follow yet ({state})");
        return finding(Severity::Warning, subject, message, ADVICE);
    }
    if *lag_seconds > LAG_LIMIT_SECONDS || *behind > BEHIND_LIMIT {
        let message = format!("it was last heard of {lag_seconds} s ago and is {behind} bytes behind");
        return finding(Severity::Warning, subject, message, ADVICE);
    }
    fine(subject, format!("it follows, {behind} bytes behind"))
}

/// Both were compared with the clock of this machine, moments apart.
fn judge_skew(subject: &str, primary: &Server, replica: &Server) -> Finding {
    let subject = format!("{subject}: clock");
    let (Some(here), Some(there)) = (primary.ahead_micros(), replica.ahead_micros()) else {
        return replica.unknown(&subject, "the server's time");
    };
    let apart = Duration::from_micros(here.abs_diff(there));
    if apart <= SKEW_LIMIT {
        return fine(&subject, format!("within {apart:.1?} of the primary's"));
    }
    let which = if there < here { "behind" } else { "ahead of" };
    finding(
        Severity::Warning,
        &subject,
        format!(
            "{apart:.1?} {which} the primary's: fencing tokens are floored by the clock, so they can go back when the \
             one that is behind takes the place of the other"
        ),
        "synchronize the clocks of all servers with NTP",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(state: &str, lag_seconds: u64, behind: u64) -> Replica {
        Replica { host: Host { name: "h".into(), port: 1 }, state: state.into(), lag_seconds, behind }
    }

    #[test]
    fn replicas_that_are_behind_are_named() {
        for (replica, severity) in [
            (replica("online", 1, 500), Severity::Fine),
            (replica("online", 9, 500), Severity::Warning),
            (replica("online", 0, 2_000_000), Severity::Warning),
            (replica("wait_bgsave", 0, 0), Severity::Warning),
        ] {
            assert_eq!(judge_lag("replica h:1", &replica).severity, severity, "{replica:?}");
        }
    }
}
