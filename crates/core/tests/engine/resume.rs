//! Resuming a lease by its owner token, in another process or the same.

use leasehold_core::{ErrorKind, LeaseState, LostCause, OwnerToken, Released};

use crate::support::{World, acquired, assert_about, busy, free, millis, pass, secs, waiting};

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_has_a_new_fencing_token_that_fences_the_old_process_out() {
    let world = World::new();
    let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
    let first = a.take("job", secs(30)).await;
    pass(secs(5)).await;
    let token = OwnerToken::parse(first.owner_token().expose()).unwrap();
    let second = acquired(b.lock("job").ttl(secs(30)).owner(token.clone()).try_acquire().await);
    assert!(second.fencing_token() > first.fencing_token());
    assert_eq!(second.owner_token(), &token);
    assert_about(world.lease_left("job").await, secs(30));
    busy(c.lock("job").try_acquire().await);
    free(second).await;
    // The first process learns that it is over.
    first.lost().await;
    assert!(matches!(first.state(), LeaseState::Lost(_)));
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_lease_ends_for_both_when_the_first_process_gives_it_back() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let first = a.take("job", secs(30)).await;
    let second = acquired(b.lock("job").owner(first.owner_token().clone()).try_acquire().await);
    free(first).await;
    assert_eq!(second.lost().await, LostCause::Missing);
    assert_eq!(second.release().await.unwrap(), Released::AlreadyLost);
}

/// The guard would go on believing that it alone holds the lease, so this is not how to get a newer token.
#[tokio::test(start_paused = true)]
async fn a_lease_is_not_resumed_beside_the_guard_that_holds_it() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(30)).await;
    let token = guard.owner_token().clone();
    for lock in [a.lock("job"), a.lock("job").wait(secs(5))] {
        let error = lock.owner(token.clone()).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(!error.to_string().contains(token.expose()), "{error}");
    }
    assert_eq!((guard.state(), a.acquires()), (LeaseState::Held, 1), "nothing was sent");
    free(guard).await;
    free(acquired(a.lock("job").owner(token).try_acquire().await)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_not_reentrant() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(30)).await;
    assert_eq!(busy(a.lock("job").try_acquire().await).holder.as_deref(), Some("a"));
    free(guard).await;
}

#[tokio::test(start_paused = true)]
async fn resuming_never_shortens_what_is_left() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let first = a.take("job", secs(60)).await;
    let token = first.owner_token().clone();
    let second = acquired(b.lock("job").ttl(secs(1)).owner(token).try_acquire().await);
    assert!(world.lease_left("job").await > secs(59));
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_lease_is_over_takes_the_name_like_anybody_else() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let first = acquired(a.lock("job").ttl(secs(1)).fixed_lease().try_acquire().await);
    let token = first.owner_token().clone();
    pass(secs(2)).await;
    let other = b.take("job", secs(30)).await;
    busy(a.lock("job").owner(token.clone()).try_acquire().await);
    free(other).await;
    let again = acquired(a.lock("job").owner(token).try_acquire().await);
    assert!(again.fencing_token() > first.fencing_token());
    free(again).await;
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn waiting_twice_with_one_owner_token_is_refused() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(30)).await;
    let token = OwnerToken::parse("MDEyMzQ1Njc4OWFiY2RlZg@other").unwrap();
    let first = waiting(b.lock("job").owner(token.clone()).wait_forever());
    pass(millis(10)).await;
    // Another name, so that the second is not held up in the local queue.
    let held = a.take("other", secs(30)).await;
    let error = b.lock("other").owner(token).wait(secs(5)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false));
    assert!(!error.to_string().contains("MDEyMzQ1Njc4OWFiY2RlZg"), "{error}");
    free(guard).await;
    free(acquired(first.await.unwrap())).await;
    free(held).await;
    pass(secs(2)).await;
    b.assert_idle("after all");
}
