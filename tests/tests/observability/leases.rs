//! Metrics of holding, renewing and losing.

use std::time::Duration;

use leasehold::core::memory::Operation;
use leasehold::{BreakMode, LostCause};

use crate::support::{Seen, TTL, World, about, guard, pass, secs, take};

/// As another process would have written it.
const OTHER_OWNER: &str = "AAAAAAAAAAAAAAAAAAAAAA@another:1";

#[tokio::test(start_paused = true)]
async fn leases_held_are_a_level_that_comes_back_to_zero_and_their_time_is_told() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    let mut held = Vec::new();
    for number in 0..5 {
        held.push(take(&process.client, &format!("job:{number}")).await);
    }
    assert!(about(seen.figures().change("leasehold_leases_held"), 5.0));
    pass(secs(7)).await;
    drop(held.pop());
    let lost = held.pop().unwrap();
    world.server.evict(lost.name());
    pass(secs(8)).await;
    assert_eq!(lost.lost().await, LostCause::Missing);
    let _ = lost.release().await.unwrap();
    for held in held {
        let _ = held.release().await.unwrap();
    }
    let figures = seen.figures();
    assert!(about(figures.change("leasehold_leases_held"), -5.0), "{figures:?}");
    let released = figures.times("leasehold_hold_seconds{end=released}");
    assert!(released.len() == 4 && about(released[0], 7.0) && about(released[3], 15.0), "{released:?}");
    assert_eq!(figures.times("leasehold_hold_seconds{end=lost}").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn renewals_are_counted_by_verdict_and_their_lag_is_told() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    let held = take(&process.client, "job").await;
    pass(TTL + secs(1)).await;
    let figures = seen.figures();
    assert_eq!(figures.count("leasehold_renewals_total{outcome=renewed}"), 3, "one every ten seconds");
    assert_eq!(figures.times("leasehold_renewal_lag_seconds").len(), 3);
    assert!(figures.times("leasehold_renewal_lag_seconds").iter().all(|lag| about(*lag, 0.0)));
    assert_eq!(figures.count("leasehold_renewals_total{outcome=failed}"), 0);

    process.store.lose_next_reply(Operation::Renew);
    pass(secs(12)).await;
    let figures = seen.figures();
    assert_eq!(figures.count("leasehold_renewals_total{outcome=failed}"), 1);
    assert!(figures.count("leasehold_renewals_total{outcome=renewed}") >= 1, "tried again");

    world.server.evict(held.name());
    pass(secs(11)).await;
    let figures = seen.figures();
    assert_eq!(figures.count("leasehold_renewals_total{outcome=refused}"), 1);
    let _ = held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_shows_in_the_lag() {
    let seen = Seen::start();
    let world = World::new();
    let process = world.process("one").await;
    let held = take(&process.client, "job").await;
    // Nothing runs for fifteen seconds: five more than until the renewal was due.
    tokio::time::advance(secs(15)).await;
    pass(secs(1)).await;
    let lag = seen.figures().times("leasehold_renewal_lag_seconds");
    assert!(lag.len() == 1 && (4.9..5.5).contains(&lag[0]), "{lag:?}");
    let _ = held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_cause_of_a_loss_is_counted_and_told_with_name_and_token() {
    for cause in ["expired", "taken", "missing", "unreachable", "max_hold", "broken"] {
        let seen = Seen::start();
        let world = World::new();
        let process = world.process("one").await;
        let lock = process.client.lock("job").unwrap().ttl(TTL);
        let lock = match cause {
            "expired" => lock.fixed_lease(),
            "max_hold" => lock.max_hold(secs(20)),
            _ => lock,
        };
        let held = guard(lock.try_acquire().await);
        let token = held.fencing_token().to_string();
        match cause {
            "taken" => world.server.raw_set(held.name(), OTHER_OWNER, Some(TTL)),
            "missing" => world.server.evict(held.name()),
            "unreachable" => process.store.unreachable(true),
            "broken" => {
                let operator = world.process("operator").await;
                operator.client.break_lease("job", BreakMode::Notice).await.unwrap();
            }
            _ => {}
        }
        let told = tokio::time::timeout(secs(40), held.lost()).await.unwrap();
        assert_eq!(told.label(), cause);
        let figures = seen.figures();
        assert_eq!(figures.count(&format!("leasehold_lost_total{{cause={cause}}}")), 1, "{figures:?}");
        let lost: Vec<_> =
            figures.series().into_iter().filter(|one| one.starts_with("leasehold_lost")).collect();
        assert_eq!(lost.len(), 1, "{lost:?}");
        let event = seen.told_once("lease lost");
        assert_eq!(event.level, tracing::Level::WARN);
        assert_eq!((event.fields["name"].as_str(), &event.fields["fencing_token"]), ("job", &token));
        assert_eq!(event.fields["cause"], told.to_string());
        process.store.unreachable(false);
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_shorter_than_its_work_or_nearly_so_is_warned_of() {
    let told = |work: Duration, fixed: bool| async move {
        let seen = Seen::start();
        let world = World::new();
        let process = world.process("one").await;
        let lock = process.client.lock("job").unwrap().ttl(TTL);
        let held = guard(if fixed { lock.fixed_lease() } else { lock }.try_acquire().await);
        pass(work).await;
        let _ = held.release().await.unwrap();
        let warned: Vec<_> =
            seen.told().into_iter().filter(|event| event.message.contains("fixed lease")).collect();
        warned
    };
    assert!(told(secs(23), true).await.is_empty());
    let nearly = told(secs(25), true).await;
    assert_eq!(nearly.len(), 1);
    assert!(nearly[0].message.contains("more than 80 %"), "{nearly:?}");
    let over = told(secs(35), true).await;
    assert_eq!(over.len(), 1);
    assert!(over[0].message.contains("took longer than its fixed lease"), "{over:?}");
    for event in [&nearly[0], &over[0]] {
        assert_eq!(event.level, tracing::Level::WARN);
        assert_eq!(event.fields.keys().collect::<Vec<_>>(), ["held", "name", "ttl"]);
        assert_eq!((event.fields["name"].as_str(), event.fields["ttl"].as_str()), ("job", "30s"));
    }
    assert!(told(secs(95), false).await.is_empty(), "a lease that is renewed is never too short");
}
