//! The rules of the protocol, each of which can be switched off, and the faults the model may inject.

/// One rule of `docs/protocol.md`. A model with a rule switched off must show a counterexample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A retry of an acquire carries the owner token of the first try.
    SameTokenOnRetry,
    /// Every acquisition has an owner token of its own.
    NewTokenPerAcquisition,
    /// A release gives up the key only if it carries the caller's token.
    CompareOnRelease,
    /// A renewal prolongs the key only if it carries the caller's token.
    CompareOnRenew,
    /// A renewal does not create a missing key.
    RenewNeverCreates,
    /// Neither a renewal nor a re-grant shortens what is left.
    NeverShorten,
    /// A re-grant to the own token gives the full TTL.
    RegrantProlongs,
    /// A re-grant to the own token mints a fencing token.
    RegrantMints,
    /// A hand-over mints a fencing token.
    HandoverMints,
    /// A fencing token is never below the server's clock.
    ClockFloor,
    /// An acquire that arrives after its not-after does nothing.
    NotAfter,
    /// The clean-up is repeated until no abandoned acquire can arrive any more.
    CleanUpPastNotAfter,
    /// A deadline counts from the moment before the request was sent.
    DeadlineFromSend,
    /// The drift allowance is taken off every deadline.
    Drift,
    /// A renewal without an answer prolongs nothing.
    UnknownNeverProlongs,
    /// A reply that comes after the deadline does not revive the lease.
    LostIsFinal,
    /// A push counts from the newest answered command, not from its arrival.
    BoundBeforePush,
    /// Commands and pushes share one connection, so that they stay in order.
    PushesInOrder,
    /// A new connection starts without a bound.
    NoBoundAfterReconnect,
    /// A push without a bound is confirmed first.
    EmptyBoundConfirms,
    /// A push with an old bound is confirmed first.
    OldBoundConfirms,
    /// Confirming re-sends the acquire and goes by the fencing token it returns.
    ConfirmByAcquire,
    /// A lease that is handed over has the claim time only.
    ClaimTime,
    /// A grant is published after everything that can be refused.
    PublishLast,
    /// Who is alive is asked before the grant, not taken from what PUBLISH returns.
    LivenessBeforeGrant,
    /// Dead waiters are skipped.
    SkipDead,
    /// A released lease is handed over to the first waiter.
    HandOver,
    /// A cancelled waiter withdraws.
    WithdrawOnCancel,
    /// A withdrawal also releases a lease that was granted meanwhile.
    WithdrawReleases,
    /// A withdrawal removes the entries of all connections of its token.
    WithdrawAllEntries,
    /// A withdrawal at the head tells the next waiter.
    WithdrawTellsHead,
    /// A grant tells the next waiter.
    GrantTellsHead,
    /// A re-grant that takes the first entry out of the queue tells the next waiter.
    RegrantTellsHead,
    /// "Busy" ends an acquisition only if no other acquire of it is unanswered.
    BusyWithdraws,
    /// A pushed grant nobody waits for is released.
    ReleaseUnwanted,
    /// A waiter polls.
    Poll,
    /// The first waiter polls often, not just now and then.
    HeadPollsOften,
    /// A waiter polls at once after a reconnect.
    PollAfterReconnect,
    /// A waiter that comes back keeps its place.
    TicketKept,
    /// A waiter whose first reply was lost with its connection keeps its place.
    PlaceKept,
    /// The subscription is there before the acquire that names it.
    SubscribeFirst,
    /// A waiter without a channel is marked as polling.
    PollingMark,
    /// The claim of a polling waiter is at least twice its interval.
    PollingClaim,
    /// A release is re-sent until it is answered.
    ReleaseRetried,
    /// "Not yours" after an unanswered release is unknown, not a loss.
    ReleaseUnknown,
    /// No renewal is sent after a release.
    NoRenewalAfterRelease,
    /// The queue key expires.
    QueueExpires,
}

/// What may go wrong, as often as the configuration allows in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A connection breaks: replies are lost, requests under way may still arrive much later.
    Drop,
    /// A process dies.
    Crash,
    /// One message of the server is lost.
    Lose,
    /// A client gives up waiting for a reply and sends again.
    Resend,
    /// A dead waiter counts as subscribed, or a live one as gone.
    WrongLiveness,
    /// The server refuses the writes of a script (out of memory, no good replicas).
    RefuseWrites,
    /// The fencing counter is evicted.
    LoseFence,
    /// The queue is evicted.
    LoseQueue,
    /// A client's clock runs slow, by the drift allowance.
    SlowClock,
    /// A clean-up that was not answered is given up.
    GiveUp,
}
