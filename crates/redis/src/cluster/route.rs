//! The way of one request through the cluster: which node it goes to first, and where after each refusal.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use redis::Cmd;

use super::node::{Node, ask};
use super::router::Router;
use super::slots::Redirect;
use crate::connection::Answered;
use crate::failure::{Failure, Refusal};
use crate::hosts::Host;
use crate::script::{Script, Scripts};

/// So many nodes are tried for one request. More means that they contradict each other for a moment.
const MOST_REDIRECTS: u32 = 6;
/// The pause before the third try; it doubles with each. The first redirection is followed at once.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// One request on its way.
pub(super) struct Route<'a> {
    router: &'a Arc<Router>,
    slot: u16,
    redirects: u32,
}

/// What to do after a failure.
pub(super) enum Turn {
    /// Ask [`Route::node`] again, and send there.
    Again,
    /// The slot migrates, and its keys are at two nodes.
    StepByStep,
    /// It is over.
    Failed(Failure),
}

impl<'a> Route<'a> {
    pub(super) fn new(router: &'a Arc<Router>, slot: u16) -> Self {
        Self { router, slot, redirects: 0 }
    }

    /// Where the request goes now.
    pub(super) fn node(&self) -> Result<Arc<Node>, Failure> {
        self.router.node_of(self.slot)
    }

    /// What to do after the request has failed at a node.
    pub(super) async fn after(&mut self, failure: Failure, node: &Node) -> Turn {
        let refusal = match failure {
            Failure::Refused(refusal) => refusal,
            failure => {
                self.router.look_again();
                return Turn::Failed(at_node(failure, node));
            }
        };
        match (refusal.code.as_str(), Redirect::read(&refusal, &node.place)) {
            ("MOVED", Some(Redirect::Moved(slot, to))) => {
                self.redirects += 1;
                if self.redirects > MOST_REDIRECTS {
                    return Turn::Failed(lost_in_cluster(&refusal, node));
                }
                self.router.moved(slot, &to);
                if let Some(doublings) = self.redirects.checked_sub(2) {
                    self.router.sleep(FIRST_PAUSE * 2_u32.pow(doublings)).await;
                }
                Turn::Again
            }
            ("ASK" | "TRYAGAIN", _) => Turn::StepByStep,
            _ if refusal.is_gone_in_script() => Turn::StepByStep,
            ("MOVED" | "CLUSTERDOWN", _) => {
                self.router.look_again();
                Turn::Failed(lost_in_cluster(&refusal, node))
            }
            _ => {
                if refusal.is_about_the_node() || refusal.code == "LOADING" {
                    self.router.look_again();
                }
                Turn::Failed(Failure::Refused(refusal))
            }
        }
    }
}

impl Route<'_> {
    /// The answer, unless it says that the request is to go elsewhere: then `None`, once that is noted.
    async fn judge(
        &mut self,
        result: Result<Answered, Failure>,
        node: &Node,
    ) -> Result<Option<Answered>, Failure> {
        let failure = match result {
            Ok(answered) => match Refusal::in_value(&answered.value) {
                Some(refusal) if refusal.is_about_the_slot() => Failure::Refused(refusal),
                _ => return Ok(Some(answered)),
            },
            Err(failure) => failure,
        };
        match self.after(failure, node).await {
            Turn::Again => Ok(None),
            Turn::StepByStep => Err(still_migrates(node)),
            Turn::Failed(failure) => Err(failure),
        }
    }
}

/// Calls a script that declares one key wherever that key is, also while its slot migrates. The call is made for the
/// node that gets it. Says which node answered.
pub(super) async fn call_single(
    router: &Arc<Router>,
    slot: u16,
    script: impl Fn(&Scripts) -> &Script,
    call: impl Fn(&Node) -> Cmd,
) -> Result<(Answered, Arc<Node>), Failure> {
    let mut route = Route::new(router, slot);
    loop {
        let mut node = route.node()?;
        let mut result = match node.connection().await {
            Ok(connection) => connection.call_script(script(&node.shared.scripts), &call(&node)).await,
            Err(failure) => Err(failure),
        };
        if let Some(place) = asked_for(&result, &node) {
            node = router.node_at(&place, slot);
            result = node.ask_script(script(&node.shared.scripts), &call(&node)).await;
        }
        match route.judge(result, &node).await {
            Ok(Some(answered)) => return Ok((answered, node)),
            Ok(None) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// Sends a command on one key wherever that key is, also while its slot migrates.
pub(super) async fn call_command(
    router: &Arc<Router>,
    slot: u16,
    command: &Cmd,
) -> Result<Answered, Failure> {
    let mut route = Route::new(router, slot);
    loop {
        let mut node = route.node()?;
        let mut result = match node.connection().await {
            Ok(connection) => connection.call(command).await,
            Err(failure) => Err(failure),
        };
        if let Some(place) = asked_for(&result, &node) {
            node = router.node_at(&place, slot);
            result = match node.connection().await {
                Ok(connection) => ask(&connection, command).await,
                Err(failure) => Err(failure),
            };
        }
        match route.judge(result, &node).await {
            Ok(Some(answered)) => return Ok(answered),
            Ok(None) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// The node to which a key has left already.
fn asked_for(result: &Result<Answered, Failure>, node: &Node) -> Option<Host> {
    let refusal = Refusal::in_value(&result.as_ref().ok()?.value)?;
    match Redirect::read(&refusal, &node.place) {
        Some(Redirect::Ask(place)) => Some(place),
        _ => None,
    }
}

/// The error for an operation that cannot be done while a slot migrates.
pub(super) fn still_migrates(node: &Node) -> Failure {
    Failure::NotSent(Error::new(
        ErrorKind::Unavailable,
        format!("{}: the slot of this name migrates to another node at present: try again", node.place),
    ))
}

/// Names the node whose connection failed.
fn at_node(failure: Failure, node: &Node) -> Failure {
    match failure {
        Failure::NotSent(error) if !error.to_string().contains(&node.place.to_string()) => {
            Failure::NotSent(error.context(&node.place))
        }
        failure => failure,
    }
}

/// The error for a refusal that no other node helps with.
fn lost_in_cluster(refusal: &Refusal, node: &Node) -> Failure {
    let message = if refusal.code == "CLUSTERDOWN" {
        format!(
            "the node {} refuses to work ({}): CLUSTER INFO on it says whether slots are without a node (then \
             cluster-require-full-coverage no keeps the others usable) or it is cut off from most others",
            node.place,
            refusal.shown()
        )
    } else {
        format!(
            "the nodes of the cluster send this request from one to the other, at last from {} ({}): they do not \
             agree yet on who has the slot",
            node.place,
            refusal.shown()
        )
    };
    Failure::NotSent(Error::new(ErrorKind::Unavailable, message))
}
