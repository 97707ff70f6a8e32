//! The names of keys and channels. Every one is under the namespace, so that one ACL rule covers them, and the
//! helper keys of a name are in the slot of its lock key, whatever braces the name has.

use leasehold_core::{Error, Name, Namespace};

use crate::acl::glob;
use crate::tags::tag_of;

/// Marks keys that are not lock keys. No name starts with it.
const HELPER: char = '~';

/// The keys and channels of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: Namespace,
    fence: String,
    channel_prefix: String,
}

/// The keys a script on one name touches, in the order of KEYS.
pub(crate) struct NameKeys {
    pub(crate) lock: String,
    pub(crate) queue: String,
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
            namespace,
        })
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn of(&self, name: &Name) -> NameKeys {
        self.with_queue(self.namespace.key(name), name.as_str())
    }

    /// The keys of a name that nobody can lock, to try rights on.
    pub(crate) fn of_probe(&self) -> NameKeys {
        let name = format!("{HELPER}probe");
        self.with_queue(format!("{}{name}", self.namespace.as_str()), &name)
    }

    fn with_queue(&self, lock: String, name: &str) -> NameKeys {
        let tag = tag_of(lock.as_bytes());
        let queue = format!("{}{HELPER}queue:{{{tag}}}:{name}", self.namespace.as_str());
        NameKeys { lock, queue }
    }

    /// The key of the record of an operation with this name.
    pub(crate) fn record_of(&self, name: &Name) -> String {
        let tag = tag_of(self.namespace.key(name).as_bytes());
        format!("{}{HELPER}once:{{{tag}}}:{name}", self.namespace.as_str())
    }

    /// The key of the last fencing token.
    pub(crate) fn fence(&self) -> &str {
        &self.fence
    }

    /// What precedes the connection id in the name of a wake channel.
    pub(crate) fn channel_prefix(&self) -> &str {
        &self.channel_prefix
    }

    pub(crate) fn channel(&self, connection_id: &str) -> String {
        format!("{}{connection_id}", self.channel_prefix)
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
    use crate::tags::slot_of;

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
        assert_eq!(keys.fence(), "lock:~fence");
        assert_eq!(keys.channel("abc"), "lock:~wake:abc");
    }

    #[test]
    fn trap_40_the_queue_and_the_record_are_in_the_slot_of_the_lock_key() {
        for namespace in ["lock:", "", "{app}:", "a}b:", "x{y}z{"] {
            for name in ["a", "{user}:1", "a{}b", "x{y", "}{", "{{b}}", "foo{}{bar}", "} {"] {
                let (all, name) = (keys(namespace), Name::new(name).unwrap());
                let keys = all.of(&name);
                for helper in [keys.queue, all.record_of(&name)] {
                    assert_eq!(
                        slot_of(keys.lock.as_bytes()),
                        slot_of(helper.as_bytes()),
                        "{namespace}{name}"
                    );
                }
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
