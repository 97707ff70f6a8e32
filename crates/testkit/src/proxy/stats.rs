//! What passed through a proxy. Owns no connection.

use std::collections::BTreeMap;

/// Counts since the proxy started. Requests and replies are counted when they reach the proxy, also those that a
/// fault then swallows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    /// Connections that clients made.
    pub connections_accepted: u64,
    /// Connections to the server that are open now.
    pub connections_open: u64,
    /// Bytes that clients sent.
    pub bytes_to_server: u64,
    /// Bytes that the server sent.
    pub bytes_to_client: u64,
    /// Requests that clients sent.
    pub requests: u64,
    /// Replies of the server.
    pub replies: u64,
    /// Published messages, confirmations of subscriptions and other out-of-band frames.
    pub pushes: u64,
    /// Requests by command, in upper case.
    pub commands: BTreeMap<String, u64>,
}
