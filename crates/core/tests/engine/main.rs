//! The engine against the store in memory, in virtual time: several connections stand for several processes,
//! and a network and a server that fail as told. What needs threads, a real clock or a fork is tested beside
//! this.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics; the lint's own exception does not reach helpers of tests"
)]

mod support;

mod outages;
mod replies;
mod waiting;
