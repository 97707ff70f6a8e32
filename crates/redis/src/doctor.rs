//! Looks for settings and conditions of the server that endanger locks. What the server does not let this user
//! see is a finding, not an error. Changes nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::Error;
use leasehold_core::store::{Finding, Severity};
use redis::{Pipeline, Value};

use crate::acl;
use crate::failure::{Failure, Refusal};
use crate::handshake::command;
use crate::questions::Questions;
use crate::reply;
use crate::rights::Rights;
use crate::shared::Shared;
use crate::topology;

/// What is said about the last fencing token.
pub(crate) const FENCING_COUNTER: &str = "fencing counter";
/// Clocks further apart than this are not kept by NTP.
pub(crate) const SKEW_LIMIT: Duration = Duration::from_secs(2);
/// A server whose memory is this full refuses new leases soon.
const FULL_PERCENT: u64 = 90;

pub(crate) async fn diagnose(shared: &Arc<Shared>, questions: &Questions) -> Result<Vec<Finding>, Error> {
    let server = look(shared, questions).await.map_err(Failure::into_error)?;
    let mut findings = server.findings();
    findings.extend(topology::look_around(shared, &server).await);
    findings.extend(rights(shared, questions).await.map_err(Failure::into_error)?);
    Ok(findings)
}

/// What a server tells about itself; empty where it refuses.
pub(crate) struct Server {
    hello: Value,
    info: Result<String, Refusal>,
    settings: Result<Value, Refusal>,
    time: Option<Duration>,
    local_time: Duration,
    last_token: Option<u64>,
}

impl Server {
    /// What its settings and condition mean for locks.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![version(self), eviction(self), memory(self), persistence(self)];
        findings.extend([save_errors(self), replicas(self), skew(self), counter(self)]);
        findings
    }

    /// How far its clock is ahead of this machine's, in microseconds.
    pub(crate) fn ahead_micros(&self) -> Option<i64> {
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).ok();
        Some(micros(self.time?)? - micros(self.local_time)?)
    }

    /// A line of `INFO`.
    pub(crate) fn info(&self, name: &str) -> Option<&str> {
        self.info
            .as_ref()
            .ok()?
            .lines()
            .find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
    }

    /// A setting of `CONFIG GET`.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        reply::text(reply::field(self.settings.as_ref().ok()?, name)?).ok()
    }

    /// Why something is not known.
    pub(crate) fn unknown(&self, subject: &str, what: &str) -> Finding {
        let refused = self.settings.as_ref().err().or(self.info.as_ref().err());
        let why = refused.map_or("the server does not tell".to_owned(), Refusal::shown);
        finding(
            Severity::Warning,
            subject,
            format!("{what} cannot be seen ({why})"),
            "run the doctor as a user who may use CONFIG GET and INFO, or look it up where the server is managed",
        )
    }
}

pub(crate) async fn look(shared: &Shared, questions: &Questions) -> Result<Server, Failure> {
    let replies = questions.ask_all(&self::questions(shared)).await?;
    read(&replies).ok_or(Failure::BadReply)
}

/// What a server is asked.
pub(crate) fn questions(shared: &Shared) -> Pipeline {
    let mut asked = redis::pipe();
    asked.cmd("HELLO").cmd("INFO").cmd("TIME").cmd("GET").arg(&*shared.config.keys.of_probe().fence);
    // One pattern, since Redis 6.2 takes only one.
    asked.cmd("CONFIG").arg("GET").arg("*");
    asked
}

/// What it has answered just now.
pub(crate) fn read(replies: &[Value]) -> Option<Server> {
    let local_time = now_since_epoch();
    let [hello, info, time, last_token, settings] = replies else { return None };
    let allowed = |value: &Value| Refusal::in_value(value).map_or(Ok(()), Err);
    Some(Server {
        hello: hello.clone(),
        info: allowed(info).map(|()| reply::text(info).unwrap_or_default().to_owned()),
        settings: allowed(settings).map(|()| settings.clone()),
        time: reply::time_micros(time).ok().map(Duration::from_micros),
        local_time,
        last_token: reply::number(last_token).ok(),
    })
}

fn version(server: &Server) -> Finding {
    let field = |name| {
        reply::field(&server.hello, name).and_then(|value| reply::text(value).ok()).unwrap_or("unknown")
    };
    let (mut name, mut version) = (field("server"), field("version"));
    if let Some(valkey) = server.info("valkey_version") {
        (name, version) = ("valkey", valkey);
    }
    fine("server", format!("{name} {version}, {} {}", field("mode"), field("role")))
}

pub(crate) fn eviction(server: &Server) -> Finding {
    const SUBJECT: &str = "eviction policy";
    let policy = server.setting("maxmemory-policy").or_else(|| server.info("maxmemory_policy"));
    let limit = server.setting("maxmemory").or_else(|| server.info("maxmemory"));
    match (policy, limit) {
        (None, _) => server.unknown(SUBJECT, "whether leases can be evicted"),
        (Some("noeviction"), _) => fine(SUBJECT, "noeviction: no lease is evicted".to_owned()),
        (Some(policy), Some("0")) => finding(
            Severity::Warning,
            SUBJECT,
            format!("{policy}, without a memory limit: leases can be evicted once a limit is set"),
            "set maxmemory-policy to noeviction",
        ),
        (Some(policy), _) => finding(
            Severity::Problem,
            SUBJECT,
            format!(
                "{policy}: when memory is short the server deletes leases that are held, and two can hold one"
            ),
            "set maxmemory-policy to noeviction, or keep locks on a server of their own",
        ),
    }
}

fn memory(server: &Server) -> Finding {
    const SUBJECT: &str = "memory";
    let number = |name| server.info(name).and_then(|text| text.parse::<u64>().ok());
    match (number("used_memory"), number("maxmemory")) {
        (Some(_), Some(0)) => fine(SUBJECT, "no limit is set".to_owned()),
        (Some(used), Some(limit)) => {
            let percent = used.saturating_mul(100) / limit;
            if percent < FULL_PERCENT {
                return fine(SUBJECT, format!("{percent} % of maxmemory is used"));
            }
            finding(
                Severity::Warning,
                SUBJECT,
                format!("{percent} % of maxmemory is used; when it is full no new lease can be taken"),
                "raise maxmemory, or keep locks apart from cached data",
            )
        }
        _ => server.unknown(SUBJECT, "how full the memory is"),
    }
}

pub(crate) fn persistence(server: &Server) -> Finding {
    const SUBJECT: &str = "persistence";
    let aof = server
        .setting("appendonly")
        .map(|on| on == "yes")
        .or_else(|| server.info("aof_enabled").map(|on| on == "1"));
    match (aof, server.setting("save").map(str::is_empty)) {
        (None, _) => server.unknown(SUBJECT, "whether leases survive a restart"),
        (Some(true), _) => fine(SUBJECT, "the append-only file is on".to_owned()),
        (Some(false), Some(true)) => finding(
            Severity::Warning,
            SUBJECT,
            "none: if the server is restarted at once it has forgotten every lease, and a second holder gets in"
                .to_owned(),
            "set appendonly to yes, or let a restart wait for the longest TTL; and check fencing tokens where work \
             is written",
        ),
        (Some(false), _) => finding(
            Severity::Warning,
            SUBJECT,
            "snapshots only: a restart goes back to the last one, with the leases of that time".to_owned(),
            "set appendonly to yes, or let a restart wait for the longest TTL; and check fencing tokens where work \
             is written",
        ),
    }
}

fn save_errors(server: &Server) -> Finding {
    const SUBJECT: &str = "stop-writes-on-bgsave-error";
    const ADVICE: &str = "set stop-writes-on-bgsave-error to no, and watch rdb_last_bgsave_status instead";
    let failed = server.info("rdb_last_bgsave_status") == Some("err");
    match server.setting(SUBJECT) {
        None => server.unknown(SUBJECT, "whether a failed snapshot stops all writes"),
        Some("no") => fine(SUBJECT, "no: a failed snapshot does not stop releases and renewals".to_owned()),
        Some(_) if failed => finding(
            Severity::Problem,
            SUBJECT,
            "the last snapshot failed, so the server refuses acquires, renewals and releases".to_owned(),
            "free disk space and look at the server's log; then set stop-writes-on-bgsave-error to no",
        ),
        Some(_) if server.setting("save") == Some("") => {
            fine(SUBJECT, "yes, but no snapshots are taken".to_owned())
        }
        Some(_) => finding(
            Severity::Warning,
            SUBJECT,
            "yes: after a failed snapshot the server refuses renewals and releases too, and every lease is lost"
                .to_owned(),
            ADVICE,
        ),
    }
}

fn replicas(server: &Server) -> Finding {
    const SUBJECT: &str = "min-replicas-to-write";
    let wanted = server.setting(SUBJECT).and_then(|text| text.parse::<u64>().ok());
    let good = server.info("min_slaves_good_slaves").and_then(|text| text.parse::<u64>().ok());
    match (wanted, good) {
        (None, _) => server.unknown(SUBJECT, "whether missing replicas stop all writes"),
        (Some(0), _) => fine(SUBJECT, "0: missing replicas do not stop releases and renewals".to_owned()),
        (Some(wanted), Some(good)) if good < wanted => finding(
            Severity::Problem,
            SUBJECT,
            format!(
                "{good} of {wanted} replicas are connected, so the server refuses renewals and releases too"
            ),
            "bring replicas back, or lower min-replicas-to-write",
        ),
        (Some(wanted), _) => finding(
            Severity::Warning,
            SUBJECT,
            format!(
                "{wanted}: with fewer replicas the server refuses renewals and releases too, and leases are lost"
            ),
            "keep one replica more than that, or lower min-replicas-to-write",
        ),
    }
}

fn skew(server: &Server) -> Finding {
    const SUBJECT: &str = "clock";
    let Some(time) = server.time else { return server.unknown(SUBJECT, "the server's time") };
    let skew = time.abs_diff(server.local_time);
    if skew <= SKEW_LIMIT {
        return fine(SUBJECT, format!("within {skew:.1?} of this machine's"));
    }
    finding(
        Severity::Warning,
        SUBJECT,
        format!(
            "{skew:.1?} away from this machine's. Leases do not depend on it, but fencing tokens are floored by the \
             server's clock: after a failover to a server whose clock is behind they could go back"
        ),
        "synchronize the clocks of all servers with NTP",
    )
}

fn counter(server: &Server) -> Finding {
    const SUBJECT: &str = FENCING_COUNTER;
    let (Some(token), Some(time)) = (server.last_token, server.time) else {
        return fine(SUBJECT, "not used yet".to_owned());
    };
    let ahead = Duration::from_micros(token).saturating_sub(time);
    if ahead <= SKEW_LIMIT {
        return fine(
            SUBJECT,
            "behind the server's clock, which it would go on from if it were lost".to_owned(),
        );
    }
    finding(
        Severity::Warning,
        SUBJECT,
        format!(
            "{ahead:.1?} ahead of the server's clock, which was set back or is not the one it began on. If the \
             counter is lost before the clock has caught up, fencing tokens go back"
        ),
        "do not delete it, and do not fail over, until the clock has caught up",
    )
}

/// What this user may do: everything was tried when the connection was made; the server is asked about the rest.
pub(crate) async fn rights(shared: &Shared, questions: &Questions) -> Result<Vec<Finding>, Failure> {
    const SUBJECT: &str = "rights";
    let advice = format!("as an administrator: ACL SETUSER <this user> {}", acl::rules(&shared.config.keys));
    let mut findings = Vec::new();
    let (subscribed, may_push) = match shared.live() {
        // In a cluster waiters are told on a connection of their own: ACL DRYRUN tells about it.
        Ok((connection, Rights::Scripts { may_push })) => {
            (connection.subscribed || shared.config.keys.is_sharded(), may_push)
        }
        _ => (true, true),
    };
    if !subscribed || !may_push {
        findings.push(finding(
            Severity::Warning,
            SUBJECT,
            "wake channels are denied to this user, so waiters poll and are served later".to_owned(),
            &advice,
        ));
    }
    let missing = missing_rights(shared, questions).await?;
    if missing.is_empty() {
        findings.push(fine(SUBJECT, "what locking needs was tried when connecting, and works".to_owned()));
    } else {
        findings.push(finding(
            Severity::Warning,
            SUBJECT,
            format!("denied to this user: {}", missing.join(", ")),
            &advice,
        ));
    }
    Ok(findings)
}

/// What this user lacks: as `ACL DRYRUN` says, or where that does not exist or is denied, as trying shows.
async fn missing_rights(shared: &Shared, questions: &Questions) -> Result<Vec<String>, Failure> {
    if let Some(missing) = told_rights(shared, questions).await? {
        return Ok(missing);
    }
    let key = shared.config.keys.of_probe().lock;
    let tried = [vec!["PING"], vec!["SCAN", "0", "COUNT", "1"], vec!["TYPE", &key]];
    let mut asked = redis::pipe();
    for words in &tried {
        asked.add_command(command(words));
    }
    let replies = questions.ask_all(&asked).await?;
    let refused = tried.iter().zip(&replies).filter(|(_, reply)| Refusal::in_value(reply).is_some());
    Ok(refused.map(|(words, _)| words[0].to_owned()).collect())
}

/// Asks with `ACL DRYRUN`; `None` where that does not exist or is denied.
async fn told_rights(shared: &Shared, questions: &Questions) -> Result<Option<Vec<String>>, Failure> {
    let user = match questions.ask(command(&["ACL", "WHOAMI"])).await {
        Ok(user) => reply::text(&user)?.to_owned(),
        Err(Failure::Refused(_)) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let wanted = acl::examples(&shared.config.keys, shared.config.scripting);
    let mut asked = redis::pipe();
    for words in &wanted {
        asked.cmd("ACL").arg("DRYRUN").arg(&user).arg(words);
    }
    let replies = questions.ask_all(&asked).await?;
    let mut missing = Vec::new();
    for (words, reply) in wanted.iter().zip(&replies) {
        match reply {
            Value::Okay => {}
            refused if Refusal::in_value(refused).is_some() => return Ok(None),
            _ => missing.push(words.first().cloned().unwrap_or_default()),
        }
    }
    Ok(Some(missing))
}

fn now_since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(crate) fn fine(subject: &str, message: String) -> Finding {
    finding(Severity::Fine, subject, message, "")
}

pub(crate) fn finding(severity: Severity, subject: &str, message: String, advice: &str) -> Finding {
    Finding { severity, subject: subject.to_owned(), message, advice: advice.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn server(settings: &[(&str, &str)], info: &str) -> Server {
        Server {
            hello: Value::Nil,
            info: Ok(info.replace(' ', "\r\n")),
            settings: Ok(Value::Map(
                settings.iter().map(|(name, value)| (text(name), text(value))).collect(),
            )),
            time: Some(Duration::from_secs(1_000)),
            local_time: Duration::from_secs(1_001),
            last_token: Some(999_000_000),
        }
    }

    #[test]
    fn trap_35_eviction_of_leases_is_a_problem() {
        for (policy, limit, severity) in [
            ("noeviction", "100", Severity::Fine),
            ("allkeys-lru", "0", Severity::Warning),
            ("volatile-ttl", "100", Severity::Problem),
        ] {
            let server = server(&[("maxmemory-policy", policy), ("maxmemory", limit)], "");
            assert_eq!(eviction(&server).severity, severity, "{policy} {limit}");
        }
        assert_eq!(
            eviction(&server(&[], "maxmemory_policy:allkeys-lru maxmemory:5")).severity,
            Severity::Problem
        );
        assert_eq!(eviction(&server(&[], "")).severity, Severity::Warning);
    }

    #[test]
    fn trap_72_settings_that_stop_all_writes_are_named() {
        let on = ("stop-writes-on-bgsave-error", "yes");
        assert_eq!(save_errors(&server(&[on, ("save", "60 1")], "")).severity, Severity::Warning);
        assert_eq!(save_errors(&server(&[on, ("save", "")], "")).severity, Severity::Fine);
        assert_eq!(save_errors(&server(&[on], "rdb_last_bgsave_status:err")).severity, Severity::Problem);
        let one = ("min-replicas-to-write", "1");
        assert_eq!(replicas(&server(&[one], "min_slaves_good_slaves:0")).severity, Severity::Problem);
        assert_eq!(replicas(&server(&[one], "min_slaves_good_slaves:2")).severity, Severity::Warning);
    }

    #[test]
    fn clocks_and_counters_that_are_apart_are_named() {
        let mut server = server(&[], "");
        assert_eq!((skew(&server).severity, counter(&server).severity), (Severity::Fine, Severity::Fine));
        server.local_time = Duration::from_secs(1_100);
        server.last_token = Some(1_500_000_000);
        assert_eq!(
            (skew(&server).severity, counter(&server).severity),
            (Severity::Warning, Severity::Warning)
        );
    }

    #[test]
    fn what_is_refused_is_a_finding_that_says_so() {
        let mut server = server(&[], "");
        server.settings = Err(Refusal::new("NOPERM", "no permissions to run 'config|get'"));
        let finding = save_errors(&server);
        assert!(finding.message.contains("NOPERM") && finding.severity == Severity::Warning, "{finding:?}");
    }
}
