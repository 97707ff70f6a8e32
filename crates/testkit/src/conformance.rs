//! The suite every store passes: one function per behaviour that the contract of
//! [`Store`] promises, against real connections of a store.
//!
//! A store's crate implements [`Fixture`] and calls [`conformance_tests!`](crate::conformance_tests); that makes
//! one test of each behaviour. What a store or a fixture cannot do is skipped, printed and counted.
//!
//! Behaviours look at replies and moments only: leases are short where a test must outlive them, long where
//! it must not, and waiting is done by asking until something is so, for at most the TTL and [`SLACK`].

#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "every behaviour panics when a store breaks it, and is skipped when something for it is lacking"
)]

mod actors;
pub mod contention;
pub mod foreign;
pub mod grants;
pub mod names;
pub mod operators;
pub mod queue;
pub mod queue_order;
pub mod records;
pub mod releases;
pub mod renewals;
pub mod tokens;

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Clock, Name, Store};

use crate::servers::SKIP_LOG_VARIABLE;

/// How much later than its time something may happen on a busy machine.
pub const SLACK: Duration = Duration::from_secs(5);

/// The longest a behaviour may take where time is real; more than any of them waits.
const LIMIT: Duration = Duration::from_secs(120);

/// A place where a store's behaviour can be seen, empty at the start and seen by one test only.
///
/// Whatever a fixture lacks returns [`Skipped`], and the behaviours that need it are skipped.
pub trait Fixture: Send + Sync + 'static {
    /// Whether tests run in Tokio's paused time. It must be the time of [`Fixture::clock`] and of the store.
    const VIRTUAL_TIME: bool = false;

    /// Another process' connection to the same store, not attached yet.
    fn connect(&self) -> impl Future<Output = Arc<dyn Store>> + Send;

    /// The clock of the connected processes.
    fn clock(&self) -> Arc<dyn Clock>;

    /// One of many names whose fencing tokens come from one counter: any, unless the store has several.
    fn counted_together(&self, number: usize) -> String {
        format!("job-{number}")
    }

    /// Lets time go by.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    /// A connection that cannot take pushes though the store has them.
    ///
    /// # Errors
    /// By default, that there is none.
    fn connect_without_push(&self) -> impl Future<Output = Result<Arc<dyn Store>, Skipped>> + Send {
        std::future::ready(Err(Skipped("a connection without push")))
    }

    /// Writes the value of a name's key as another client would, with a TTL or without end.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn raw_set(&self, _name: &Name, _value: &str, _ttl: Option<Duration>) -> Result<(), Skipped> {
        Err(Skipped("writing a key as another client"))
    }

    /// Reads the value of a name's key as another client would.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn raw_get(&self, _name: &Name) -> Result<Option<String>, Skipped> {
        Err(Skipped("reading a key as another client"))
    }

    /// Deletes a name's key, as an eviction does; its queue stays.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn evict(&self, _name: &Name) -> Result<(), Skipped> {
        Err(Skipped("deleting a key"))
    }

    /// Makes a name's key hold data that is no lock, such as a hash.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn corrupt(&self, _name: &Name) -> Result<(), Skipped> {
        Err(Skipped("writing data that is no lock"))
    }

    /// Whether the data that [`Fixture::corrupt`] wrote is still there, unchanged.
    ///
    /// # Errors
    /// By default, that it cannot be seen.
    fn is_corrupt(&self, _name: &Name) -> Result<bool, Skipped> {
        Err(Skipped("reading data that is no lock"))
    }

    /// Puts data that is no record, such as a hash, in the place of a name's record, which must exist.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn corrupt_record(&self, _name: &Name) -> Result<(), Skipped> {
        Err(Skipped("writing data that is no record"))
    }

    /// Loses everything, the last fencing token included.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn flush(&self) -> Result<(), Skipped> {
        Err(Skipped("losing all data"))
    }

    /// Loses the queue of a name.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn lose_queue(&self, _name: &Name) -> Result<(), Skipped> {
        Err(Skipped("losing a queue"))
    }

    /// Puts the store's time of day back by this much.
    ///
    /// # Errors
    /// By default, that it cannot.
    fn step_clock_back(&self, _by: Duration) -> Result<(), Skipped> {
        Err(Skipped("stepping the store's clock"))
    }

    /// How many keys, rows or entries the store has in all.
    ///
    /// # Errors
    /// By default, that they cannot be counted.
    fn stored_entries(&self) -> Result<usize, Skipped> {
        Err(Skipped("counting what is stored"))
    }

    /// Keys that never expire and whose number is not bounded, where the store itself expires keys. There must
    /// be none.
    ///
    /// # Errors
    /// By default, that they cannot be found.
    fn endless_keys(&self) -> Result<Vec<String>, Skipped> {
        Err(Skipped("finding keys without a TTL"))
    }
}

/// What was missing for a behaviour to be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skipped(pub &'static str);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// How a behaviour ends that does not panic.
pub type Checked = Result<(), Skipped>;

/// Tests one behaviour. [`conformance_tests!`](crate::conformance_tests) calls it for each.
///
/// # Panics
/// When the store behaves differently, or something hangs.
pub fn check<F: Fixture>(
    behaviour: &str,
    fixture: impl AsyncFnOnce() -> F,
    test: impl AsyncFnOnce(&F) -> Checked,
) {
    let mut builder = if F::VIRTUAL_TIME {
        tokio::runtime::Builder::new_current_thread()
    } else {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    };
    let runtime = builder.enable_all().start_paused(F::VIRTUAL_TIME).build();
    let runtime = runtime.unwrap_or_else(|error| panic!("{behaviour}: no runtime: {error}"));
    let outcome = runtime.block_on(async {
        let fixture = fixture().await;
        // In virtual time a long wait takes no time, so only real time shows that something hangs.
        let limit = if F::VIRTUAL_TIME { Duration::from_secs(86_400) } else { LIMIT };
        tokio::time::timeout(limit, test(&fixture)).await
    });
    runtime.shutdown_timeout(SLACK);
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(skipped)) => report_skipped(behaviour, skipped),
        Err(elapsed) => panic!("{behaviour}: not finished after {LIMIT:?}: {elapsed}"),
    }
}

fn report_skipped(behaviour: &str, skipped: Skipped) {
    let test = std::thread::current().name().unwrap_or(behaviour).to_owned();
    // Written directly: a test that passes has its captured output thrown away.
    let _ = writeln!(io::stderr(), "SKIPPED {test}: this store or its fixture has not: {skipped}");
    let Some(log) = std::env::var_os(SKIP_LOG_VARIABLE) else { return };
    // One write of one line: lines of tests that run at the same time do not mix.
    let line = format!("conformance {test}: {skipped}\n");
    let written = OpenOptions::new().create(true).append(true).open(&log);
    if let Err(error) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
        panic!("{test}: cannot count a skipped behaviour in {}: {error}", log.display());
    }
}

/// Makes one test of every behaviour. The expression is evaluated anew inside each test's runtime, may await,
/// and gives a [`Fixture`] whose store is empty.
///
/// ```ignore
/// mod sqlite { leasehold_testkit::conformance_tests!(SqliteFixture::new()); }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:expr) => {
        $crate::conformance_tests! { @tests $fixture;
            grants:
                a_free_name_is_granted,
                a_held_name_is_refused_with_the_label_of_its_holder,
                the_same_owner_is_granted_again_with_a_larger_token,
                a_repeated_grant_prolongs_to_the_whole_ttl,
                a_repeated_grant_never_shortens,
                owners_with_the_same_label_are_different,
                an_ended_lease_is_free_and_not_before,
                a_refused_acquire_does_not_prolong_the_lease,
                a_request_past_its_time_does_nothing,
                operations_after_close_are_unavailable,
                closing_keeps_leases,
                messages_show_no_owner_token;
            tokens:
                tokens_grow_over_owners_names_and_connections,
                concurrent_grants_have_different_tokens,
                tokens_grow_with_the_time_of_day_below_two_to_the_fifty_three,
                tokens_grow_after_all_data_is_lost,
                tokens_grow_after_the_clock_stepped_back,
                a_renewal_keeps_the_token;
            releases:
                a_released_name_is_free,
                a_name_is_released_by_its_owner_only,
                a_stale_release_leaves_the_next_holder_alone,
                releasing_again_finds_nothing,
                an_ended_lease_is_not_released,
                an_early_release_keeps_the_name_taken,
                a_release_that_keeps_for_no_time_frees_the_name,
                a_kept_name_goes_to_the_waiter_when_its_time_has_passed,
                names_that_are_free_again_leave_nothing;
            renewals:
                a_renewal_lasts_for_the_whole_ttl,
                a_renewal_never_shortens,
                a_renewal_never_recreates_a_lease,
                a_renewal_after_the_release_finds_nothing,
                a_renewal_by_another_owner_is_refused,
                a_lease_lost_by_the_store_is_missing,
                a_renewed_lease_outlives_its_ttl,
                each_lease_of_a_batch_has_its_own_verdict,
                one_unusable_key_spoils_no_batch,
                large_batches_are_answered_in_order,
                an_empty_batch_has_no_replies;
            queue:
                a_waiter_is_served_when_the_holder_releases,
                a_waiter_is_served_when_the_lease_ends,
                a_served_waiter_holds_for_a_claim_and_confirms_by_a_renewal,
                a_claim_that_nobody_confirms_ends_and_the_next_is_served,
                a_pushed_grant_is_bounded_by_the_moment_it_came_after,
                a_missed_push_is_found_by_asking_again,
                a_waiter_that_withdraws_is_not_served,
                withdrawing_leaves_the_holder_alone,
                a_dead_waiter_is_skipped,
                many_dead_waiters_are_skipped,
                a_waiter_that_stopped_polling_is_skipped,
                a_polling_waiter_has_time_to_find_its_grant,
                a_waiter_that_moves_to_another_connection_is_served_there,
                an_acquire_that_does_not_wait_leaves_nothing_in_the_queue,
                queues_do_not_outlive_their_waiters;
            queue_order:
                waiters_are_served_in_order_of_arrival,
                only_the_next_waiter_is_woken,
                the_new_first_waiter_is_told,
                the_next_is_told_when_the_first_withdraws,
                the_next_is_told_when_the_first_takes_the_name_by_asking,
                the_first_is_told_how_long_a_name_is_kept,
                places_and_tickets_tell_the_order,
                asking_again_keeps_the_place,
                a_ticket_keeps_the_place_of_a_lost_entry,
                a_lost_queue_is_rebuilt_in_order,
                a_newcomer_does_not_overtake_waiters_of_a_free_name,
                a_newcomer_that_waits_queues_behind,
                releases_and_waiters_never_miss_each_other;
            operators:
                inspection_of_a_free_name_finds_nothing,
                inspection_shows_the_holder_and_changes_nothing,
                inspection_shows_waiters_in_order,
                a_free_name_that_is_waited_for_shows_its_waiters_only,
                a_broken_holder_is_told_before_anybody_gets_in,
                a_lease_broken_at_once_is_free,
                a_broken_lease_goes_to_the_waiter,
                breaking_a_free_name_does_nothing,
                a_broken_lease_can_be_broken_at_once,
                a_diagnosis_has_subjects_and_messages;
            names:
                names_are_taken_literally,
                the_longest_name_works,
                a_list_has_the_taken_names_of_a_prefix,
                a_list_is_limited,
                a_list_shows_holders,
                prefixes_are_taken_literally;
            foreign:
                a_lease_is_kept_as_the_documented_pattern_says,
                a_foreign_holder_is_respected,
                a_foreign_holder_without_an_end_is_respected,
                a_waiter_follows_a_foreign_holder,
                a_foreign_holder_can_be_broken,
                data_that_is_no_lock_is_left_untouched,
                a_list_survives_data_that_is_no_lock;
            records:
                a_store_without_records_says_so,
                a_record_is_written_by_the_holder_only,
                a_record_is_not_written_after_the_lease,
                a_record_is_compared_before_it_is_changed,
                a_settled_name_is_free_or_its_waiters,
                a_settled_name_can_be_kept_taken,
                a_record_is_kept_for_its_time,
                records_are_kept_byte_for_byte,
                records_are_no_names,
                a_record_that_is_no_record_is_left_untouched;
            contention:
                of_many_concurrent_acquires_exactly_one_is_granted,
                holders_never_overlap_and_tokens_grow,
                leases_that_end_never_overlap;
        }
    };
    (@tests $fixture:expr; $($module:ident: $($behaviour:ident),+;)+) => {
        $($(
            #[test]
            fn $behaviour() {
                $crate::conformance::check(
                    stringify!($behaviour),
                    async || $fixture,
                    $crate::conformance::$module::$behaviour,
                );
            }
        )+)+
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_behaviour_is_in_the_list() {
        let list = include_str!("conformance.rs");
        let modules = [
            include_str!("conformance/contention.rs"),
            include_str!("conformance/foreign.rs"),
            include_str!("conformance/grants.rs"),
            include_str!("conformance/names.rs"),
            include_str!("conformance/operators.rs"),
            include_str!("conformance/queue.rs"),
            include_str!("conformance/queue_order.rs"),
            include_str!("conformance/records.rs"),
            include_str!("conformance/releases.rs"),
            include_str!("conformance/renewals.rs"),
            include_str!("conformance/tokens.rs"),
        ];
        let mut found = 0;
        for line in modules.iter().flat_map(|module| module.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let name = rest.split(['<', '(']).next().unwrap();
            let listed = list.lines().any(|line| line.trim().trim_end_matches([',', ';']) == name);
            assert!(listed, "{name} is not in conformance_tests!");
            found += 1;
        }
        assert!(found > 50, "{found}");
    }
}
