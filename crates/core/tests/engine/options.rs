//! What may be asked for: limits are checked before anything is sent, and no default says yes by itself.

use std::time::Duration;

use leasehold_core::{ClientSettings, ErrorKind, KeeperRuntime, LockOptions, Name, OwnerToken, Wait};

use crate::support::{World, free, millis, pass, secs};

/// F034, F037, F097: TTLs of zero, below 10 ms, above 24 h or beyond any number are refused, naming the
/// limits, before anything is sent.
#[tokio::test(start_paused = true)]
async fn trap_8_f034_f037_f097_ttls_outside_the_limits_are_refused_before_anything_is_sent() {
    let world = World::new();
    let a = world.process("a").await;
    let day = secs(24 * 3600);
    for ttl in [Duration::ZERO, Duration::from_micros(500), millis(9), day + millis(1), Duration::MAX] {
        let error = a.lock("job").ttl(ttl).try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false), "{ttl:?}");
        let text = error.to_string();
        assert!(text.contains("ttl") && text.contains("10ms") && text.contains("24 h"), "{text}");
    }
    assert_eq!(a.acquires(), 0);
    for ttl in [millis(10), day] {
        free(a.take("job", ttl).await).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trap_8_holds_outside_the_limits_and_contradictions_are_refused_naming_both() {
    let world = World::new();
    let a = world.process("a").await;
    let lock = || a.lock("job");
    let wrong = [
        (lock().max_hold(millis(9)), "max_hold"),
        (lock().max_hold(Duration::MAX), "max_hold"),
        (lock().min_hold(Duration::ZERO), "min_hold"),
        (lock().min_hold(secs(24 * 3600 + 1)), "min_hold"),
        (lock().min_hold(secs(5)).max_hold(secs(4)), "max_hold"),
        (lock().acks(1), "acks"),
    ];
    for (lock, option) in wrong {
        let error = lock.wait_forever().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(option), "{error}");
    }
    assert_eq!(a.acquires(), 0);
}

#[tokio::test(start_paused = true)]
async fn trap_8_names_outside_the_limits_are_refused_before_anything_is_sent() {
    let world = World::new();
    let a = world.process("a").await;
    for bad in ["", "~queue", "a\nb", "a\0b", &"x".repeat(513)] {
        let error = a.client.lock(bad).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Config, false), "{bad:?}");
    }
    for good in ["x", "{order}:1", "}{", "{}", "Ä ö", &"x".repeat(512)] {
        assert!(Name::new(good).is_ok(), "{good}");
        free(a.take(good, secs(1)).await).await;
    }
    world.assert_empty("after all");
}

/// F054: Names are keys verbatim, never shortened or hashed, so distinct names never collide.
#[tokio::test(start_paused = true)]
async fn f054_distinct_names_never_collide() {
    let world = World::new();
    let a = world.process("a").await;
    let mut guards = Vec::new();
    for name in ["a", "A", "a ", "a:", "a:b", "{a}:b", "a{b}", "ab", "a\u{0301}", "\u{00e1}"] {
        guards.push(a.take(name, secs(30)).await);
    }
    assert_eq!(world.stored_names(), guards.len());
}

#[tokio::test(start_paused = true)]
async fn a_clients_defaults_hold_for_its_locks_and_wrong_ones_are_refused_at_the_start() {
    let world = World::new();
    let defaults = LockOptions { ttl: Some(secs(7)), wait: Wait::For(millis(50)), ..LockOptions::default() };
    let a = world.process_with("a", |settings| settings.defaults = defaults).await;
    let guard = a.lock("job").acquire().await.unwrap().into_guard().unwrap();
    assert_eq!(world.lease_left("job").await, secs(7));
    let started = world.now();
    let error = a.lock("job").acquire().await.unwrap().into_guard().unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Busy, true));
    assert_eq!(world.now().since(started), millis(50));
    free(guard).await;
    let no_ttl = LockOptions { ttl: Some(Duration::ZERO), ..LockOptions::default() };
    for (defaults, store_timeout) in [(no_ttl, secs(1)), (LockOptions::default(), Duration::ZERO)] {
        let keeper = KeeperRuntime::Current;
        let settings = ClientSettings { defaults, store_timeout, keeper, ..ClientSettings::default() };
        let started = leasehold_core::Client::start(settings, || async { panic!("not connected") }).await;
        assert_eq!(started.unwrap_err().kind(), ErrorKind::Config);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_the_future_is_polled() {
    let world = World::new();
    let a = world.process("a").await;
    let lock = a.lock("job");
    let future = lock.acquire();
    pass(secs(1)).await;
    assert_eq!(a.acquires(), 0);
    drop(future);
    a.assert_idle("after the drop");
}

/// F103: Every acquisition has a new owner token of 128 random bits from the operating system.
#[tokio::test(start_paused = true)]
async fn trap_34_f103_every_owner_token_is_new_and_of_128_random_bits() {
    let world = World::new();
    let a = world.process("a").await;
    let mut seen = std::collections::HashSet::new();
    for number in 0..1_000 {
        let guard = a.take(&format!("job:{number}"), secs(1)).await;
        let token = guard.owner_token().expose().to_owned();
        assert!(OwnerToken::parse(&token).is_ok());
        assert!(seen.insert(token));
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn trap_44_no_secret_is_in_debug_output_or_in_errors() {
    let world = World::new();
    let a = world.process("web-1").await;
    let guard = a.take("job", secs(30)).await;
    let secret = guard.owner_token().expose()[..22].to_owned();
    let lock = a.lock("job").owner(guard.owner_token().clone());
    let texts = [
        format!("{guard:?}"),
        format!("{:?}", guard.lease()),
        format!("{:?}", guard.owner_token()),
        format!("{lock:?}"),
        format!("{:?}", a.client),
        format!("{:?}", a.client.inspect("job").await.unwrap()),
        format!("{:?}", a.client.list("", 10).await.unwrap()),
        format!("{:?}", a.store.recorded()),
    ];
    for text in texts {
        assert!(!text.contains(&secret), "{text}");
    }
    free(guard).await;
}
