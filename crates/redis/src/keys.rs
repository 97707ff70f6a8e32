//! The names of keys and channels. Every one is under the namespace, so that one ACL rule covers them, and the
//! helper keys of a name are in the slot of its lock key, whatever braces the name has.

use std::borrow::Cow;

use leasehold_core::{Error, Name, Namespace};

use crate::acl::glob;
use crate::tags::{slot_of, tag_of, tag_of_slot};

/// Marks keys that are not lock keys. No name starts with it.
const HELPER: char = '~';

/// The keys and channels of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: Namespace,
    fence: String,
    channel_prefix: String,
    /// In a cluster everything that belongs to a name is in the slot of its lock key.
    sharded: bool,
    /// A slot that the server at the other end serves.
    slot_to_probe: u16,
}

/// The keys a script on one name touches, in the order of KEYS, and what its wake channels begin with.
pub(crate) struct NameKeys<'a> {
    pub(crate) lock: String,
    pub(crate) queue: String,
    /// The last fencing token.
    pub(crate) fence: Cow<'a, str>,
    /// What precedes the connection id in the name of a wake channel.
    pub(crate) channel_prefix: Cow<'a, str>,
    /// The slot of all of them in a cluster.
    pub(crate) slot: u16,
}

impl Keys {
    /// The names under this namespace on a server that is not part of a cluster.
    ///
    /// # Errors
    /// `Config` when the namespace has braces that would take part in finding the slot without being closed.
    pub(crate) fn new(namespace: Namespace) -> Result<Self, Error> {
        let text = namespace.as_str();
        if let Some(open) = text.find('{')
            && text[open + 1..].find('}').is_none_or(|length| length == 0)
        {
            return Err(Error::config(format!(
                "the namespace {text:?} has a {{ that opens no hash tag: remove it, or close it as in {{app}}:"
            )));
        }
        Ok(Self {
            fence: format!("{text}{HELPER}fence"),
            channel_prefix: format!("{text}{HELPER}wake:"),
            sharded: false,
            slot_to_probe: 0,
            namespace,
        })
    }

    /// The same names in a cluster, for a node that serves a slot.
    pub(crate) fn sharded(self, slot_to_probe: u16) -> Self {
        Self { sharded: true, slot_to_probe, ..self }
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn of(&self, name: &Name) -> NameKeys<'_> {
        self.with_helpers(self.namespace.key(name), name.as_str())
    }

    /// The keys of a name that nobody can lock, to try rights on.
    pub(crate) fn of_probe(&self) -> NameKeys<'_> {
        let tag =
            if self.sharded { format!(":{{{}}}", tag_of_slot(self.slot_to_probe)) } else { String::new() };
        let name = format!("{HELPER}probe{tag}");
        self.with_helpers(format!("{}{name}", self.namespace.as_str()), &name)
    }

    fn with_helpers(&self, lock: String, name: &str) -> NameKeys<'_> {
        let (slot, tag) = tag_of(lock.as_bytes());
        let queue = format!("{}{HELPER}queue:{{{tag}}}:{name}", self.namespace.as_str());
        let (fence, channel_prefix) = if self.sharded {
            (format!("{}:{{{tag}}}", self.fence).into(), format!("{}{{{tag}}}:", self.channel_prefix).into())
        } else {
            (self.fence.as_str().into(), self.channel_prefix.as_str().into())
        };
        NameKeys { lock, queue, fence, channel_prefix, slot }
    }

    /// The key of the record of an operation with this name.
    pub(crate) fn record_of(&self, name: &Name) -> String {
        let (_, tag) = tag_of(self.namespace.key(name).as_bytes());
        format!("{}{HELPER}once:{{{tag}}}:{name}", self.namespace.as_str())
    }

    /// The slot of a name in a cluster.
    pub(crate) fn slot(&self, name: &Name) -> u16 {
        slot_of(self.namespace.key(name).as_bytes())
    }

    /// The wake channel of a connection on a server that is not part of a cluster.
    pub(crate) fn channel(&self, connection_id: &str) -> String {
        format!("{}{connection_id}", self.channel_prefix)
    }

    /// The wake channel of a connection for the names of one slot.
    pub(crate) fn slot_channel(&self, slot: u16, connection_id: &str) -> String {
        format!("{}{{{}}}:{connection_id}", self.channel_prefix, tag_of_slot(slot))
    }

    /// The name whose lock key this is; `None` for helper keys and keys that are no name of ours.
    pub(crate) fn name_of(&self, key: &str) -> Option<Name> {
        Name::new(key.strip_prefix(self.namespace.as_str())?).ok()
    }

    /// The pattern that matches the lock keys of names with this prefix, and more.
    pub(crate) fn pattern(&self, prefix: &str) -> String {
        glob(&format!("{}{prefix}", self.namespace.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(namespace: &str) -> Keys {
        Keys::new(Namespace::new(namespace).unwrap()).unwrap()
    }

    #[test]
    fn keys_are_those_of_the_documentation() {
        let keys = keys("lock:");
        let of_name = keys.of(&Name::new("order:1001").unwrap());
        assert_eq!(of_name.lock, "lock:order:1001");
        assert_eq!(of_name.queue, "lock:~queue:{24d}:order:1001");
        assert_eq!(keys.record_of(&Name::new("order:1001").unwrap()), "lock:~once:{24d}:order:1001");
        assert_eq!(of_name.fence, "lock:~fence");
        assert_eq!(keys.channel("abc"), "lock:~wake:abc");

        let sharded = keys.clone().sharded(12_182);
        let of_name = sharded.of(&Name::new("order:1001").unwrap());
        assert_eq!(of_name.queue, "lock:~queue:{24d}:order:1001");
        assert_eq!(of_name.fence, "lock:~fence:{24d}");
        assert_eq!(of_name.channel_prefix, "lock:~wake:{24d}:");
        assert_eq!(sharded.slot_channel(of_name.slot, "abc"), "lock:~wake:{24d}:abc");
        assert_eq!(sharded.of_probe().lock, "lock:~probe:{foo}");
    }

    #[test]
    fn trap_40_every_key_and_channel_is_in_the_slot_of_the_lock_key() {
        for namespace in ["lock:", "", "{app}:", "a}b:", "x{y}z{"] {
            for name in ["a", "{user}:1", "a{}b", "x{y", "}{", "{{b}}", "foo{}{bar}", "} {"] {
                let (keys, name) = (keys(namespace).sharded(0), Name::new(name).unwrap());
                let (of_name, record) = (keys.of(&name), keys.record_of(&name));
                let channel = format!("{}abc", of_name.channel_prefix);
                for key in [&of_name.lock, &of_name.queue, &*of_name.fence, &channel, &record] {
                    assert_eq!(slot_of(key.as_bytes()), of_name.slot, "{namespace}{name}: {key}");
                }
                assert_eq!(keys.slot(&name), of_name.slot);
            }
        }
    }

    #[test]
    fn trap_40_namespaces_with_broken_braces_are_refused() {
        for bad in ["{", "a{b", "{}:", "a{}{b}"] {
            let error = Keys::new(Namespace::new(bad).unwrap()).unwrap_err();
            assert!(error.to_string().contains("hash tag"), "{error}");
        }
    }

    #[test]
    fn helper_keys_are_no_names() {
        let keys = keys("lock:");
        assert_eq!(keys.name_of("lock:a").unwrap().as_str(), "a");
        assert!(keys.name_of("lock:~fence").is_none());
        assert!(keys.name_of("other:a").is_none());
        assert!(keys.name_of("lock:").is_none());
    }

    #[test]
    fn patterns_match_what_they_say() {
        assert_eq!(keys("lock:").pattern("a*b?[c]\\"), "lock:a\\*b\\?\\[c\\]\\\\*");
    }
}
