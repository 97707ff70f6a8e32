//! A forked process has a copy of its parent's memory, but not its leases. The standard library has no way to
//! fork, so this test declares the two functions of the C library it needs, which is the only unsafe code here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::blocking::block_on;
use leasehold_core::store::BreakMode;
use leasehold_core::{
    Client, ClientSettings, ErrorKind, LeaseState, Load, LostCause, MemoryStore, MemoryWorld, Released,
    Store, SystemClock,
};

#[allow(unsafe_code, reason = "see the top of the file")]
mod libc {
    unsafe extern "C" {
        /// Memory-safe in itself; the child has only the thread that called it, so it must not wait for others.
        pub(super) safe fn fork() -> i32;
        /// Ends the process at once, without what would run at its end in the parent as well.
        pub(super) safe fn _exit(status: i32) -> !;
    }
}

/// Runs the checks in a forked child, which ends at the first that fails. Its number, or `None`.
fn in_child(checks: impl FnOnce()) -> Option<i32> {
    match libc::fork() {
        -1 => panic!("cannot fork: {}", std::io::Error::last_os_error()),
        0 => {
            checks();
            libc::_exit(0)
        }
        child => {
            let child = rustix::process::Pid::from_raw(child).unwrap();
            let (_, status) = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
                .unwrap()
                .unwrap();
            match status.exit_status() {
                Some(0) => None,
                Some(number) => Some(number),
                None => panic!("the child was ended by a signal: {status:?}"),
            }
        }
    }
}

/// One check in the child.
fn must(number: i32, passed: bool) {
    if !passed {
        libc::_exit(number);
    }
}

#[test]
fn trap_33_a_forked_child_sees_the_lease_as_lost_and_leaves_it_to_its_parent() {
    let world = MemoryWorld::new(Arc::new(SystemClock));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::connect(&world));
    let client = block_on(Client::start(ClientSettings::default(), move || {
        let store = Arc::clone(&store);
        async move { Ok(store) }
    }))
    .unwrap();
    let take = |name: &str| block_on(client.lock(name).unwrap().try_acquire()).unwrap().into_guard().unwrap();
    let (dropped, released) = (take("dropped"), take("released"));
    let view = dropped.lease().clone();
    let guards = std::cell::Cell::new(Some((dropped, released)));

    let failed = in_child(|| {
        let (dropped, released) = guards.take().unwrap();
        let lost = LeaseState::Lost(LostCause::Forked);
        must(1, dropped.state() == lost);
        must(2, dropped.remaining().is_zero());
        must(3, block_on(dropped.lost()) == LostCause::Forked);
        must(
            4,
            block_on(dropped.renew()).is_err_and(|error| error.kind() == ErrorKind::Lost(LostCause::Forked)),
        );
        must(5, block_on(released.release()).is_ok_and(|released| released == Released::AlreadyLost));
        drop(dropped);
        // Neither was given back, not even later in the background.
        must(6, world.stored_names() == 2);
        must(7, client.load() == Load { leases: 2, ..Load::default() });
        // The engine's thread stayed with the parent: to wait for it would never end.
        let attempt = block_on(client.lock("other").unwrap().try_acquire());
        let refused = |error: leasehold_core::Error| error.kind() == ErrorKind::Config;
        must(8, attempt.is_err_and(refused));
        must(9, block_on(client.inspect("dropped")).is_err_and(refused));
        must(10, block_on(client.list("", 10)).is_err_and(refused));
        must(11, block_on(client.diagnose()).is_err_and(refused));
        must(12, block_on(client.break_lease("dropped", BreakMode::Now)).is_err_and(refused));
        must(13, block_on(client.close(Duration::from_secs(60))).is_err_and(refused));
    });
    assert_eq!(failed, None, "the number of the check that failed in the child");

    // The parent noticed nothing.
    let (dropped, released) = guards.take().unwrap();
    assert_eq!(view.state(), LeaseState::Held);
    assert_eq!(block_on(dropped.release()).unwrap(), Released::Freed);
    assert_eq!(block_on(released.release()).unwrap(), Released::Freed);
    assert_eq!(world.stored_names(), 0);
}
