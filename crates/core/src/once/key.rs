//! Idempotency keys: the name that an operation has outside, stable over retries, takeovers and languages.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::name::{Name, Namespace};

/// The UUID under which idempotency keys are made. It never changes.
const KEYS: Uuid = Uuid::from_u128(0xebef_7bd0_bb1a_42b8_98c9_c345_0cda_1652);
/// The UUID under which request fingerprints are made.
const FINGERPRINTS: Uuid = Uuid::from_u128(0x3d5c_90a4_6d0f_4c5b_9f0e_7f2f_5c1b_88e1);

/// What an operation is called towards an API that honours idempotency keys: a UUID in its usual text form.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The key as text, 36 characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({})", self.0)
    }
}

impl AsRef<str> for IdempotencyKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The idempotency key of the operation with this name in this namespace: the same for every attempt, process and
/// store.
///
/// It is the version 5 UUID (RFC 9562) of `namespace NUL name` in UTF-8 under `ebef7bd0-bb1a-42b8-98c9-c3450cda1652`, so any
/// language can make it:
///
/// ```
/// # fn main() -> Result<(), leasehold_core::Error> {
/// use leasehold_core::{Name, Namespace, idempotency_key};
///
/// let key = idempotency_key(&Namespace::default(), &Name::new("ship:1001")?);
/// // Python: uuid.uuid5(uuid.UUID("ebef7bd0-bb1a-42b8-98c9-c3450cda1652"), "lock:\0ship:1001")
/// assert_eq!(key.as_str(), "8009d845-ac3a-5aba-9ffa-50d558c4e23d");
/// # Ok(())
/// # }
/// ```
///
/// It is no secret: whoever knows the name can make it.
pub fn idempotency_key(namespace: &Namespace, name: &Name) -> IdempotencyKey {
    // Neither part can hold a NUL, so no two operations have the same text.
    let text = format!("{}\0{}", namespace.as_str(), name.as_str());
    IdempotencyKey(Uuid::new_v5(&KEYS, text.as_bytes()).to_string().into())
}

/// What is kept of a request to recognise it: 122 bits, enough to notice a change, not made against forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(Uuid);

impl Fingerprint {
    pub(crate) fn of(request: &[u8]) -> Self {
        Self(Uuid::new_v5(&FINGERPRINTS, request))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> String {
        idempotency_key(&Namespace::new(namespace).unwrap(), &Name::new(name).unwrap()).to_string()
    }

    /// The vectors of docs/once.md, made with Python's `uuid.uuid5`. Other languages must agree with them.
    #[test]
    fn keys_are_those_of_the_documentation() {
        for (namespace, name, expected) in [
            ("lock:", "ship:1001", "8009d845-ac3a-5aba-9ffa-50d558c4e23d"),
            ("", "ship:1001", "bf0d3e7e-217d-541e-bcf0-ca54b6d0e602"),
            ("shop:", "zażółć 漢字", "eb027a49-08bb-5200-b36c-7a18a524c672"),
        ] {
            assert_eq!(key(namespace, name), expected, "{namespace} {name}");
            let documented = include_str!("../../../../docs/once.md");
            assert!(documented.contains(expected), "{expected} is not documented");
        }
    }

    #[test]
    fn the_border_between_namespace_and_name_counts() {
        assert_ne!(key("lock:", "a"), key("", "lock:a"));
    }
}
