//! The scripts: their text, their hashes, and how one is called. What they do is written in `scripts/*.lua`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::Moment;
use redis::Cmd;

/// A script, ready to be called.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
    /// When the text was sent last, in nanoseconds of the clock.
    text_sent_at: AtomicU64,
}

impl Script {
    fn new(source: &str) -> Self {
        let text = prepared(&with_includes(source));
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash, text_sent_at: AtomicU64::new(0) }
    }

    /// Begins a call by hash; keys and arguments follow.
    pub(crate) fn by_hash(&self, keys: usize) -> Cmd {
        const ARGUMENT_BYTES: usize = 48;
        let arguments = 4 + 3 * keys;
        let mut command = Cmd::with_capacity(arguments, arguments * ARGUMENT_BYTES);
        command.arg("EVALSHA").arg(self.hash.as_str()).arg(keys);
        command
    }

    /// The same call with the whole text, which makes the server keep it.
    pub(crate) fn by_text(&self, call: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.text.as_str());
        for argument in call.args_iter().skip(2) {
            match argument {
                redis::Arg::Simple(bytes) => command.arg(bytes),
                _ => continue,
            };
        }
        command
    }
}

impl Script {
    /// Whether the text was sent after that moment: then the server has it, or will before what is sent now.
    pub(crate) fn text_was_sent_after(&self, moment: Moment) -> bool {
        Moment::from_origin(Duration::from_nanos(self.text_sent_at.load(Ordering::Acquire))) > moment
    }

    pub(crate) fn text_is_sent_at(&self, moment: Moment) {
        let nanos = u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX);
        self.text_sent_at.fetch_max(nanos, Ordering::AcqRel);
    }
}

/// All scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) break_lease: Script,
    pub(crate) swap: Script,
    pub(crate) settle: Script,
    pub(crate) probe: Script,
    pub(crate) step_take: Script,
    pub(crate) step_mint: Script,
    pub(crate) step_release: Script,
}

const MINT: &str = include_str!("../scripts/mint.lua");
const SERVE: &str = include_str!("../scripts/serve.lua");
const ACQUIRE: &str = include_str!("../scripts/acquire.lua");
const RELEASE: &str = include_str!("../scripts/release.lua");
const RENEW: &str = include_str!("../scripts/renew.lua");
const BREAK: &str = include_str!("../scripts/break.lua");
const SWAP: &str = include_str!("../scripts/swap.lua");
const SETTLE: &str = include_str!("../scripts/settle.lua");
const PROBE: &str = include_str!("../scripts/probe.lua");
const STEP_TAKE: &str = include_str!("../scripts/step_take.lua");
const STEP_MINT: &str = include_str!("../scripts/step_mint.lua");
const STEP_RELEASE: &str = include_str!("../scripts/step_release.lua");

impl Scripts {
    /// The scripts for a single server, or with the sharded channels of a cluster.
    pub(crate) fn load(sharded: bool) -> Self {
        let script =
            |source| if sharded { Script::new(&with_sharded_channels(source)) } else { Script::new(source) };
        Self {
            acquire: script(ACQUIRE),
            release: script(RELEASE),
            renew: script(RENEW),
            break_lease: script(BREAK),
            swap: script(SWAP),
            settle: script(SETTLE),
            probe: script(PROBE),
            step_take: script(STEP_TAKE),
            step_mint: script(STEP_MINT),
            step_release: script(STEP_RELEASE),
        }
    }
}

/// In a cluster a message goes to the node of its channel's slot only, and so does the question who listens.
fn with_sharded_channels(source: &str) -> String {
    with_includes(source).replace("'PUBLISH'", "'SPUBLISH'").replace("NUMSUB'", "SHARDNUMSUB'")
}

/// The script with the parts that it shares with others, each where its line is.
fn with_includes(source: &str) -> String {
    source
        .replace("--@include release\n", RELEASE)
        .replace("--@include mint\n", MINT)
        .replace("--@include mint of KEYS[1]\n", &MINT.replace("KEYS[3]", "KEYS[1]"))
        .replace("--@include serve\n", SERVE)
}

/// The script as it is sent.
#[cfg(not(leasehold_mutation))]
fn prepared(source: &str) -> String {
    source.to_owned()
}

/// The script as it is sent: a line that ends with `--[[rule:NAME]]` is dropped when that rule is off, and a
/// line that begins with `--[[without:NAME]]--` is only then in force.
#[cfg(leasehold_mutation)]
fn prepared(source: &str) -> String {
    use leasehold_core::mutation::{Rule, on};
    let mut text = source.to_owned();
    for rule in Rule::ALL.iter().filter(|&&rule| !on(rule)) {
        let guarded = format!("--[[rule:{}]]", rule.name());
        let substitute = format!("--[[without:{}]]--", rule.name());
        text = text
            .split_inclusive('\n')
            .filter(|line| !line.contains(&guarded))
            .map(|line| line.replace(&substitute, ""))
            .collect();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use leasehold_core::mutation::Rule;

    use super::*;

    const ALL: [(&str, &str); 10] = [
        ("acquire", ACQUIRE),
        ("release", RELEASE),
        ("renew", RENEW),
        ("break", BREAK),
        ("swap", SWAP),
        ("settle", SETTLE),
        ("probe", PROBE),
        ("step_take", STEP_TAKE),
        ("step_mint", STEP_MINT),
        ("step_release", STEP_RELEASE),
    ];

    /// What a script's header declares, and what its code uses.
    fn parse(source: &str) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut declared, mut code) = (BTreeSet::new(), String::new());
        for line in source.lines().take_while(|line| line.starts_with("--")) {
            let comment = line.trim_start_matches("-- ");
            if comment.starts_with("KEYS[") || comment.starts_with("ARGV[") {
                let end = comment.find(']').unwrap();
                let kind = comment[end + 1..].split_whitespace().next().unwrap();
                let known = ["string", "zset", "text", "ms", "us"].contains(&kind);
                assert!(known, "{comment}: {kind} is no type of the header");
                declared.insert(comment[..=end].to_owned());
            }
        }
        for line in with_includes(source).lines() {
            if !line.trim_start().starts_with("-- ") {
                code.push_str(line);
            }
        }
        (used_in(&code, &declared), declared)
    }

    /// The KEYS and ARGV that the code reads: by index, as the rest from an index on, or by a loop from one.
    fn used_in(code: &str, declared: &BTreeSet<String>) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for array in ["KEYS[", "ARGV["] {
            for (at, _) in code.match_indices(array) {
                let index: String = code[at + 5..].chars().take_while(char::is_ascii_digit).collect();
                if !index.is_empty() {
                    let rest = format!("{array}{index}…]");
                    let single = format!("{array}{index}]");
                    used.insert(if declared.contains(&rest) { rest } else { single });
                }
            }
        }
        used
    }

    #[test]
    fn headers_declare_exactly_what_the_scripts_use() {
        for (name, source) in ALL {
            let (used, declared) = parse(source);
            assert_eq!(declared, used, "{name}.lua");
            assert!(source.contains("-- Replies:"), "{name}.lua says what it replies");
        }
    }

    #[test]
    fn every_include_is_found() {
        for (name, source) in ALL {
            assert!(!with_includes(source).contains("--@include"), "{name}.lua");
        }
        assert!(with_includes(ACQUIRE).contains(MINT) && with_includes(BREAK).contains(SERVE));
    }

    #[test]
    fn in_a_cluster_every_message_and_question_is_for_a_sharded_channel() {
        for (name, source) in ALL {
            let (plain, sharded) = (with_includes(source), with_sharded_channels(source));
            for (before, after) in [("PUBLISH'", "'SPUBLISH'"), ("NUMSUB'", "SHARDNUMSUB'")] {
                let count = |text: &str, word| text.matches(word).count();
                assert_eq!(count(&plain, before), count(&sharded, after), "{name}.lua {before}");
                assert_eq!(count(&plain, before), count(&sharded, before), "{name}.lua {before}");
            }
        }
    }

    #[test]
    fn what_is_done_while_a_slot_migrates_declares_one_key() {
        for source in [RENEW, STEP_TAKE, STEP_MINT, STEP_RELEASE] {
            let keys: Vec<_> = parse(source).1.into_iter().filter(|name| name.starts_with("KEYS")).collect();
            assert_eq!(keys, ["KEYS[1]"]);
        }
    }

    #[test]
    fn numbers_leave_the_scripts_as_whole_text_and_time_is_read_once() {
        for (name, source) in ALL.into_iter().chain([("mint", MINT), ("serve", SERVE)]) {
            assert!(!source.contains("tostring("), "{name}.lua: tostring rounds large numbers (trap 38)");
            let reads = source.matches("call('TIME')").count();
            assert!(
                reads <= usize::from(["mint", "step_take"].contains(&name)),
                "{name}.lua reads the time again (trap 39)"
            );
        }
    }

    #[test]
    fn rules_named_in_scripts_exist() {
        for (name, source) in ALL.into_iter().chain([("mint", MINT), ("serve", SERVE)]) {
            for marker in ["--[[rule:", "--[[without:"] {
                for (at, _) in source.match_indices(marker) {
                    let rule = source[at + marker.len()..].split("]]").next().unwrap();
                    assert!(Rule::ALL.iter().any(|known| known.name() == rule), "{name}.lua: {rule}");
                }
            }
        }
    }

    #[test]
    fn a_call_by_text_has_the_same_keys_and_arguments() {
        let script = Script::new("return 1");
        let mut call = script.by_hash(1);
        call.arg("key").arg("argument").arg("");
        let whole = script.by_text(&call);
        let arguments: Vec<_> = whole
            .args_iter()
            .map(|argument| match argument {
                redis::Arg::Simple(bytes) => bytes,
                _ => panic!("no cursor in a script call"),
            })
            .collect();
        assert_eq!(arguments, [&b"EVAL"[..], b"return 1", b"1", b"key", b"argument", b""]);
        assert_eq!(script.hash, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
