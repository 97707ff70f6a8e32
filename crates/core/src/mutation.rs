//! The rules that keep the engine and its stores safe, each of which test builds can switch off.
//!
//! In ordinary builds every rule is on and costs nothing. Built with `--cfg leasehold_mutation`, the rule named
//! in `LEASEHOLD_SWITCH_OFF` is off, and a test of the suite must then fail: `scripts/mutations` goes through
//! all of them.

/// Declares the rules: a variant each, its name in `LEASEHOLD_SWITCH_OFF`, and what it protects against.
macro_rules! rules {
    ($($(#[doc = $text:literal])+ $rule:ident = $name:literal,)+) => {
        /// A rule that a test build can switch off.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Rule { $($(#[doc = $text])+ $rule,)+ }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$rule,)+];

            /// The rule's name in `LEASEHOLD_SWITCH_OFF`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)+ }
            }
        }
    };
}

rules! {
    /// Trap 1: a retry of an acquire uses the same owner token.
    SameOwnerOnRetry = "same-owner-on-retry",
    /// Trap 2: an abandoned acquire is cleaned up.
    CleanUpAbandoned = "clean-up-abandoned",
    /// Trap 3: clean-up is repeated until the request can no longer arrive.
    CleanUpUntilLate = "clean-up-until-late",
    /// Traps 4 and 5: the lease counts from just before the request that won was sent.
    CountFromSend = "count-from-send",
    /// Trap 6: the drift allowance is taken off.
    DriftAllowance = "drift-allowance",
    /// Trap 8: limits are checked before anything is sent.
    Limits = "limits",
    /// Trap 10: a release compares the owner.
    CompareOnRelease = "compare-on-release",
    /// Trap 11: a renewal never re-creates a missing lease.
    RenewOnlyExisting = "renew-only-existing",
    /// Trap 10 and 34: a renewal compares the owner.
    CompareOnRenew = "compare-on-renew",
    /// Trap 12: a renewal never shortens what is left.
    RenewNeverShortens = "renew-never-shortens",
    /// Trap 13: no renewal after a release.
    NoRenewalAfterRelease = "no-renewal-after-release",
    /// Trap 14: a verdict that comes in after the release changes nothing.
    IgnoreLateVerdict = "ignore-late-verdict",
    /// Trap 15: renewal entries are kept by lease, not by name.
    EntryPerLease = "entry-per-lease",
    /// Trap 16: the error of one lease does not stop the renewal of others.
    IsolateRenewals = "isolate-renewals",
    /// Trap 16: a server of a store that hangs does not hold up the renewals of others.
    IsolateServers = "isolate-servers",
    /// Trap 67: a name that was taken step by step is granted only if it was held throughout.
    VerifySteps = "verify-steps",
    /// Trap 17: renewals go out in deadline order.
    DeadlineOrder = "deadline-order",
    /// Trap 18: `max_hold` ends a hold that is renewed for ever.
    MaxHold = "max-hold",
    /// Trap 19: renewal runs on a thread of its own.
    OwnThread = "own-thread",
    /// Traps 20 and 21: a lease is lost at its deadline, whatever the network does.
    LostAtDeadline = "lost-at-deadline",
    /// Trap 21: the body is cancelled when the lease is lost.
    CancelBody = "cancel-body",
    /// Trap 26: a pushed grant whose bound is old is confirmed first.
    ConfirmOldGrant = "confirm-old-grant",
    /// Trap 27: a waiter that gives up withdraws.
    Withdraw = "withdraw",
    /// Trap 27: dead waiters are skipped.
    SkipDeadWaiters = "skip-dead-waiters",
    /// Trap 27: a grant nobody waits for is given back.
    ReturnUnwantedGrant = "return-unwanted-grant",
    /// Trap 23: after a reconnect every waiter asks again.
    RecheckAfterReconnect = "recheck-after-reconnect",
    /// Trap 24: the first waiter asks again when the holder's lease ends.
    PollAtExpiry = "poll-at-expiry",
    /// Trap 29: one budget for the whole wait.
    OneWaitBudget = "one-wait-budget",
    /// Trap 31: a cancelled release still completes.
    DetachedRelease = "detached-release",
    /// Trap 32: a dropped guard releases in the background.
    ReleaseOnDrop = "release-on-drop",
    /// Trap 33: a forked child does not own its parent's lease.
    LostInFork = "lost-in-fork",
    /// An outcome that the store did not confirm is tried on with while the lease lasts.
    SettleLater = "settle-later",
    /// A loss that only the release finds out is one: `run` does not report success.
    LateLoss = "late-loss",
    /// A lease is resumed elsewhere, not beside its own guard.
    ResumeElsewhere = "resume-elsewhere",
    /// Trap 37: fencing tokens grow past the store's clock.
    ClockFloor = "clock-floor",
    /// Trap 54: a grant mints a new fencing token.
    MintPerGrant = "mint-per-grant",
    /// Trap 59: a name that nobody uses leaves no entry in memory.
    ForgetNames = "forget-names",
    /// Fairness: waiters are served in order of arrival.
    QueueOrder = "queue-order",
    /// A lease counts as lost early enough to stop the work before it ends.
    SafetyMargin = "safety-margin",
    /// `min_hold`: the name stays taken after an early release.
    MinHold = "min-hold",
    /// SQLite: a lease of an earlier boot has expired.
    BootId = "boot-id",
    /// SQLite: fencing tokens are reserved on disk, so a power loss does not bring them back.
    ReserveFencingTokens = "reserve-fencing-tokens",
    /// Trap 3: a request that gets its turn after its time does nothing.
    NotAfter = "not-after",
    /// Trap 16: a renewal without a verdict is tried again inside the lease.
    RetryRenewal = "retry-renewal",
    /// Trap 59: of the waiters of one process for one name only the first asks the store.
    LocalQueue = "local-queue",
    /// A grant that is pushed late to one who found its lease by asking is not given back.
    KnowHolders = "know-holders",
    /// A break whose reply was lost is not repeated: it would hit the next holder.
    BreakOnce = "break-once",
    /// Who waits inside a section for the name that the section holds is refused.
    RefuseNested = "refuse-nested",
    /// Trap 56: a record is written by the holder of the name only.
    RecordUnderLease = "record-under-lease",
    /// Trap 56: a record that was changed meanwhile is not written over.
    RecordCompare = "record-compare",
    /// Trap 56: the same operation with another request is refused.
    Fingerprint = "fingerprint",
    /// Trap 56: an attempt that may have acted is not taken for one that failed.
    OutcomeUnknown = "outcome-unknown",
    /// A result that is too large is refused before anything is sent.
    ResultLimit = "result-limit",
    /// Trap 56: that an attempt has begun is known longer than the attempt lasts, however short a result is kept.
    StartedOutlastsAttempt = "started-outlasts-attempt",
    /// The store's time is kept to the letter, also by a request that gets no answer.
    StoreTimeout = "store-timeout",
    /// Sentinel: a release that the old primary confirmed is repeated on the new one, which may not know of it.
    RepeatReleases = "repeat-releases",
    /// After a reconnect every lease is renewed at once: the server may have lost it.
    RenewAfterReconnect = "renew-after-reconnect",
    /// Trap 43: a grant counts only if as many replicas have confirmed it as were asked for.
    CountAcks = "count-acks",
    /// Trap 66: a pushed grant that replicas must confirm is confirmed by an acquire of one's own.
    ConfirmForAcks = "confirm-for-acks",
    /// Trap 66: replicas are waited for on a connection that is used for nothing else.
    AcksApart = "acks-apart",
    /// Sentinel: a server that names itself a primary is left when the Sentinels name another one.
    FollowSentinels = "follow-sentinels",
}

/// Whether a rule is on: always, except in test builds that switch it off.
#[cfg(not(leasehold_mutation))]
#[inline]
pub const fn on(_rule: Rule) -> bool {
    true
}

/// Whether a rule is on: always, except for the one named in `LEASEHOLD_SWITCH_OFF`.
#[cfg(leasehold_mutation)]
pub fn on(rule: Rule) -> bool {
    static OFF: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    OFF.get_or_init(|| std::env::var("LEASEHOLD_SWITCH_OFF").ok()).as_deref() != Some(rule.name())
}
