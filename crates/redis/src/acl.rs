//! The rights a user needs, in the server's own words.

use leasehold_core::Namespace;

use crate::keys::Keys;

/// Everything that is sent, and everything scripts call, wherever. HELLO and AUTH are open to everybody. Without INFO
/// it is only not known whether the server evicts leases.
const COMMANDS: [&str; 19] = [
    "info", "ping", "time", "eval", "evalsha", "get", "set", "del", "exists", "pttl", "pexpire", "zadd",
    "zrem", "zrange", "zrank", "zscore", "scan", "type", "wait",
];
/// … on a single server.
const ON_ONE_SERVER: [&str; 4] = ["select", "subscribe", "publish", "pubsub|numsub"];
/// … in a cluster.
const IN_A_CLUSTER: [&str; 6] =
    ["asking", "cluster|slots", "ssubscribe", "sunsubscribe", "spublish", "pubsub|shardnumsub"];

/// The rules that give a user all rights that locking under a namespace needs, and no more: one line that can
/// follow `ACL SETUSER app on >secret`.
///
/// ```
/// use leasehold_core::Namespace;
///
/// let rules = leasehold_redis::smallest_acl(&Namespace::default());
/// assert!(rules.starts_with("resetkeys ~lock:* resetchannels &lock:* -@all +select "));
/// ```
pub fn smallest_acl(namespace: &Namespace) -> String {
    rules_for(namespace, &ON_ONE_SERVER)
}

/// As [`smallest_acl`], for the nodes of a cluster.
///
/// ```
/// use leasehold_core::Namespace;
///
/// assert!(leasehold_redis::smallest_cluster_acl(&Namespace::default()).contains(" +ssubscribe "));
/// ```
pub fn smallest_cluster_acl(namespace: &Namespace) -> String {
    rules_for(namespace, &IN_A_CLUSTER)
}

/// The rules for whatever these keys are on.
pub(crate) fn rules(keys: &Keys) -> String {
    rules_for(keys.namespace(), if keys.is_sharded() { &IN_A_CLUSTER } else { &ON_ONE_SERVER })
}

fn rules_for(namespace: &Namespace, only_there: &[&str]) -> String {
    // Patterns of users cannot have spaces.
    let pattern = glob(namespace.as_str()).replace(' ', "?");
    let quoted = |sigil: char| {
        let rule = format!("{sigil}{pattern}");
        if rule.contains(['"', '\'', '\\']) {
            format!("\"{}\"", rule.replace('\\', "\\\\").replace('"', "\\\""))
        } else {
            rule
        }
    };
    let commands: Vec<_> = only_there.iter().chain(&COMMANDS).map(|command| format!("+{command}")).collect();
    format!("resetkeys {} resetchannels {} -@all {}", quoted('~'), quoted('&'), commands.join(" "))
}

/// A call of every command, on keys and channels of the namespace, to ask the server about.
pub(crate) fn examples(keys: &Keys, scripting: bool) -> Vec<Vec<String>> {
    let probe = keys.of_probe();
    let (lock, queue, fence) = (probe.lock.as_str(), probe.queue.as_str(), &*probe.fence);
    let channel = format!("{}probe", probe.channel_prefix);
    let (subscribe, publish, listeners) = if keys.is_sharded() {
        ("SSUBSCRIBE", "SPUBLISH", "SHARDNUMSUB")
    } else {
        ("SUBSCRIBE", "PUBLISH", "NUMSUB")
    };
    let mut calls: Vec<Vec<&str>> = vec![
        vec!["PING"],
        vec!["GET", lock],
        vec!["SET", lock, "probe", "NX", "PX", "1"],
        vec!["PTTL", lock],
        vec!["SCAN", "0"],
        vec!["TYPE", lock],
    ];
    if scripting {
        calls.extend([
            vec!["TIME"],
            vec!["EVAL", "return 1", "3", lock, queue, fence],
            vec!["EVALSHA", "0", "3", lock, queue, fence],
            vec!["GET", fence],
            vec!["SET", fence, "1"],
            vec!["DEL", lock],
            vec!["EXISTS", queue],
            vec!["PEXPIRE", lock, "1"],
            vec!["ZADD", queue, "NX", "1", "probe"],
            vec!["ZREM", queue, "probe"],
            vec!["ZRANGE", queue, "0", "0"],
            vec!["ZRANK", queue, "probe"],
            vec!["ZSCORE", queue, "probe"],
            vec![subscribe, &channel],
            vec![publish, &channel, "0"],
            vec!["PUBSUB", listeners, &channel],
        ]);
    }
    if keys.is_sharded() {
        calls.extend([vec!["ASKING"], vec!["CLUSTER", "SLOTS"], vec!["SUNSUBSCRIBE", &channel]]);
    }
    calls.into_iter().map(|words| words.into_iter().map(str::to_owned).collect()).collect()
}

/// The pattern that matches everything that begins with this text.
pub(crate) fn glob(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether one of the rights is for this command, whatever its second word.
    fn covers(rights: &[&str], command: &str) -> bool {
        COMMANDS.iter().chain(rights).any(|known| known.split('|').next() == Some(command))
    }

    #[test]
    fn the_rights_cover_what_is_called() {
        let keys = Keys::new(Namespace::default()).unwrap();
        for (keys, rights) in [(keys.clone(), &ON_ONE_SERVER[..]), (keys.sharded(0), &IN_A_CLUSTER)] {
            for words in examples(&keys, true) {
                assert!(covers(rights, &words[0].to_lowercase()), "{words:?}");
            }
        }
    }

    #[test]
    fn scripts_call_nothing_beyond_the_rights() {
        for script in [
            include_str!("../scripts/mint.lua"),
            include_str!("../scripts/serve.lua"),
            include_str!("../scripts/acquire.lua"),
            include_str!("../scripts/release.lua"),
            include_str!("../scripts/renew.lua"),
            include_str!("../scripts/break.lua"),
            include_str!("../scripts/swap.lua"),
            include_str!("../scripts/settle.lua"),
            include_str!("../scripts/probe.lua"),
            include_str!("../scripts/step_take.lua"),
            include_str!("../scripts/step_mint.lua"),
            include_str!("../scripts/step_release.lua"),
        ] {
            let in_force = script.lines().filter(|line| !line.contains("--[[without:"));
            for call in in_force.flat_map(|line| line.split("call('").skip(1)) {
                let command = call.split('\'').next().unwrap().to_lowercase();
                assert!(covers(&ON_ONE_SERVER, &command), "{command} is called but not among the rights");
            }
        }
    }

    #[test]
    fn namespaces_with_glob_characters_are_escaped_and_quoted() {
        let line = smallest_acl(&Namespace::new("a*b c").unwrap());
        assert!(line.contains("\"~a\\\\*b?c*\""), "{line}");
        assert!(smallest_acl(&Namespace::new("").unwrap()).contains("resetkeys ~* "));
    }
}
