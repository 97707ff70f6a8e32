//! One reply that is lost, whichever it is, and with it the connection: closed, or silent from then on.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Client, LeaseState};
use leasehold_testkit::proxy::{AfterDrop, Proxy, RequestMatch};
use leasehold_testkit::servers::RedisServer;

use crate::support::{
    SLACK, connect, free, guard, run_on_each_server, take, until_nothing_is_left, until_queued, until_within,
    wait_for,
};

const TTL: Duration = Duration::from_secs(30);
/// Longer than it takes to notice that a connection gives no answers, and to make another.
const NOTICED: Duration = Duration::from_secs(15);
const EITHER: [AfterDrop; 2] = [AfterDrop::Cut, AfterDrop::Silence];

#[test]
fn a_lost_reply_while_connecting_costs_time_only() {
    run_on_each_server("a_lost_reply_while_connecting", async |server| {
        let each = EITHER.into_iter().flat_map(|after| {
            // The greeting, who is there, the wake channel, the probe of the rights.
            ["HELLO", "TIME", "SUBSCRIBE", "EVALSHA"].map(|command| {
                boxed(async move {
                    let proxy = Proxy::before(server).unwrap();
                    let lost = proxy.drop_reply_to(RequestMatch::command(command), after);
                    let url = server.url_through(&proxy);
                    let client = Client::builder().store_timeout(NOTICED).connect(&url);
                    let client = client.await.unwrap_or_else(|error| panic!("{command} {after:?}: {error}"));
                    assert!(lost.has_fired(), "{command}");
                    let name = format!("{command}-{after:?}");
                    free(take(&client, &name, TTL).await).await;
                })
            })
        });
        all(each).await;
        until_nothing_is_left(server).await;
    });
}

#[test]
fn a_lost_reply_to_a_renewal_costs_no_lease() {
    run_on_each_server("a_lost_reply_to_a_renewal", async |server| {
        let each = EITHER.map(|after| {
            boxed(async move {
                let (proxy, client) = behind_a_proxy(server).await;
                let name = format!("job-{after:?}");
                let held = take(&client, &name, Duration::from_secs(12)).await;
                let lost = proxy.drop_reply_to(RequestMatch::command("EVALSHA").containing(&name), after);
                until_within(NOTICED, "a renewal is lost", || lost.has_fired()).await;
                until_within(NOTICED, "renewed", || {
                    assert!(!matches!(held.state(), LeaseState::Lost(_)), "{after:?}: {:?}", held.state());
                    held.remaining() > Duration::from_secs(10)
                })
                .await;
                free(held).await;
            })
        });
        all(each).await;
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_23_a_lost_message_or_reply_to_a_waiter_forgets_it_not() {
    run_on_each_server("a_lost_message_or_reply_to_a_waiter", async |server| {
        let each = EITHER.map(|after| {
            boxed(async move {
                let (proxy, client) = behind_a_proxy(server).await;
                let other = connect(&server.url(), "b").await;
                let name = format!("job-{after:?}");
                let held = take(&other, &name, TTL).await;
                // The first reply, a later one, and the message that it has the lease.
                let lost = proxy.drop_reply_to(RequestMatch::command("EVALSHA").containing(&name), after);
                let waiting = wait_for(&client, &name, TTL);
                until_within(NOTICED, "the first reply is lost", || lost.has_fired()).await;
                // What is sent on the silent connection gets no reply that could be lost.
                until_within(NOTICED, "another connection", || proxy.stats().connections_accepted > 1).await;
                let lost = proxy.drop_reply_to(RequestMatch::command("EVALSHA").containing(&name), after);
                until_within(NOTICED, "a later reply is lost", || lost.has_fired()).await;
                until_queued(server, &name, 1).await;
                let lost = proxy.drop_next_push();
                free(held).await;
                let next = tokio::time::timeout(NOTICED + SLACK, waiting).await.unwrap().unwrap();
                println!("{}: {after:?}, the message was lost, too: {}", server.kind(), lost.has_fired());
                free(next).await;
            })
        });
        all(each).await;
        until_nothing_is_left(server).await;
    });
}

#[test]
fn trap_2_a_waiter_that_left_while_its_replies_were_lost_leaves_nothing() {
    run_on_each_server("a_waiter_that_left_while_its_replies_were_lost", async |server| {
        let each = EITHER.map(|after| {
            boxed(async move {
                let (proxy, client) = behind_a_proxy(server).await;
                let other = connect(&server.url(), "b").await;
                let name = format!("job-{after:?}");
                let held = take(&other, &name, TTL).await;
                let lost = proxy.drop_reply_to(RequestMatch::command("EVALSHA").containing(&name), after);
                let waiting = wait_for(&client, &name, TTL);
                until_within(NOTICED, "the first reply is lost", || lost.has_fired()).await;
                until_queued(server, &name, 1).await;
                waiting.abort();
                until_within(NOTICED, "cleaned up", || client.load().cleanups == 0).await;
                until_queued(server, &name, 0).await;
                free(held).await;
                free(guard(client.lock(&name).unwrap().wait(NOTICED).acquire().await)).await;
            })
        });
        all(each).await;
        until_nothing_is_left(server).await;
    });
}

/// A client through a proxy; the server has the scripts.
async fn behind_a_proxy(server: &RedisServer) -> (Proxy, Client) {
    let proxy = Proxy::before(server).unwrap();
    let client = connect(&server.url_through(&proxy), "a").await;
    free(guard(client.lock("warm-up").unwrap().ttl(TTL).wait(SLACK).acquire().await)).await;
    (proxy, client)
}

fn boxed<'a>(one: impl Future<Output = ()> + 'a) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    Box::pin(one)
}

/// Does everything at the same time: most of it is waiting.
async fn all<'a>(each: impl IntoIterator<Item = Pin<Box<dyn Future<Output = ()> + 'a>>>) {
    let mut running: Vec<_> = each.into_iter().collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
