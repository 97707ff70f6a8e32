//! What is said about the server when the first connection is made, without anybody asking: that leases can be
//! evicted. Everything else is the doctor's.

use redis::Value;

use crate::reply;
use crate::shared::Shared;

/// The question; a user who may not ask it is not told.
pub(crate) const QUESTION: [&str; 2] = ["INFO", "memory"];

/// Warns if the server deletes leases when its memory is full.
pub(crate) fn warn_about(answer: &Value, shared: &Shared) {
    let Ok(text) = reply::text(answer) else { return };
    if let Some(policy) = evicting_policy(text) {
        tracing::warn!(
            store = shared.config.describe(),
            policy,
            "the server deletes leases that are held when its memory is full, and two can hold one then: set \
             maxmemory-policy to noeviction, or keep locks on a server of their own"
        );
    }
}

/// The policy, if there is a limit and keys with a TTL are evicted at it.
fn evicting_policy(info: &str) -> Option<&str> {
    let line =
        |name: &str| info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
    let limited = line("maxmemory").is_some_and(|limit| limit != "0");
    line("maxmemory_policy").filter(|policy| limited && *policy != "noeviction")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_35_eviction_is_told_when_there_is_a_limit() {
        let info = |limit, policy| format!("# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n");
        assert_eq!(evicting_policy(&info(100, "volatile-lru")), Some("volatile-lru"));
        assert_eq!(evicting_policy(&info(0, "volatile-lru")), None);
        assert_eq!(evicting_policy(&info(100, "noeviction")), None);
        assert_eq!(evicting_policy(""), None);
    }
}
