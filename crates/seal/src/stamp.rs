//! What is written into a guard row: made from a lease, the same for every database.

use leasehold_core::{FencingToken, Lease, OwnerToken};
use uuid::Uuid;

use crate::SealError;

/// An owner token under this namespace makes the owner of a guard row: whoever reads the row learns nothing that
/// could release the lease.
const OWNERS: Uuid = Uuid::from_u128(0x6c25_9f5e_3a0d_5b6e_8f0b_7d5f_8f6b_2e41);

/// What a holder leaves at a resource: its fencing token, who it is, and the namespace the token is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    resource: String,
    fence: FencingToken,
    owner: String,
    namespace: String,
}

impl Stamp {
    /// The longest resource, in bytes.
    pub const MAX_RESOURCE_BYTES: usize = 512;

    /// The stamp of a lease for a resource, such as `shipment:1001`. The resource need not be the lock's name, but
    /// all who write to it must agree on it, and lock the same name before.
    ///
    /// # Errors
    /// `Argument` when the resource is empty, longer than 512 bytes, or holds a control character; `Unfenced` when
    /// the lease has no fencing token (`allow_unfenced`).
    pub fn of(lease: &Lease, resource: &str) -> Result<Self, SealError> {
        Self::new(resource, lease.fencing_token(), lease.owner_token(), lease.namespace().as_str())
    }

    /// The stamp of a holder whose values came another way, for instance as `LEASEHOLD_FENCING_TOKEN` and
    /// `LEASEHOLD_OWNER_TOKEN` from `leasehold run`.
    ///
    /// # Errors
    /// As [`Stamp::of`].
    pub fn new(
        resource: &str,
        fence: FencingToken,
        owner: &OwnerToken,
        namespace: &str,
    ) -> Result<Self, SealError> {
        let bytes = resource.len();
        if bytes == 0 || bytes > Self::MAX_RESOURCE_BYTES || resource.chars().any(char::is_control) {
            let message = format!(
                "the resource has {bytes} bytes: 1 to {} without control characters are allowed",
                Self::MAX_RESOURCE_BYTES
            );
            return Err(SealError::Argument { message });
        }
        if !fence.is_fenced() {
            return Err(SealError::Unfenced { resource: resource.to_owned() });
        }
        Ok(Self {
            resource: resource.to_owned(),
            fence,
            owner: Uuid::new_v5(&OWNERS, owner.expose().as_bytes()).to_string(),
            namespace: namespace.to_owned(),
        })
    }

    /// The parameters of every seal statement, in its order: resource, fencing token, owner, namespace.
    pub fn parameters(&self) -> (&str, i64, &str, &str) {
        (&self.resource, self.fence.get().cast_signed(), &self.owner, &self.namespace)
    }

    /// What is protected.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The fencing token.
    pub fn fence(&self) -> FencingToken {
        self.fence
    }

    pub(crate) fn fenced(&self, newest: Option<u64>) -> SealError {
        // A guard row holds nothing but tokens, unless somebody wrote it by hand.
        let newest = newest.and_then(FencingToken::new).unwrap_or(FencingToken::MAX);
        SealError::Fenced { resource: self.resource.clone(), mine: self.fence, newest }
    }

    pub(crate) fn other_namespace(&self, sealed_under: &str) -> SealError {
        SealError::Namespace {
            resource: self.resource.clone(),
            mine: self.namespace.clone(),
            sealed_under: sealed_under.to_owned(),
        }
    }
}

/// The newest token in what a refusal said.
pub(crate) fn newest_in(text: &str) -> Option<u64> {
    text.split(' ').find_map(|part| part.strip_prefix("newest=")?.parse().ok())
}

/// The namespace in what a refusal said: it comes last, and may hold anything.
pub(crate) fn namespace_in(text: &str) -> &str {
    text.split_once("sealed_under=").map_or("", |(_, namespace)| namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "MDEyMzQ1Njc4OWFiY2RlZg@app:1";

    fn stamp(resource: &str, fence: u64) -> Result<Stamp, SealError> {
        let fence = FencingToken::new(fence).unwrap_or(FencingToken::UNFENCED);
        Stamp::new(resource, fence, &OwnerToken::parse(SECRET).unwrap(), "lock:")
    }

    #[test]
    fn the_owner_of_a_guard_row_is_not_the_owner_token() {
        let stamp = stamp("shipment:1001", 34).unwrap();
        let (resource, fence, owner, namespace) = stamp.parameters();
        assert_eq!((resource, fence, namespace), ("shipment:1001", 34, "lock:"));
        // Fixed for ever: a holder that resumes a lease with another version of this crate is the same owner.
        assert_eq!(owner, "c936bc8b-ae77-50c6-bc38-6e1c90b0a82b");
        assert!(!format!("{stamp:?}").contains("MDEyMzQ1"));
    }

    #[test]
    fn resources_and_tokens_that_cannot_be_used_are_refused_before_anything_is_sent() {
        for resource in ["", "a\0b", "a\nb", &"x".repeat(513)] {
            assert!(matches!(stamp(resource, 34), Err(SealError::Argument { .. })), "{resource:?}");
        }
        assert!(stamp(&"x".repeat(512), 34).is_ok());
        assert!(matches!(stamp("shipment:1001", 0), Err(SealError::Unfenced { .. })));
    }

    #[test]
    fn numbers_and_namespaces_are_found_in_what_a_statement_said() {
        assert_eq!(newest_in("leasehold: fenced: mine=33 newest=34"), Some(34));
        assert_eq!(newest_in("mine=33 newest="), None);
        assert_eq!(namespace_in("sealed_under=a b: c="), "a b: c=");
        assert_eq!(namespace_in("sealed_under="), "");
    }
}
