//! The ways of running that the demo compares: what each does before, while and after it ships an order.

/// One way of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// What `--json` calls it.
    pub(super) key: &'static str,
    /// What people read.
    pub(super) title: &'static str,
    /// Whether the order is locked while it is worked on.
    pub(super) lock: bool,
    /// Whether the order is sealed with the fencing token before it is read, and again before it is written.
    pub(super) sealed: bool,
    /// Whether requests carry an idempotency key and the carrier honours it.
    pub(super) idempotency_key: bool,
}

/// From nothing to everything, each adding one thing.
pub(super) const WAYS: [Way; 4] = [
    Way { key: "no-lock", title: "no lock", lock: false, sealed: false, idempotency_key: false },
    Way { key: "lock", title: "lock, plain UPDATE", lock: true, sealed: false, idempotency_key: false },
    Way { key: "lock-fencing", title: "lock + seal", lock: true, sealed: true, idempotency_key: false },
    Way {
        key: "lock-fencing-idempotency",
        title: "lock + seal + idempotency key",
        lock: true,
        sealed: true,
        idempotency_key: true,
    },
];
