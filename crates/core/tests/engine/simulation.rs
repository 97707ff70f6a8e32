//! Seeded schedules of three processes with delays, losses, outages, reconnects, deaths of waiters and cancelled
//! calls. Whatever happens: never two holders at once, fencing tokens grow in the order of the grants, everybody
//! is served or told in time, and nothing is left at the end. `LEASEHOLD_SEEDS=7..8` runs other schedules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::memory::{GrantBound, MemoryStore, Operation};
use leasehold_core::{Attempt, Client, Clock, FencingToken, Guard, Lease, LeaseState};

use crate::support::{MovableClock, Process, Random, SkewedClock, World, millis, pass, secs, within};

const SEEDS: u64 = 300;
const NAMES: [&str; 2] = ["blue", "red"];
const TASKS_PER_PROCESS: usize = 3;
const CALLS_PER_TASK: usize = 12;
const STORE_TIMEOUT: Duration = Duration::from_secs(4);

/// What all tasks of one schedule know together: who believes to hold what, and the newest token of each name.
#[derive(Default)]
struct Referee {
    holders: Mutex<BTreeMap<&'static str, Vec<Lease>>>,
    newest: Mutex<BTreeMap<&'static str, FencingToken>>,
    served: Mutex<u32>,
}

impl Referee {
    /// Takes note of a grant, at the moment it reached its holder.
    fn granted(&self, name: &'static str, guard: &Guard) {
        let mut holders = self.holders.lock().unwrap();
        let leases = holders.entry(name).or_default();
        leases.retain(is_held);
        leases.push(guard.lease().clone());
        assert!(!is_held(guard.lease()) || leases.len() == 1, "two holders of {name}: {leases:?}");
        let token = guard.fencing_token();
        let older = self.newest.lock().unwrap().insert(name, token);
        assert!(older < Some(token), "{name}: {token} was granted after {older:?}");
        *self.served.lock().unwrap() += 1;
    }

    /// Looks at everybody who believes to hold a name, at one moment.
    fn look(&self) {
        for (name, leases) in self.holders.lock().unwrap().iter_mut() {
            leases.retain(is_held);
            assert!(leases.len() <= 1, "two holders of {name}: {leases:?}");
        }
    }
}

fn is_held(lease: &Lease) -> bool {
    matches!(lease.state(), LeaseState::Held | LeaseState::Uncertain)
}

#[test]
fn seeded_schedules_never_have_two_holders_and_leave_nothing() {
    let mut served = 0;
    let seeds = seeds();
    for seed in seeds.clone() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(schedule(seed))));
        match outcome {
            Ok(count) => served += count,
            Err(panic) => {
                eprintln!("the schedule of seed {seed} failed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    let schedules = u32::try_from(seeds.count()).unwrap();
    println!("{served} grants in {schedules} schedules");
    assert!(served > 10 * schedules, "too little happened: {served} grants");
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("LEASEHOLD_SEEDS") else { return 0..SEEDS };
    let (first, end) = text.split_once("..").expect("LEASEHOLD_SEEDS=first..end");
    first.parse().unwrap()..end.parse().unwrap()
}

/// One schedule, from its seed. How many grants there were.
async fn schedule(seed: u64) -> u32 {
    let random = Arc::new(Random::new(seed));
    let world = Arc::new(World::new());
    let referee = Arc::new(Referee::default());
    let mut processes = Vec::new();
    for number in 0..3_u32 {
        processes.push(Arc::new(process(&world, &random, number).await));
    }
    let mut tasks = Vec::new();
    for process in &processes {
        for _ in 0..TASKS_PER_PROCESS {
            let (client, clock) = (process.client.clone(), Arc::clone(&world.clock));
            tasks.push(tokio::spawn(work(client, clock, Arc::clone(&random), Arc::clone(&referee))));
        }
    }
    let mut looks = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        trouble(&processes[usize::try_from(random.below(3)).unwrap()], &world, &random).await;
        referee.look();
        looks += 1;
        assert!(looks < 100_000, "it does not end");
    }
    for task in tasks {
        task.await.unwrap();
    }
    for process in &processes {
        calm(process, &world);
    }
    pass(secs(20)).await;
    for process in &processes {
        process.assert_idle(format!("seed {seed}"));
        process.store.start_record();
    }
    for name in NAMES {
        // An ended lease that nobody asked about since may still be kept, but counts for nothing.
        assert_eq!(world.inspect(name).await, None, "seed {seed}");
    }
    pass(secs(60)).await;
    assert!(processes.iter().all(|process| process.store.recorded().is_empty()), "something goes on");
    *referee.served.lock().unwrap()
}

/// A process whose clock may run 0.9 % slow or fast, or to which nothing can be pushed.
async fn process(world: &World, random: &Random, number: u32) -> Process {
    let clock: Arc<dyn Clock> = match random.below(4) {
        0 => SkewedClock::start(991),
        1 => SkewedClock::start(1_009),
        _ => world.clock.clone(),
    };
    let (store, clock) = if random.one_in(8) {
        (MemoryStore::connect_without_push(world), world.clock.clone() as Arc<dyn Clock>)
    } else {
        (MemoryStore::connect_with_clock(world, Arc::clone(&clock)), clock)
    };
    let entropy = Arc::new(Random::new(random.next()));
    let label = format!("p{number}");
    let process = world.process_on(store, &label, |settings| {
        settings.clock = clock;
        settings.entropy = entropy;
        settings.store_timeout = STORE_TIMEOUT;
    });
    process.await
}

/// What one task of a process does: acquire in all sorts of ways, hold for a while, and let go.
async fn work(client: Client, clock: Arc<MovableClock>, random: Arc<Random>, referee: Arc<Referee>) {
    for _ in 0..CALLS_PER_TASK {
        pass(random.millis(300)).await;
        let name = NAMES[usize::try_from(random.below(2)).unwrap()];
        let wait = if random.one_in(4) { Duration::ZERO } else { random.millis(6_000) };
        let mut lock = client.lock(name).unwrap().ttl(millis(200) + random.millis(3_000)).wait(wait);
        if random.one_in(5) {
            lock = lock.fixed_lease();
        }
        if random.one_in(8) {
            lock = lock.min_hold(millis(1) + random.millis(800));
        }
        let started = clock.now();
        let attempt = if random.one_in(5) {
            within(random.millis(2_000), lock.acquire()).await
        } else {
            Some(lock.acquire().await)
        };
        // Whatever the outcome, it comes in time: after the wait, plus the store's time if that is in trouble
        // then, measured on a clock that may run 0.9 % slow.
        let took = clock.now().since(started);
        let most = (wait + STORE_TIMEOUT) * 1_010 / 1_000 + millis(10);
        assert!(took <= most, "{took:?} for a wait of {wait:?}");
        match attempt {
            Some(Ok(Attempt::Acquired(guard))) => {
                referee.granted(name, &guard);
                hold(guard, &clock, &random, &referee).await;
            }
            Some(Ok(Attempt::Busy(_))) | None => {}
            Some(Err(error)) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Holds a lease for a while, now and then beyond its end, and lets go in one of several ways.
async fn hold(guard: Guard, clock: &MovableClock, random: &Random, referee: &Referee) {
    let until = clock.now().after(random.millis(1_500));
    while clock.now() < until {
        pass(millis(1) + random.millis(100)).await;
        referee.look();
        if random.one_in(20) {
            drop(within(random.millis(50), guard.renew()).await);
        }
    }
    match random.below(4) {
        0 => drop(guard),
        1 => drop(within(random.millis(30), guard.release()).await),
        2 => std::mem::drop(tokio::spawn(guard.release())),
        _ => drop(guard.release().await),
    }
}

/// Something befalls a process or the server, for a while.
async fn trouble(process: &Process, world: &World, random: &Random) {
    let store = &process.store;
    let operation = match random.below(3) {
        0 => Operation::Acquire,
        1 => Operation::Release,
        _ => Operation::Renew,
    };
    match random.below(14) {
        0 => store.lose_next_reply(operation),
        1 => store.lose_next_request(operation),
        2 => store.late_request(operation, random.millis(1_500)),
        3 => store.delay_requests(random.millis(40)),
        4 => store.delay_replies(random.millis(400)),
        5 => store.delay_pushes(random.millis(600)),
        6 => store.lose_pushes(random.one_in(2)),
        7 => store.reconnect(),
        8 => store.set_grant_bound(bound(random)),
        // Shorter and longer than the leases.
        9 => outage(random, |on| store.unreachable(on)).await,
        10 => outage(random, |on| store.hang(on)).await,
        11 => outage(random, |on| world.freeze(on)).await,
        _ => calm(process, world),
    }
    pass(random.millis(100)).await;
}

/// What a process may rightly say of a pushed grant's time: something older than the grant, or nothing.
fn bound(random: &Random) -> GrantBound {
    if random.one_in(4) { GrantBound::Unknown } else { GrantBound::Age(random.millis(4_000)) }
}

async fn outage(random: &Random, switch: impl Fn(bool)) {
    switch(true);
    pass(if random.one_in(4) { random.millis(9_000) } else { random.millis(900) }).await;
    switch(false);
}

fn calm(process: &Process, world: &World) {
    world.freeze(false);
    let store = &process.store;
    store.unreachable(false);
    store.hang(false);
    store.lose_pushes(false);
    store.set_grant_bound(GrantBound::Age(Duration::ZERO));
    for delay in [MemoryStore::delay_requests, MemoryStore::delay_replies, MemoryStore::delay_pushes] {
        delay(store, Duration::ZERO);
    }
}
