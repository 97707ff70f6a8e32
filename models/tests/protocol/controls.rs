//! Negative controls: each switches one rule off, and the checker must find the promise that breaks.

use crate::check::{counterexample, limit, no_counterexample};
use crate::properties::{
    FENCES_GROW, IN_ORDER, IN_TIME, NO_SELF_BLOCK, NO_STRANGER, NOT_MISSED, NOT_TO_THE_DEAD, NOTHING_LEFT,
    ONE_HOLDER, PROMPT, SERVED, TRUE_VERDICT,
};
use crate::protocol::Protocol;
use crate::rules::{Fault, Rule};
use crate::state::Kind::{Foreign, Polling, Resumer, Subscriber, Trying};

fn two() -> Protocol {
    Protocol::new(&[Subscriber, Subscriber])
}

fn three() -> Protocol {
    Protocol::new(&[Subscriber, Subscriber, Subscriber]).instant_replies()
}

#[test]
fn a_retry_with_another_token_waits_for_itself() {
    counterexample(Rule::SameTokenOnRetry, NO_SELF_BLOCK, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn a_reused_token_lets_a_late_release_free_the_next_lease() {
    let model = two().acquisitions(2).faults(1, &[Fault::Drop]);
    counterexample(Rule::NewTokenPerAcquisition, ONE_HOLDER, &model);
}

#[test]
fn a_release_without_comparing_frees_a_strangers_lease() {
    counterexample(Rule::CompareOnRelease, NO_STRANGER, &two());
}

#[test]
fn a_renewal_without_comparing_prolongs_a_strangers_lease() {
    counterexample(Rule::CompareOnRenew, NO_STRANGER, &two());
}

#[test]
fn a_renewal_that_creates_leaves_a_key() {
    counterexample(Rule::RenewNeverCreates, NOTHING_LEFT, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn a_renewal_that_shortens_ends_the_lease_early() {
    counterexample(Rule::NeverShorten, ONE_HOLDER, &two().extended(3).faults(1, &[Fault::Drop]));
}

#[test]
fn a_regrant_that_does_not_prolong_ends_early() {
    counterexample(Rule::RegrantProlongs, ONE_HOLDER, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn a_resumed_lease_needs_a_token_of_its_own() {
    counterexample(Rule::RegrantMints, FENCES_GROW, &Protocol::new(&[Subscriber, Resumer]));
}

#[test]
fn a_handover_without_minting_repeats_a_token() {
    counterexample(Rule::HandoverMints, FENCES_GROW, &two());
}

#[test]
fn a_lost_counter_without_the_clock_goes_back() {
    counterexample(Rule::ClockFloor, FENCES_GROW, &two().faults(1, &[Fault::LoseFence]));
}

#[test]
fn an_acquire_without_not_after_creates_an_orphan() {
    counterexample(Rule::NotAfter, NOTHING_LEFT, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn a_clean_up_that_ends_too_early_leaves_an_orphan() {
    counterexample(Rule::CleanUpPastNotAfter, NOTHING_LEFT, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn a_deadline_from_the_reply_is_too_late() {
    counterexample(Rule::DeadlineFromSend, ONE_HOLDER, &two());
}

#[test]
fn a_slow_clock_needs_the_drift_allowance() {
    let model = two().ttl(3, 3).drift(1).faults(1, &[Fault::SlowClock]);
    counterexample(Rule::Drift, ONE_HOLDER, &model);
}

#[test]
fn an_unanswered_renewal_must_not_prolong() {
    counterexample(Rule::UnknownNeverProlongs, ONE_HOLDER, &two());
}

#[test]
fn a_revived_lease_has_an_outdated_token() {
    counterexample(
        Rule::LostIsFinal,
        FENCES_GROW,
        &two().instant_replies().life(3).faults(1, &[Fault::Drop]),
    );
}

#[test]
fn a_push_counted_from_its_arrival_is_too_late() {
    counterexample(Rule::BoundBeforePush, ONE_HOLDER, &two());
}

#[test]
fn pushes_on_another_connection_have_no_bound() {
    counterexample(Rule::PushesInOrder, ONE_HOLDER, &two());
}

#[test]
fn the_bound_of_an_earlier_connection_is_harmless() {
    let model = two().instant_replies().faults(1, &[Fault::Drop]);
    no_counterexample(Rule::NoBoundAfterReconnect, &model);
}

#[test]
fn a_push_without_a_bound_must_be_confirmed() {
    counterexample(Rule::EmptyBoundConfirms, ONE_HOLDER, &two().faults(1, &[Fault::Lose]));
}

#[test]
fn a_push_with_an_old_bound_starts_too_late() {
    counterexample(Rule::OldBoundConfirms, IN_TIME, &two());
}

#[test]
fn confirming_by_a_renewal_revives_an_outdated_token() {
    counterexample(Rule::ConfirmByAcquire, FENCES_GROW, &two());
}

#[test]
fn a_handover_without_claim_time_blocks_for_ever() {
    counterexample(Rule::ClaimTime, SERVED, &three().faults(1, &[Fault::Crash]));
}

#[test]
fn a_grant_published_before_a_refused_write_makes_two_holders() {
    let model = Protocol::new(&[Subscriber, Subscriber, Foreign]).instant_replies();
    counterexample(Rule::PublishLast, ONE_HOLDER, &model.faults(1, &[Fault::RefuseWrites]));
}

#[test]
fn the_count_of_publish_makes_two_holders() {
    counterexample(Rule::LivenessBeforeGrant, ONE_HOLDER, &three().faults(1, &[Fault::WrongLiveness]));
}

#[test]
fn without_asking_who_is_alive_the_dead_are_served() {
    counterexample(Rule::SkipDead, NOT_TO_THE_DEAD, &two().faults(1, &[Fault::Crash]));
}

#[test]
fn without_handover_waiters_wait_for_a_poll() {
    counterexample(Rule::HandOver, PROMPT, &three().prompt(1));
}

#[test]
fn a_cancelled_waiter_that_does_not_withdraw_stays_queued() {
    counterexample(Rule::WithdrawOnCancel, NOTHING_LEFT, &two().cancels(1));
}

#[test]
fn a_withdrawal_that_only_dequeues_leaves_a_granted_key() {
    counterexample(Rule::WithdrawReleases, NOTHING_LEFT, &two().cancels(1));
}

#[test]
fn a_withdrawal_of_one_entry_leaves_the_others() {
    let model = two().cancels(1).faults(1, &[Fault::Drop]);
    counterexample(Rule::WithdrawAllEntries, NOTHING_LEFT, &model);
}

#[test]
fn a_withdrawal_at_the_head_must_tell_the_next() {
    counterexample(Rule::WithdrawTellsHead, PROMPT, &three().cancels(1).prompt(2));
}

#[test]
fn a_grant_must_tell_the_next() {
    counterexample(Rule::GrantTellsHead, PROMPT, &three().prompt(2));
}

#[test]
fn an_unwanted_grant_must_be_released() {
    let model = two().instant_replies().cancels(1).faults(2, &[Fault::RefuseWrites, Fault::GiveUp]);
    counterexample(Rule::ReleaseUnwanted, NOT_MISSED, &model);
}

#[test]
fn no_grant_is_unwanted_while_clean_ups_are_repeated() {
    let model = two().instant_replies().cancels(1).faults(1, &[Fault::Drop]);
    no_counterexample(Rule::ReleaseUnwanted, &model);
}

#[test]
fn a_regrant_that_empties_the_head_must_tell_the_next() {
    let model = two().faults(1, &[Fault::Drop]).prompt(2);
    counterexample(Rule::RegrantTellsHead, PROMPT, &model);
}

#[test]
fn a_try_that_is_answered_busy_may_still_be_granted() {
    let model = Protocol::new(&[Subscriber, Trying]).faults(1, &[Fault::Drop]);
    counterexample(Rule::BusyWithdraws, NOTHING_LEFT, &model);
}

#[test]
fn a_waiter_that_does_not_poll_is_never_served() {
    counterexample(Rule::Poll, SERVED, &two().faults(1, &[Fault::Lose]));
}

#[test]
fn a_head_that_polls_rarely_is_served_late() {
    counterexample(Rule::HeadPollsOften, PROMPT, &two().prompt(2));
}

#[test]
fn a_waiter_that_does_not_poll_after_a_reconnect_is_served_late() {
    let model = two().instant_replies().faults(1, &[Fault::Drop]).prompt(2);
    counterexample(Rule::PollAfterReconnect, PROMPT, &model);
}

#[test]
fn a_waiter_that_comes_back_without_its_ticket_is_overtaken() {
    counterexample(Rule::TicketKept, IN_ORDER, &three().faults(1, &[Fault::WrongLiveness]));
}

#[test]
fn a_waiter_that_loses_its_first_reply_keeps_its_place() {
    counterexample(Rule::PlaceKept, IN_ORDER, &two().instant_replies().faults(1, &[Fault::Drop]));
}

#[test]
fn a_waiter_that_subscribes_late_is_overtaken() {
    counterexample(Rule::SubscribeFirst, IN_ORDER, &two());
}

#[test]
fn a_polling_waiter_without_its_mark_is_overtaken() {
    counterexample(Rule::PollingMark, IN_ORDER, &Protocol::new(&[Subscriber, Polling]));
}

#[test]
fn a_polling_waiter_needs_a_longer_claim() {
    counterexample(Rule::PollingClaim, NOT_MISSED, &Protocol::new(&[Subscriber, Polling]));
}

#[test]
fn a_release_that_is_not_repeated_leaves_the_key() {
    counterexample(Rule::ReleaseRetried, NOTHING_LEFT, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn a_repeated_release_that_finds_nothing_is_unknown() {
    counterexample(Rule::ReleaseUnknown, TRUE_VERDICT, &two().faults(1, &[Fault::Drop]));
}

#[test]
fn renewals_after_a_release_do_no_harm() {
    let model = two().instant_replies().faults(1, &[Fault::Drop]);
    no_counterexample(Rule::NoRenewalAfterRelease, &model);
}

#[test]
fn a_queue_without_expiry_stays_for_ever() {
    let model = two().queue_ttl(4).faults(1, &[Fault::Crash]);
    counterexample(Rule::QueueExpires, NOTHING_LEFT, &model);
}

#[test]
fn foreign_clients_are_only_seen_by_polling() {
    counterexample(Rule::HeadPollsOften, PROMPT, &Protocol::new(&[Subscriber, Foreign]).prompt(2));
}

/// A limit, not a rule: whoever resumes a lease decides over it, and the first process learns of it late.
#[test]
fn the_first_process_of_a_resumed_lease_still_believes() {
    let model = Protocol::new(&[Subscriber, Resumer, Subscriber]).instant_replies();
    limit(ONE_HOLDER, &model);
}
