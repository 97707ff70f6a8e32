//! The protocol keeps all its promises, whatever happens in the order of events and within the given faults.

use crate::check::{holds, holds_except};
use crate::properties::NOTHING_LEFT;
use crate::protocol::{Protocol, RARE_POLL};
use crate::rules::Fault;
use crate::state::Kind::{Foreign, Polling, Resumer, Subscriber, Trying};

fn two() -> Protocol {
    Protocol::new(&[Subscriber, Subscriber])
}

fn three() -> Protocol {
    Protocol::new(&[Subscriber, Subscriber, Subscriber]).instant_replies()
}

#[test]
fn two_processes_without_faults() {
    holds(&two().acquisitions(2).prompt(1));
}

#[test]
fn two_processes_one_gives_up() {
    holds(&two().cancels(1).prompt(1));
}

#[test]
fn two_processes_a_connection_breaks() {
    holds(&two().faults(1, &[Fault::Drop]).prompt(1));
}

#[test]
fn two_processes_a_connection_breaks_and_one_gives_up() {
    holds(&two().instant_replies().cancels(1).faults(1, &[Fault::Drop]).prompt(1));
}

#[test]
fn two_processes_a_request_arrives_later_than_a_lease_lasts() {
    holds(&two().instant_replies().life(3).faults(1, &[Fault::Drop]).prompt(2));
}

#[test]
fn two_processes_two_connections_break() {
    holds(&two().instant_replies().faults(2, &[Fault::Drop]).prompt(2));
}

#[test]
fn two_processes_messages_are_lost_or_repeated() {
    holds(&two().cancels(1).faults(1, &[Fault::Lose]).prompt(1));
    holds(&two().faults(1, &[Fault::Resend]).prompt(1));
}

#[test]
fn two_processes_the_server_errs() {
    let faults = [Fault::WrongLiveness, Fault::RefuseWrites, Fault::LoseQueue, Fault::LoseFence];
    holds(&two().faults(1, &faults).prompt(1));
}

#[test]
fn two_processes_one_dies() {
    holds(&two().queue_ttl(4).faults(1, &[Fault::Crash]).prompt(2));
}

#[test]
fn two_processes_a_clock_is_slow() {
    holds(&two().instant_replies().ttl(3, 3).drift(1).faults(1, &[Fault::SlowClock]).prompt(3));
}

#[test]
fn two_processes_a_lease_is_extended() {
    holds(&two().instant_replies().extended(3).faults(1, &[Fault::Drop]).prompt(3));
}

#[test]
fn two_processes_a_clean_up_is_given_up() {
    let model = two().instant_replies().cancels(1).faults(2, &[Fault::RefuseWrites, Fault::GiveUp]);
    holds_except(&[NOTHING_LEFT], &model);
}

#[test]
fn one_waits_without_a_channel() {
    let model = Protocol::new(&[Subscriber, Polling]).cancels(1);
    holds(&model.clone().prompt(2));
    holds(&model.instant_replies().faults(1, &[Fault::Drop, Fault::Lose, Fault::Crash]).prompt(4));
}

#[test]
fn one_does_not_wait() {
    let model = Protocol::new(&[Subscriber, Trying]).instant_replies().cancels(1);
    holds(&model.faults(1, &[Fault::Drop]).prompt(2));
    holds(
        &Protocol::new(&[Subscriber, Trying])
            .instant_replies()
            .faults(1, &[Fault::Lose, Fault::Resend])
            .prompt(2),
    );
}

#[test]
fn one_is_foreign() {
    let model = Protocol::new(&[Subscriber, Foreign]);
    holds(&model.faults(1, &[Fault::Drop, Fault::Crash, Fault::Lose]).prompt(2));
}

#[test]
fn one_resumes_the_others_lease() {
    holds(&Protocol::new(&[Subscriber, Resumer]).prompt(2));
}

#[test]
fn three_processes_without_faults() {
    holds(&three().cancels(1).prompt(2));
}

#[test]
fn three_processes_the_server_errs() {
    holds(&three().faults(1, &[Fault::WrongLiveness, Fault::RefuseWrites]).prompt(2));
}

/// Whoever misses the notice that it is first now, or stands behind a dead first waiter, waits for its rare poll.
#[test]
fn three_processes_one_dies_or_a_message_is_lost() {
    holds(&three().faults(1, &[Fault::Crash, Fault::Lose]).prompt(RARE_POLL + 2));
}
