//! Which sections the present call is in: what [`Lock::run`](crate::Lock::run) calls and polls under a lease. Whoever
//! waits there for the same name waits for itself. It knows nothing of guards that are kept by hand: those belong to
//! no task.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::task;

use crate::engine::Engine;
use crate::guard::Lease;
use crate::lease::LeaseState;
use crate::name::Name;

thread_local! {
    static SECTIONS: RefCell<Vec<Section>> = const { RefCell::new(Vec::new()) };
}

/// A section that is being called or polled on this thread.
struct Section {
    lease: Lease,
    /// A section may drive other tasks, which are not in it.
    task: Option<task::Id>,
}

/// Calls or polls what is in the section of this lease.
pub(crate) fn inside<T>(lease: &Lease, section: impl FnOnce() -> T) -> T {
    let entered = Section { lease: lease.clone(), task: task::try_id() };
    SECTIONS.with_borrow_mut(|sections| sections.push(entered));
    let _leaves = Leaves;
    section()
}

/// Whether the call is in a section that holds this name.
pub(crate) fn is_inside(engine: &Arc<Engine>, name: &Name) -> bool {
    let task = task::try_id();
    let holds_it = |section: &Section| {
        let lease = &section.lease;
        section.task == task
            && Arc::ptr_eq(&lease.engine, engine)
            && lease.name() == name
            && !matches!(lease.state(), LeaseState::Lost(_))
    };
    SECTIONS.with_borrow(|sections| sections.iter().any(holds_it))
}

/// Leaves the innermost section, also when it panics.
struct Leaves;

impl Drop for Leaves {
    fn drop(&mut self) {
        // The lease is dropped after the borrow has ended.
        let _left = SECTIONS.with_borrow_mut(Vec::pop);
    }
}
