//! How a holder learns that its lease is lost: in time, once, with the cause, and with its work stopped before.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use leasehold_core::memory::Operation;
use leasehold_core::store::BreakMode;
use leasehold_core::{Guard, LeaseState, LostCause, Released, RunError};

use crate::support::{
    Process, TICK, World, acquired, assert_about, busy, free, millis, name, pass, secs, waiting, within,
};

const TTL: Duration = Duration::from_secs(3);

/// Does to a lease what makes it lost in one particular way.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Taken,
    Missing,
    Flushed,
    Broken,
    BrokenNow,
    Unreachable,
    Hang,
    Stopped,
    FixedLease,
    MaxHold,
}

impl Blow {
    const ALL: [Self; 10] = [
        Self::Taken,
        Self::Missing,
        Self::Flushed,
        Self::Broken,
        Self::BrokenNow,
        Self::Unreachable,
        Self::Hang,
        Self::Stopped,
        Self::FixedLease,
        Self::MaxHold,
    ];

    async fn held_lease(self, process: &Process) -> Guard {
        let lock = process.lock("job").ttl(TTL);
        let lock = match self {
            Self::FixedLease => lock.fixed_lease(),
            Self::MaxHold => lock.max_hold(millis(4_321)),
            _ => lock,
        };
        acquired(lock.try_acquire().await)
    }

    async fn strike(self, world: &World, process: &Process, ops: &Process) {
        let job = name("job");
        match self {
            Self::Taken => world.raw_set(&job, "somebody else", Some(secs(60))),
            Self::Missing => world.evict(&job),
            Self::Flushed => world.flush(),
            Self::Broken => drop(ops.client.break_lease("job", BreakMode::Notice).await.unwrap()),
            Self::BrokenNow => drop(ops.client.break_lease("job", BreakMode::Now).await.unwrap()),
            Self::Unreachable => process.store.unreachable(true),
            Self::Hang => process.store.hang(true),
            Self::Stopped => world.clock.put_forward(secs(60)),
            Self::FixedLease | Self::MaxHold => {}
        }
    }

    fn cause(self) -> LostCause {
        match self {
            Self::Taken => LostCause::Taken,
            Self::Missing | Self::Flushed | Self::BrokenNow => LostCause::Missing,
            Self::Broken => LostCause::Broken,
            Self::Unreachable | Self::Hang => LostCause::Unreachable,
            Self::Stopped | Self::FixedLease => LostCause::Expired,
            Self::MaxHold => LostCause::MaxHold,
        }
    }
}

/// A name that was taken away while the body ran, unseen by any renewal: the release finds out, and that is a loss.
#[tokio::test(start_paused = true)]
async fn a_loss_that_only_the_release_finds_out_is_no_success() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let outcome = a
        .lock("job")
        .ttl(secs(30))
        .run(|lease| async move {
            b.client.break_lease("job", BreakMode::Now).await.unwrap();
            assert_eq!(lease.state(), LeaseState::Held);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>("done")
        })
        .await;
    let error = outcome.unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with("job: the lease with the fencing token "), "{told}");
    assert!(matches!(error, RunError::Lost { cause: LostCause::Missing, value: Some("done"), .. }), "{told}");
    // The commonest error of a body is no `Error` itself, and goes up with `?` all the same.
    let boxed: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert_eq!(boxed.to_string(), told);
}

#[tokio::test(start_paused = true)]
async fn trap_21_every_loss_is_told_once_with_its_cause_within_the_lease() {
    for blow in Blow::ALL {
        let world = World::new();
        let (a, ops) = (world.process("a").await, world.process("ops").await);
        let guard = blow.held_lease(&a).await;
        pass(millis(100)).await;
        assert_eq!(guard.state(), LeaseState::Held);
        blow.strike(&world, &a, &ops).await;
        let struck = world.now();
        let cause = within(secs(10), guard.lost()).await;
        assert_eq!(cause, Some(blow.cause()), "{blow:?}");
        let took = world.now().since(struck);
        assert!(took <= millis(4_321) + TICK, "{blow:?} took {took:?}");
        // It stays lost, for the same cause, whatever happens later.
        a.store.hang(false);
        a.store.unreachable(false);
        pass(secs(10)).await;
        assert_eq!(guard.state(), LeaseState::Lost(blow.cause()), "{blow:?}");
        assert_eq!(within(secs(1), guard.lost()).await, Some(blow.cause()), "{blow:?}");
        assert_eq!(guard.remaining(), Duration::ZERO);
        within(secs(1), guard.cancelled()).await.expect("cancelled as well");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost, "{blow:?}");
        a.assert_idle(format!("{blow:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn trap_21_a_holder_cut_off_is_told_a_margin_before_its_lease_ends_on_the_server() {
    for ttl in [millis(100), secs(1), secs(3), secs(30), secs(600)] {
        for fraction in [0, 1, 2, 5, 9, 10, 11, 13] {
            let world = World::new();
            let a = world.process("a").await;
            let guard = a.take("job", ttl).await;
            // Cut off at various times around the renewals.
            pass(ttl * fraction / 30).await;
            a.store.unreachable(true);
            let cause = guard.lost().await;
            let left = world.lease_left("job").await;
            let margin = (ttl / 10).min(secs(1));
            assert!(left >= margin, "ttl {ttl:?}, cut off at {fraction}/30: {left:?} left on the server");
            assert!(left <= margin + ttl / 100 + 3 * TICK + ttl / 4, "told much too early: {left:?} left");
            let expected = if fraction < 10 { LostCause::Unreachable } else { cause };
            assert_eq!(cause, expected);
            drop(guard);
        }
    }
}

/// F016: The body of the scoped form is cancelled before the lease can have ended.
#[tokio::test(start_paused = true)]
async fn trap_21_f016_the_body_is_cancelled_before_the_lease_can_have_ended() {
    struct Work<'a> {
        world: &'a World,
        ended: Rc<Cell<Option<leasehold_core::Moment>>>,
    }
    impl Drop for Work<'_> {
        fn drop(&mut self) {
            self.ended.set(Some(self.world.now()));
        }
    }
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let ended = Rc::new(Cell::new(None));
    let work = Work { world: &world, ended: Rc::clone(&ended) };
    let body = async |_| {
        let _work = work;
        pass(secs(1)).await;
        a.store.hang(true);
        std::future::pending::<Result<(), Infallible>>().await
    };
    let waiter = waiting(b.lock("job").wait_forever());
    free(acquired(waiter.await.unwrap())).await;
    let outcome = a.lock("job").ttl(TTL).run(body).await;
    assert!(matches!(outcome, Err(RunError::Lost { cause: LostCause::Unreachable, value: None, .. })));
    let ended = ended.take().expect("the body is gone");
    let next = acquired(b.lock("job").wait_forever().acquire().await);
    assert!(world.now().since(ended) >= millis(300), "a margin lies between them");
    free(next).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_completes_although_the_lease_is_lost_gives_its_value_with_the_loss() {
    let world = World::new();
    let a = world.process("a").await;
    let body = async |_| {
        // The process does not run for longer than the lease, and then the body just goes on.
        world.clock.put_forward(secs(60));
        Ok::<_, Infallible>("too late")
    };
    match a.lock("job").ttl(TTL).run(body).await {
        Err(RunError::Lost { cause: LostCause::Expired, value: Some("too late"), .. }) => {}
        other => panic!("{other:?}"),
    }
    pass(secs(1)).await;
    a.assert_idle("after the run");
}

/// F105: A process that was stopped for longer than its TTL sees the loss at its next look.
#[tokio::test(start_paused = true)]
async fn trap_6_trap_20_f105_a_process_that_was_stopped_sees_the_loss_at_its_next_look() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", TTL).await;
    let view = guard.lease().clone();
    assert_eq!(view.state(), LeaseState::Held);
    world.clock.put_forward(secs(60));
    // Nothing of the engine has run since: the state comes from the clock.
    assert_eq!(view.state(), LeaseState::Lost(LostCause::Expired));
    assert_eq!(view.remaining(), Duration::ZERO);
    assert_eq!(a.renewals(), 0);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn a_stop_shorter_than_the_lease_is_survived() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(30)).await;
    for _ in 0..20 {
        world.clock.put_forward(secs(25));
        assert!(matches!(guard.state(), LeaseState::Held), "{:?}", guard.state());
        pass(secs(2)).await;
    }
    free(guard).await;
}

/// F105: A process that was stopped between request and reply does not take the dead grant for a lease.
#[tokio::test(start_paused = true)]
async fn f105_a_process_stopped_between_request_and_reply_does_not_take_a_dead_grant_for_a_lease() {
    let world = World::new();
    let a = world.process("a").await;
    a.store.delay_replies(millis(50));
    let attempt = waiting(a.lock("job").ttl(secs(2)));
    pass(millis(10)).await;
    world.clock.put_forward(secs(5));
    let guard = acquired(attempt.await.unwrap());
    assert!(guard.remaining() > secs(1), "acquired anew: {:?}", guard.remaining());
    assert!(guard.remaining() <= world.lease_left("job").await);
    free(guard).await;
}

/// F096: A body that panics frees its name.
#[tokio::test(start_paused = true)]
async fn f096_a_body_that_panics_frees_the_name() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let lock = a.lock("job").ttl(secs(60));
    let body = async |_| -> Result<(), Infallible> {
        pass(millis(10)).await;
        std::panic::resume_unwind(Box::new("the body fails"));
    };
    let task = tokio::spawn(async move { drop(lock.run(body).await) });
    assert!(task.await.unwrap_err().is_panic());
    free(acquired(b.lock("job").wait(millis(100)).acquire().await)).await;
    a.assert_idle("after the panic");
    world.assert_empty("after the panic");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_frees_the_name_and_its_error_comes_back() {
    let world = World::new();
    let a = world.process("a").await;
    let outcome = a.lock("job").run(async |_| Err::<(), _>("bad order")).await;
    assert!(matches!(outcome, Err(RunError::Body("bad order"))));
    pass(millis(5)).await;
    world.assert_empty("after the failure");
}

/// F078: The body does not run when the name is taken or the store cannot be reached.
#[tokio::test(start_paused = true)]
async fn trap_57_f078_the_body_does_not_run_without_the_lease_or_without_the_store() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let _guard = a.take("job", secs(60)).await;
    let body = async |_| -> Result<(), Infallible> { panic!("ran without the lease") };
    let outcome = b.lock("job").wait(secs(2)).run(body).await;
    assert!(matches!(outcome, Err(RunError::Busy(ref busy)) if busy.holder.as_deref() == Some("a")));
    b.store.hang(true);
    let outcome = b.lock("other").run(body).await;
    assert!(matches!(outcome, Err(RunError::Store(_))), "trap 57: no store, no lease");
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_guard_is_told_to_stop() {
    let world = World::new();
    let a = world.process("a").await;
    let (send, receive) = tokio::sync::oneshot::channel();
    let body = async |lease: leasehold_core::Lease| {
        drop(send.send(tokio::spawn(async move {
            lease.cancelled().await;
            lease.state()
        })));
        Ok::<_, Infallible>(())
    };
    a.lock("job").run(body).await.unwrap();
    let spawned = receive.await.unwrap();
    assert_eq!(within(secs(1), spawned).await.expect("told").unwrap(), LeaseState::Released);
}

#[tokio::test(start_paused = true)]
async fn a_broken_lease_is_told_to_its_holder_before_anybody_else_gets_in() {
    let world = World::new();
    let (a, b, ops) = (world.process("a").await, world.process("b").await, world.process("ops").await);
    let guard = a.take("job", TTL).await;
    pass(millis(1_500)).await;
    drop(ops.client.break_lease("job", BreakMode::Notice).await.unwrap());
    let seen = busy(b.lock("job").try_acquire().await);
    assert_eq!(seen.holder.as_deref(), Some("a lease broken by ops"));
    assert_eq!(guard.lost().await, LostCause::Broken);
    assert!(world.lease_left("job").await > Duration::ZERO, "the name is still taken");
    let waiter = b.lock("job").wait(secs(3)).acquire().await;
    free(acquired(waiter)).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn after_a_reconnect_a_lease_that_is_gone_is_told_at_once_and_the_others_go_on() {
    let world = World::new();
    let a = world.process("a").await;
    let (gone, kept) = (a.take("gone", TTL).await, a.take("kept", TTL).await);
    pass(millis(10)).await;
    world.evict(&name("gone"));
    a.store.reconnect();
    pass(millis(20)).await;
    assert_eq!(gone.state(), LeaseState::Lost(LostCause::Missing));
    assert_eq!(kept.state(), LeaseState::Held);
    let renewals = a.store.requests(Operation::Renew);
    pass(TTL / 3 - millis(50)).await;
    assert_eq!(a.store.requests(Operation::Renew), renewals, "renewed again before its time");
    pass(TTL).await;
    assert_eq!(kept.state(), LeaseState::Held);
}

#[tokio::test(start_paused = true)]
async fn trap_35_an_evicted_lease_is_noticed_within_a_third_of_its_ttl() {
    let world = World::new();
    let a = world.process("a").await;
    for wait in [0, 300, 999, 1_001, 1_500] {
        let guard = a.take("job", TTL).await;
        pass(millis(wait)).await;
        world.evict(&name("job"));
        let evicted = world.now();
        assert_eq!(guard.lost().await, LostCause::Missing);
        assert!(world.now().since(evicted) <= TTL / 3 + TICK);
        drop(guard);
        pass(millis(10)).await;
    }
    assert_eq!(a.store.requests(Operation::Acquire), 5);
}

#[tokio::test(start_paused = true)]
async fn many_who_watch_one_lease_are_all_told() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", TTL).await;
    let mut told = Vec::new();
    for _ in 0..20 {
        let view = guard.lease().clone();
        told.push(tokio::spawn(async move { view.lost().await }));
    }
    pass(millis(10)).await;
    world.evict(&name("job"));
    let started = world.now();
    for task in told {
        assert_eq!(task.await.unwrap(), LostCause::Missing);
    }
    assert_about(world.now().since(started), millis(990));
    drop(guard);
}
