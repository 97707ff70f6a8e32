//! The names held by the `run`s this process was started under, passed on in `LEASEHOLD_HELD`: waiting for one
//! of them would be waiting for oneself.
//!
//! Two spellings of one store (`localhost`, `127.0.0.1`) count as two stores: such a nested run is not refused,
//! it waits.

use std::fmt::Write as _;

/// The environment variable. Entries are separated by a space, their parts by a comma, and what is neither a
/// letter nor a digit nor one of `._:/@-` is percent-encoded.
pub(crate) const VARIABLE: &str = "LEASEHOLD_HELD";

/// The names held around this process.
pub(crate) struct Held(String);

impl Held {
    /// Reads them from the environment.
    pub(crate) fn from_environment() -> Self {
        Self(std::env::var_os(VARIABLE).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Whether this name of this store is among them.
    pub(crate) fn contains(&self, store: &str, namespace: &str, name: &str) -> bool {
        let entry = entry(store, namespace, name);
        self.0.split(' ').any(|held| held == entry)
    }

    /// The variable's value for a process that runs under one more name.
    pub(crate) fn with(&self, store: &str, namespace: &str, name: &str) -> String {
        let entry = entry(store, namespace, name);
        if self.0.is_empty() { entry } else { format!("{} {entry}", self.0) }
    }
}

fn entry(store: &str, namespace: &str, name: &str) -> String {
    [store, namespace, name].map(encode).join(",")
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weird_names_are_told_apart() {
        let held = Held(String::new());
        let held = Held(held.with("local", "lock:", "a b,c%"));
        let held = Held(held.with("local", "lock:", "zażółć"));
        assert!(held.contains("local", "lock:", "a b,c%"));
        assert!(held.contains("local", "lock:", "zażółć"));
        for other in ["a", "b", "c", "a b", "c%", "", "a%20b,c%"] {
            assert!(!held.contains("local", "lock:", other), "{other}");
        }
        assert!(!held.contains("redis://h/", "lock:", "a b,c%"));
        assert!(!held.contains("local", "other:", "a b,c%"));
    }
}
