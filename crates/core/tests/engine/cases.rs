//! Failures that users met elsewhere and that need no fault of the network: the name of a test begins with the
//! case's number.

use std::time::Duration;

use leasehold_core::{Attempt, ErrorKind, Guard, Lock, Name, Namespace, Released, RunError};

use crate::support::*;

/// F099: However often a lease is renewed, its holder's death frees the name within one TTL.
#[tokio::test(start_paused = true)]
async fn f099_renewing_often_never_makes_a_lease_longer_than_its_ttl() {
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let guard = a.take("job", secs(10)).await;
    for _ in 0..20 {
        pass(secs(1)).await;
        guard.renew().await.unwrap();
        assert!(world.lease_left("job").await <= secs(10));
    }
    a.store.kill();
    let died = world.now();
    free(acquired(b.lock("job").wait(secs(20)).acquire().await)).await;
    assert!(world.now().since(died) <= secs(10) + TICK);
}

/// F124: A second acquire through the same lock object is refused like anybody else's; prolonging is a call
/// of its own.
#[tokio::test(start_paused = true)]
async fn f124_a_lock_acquired_twice_is_refused_the_second_time() {
    let world = World::new();
    let a = world.process("a").await;
    let lock = a.lock("job");
    let guard = acquired(lock.try_acquire().await);
    let Attempt::Busy(busy) = lock.try_acquire().await.unwrap() else {
        panic!("the same lock was granted twice")
    };
    assert_eq!(busy.holder.as_deref(), Some("a"));
    free(guard).await;
}

/// F090: Nothing is forgotten because many other names were used: there is no cache of locks that evicts.
#[tokio::test(start_paused = true)]
async fn f090_touching_many_other_names_takes_nothing_from_a_holder_or_a_waiter() {
    let world = World::new();
    let a = world.process("a").await;
    let guard = a.take("job", secs(5)).await;
    let waiter = {
        let lock = a.lock("job").wait_forever();
        tokio::spawn(async move { acquired(lock.acquire().await).fencing_token() })
    };
    for number in 0..1_000 {
        free(acquired(a.lock(&format!("other:{number}")).try_acquire().await)).await;
    }
    assert!(matches!(a.lock("job").try_acquire().await, Ok(Attempt::Busy(_))));
    let token = guard.fencing_token();
    free(guard).await;
    assert!(waiter.await.unwrap() > token);
}

/// F109: Acquiring is one atomic step, so contenders never enter together however a release and their tries
/// interleave.
#[tokio::test(start_paused = true)]
async fn f109_fifty_contenders_never_enter_together_over_thousands_of_rounds() {
    let world = World::new();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = Vec::new();
    for number in 0..50 {
        let process = world.process(&format!("p{number}")).await;
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..200_u64 {
                // Half of them wait, half of them try again by themselves.
                let lock = process.lock("job");
                let attempt = if round % 2 == 0 {
                    lock.wait_forever().acquire().await.unwrap()
                } else {
                    lock.try_acquire().await.unwrap()
                };
                let Attempt::Acquired(guard) = attempt else {
                    pass(millis(round % 7)).await;
                    continue;
                };
                let before = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(before, 0, "two are inside");
                pass(millis(round % 3)).await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                free(guard).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// F144: Names up to 512 bytes are used verbatim and stay distinct; longer ones and control characters are
/// refused.
#[tokio::test(start_paused = true)]
async fn f144_long_names_that_differ_in_one_place_are_different_and_too_long_ones_are_refused() {
    let world = World::new();
    let a = world.process("a").await;
    let names = ["x", "y", "X"].map(|last| format!("{}{last}", "n".repeat(511)));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(acquired(a.lock(name).try_acquire().await));
    }
    for guard in guards {
        free(guard).await;
    }
    for bad in ["n".repeat(513), "n".repeat(64 * 1024), "a\0b".into(), "a\nb".into()] {
        assert!(Name::new(&bad).is_err());
        assert!(a.client.lock(&bad).is_err());
    }
}

/// F114: Rounds without a waiter, and waiters that give up, leave nothing in client or store.
#[tokio::test(start_paused = true)]
async fn f114_a_hundred_thousand_rounds_without_a_waiter_leave_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    for _ in 0..100_000 {
        free(acquired(a.lock("job").try_acquire().await)).await;
    }
    world.assert_empty("after the rounds");
    let holder = a.take("job", secs(60)).await;
    let b = world.process("b").await;
    for _ in 0..1_000 {
        assert!(matches!(b.lock("job").wait(millis(5)).acquire().await, Ok(Attempt::Busy(_))));
    }
    free(holder).await;
    pass(secs(1)).await;
    world.assert_empty("after waiters that gave up");
}

/// F018: Several names are taken one by one; when one of them is busy, or the caller is cancelled, those that were
/// taken are free at once, because their guards are dropped.
#[tokio::test(start_paused = true)]
async fn f018_names_that_were_taken_before_a_busy_one_are_free_at_once() {
    async fn take_all(process: &Process, wait: Duration) -> Option<Vec<Guard>> {
        let mut guards = Vec::new();
        for name in ["k1", "k2", "k3"] {
            guards.push(process.lock(name).wait(wait).acquire().await.unwrap().into_guard().ok()?);
        }
        Some(guards)
    }
    let world = World::new();
    let (a, b) = (world.process("a").await, world.process("b").await);
    let taken = b.take("k2", secs(60)).await;
    assert!(take_all(&a, secs(1)).await.is_none());
    pass(TICK).await;
    for free_again in ["k1", "k3"] {
        free(acquired(b.lock(free_again).try_acquire().await)).await;
    }
    for steps in 0..200 {
        polled(steps, take_all(&a, secs(60))).await;
        pass(TICK).await;
        assert_eq!(world.holder("k1").await, None, "cancelled after {steps} steps");
    }
    free(taken).await;
    for guard in take_all(&a, secs(1)).await.unwrap() {
        free(guard).await;
    }
    world.assert_empty("at the end");
}

/// F121: A name is text and its key the same bytes everywhere; no key is derived from an object, and texts that only
/// look alike are different names.
#[tokio::test(start_paused = true)]
async fn f121_a_key_is_the_namespace_and_the_bytes_of_the_name_and_nothing_else() {
    // Written out, so that every binding can be held against them.
    let vectors: [(&str, &[u8]); 8] = [
        ("order:1001", b"lock:order:1001"),
        ("Order:1001", b"lock:Order:1001"),
        ("1", b"lock:1"),
        ("1.0", b"lock:1.0"),
        (r#"{"b":1,"a":null}"#, br#"lock:{"b":1,"a":null}"#),
        ("caf\u{e9}", b"lock:caf\xc3\xa9"),
        ("cafe\u{301}", b"lock:cafe\xcc\x81"),
        ("2026-11-29T00:00:00+01:00", b"lock:2026-11-29T00:00:00+01:00"),
    ];
    let world = World::new();
    let a = world.process("a").await;
    let mut guards = Vec::new();
    for (text, key) in vectors {
        let name = Name::new(text).unwrap();
        assert_eq!(Namespace::default().key(&name).as_bytes(), key);
        assert_eq!(Namespace::new("").unwrap().key(&name).as_bytes(), &key[b"lock:".len()..]);
        assert_eq!(name.to_string(), text);
        guards.push(acquired(a.lock(text).try_acquire().await));
    }
    for guard in guards {
        free(guard).await;
    }
}

/// F123: Inside the section that holds a name, waiting for that name is refused at once; a try is told `Busy`.
#[tokio::test(start_paused = true)]
async fn f123_waiting_inside_a_section_for_its_own_name_is_refused_at_once() {
    let world = World::new();
    let a = world.process("a").await;
    let (outer, inner) = (a.lock("job"), a.lock("job").wait(secs(30)));
    let started = world.now();
    let section = outer.clone().run(async |_| {
        for nested in [inner.clone(), inner.clone().wait_forever(), outer.clone().wait(millis(1))] {
            let error = nested.acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("waits here for itself"), "{error}");
            let nested = nested.run(async |_| Ok::<_, ()>(())).await;
            assert!(matches!(nested, Err(RunError::Store(error)) if error.kind() == ErrorKind::Config));
        }
        busy(outer.try_acquire().await);
        // Deeper, after a pause, behind another section, and as one of several: it is the same section.
        pass(millis(1)).await;
        let other = a.lock("other").run(async |_| {
            let (one, two) = tokio::join!(inner.acquire(), within(secs(1), inner.acquire()));
            one.unwrap_err();
            two.unwrap().unwrap_err();
            Ok::<_, ()>(())
        });
        other.await.unwrap();
        Ok::<_, ()>(())
    });
    let done = Box::pin(section).await;
    assert_eq!(done.unwrap().released.unwrap(), Released::Freed);
    assert!(world.now().since(started) < secs(1), "it did wait");
    // Behind the section the name can be waited for again.
    free(acquired(inner.acquire().await)).await;
    world.assert_empty("at the end");
}

/// F123: Other tasks of the process are not part of the section and wait for their turn, also those it spawned.
#[tokio::test(start_paused = true)]
async fn f123_other_tasks_wait_for_the_section_as_before() {
    async fn visit(lock: Lock) {
        free(acquired(lock.acquire().await)).await;
    }
    let world = World::new();
    let a = world.process("a").await;
    let patient = a.lock("job").wait(secs(30));
    let before = tokio::spawn(visit(patient.clone()));
    let local = tokio::task::LocalSet::new();
    let section = patient.clone().run(async |_| {
        let spawned = tokio::spawn(visit(patient.clone()));
        // The section itself drives other tasks here.
        let driven = local.spawn_local(visit(patient.clone()));
        local.run_until(pass(secs(1))).await;
        visit(a.lock("other").wait(secs(30))).await;
        assert!(!spawned.is_finished() && !driven.is_finished());
        Ok::<_, ()>([spawned, driven])
    });
    let others = Box::pin(section).await.unwrap().value;
    for other in [before].into_iter().chain(others) {
        local.run_until(other).await.unwrap();
    }
    world.assert_empty("at the end");
}

/// F123: A section that panicked is not in the way of later waits on its thread.
#[tokio::test(start_paused = true)]
async fn f123_a_section_that_panicked_refuses_nothing() {
    let world = World::new();
    let a = world.process("a").await;
    let panics =
        a.lock("job").run(|_| async { std::panic::resume_unwind(Box::new("on purpose")) as Result<(), ()> });
    assert!(tokio::spawn(panics).await.unwrap_err().is_panic());
    free(acquired(a.lock("job").wait(secs(30)).acquire().await)).await;
    world.assert_empty("at the end");
}
