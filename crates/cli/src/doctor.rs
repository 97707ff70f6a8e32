//! `leasehold doctor`: prints what the store's own examination found.

use leasehold::{Finding, Severity};
use leasehold_redis::ClusterConfig;
use serde_json::json;

use crate::args::{DoctorArgs, StoreArgs};
use crate::connect::{self, connect_to_look};
use crate::failure::Failure;
use crate::output::{self, Style, one_line, styled};

/// The exit code when something was found.
const SOMETHING_IS_WRONG: u8 = 1;

/// Examines the store; 0 only when nothing is wrong.
pub(crate) async fn examine(store: &StoreArgs, args: &DoctorArgs) -> Result<u8, Failure> {
    if args.acl {
        return print_rights(store).map(|()| 0);
    }
    let client = connect_to_look(store).await?;
    let mut findings = client.diagnose().await?;
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let fine = findings.iter().all(|finding| finding.severity == Severity::Fine);
    if args.json {
        let findings: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "severity": word(finding.severity),
                    "subject": finding.subject,
                    "message": finding.message,
                    "advice": finding.advice,
                })
            })
            .collect();
        output::json(&json!({ "store": client.store(), "fine": fine, "findings": findings }))?;
    } else {
        let verdict = if fine { "nothing is wrong" } else { "see above" };
        let lines: String = findings.iter().map(line).collect();
        output::data(&format!("{lines}{}: {verdict}\n", client.store()))?;
    }
    Ok(if fine { 0 } else { SOMETHING_IS_WRONG })
}

/// Prints what a user must be allowed. It asks no server: a user without rights could not be told.
fn print_rights(store: &StoreArgs) -> Result<(), Failure> {
    if !connect::is_redis(connect::url(store)?) {
        return Err(Failure::usage("--acl is for Redis and Valkey: this store has no users of its own"));
    }
    let namespace = connect::namespace(store)?;
    let in_cluster = ClusterConfig::is_cluster_url(connect::url(store)?);
    let rules = if in_cluster { leasehold::smallest_cluster_acl } else { leasehold::smallest_acl };
    output::data(&format!("{}\n", rules(&namespace)))
}

fn line(finding: &Finding) -> String {
    let style = match finding.severity {
        Severity::Fine => Style::Green,
        Severity::Warning => Style::Yellow,
        Severity::Problem => Style::Red,
    };
    let word = styled(&format!("{:<8}", word(finding.severity)), style);
    let mut text = format!("{word} {}: {}\n", finding.subject, one_line(&finding.message));
    if !finding.advice.is_empty() {
        text = format!("{text}         {}\n", finding.advice);
    }
    text
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        Severity::Problem => "problem",
    }
}
