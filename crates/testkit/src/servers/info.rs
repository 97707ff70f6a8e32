//! Reads what `INFO` prints. Owns no connection.

use std::collections::BTreeMap;

/// What `INFO commandstats` says about one command.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommandStats {
    /// How often it was executed.
    pub calls: u64,
    /// Server time spent in it, in microseconds, all calls together.
    pub total_microseconds: u64,
    /// How often it was refused before it ran.
    pub rejected_calls: u64,
    /// How often it failed while it ran.
    pub failed_calls: u64,
}

/// The `name:value` lines of `INFO`.
pub(super) fn parse(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// `cmdstat_set:calls=1,usec=2,…` by command, in lower case.
pub(super) fn parse_command_stats(info: &BTreeMap<String, String>) -> BTreeMap<String, CommandStats> {
    info.iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("cmdstat_")?.to_owned(), parse_stats(value))))
        .collect()
}

fn parse_stats(value: &str) -> CommandStats {
    let fields: BTreeMap<_, _> = value.split(',').filter_map(|field| field.split_once('=')).collect();
    let number = |name| fields.get(name).and_then(|text: &&str| text.parse().ok()).unwrap_or_default();
    CommandStats {
        calls: number("calls"),
        total_microseconds: number("usec"),
        rejected_calls: number("rejected_calls"),
        failed_calls: number("failed_calls"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_statistics_are_read_by_command() {
        let text = "# Commandstats\r\ncmdstat_config|get:calls=3,usec=40,usec_per_call=13.33,rejected_calls=1,failed_calls=2\r\n";
        let stats = parse_command_stats(&parse(text));
        let expected = CommandStats { calls: 3, total_microseconds: 40, rejected_calls: 1, failed_calls: 2 };
        assert_eq!(stats.get("config|get"), Some(&expected));
    }
}
