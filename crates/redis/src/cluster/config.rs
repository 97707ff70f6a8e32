//! What the URL of a cluster says: the nodes to ask first, and the settings that hold for all. Owns no connection.

use std::fmt;

use leasehold_core::{Error, Label, Namespace};

use crate::config::{Address, DEFAULT_PORT, RedisConfig, Target};
use crate::hosts::{self, Host};

/// The schemes of cluster URLs, and those of one of their nodes.
const SCHEMES: [(&str, &str); 2] = [("redis+cluster", "redis"), ("rediss+cluster", "rediss")];

/// Where a cluster is and how to use it.
///
/// Neither `Debug` nor any message shows the password.
#[derive(Clone)]
pub struct ClusterConfig {
    /// The nodes the URL names.
    pub(super) seeds: Vec<Host>,
    /// The settings that hold for every node; where it is stands for all of them.
    pub(super) template: RedisConfig,
}

impl ClusterConfig {
    /// Whether this is the URL of a cluster.
    pub fn is_cluster_url(url: &str) -> bool {
        scheme_of_node(url).is_some()
    }

    /// Reads a URL: `redis+cluster://[user[:password]@]host[:port][,host[:port]…]`, or `rediss+cluster://…` over TLS.
    /// Any node will do, the others are learned from it; several are tried in turn. Parameters are those of
    /// [`RedisConfig::from_url`], without `db` and `scripting`: a cluster has one database, and its locks need
    /// scripts.
    ///
    /// # Errors
    /// `Config` when the URL cannot be read or asks for what a cluster has not. The message shows no password.
    ///
    /// ```
    /// use leasehold_redis::ClusterConfig;
    ///
    /// let config = ClusterConfig::from_url("redis+cluster://app:s%40crets@10.0.0.7:7000,10.0.0.8:7000/")?;
    /// assert_eq!(config.describe(), "redis+cluster://app@10.0.0.7:7000,10.0.0.8:7000/");
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let Some((scheme, of_node)) = scheme_of_node(url) else {
            return Err(Error::config(
                "the URL of a cluster begins with redis+cluster:// or rediss+cluster://",
            ));
        };
        let (one, seeds) = hosts::split(url, DEFAULT_PORT)?;
        let template = RedisConfig::from_url(&one.replacen(scheme, of_node, 1))?;
        if template.db != 0 {
            return Err(Error::config(
                "a cluster has one database only: remove db from the URL, and use a namespace instead",
            ));
        }
        if !template.scripting {
            return Err(Error::config(
                "locks in a cluster need scripts: remove scripting=off, and allow EVAL and EVALSHA there",
            ));
        }
        if template.acks != 0 {
            return Err(Error::config(
                "acks are not supported in a cluster: remove acks from the URL, and check fencing tokens where work is \
                 written",
            ));
        }
        Ok(Self { seeds, template })
    }

    /// The same cluster with another namespace.
    ///
    /// # Errors
    /// `Config` when the namespace has braces that a cluster would take for a broken hash tag.
    pub fn with_namespace(self, namespace: Namespace) -> Result<Self, Error> {
        Ok(Self { template: self.template.with_namespace(namespace)?, ..self })
    }

    /// The namespace of all keys and channels.
    pub fn namespace(&self) -> &Namespace {
        self.template.namespace()
    }

    /// The label the URL asks for.
    pub fn label(&self) -> Option<&Label> {
        self.template.label()
    }

    /// The settings for a node, and one of the slots that it has.
    pub(super) fn of_node(&self, node: &Host, slot: u16) -> RedisConfig {
        let mut config = self.template.clone();
        if let Target::Server(Address::Tcp { host, port, .. }) = &mut config.target {
            (*host, *port) = (node.name.clone(), node.port);
        }
        config.keys = config.keys.sharded(slot);
        config
    }

    /// The cluster's URL without secrets.
    pub fn describe(&self) -> String {
        let user = self.template.login.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let secure = matches!(self.template.target, Target::Server(Address::Tcp { tls: Some(_), .. }));
        let hosts: Vec<_> = self.seeds.iter().map(Host::to_string).collect();
        format!("redis{}+cluster://{user}{}/", if secure { "s" } else { "" }, hosts.join(","))
    }
}

/// The scheme of the URL of a cluster, and that of one of its nodes.
fn scheme_of_node(url: &str) -> Option<(&'static str, &'static str)> {
    let (scheme, _) = url.split_once("://")?;
    SCHEMES.into_iter().find(|(known, _)| *known == scheme)
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("url", &self.describe())
            .field("namespace", self.namespace())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        ClusterConfig::from_url(url).unwrap_err().to_string()
    }

    #[test]
    fn every_node_has_the_settings_of_the_url() {
        let config = ClusterConfig::from_url(
            "redis+cluster://app:p%40ss@10.0.0.1:7000,[::1]:7001,node-c/?namespace=shop:&label=web-1",
        )
        .unwrap();
        assert_eq!(config.describe(), "redis+cluster://app@10.0.0.1:7000,[::1]:7001,node-c:6379/");
        assert_eq!((config.namespace().as_str(), config.label().unwrap().as_str()), ("shop:", "web-1"));
        let node = config.of_node(&config.seeds[1], 5);
        assert_eq!(
            (node.describe().as_str(), node.login.password.unwrap().expose()),
            ("redis://app@[::1]:7001/0", "p@ss")
        );
        assert!(!format!("{config:?}").contains("p@ss"));
    }

    #[test]
    fn what_a_cluster_has_not_is_refused_with_a_way_out() {
        for (url, word) in [
            ("redis+cluster://a/2", "namespace"),
            ("redis+cluster://a?scripting=off&allow_unfenced=1", "EVAL"),
            ("redis+cluster://a,,b", "host"),
            ("redis+cluster://", "host"),
            ("redis+cluster://user@a,b", "password"),
            ("redis+cluster://a,b?acks=1", "acks are not supported in a cluster"),
            ("redis://a", "redis+cluster://"),
        ] {
            let message = refusal(url);
            assert!(message.contains(word), "{url}: {message}");
        }
        assert!(!refusal("redis+cluster://u:se/cret@a,b").contains("cret"));
    }
}
