//! The engine against the store in memory, in virtual time: several connections stand for several processes,
//! and a network and a server that fail as told. What needs threads, a real clock or a fork is tested beside
//! this.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::unchecked_time_subtraction,
    reason = "a test that cannot go on panics; the lints' own exceptions do not reach helpers of tests"
)]

mod support;

mod budget;
mod cancellation;
mod cases;
mod clocks;
mod holds;
mod loss;
mod memory_use;
mod once;
mod once_cases;
mod once_kept;
mod options;
mod outages;
mod renewal;
mod replies;
mod resume;
mod simulation;
mod waiting;
