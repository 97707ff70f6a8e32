//! Looking at names in a cluster. Changes nothing.

use std::sync::Arc;

use leasehold_core::store::{Inspection, Listing};
use leasehold_core::{Error, Name};
use redis::{Cmd, Value};

use super::join::{Boxed, join_all};
use super::node::Node;
use super::route::{Route, Turn, still_migrates};
use super::router::Router;
use super::slots::Redirect;
use crate::failure::{Failure, Refusal};
use crate::inspect::{self, Asked};
use crate::keys::Keys;

pub(super) async fn inspect(
    router: &Arc<Router>,
    keys: &Keys,
    name: &Name,
) -> Result<Option<Inspection>, Error> {
    let mut route = Route::new(router, keys.slot(name));
    loop {
        let node = route.node().map_err(Failure::into_error)?;
        let answers = Answers { router, node: &node };
        match inspect::look_at(&node.shared, &answers, name).await {
            Ok(seen) => return Ok(seen),
            Err(failure) => match route.after(failure, &node).await {
                Turn::Again => {}
                Turn::StepByStep => return Err(still_migrates(&node).into_error()),
                Turn::Failed(failure) => return Err(failure.into_error()),
            },
        }
    }
}

pub(super) async fn list(router: &Arc<Router>, prefix: &str, limit: usize) -> Result<Listing, Error> {
    let nodes = router.nodes();
    let listed = nodes.iter().map(|node| -> Boxed<'_, _> {
        Box::pin(async move {
            let answers = Answers { router, node };
            let listing = inspect::list(&node.shared, &answers, prefix, limit).await;
            listing.map_err(|error| error.context(&node.place))
        })
    });
    let mut whole = Listing::default();
    for listing in join_all(listed.collect()).await {
        let listing = listing?;
        whole.more |= listing.more;
        whole.entries.extend(listing.entries);
    }
    // A name whose slot has just moved may have been seen at both nodes.
    whole.entries.sort_by(|one, other| one.name.cmp(&other.name));
    whole.entries.dedup_by(|one, other| one.name == other.name);
    whole.more |= whole.entries.len() > limit;
    whole.entries.truncate(limit);
    Ok(whole)
}

/// Asks a node, also for keys whose slot migrates from it or to it.
struct Answers<'a> {
    router: &'a Arc<Router>,
    node: &'a Node,
}

impl inspect::Asks for Answers<'_> {
    fn ask_all(&self, commands: Vec<Cmd>) -> Asked<'_> {
        Box::pin(async move {
            let mut pipeline = redis::pipe();
            for command in &commands {
                pipeline.add_command(command.clone());
            }
            let mut replies = self.node.questions.ask_all(&pipeline).await?;
            for (command, reply) in commands.iter().zip(&mut replies) {
                let Some(refusal) = Refusal::in_value(reply) else { continue };
                let mut asking = redis::pipe();
                asking.cmd("ASKING").add_command(command.clone());
                let answers = match Redirect::read(&refusal, &self.node.place) {
                    Some(Redirect::Ask(place)) => {
                        self.router.node_at(&place, 0).questions.ask_all(&asking).await?
                    }
                    // A key found here whose slot is still on its way here; one that has left is refused again.
                    Some(Redirect::Moved(..)) => self.node.questions.ask_all(&asking).await?,
                    None => continue,
                };
                *reply = answers.into_iter().nth(1).unwrap_or(Value::Nil);
            }
            Ok(replies)
        })
    }
}
