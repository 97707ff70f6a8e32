//! A fork inherits an open store and must not use it. Forking is unsafe by its nature, so this test program
//! allows unsafe code; nothing else does.
#![allow(unsafe_code, reason = "there is no safe fork")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{ask, name, open, owner, release, renew, take};
use leasehold_core::store::{AcquireReply, ReleaseReply, RenewReply};
use leasehold_core::{Error, ErrorKind};

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

fn is_refused<T>(outcome: Result<T, Error>) -> bool {
    outcome.is_err_and(|error| error.kind() == ErrorKind::Unavailable && error.to_string().contains("fork"))
}

#[test]
fn trap_33_a_fork_cannot_use_the_store_and_leaves_the_parent_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let (job, mine) = (name("job"), owner("mine"));
    let mut store = Some(open(&path));
    take(store.as_ref().unwrap(), &job, &mine);
    assert!(in_a_fork(|| {
        let inherited = store.take().unwrap();
        let refused = is_refused(ask(&inherited, &name("other"), &mine))
            && is_refused(release(&inherited, &job, &mine))
            && is_refused(renew(&inherited, &job, &mine));
        drop(inherited);
        // A store of its own works, and sees what the parent holds.
        refused && matches!(ask(&open(&path), &job, &owner("child")), Ok(AcquireReply::Held(_)))
    }));
    let store = store.unwrap();
    assert_eq!(renew(&store, &job, &mine).unwrap(), RenewReply::Renewed);
    assert!(matches!(ask(&open(&path), &job, &owner("other")), Ok(AcquireReply::Held(_))));
    assert_eq!(release(&store, &job, &mine).unwrap(), ReleaseReply::Freed { handed_over: false });
}
