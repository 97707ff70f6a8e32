//! The store in memory passes the suite: in virtual and in real time, with pushes and without.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::memory::{MemoryStore, MemoryWorld};
use leasehold_core::{Clock, Name, Store, SystemClock, VirtualClock};
use leasehold_testkit::conformance::{Fixture, Skipped};

/// A store in memory; all its connections are to one world.
struct Memory<const VIRTUAL: bool, const PUSH: bool> {
    clock: Arc<dyn Clock>,
    world: Arc<MemoryWorld>,
    /// The server's time of day when the fixture was made.
    started: Duration,
}

impl<const VIRTUAL: bool, const PUSH: bool> Memory<VIRTUAL, PUSH> {
    fn new() -> Self {
        let clock: Arc<dyn Clock> =
            if VIRTUAL { Arc::new(VirtualClock::start()) } else { Arc::new(SystemClock) };
        let world = MemoryWorld::new(Arc::clone(&clock));
        let started = Duration::from_secs(1_800_000_000);
        world.set_wall_time(started);
        Self { clock, world, started }
    }
}

impl<const VIRTUAL: bool, const PUSH: bool> Fixture for Memory<VIRTUAL, PUSH> {
    const VIRTUAL_TIME: bool = VIRTUAL;

    async fn connect(&self) -> Arc<dyn Store> {
        if PUSH {
            Arc::new(MemoryStore::connect(&self.world))
        } else {
            Arc::new(MemoryStore::connect_without_push(&self.world))
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    async fn connect_without_push(&self) -> Result<Arc<dyn Store>, Skipped> {
        Ok(Arc::new(MemoryStore::connect_without_push(&self.world)))
    }

    fn raw_set(&self, name: &Name, value: &str, ttl: Option<Duration>) -> Result<(), Skipped> {
        self.world.raw_set(name, value, ttl);
        Ok(())
    }

    fn raw_get(&self, name: &Name) -> Result<Option<String>, Skipped> {
        Ok(self.world.raw_get(name))
    }

    fn evict(&self, name: &Name) -> Result<(), Skipped> {
        self.world.evict(name);
        Ok(())
    }

    fn corrupt(&self, name: &Name) -> Result<(), Skipped> {
        self.world.corrupt(name);
        Ok(())
    }

    fn is_corrupt(&self, name: &Name) -> Result<bool, Skipped> {
        Ok(self.world.is_corrupt(name))
    }

    fn corrupt_record(&self, name: &Name) -> Result<(), Skipped> {
        self.world.corrupt_record(name);
        Ok(())
    }

    fn flush(&self) -> Result<(), Skipped> {
        self.world.flush();
        Ok(())
    }

    fn lose_queue(&self, name: &Name) -> Result<(), Skipped> {
        self.world.lose_queue(name);
        Ok(())
    }

    fn step_clock_back(&self, by: Duration) -> Result<(), Skipped> {
        self.world.set_wall_time(self.started.saturating_sub(by));
        Ok(())
    }

    fn stored_entries(&self) -> Result<usize, Skipped> {
        Ok(self.world.stored_names())
    }
}

mod virtual_time {
    leasehold_testkit::conformance_tests!(super::Memory::<true, true>::new());
}

mod virtual_time_without_push {
    leasehold_testkit::conformance_tests!(super::Memory::<true, false>::new());
}

mod real_time {
    leasehold_testkit::conformance_tests!(super::Memory::<false, true>::new());
}

mod real_time_without_push {
    leasehold_testkit::conformance_tests!(super::Memory::<false, false>::new());
}
