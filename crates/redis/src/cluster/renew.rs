//! Renewals: grouped by node, sent to all nodes at the same time, and sent on one by one where a slot has moved or
//! migrates.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_core::Error;
use leasehold_core::store::{RenewReply, RenewRequest};
use redis::Value;

use super::join::join_all;
use super::node::Node;
use super::route::call_single;
use super::router::Router;
use crate::failure::{Failure, Refusal};
use crate::keys::Keys;
use crate::scripted;

pub(super) async fn renew(
    router: &Arc<Router>,
    keys: &Keys,
    requests: &[RenewRequest],
) -> Vec<Result<RenewReply, Error>> {
    let mut groups = BTreeMap::<u64, (Option<Arc<Node>>, Vec<usize>)>::new();
    for (at, request) in requests.iter().enumerate() {
        let node = router.node_of(keys.slot(&request.name)).ok();
        let id = node.as_ref().map_or(0, |node| node.id);
        groups.entry(id).or_insert_with(|| (node, Vec::new())).1.push(at);
    }
    let mut replies: Vec<Option<Result<RenewReply, Error>>> = requests.iter().map(|_| None).collect();
    let at_nodes = groups.values().map(|(node, places)| -> super::join::Boxed<'_, _> {
        Box::pin(renew_at(router, keys, node.as_deref(), requests, places))
    });
    for (reply, at) in join_all(at_nodes.collect()).await.into_iter().flatten() {
        replies[at] = Some(reply);
    }
    replies.into_iter().map(|reply| reply.unwrap_or_else(|| Err(Failure::BadReply.into_error()))).collect()
}

/// Renews the requests at these places, together.
async fn renew_at(
    router: &Arc<Router>,
    keys: &Keys,
    node: Option<&Node>,
    requests: &[RenewRequest],
    places: &[usize],
) -> Vec<(Result<RenewReply, Error>, usize)> {
    let chosen: Vec<_> = places.iter().map(|&at| &requests[at]).collect();
    let replies = if let Some(node) = node {
        at_node(router, keys, node, &chosen).await
    } else {
        let mut replies = Vec::new();
        for request in &chosen {
            replies.push(alone(router, keys, request).await);
        }
        replies
    };
    replies.into_iter().zip(places.iter().copied()).collect()
}

async fn at_node(
    router: &Arc<Router>,
    keys: &Keys,
    node: &Node,
    requests: &[&RenewRequest],
) -> Vec<Result<RenewReply, Error>> {
    let values = match node.connection().await {
        Ok(connection) => {
            let values = scripted::renew_values(&node.shared, &connection, requests).await;
            values.map(|values| (connection, values))
        }
        Err(failure) => Err(failure),
    };
    let (connection, values) = match values {
        Ok(values) => values,
        Err(failure) => {
            router.look_again();
            return scripted::fail_each(requests.len(), failure);
        }
    };
    let moved = |value: &Value| Refusal::in_value(value).is_some_and(|refusal| refusal.is_about_the_slot());
    let followed = values.iter().zip(requests).filter(|(value, _)| moved(value));
    let followed =
        followed.map(|(_, request)| -> super::join::Boxed<'_, _> { Box::pin(alone(router, keys, request)) });
    let mut followed = join_all(followed.collect()).await.into_iter();
    let read = |value: &Value| {
        let reply = if moved(value) { followed.next() } else { None };
        reply.unwrap_or_else(|| scripted::read_renewal(&connection, value))
    };
    values.iter().map(read).collect()
}

/// Renews one lease wherever its key is.
async fn alone(router: &Arc<Router>, keys: &Keys, request: &RenewRequest) -> Result<RenewReply, Error> {
    let slot = keys.slot(&request.name);
    let called = call_single(
        router,
        slot,
        |scripts| &scripts.renew,
        |node| scripted::renew_call(&node.shared, request),
    );
    let (answered, node) = called.await.map_err(Failure::into_error)?;
    let connection = node.connection().await.map_err(Failure::into_error)?;
    scripted::read_renewal(&connection, &answered.value)
}
