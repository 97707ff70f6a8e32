//! What is kept in Redis or Valkey itself: a script that runs a command for a current holder only.

/// The script: what `leasehold sql redis` prints. KEYS: the protected key and its guard; ARGV: fencing token, owner,
/// namespace, the command, and its arguments after the key.
pub const SCRIPT: &str = include_str!("../lua/guarded.lua");

/// The guard key of a key, in the same slot of a cluster; `None` where a key has a brace and no hash tag, since no
/// other key can be put into its slot by a rule as simple as this.
///
/// ```
/// use leasehold_seal::redis::guard_key;
///
/// assert_eq!(guard_key("stock:7").as_deref(), Some("guard:{stock:7}"));
/// assert_eq!(guard_key("{cart:7}:items").as_deref(), Some("guard:{cart:7}:items"));
/// ```
pub fn guard_key(key: &str) -> Option<String> {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    match tag {
        Some(tag) if !tag.is_empty() => Some(format!("guard:{key}")),
        _ if key.contains(['{', '}']) || key.is_empty() => None,
        _ => Some(format!("guard:{{{key}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is declared in the header of the script, and what its code uses.
    #[test]
    fn the_header_of_the_script_declares_exactly_what_it_uses() {
        let (header, code) = SCRIPT.split_once("\nlocal ").unwrap();
        for (what, declared) in [("KEYS", 2), ("ARGV", 4)] {
            for number in 1..=9 {
                let word = format!("{what}[{number}]");
                assert_eq!(code.contains(&word), number <= declared, "{word}");
                assert_eq!(header.contains(&format!("-- {word} ")), number <= declared, "{word}");
            }
        }
        assert!(header.contains("ARGV[5…]") && code.contains("unpack(ARGV, 5)"));
        for error in ["LEASEHOLDFENCED", "LEASEHOLDNAMESPACE", "LEASEHOLDARGUMENT"] {
            assert!(header.contains(error) && code.contains(error), "{error}");
        }
    }

    #[test]
    fn keys_that_no_guard_can_be_beside_are_told() {
        for key in ["", "{", "a}b", "{}a", "a{b"] {
            assert_eq!(guard_key(key), None, "{key}");
        }
    }
}
