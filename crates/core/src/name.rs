//! Names and namespaces: what users lock, and the limits that every store can rely on.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// What is locked, as the user writes it, for instance `order:1001`.
///
/// 1 to 512 bytes of UTF-8, no control characters, not starting with `~` (kept for helper keys).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks and wraps a name.
    ///
    /// # Errors
    /// `Config` when the name is empty, longer than 512 bytes, holds a control character or starts with `~`.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let shown = Shown(name);
        if name.is_empty() {
            return Err(Error::config(
                "a name must not be empty: give 1 to 512 bytes, for instance order:1001",
            ));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::config(format!(
                "the name {shown} has {} bytes: 1 to {} are allowed",
                name.len(),
                Self::MAX_BYTES
            )));
        }
        if name.chars().any(char::is_control) {
            return Err(Error::config(format!(
                "the name {shown} holds a control character (a line break, a tab, NUL …): remove it"
            )));
        }
        if name.starts_with('~') {
            return Err(Error::config(format!(
                "the name {shown} starts with ~, which is kept for Leasehold's own keys: choose another first character"
            )));
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({:?})", &*self.0)
    }
}

/// The prefix of every key and channel, `lock:` by default.
///
/// 0 to 128 bytes without control characters. When it is empty, names are keys verbatim.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The longest namespace, in bytes.
    pub const MAX_BYTES: usize = 128;
    /// The namespace of a client that names none.
    pub const DEFAULT: &'static str = "lock:";

    /// Checks and wraps a namespace.
    ///
    /// # Errors
    /// `Config` when it is longer than 128 bytes or holds a control character.
    pub fn new(namespace: impl AsRef<str>) -> Result<Self, Error> {
        let namespace = namespace.as_ref();
        if namespace.len() > Self::MAX_BYTES {
            return Err(Error::config(format!(
                "the namespace {} has {} bytes: 0 to {} are allowed",
                Shown(namespace),
                namespace.len(),
                Self::MAX_BYTES
            )));
        }
        if namespace.chars().any(char::is_control) {
            return Err(Error::config(format!(
                "the namespace {} holds a control character: remove it",
                Shown(namespace)
            )));
        }
        Ok(Self(namespace.into()))
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of a name: the namespace, then the name as it was written.
    pub fn key(&self, name: &Name) -> String {
        format!("{}{}", self.0, name.0)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({:?})", &*self.0)
    }
}

/// A user's text in a message: quoted, control characters escaped, cut to a readable length.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const READABLE_CHARS: usize = 60;
        let cut: String = self.0.chars().take(READABLE_CHARS).collect();
        let more = if cut.len() < self.0.len() { "…" } else { "" };
        write!(f, "{cut:?}{more}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_within_the_limits_are_kept_as_written() {
        for good in ["a", "order:1001", "{tag}:x", "{}", "} {", "zażółć", "with space", &"x".repeat(512)]
        {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn names_outside_the_limits_are_refused_with_the_limit() {
        for (bad, word) in [
            ("", "empty"),
            ("~queue", "~"),
            ("a\nb", "control"),
            ("a\0b", "control"),
            ("a\u{85}b", "control"),
            (&*"x".repeat(513), "512"),
        ] {
            let error = Name::new(bad).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn an_empty_namespace_leaves_names_verbatim() {
        let name = Name::new("order:1001").unwrap();
        assert_eq!(Namespace::default().key(&name), "lock:order:1001");
        assert_eq!(Namespace::new("").unwrap().key(&name), "order:1001");
    }
}
