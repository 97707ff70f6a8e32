//! A fork inherits leases and connections and must use neither. Forking is unsafe by its nature, so this test
//! program allows unsafe code; nothing else here does.
#![allow(unsafe_code, reason = "there is no safe fork")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use leasehold::blocking::{Attempt, Guard, block_on};
use leasehold::{Client, LeaseState, LostCause, Released};
use leasehold_testkit::servers::for_each_server;

const TTL: Duration = Duration::from_secs(1);

/// Does something in a forked child and tells whether it was so there.
fn in_a_fork(condition: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does nothing but what is tested, on the thread that forked, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no fork");
    if child == 0 {
        let code = i32::from(!condition());
        // SAFETY: ends the child without running what the parent has registered for its own end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made; `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

fn take(client: &Client) -> Guard {
    match client.lock("job").unwrap().ttl(TTL).blocking().try_acquire().unwrap() {
        Attempt::Acquired(guard) => guard,
        Attempt::Busy(busy) => panic!("busy: {busy}"),
    }
}

#[test]
fn trap_33_a_fork_sees_the_lease_as_lost_and_leaves_it_to_its_parent() {
    for_each_server("trap_33_a_fork_sees_the_lease_as_lost", |server| {
        let client = block_on(Client::connect(&server.url())).unwrap();
        let mut held = Some(take(&client));
        let mut another = Some(client.clone());
        assert!(in_a_fork(|| {
            let held = held.take().unwrap();
            let lost = held.state() == LeaseState::Lost(LostCause::Forked) && held.remaining().is_zero();
            let released = held.release();
            let client = another.take().unwrap();
            let refused = client.lock("other").unwrap().blocking().try_acquire().is_err();
            drop(client);
            lost && matches!(released, Ok(Released::AlreadyLost)) && refused
        }));
        assert!(in_a_fork(|| {
            drop(held.take());
            true
        }));
        // Renewed by the parent in the meantime, over a connection that the children have left alone.
        std::thread::sleep(TTL * 2);
        let held = held.unwrap();
        assert_eq!(held.state(), LeaseState::Held);
        assert_eq!(server.cli(&["GET", "lock:job"]).unwrap(), held.owner_token().expose());
        assert_eq!(held.release().unwrap(), Released::Freed);
        assert_eq!(server.cli(&["EXISTS", "lock:job", "lock:other"]).unwrap(), "0");
    });
}
