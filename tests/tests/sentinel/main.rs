//! The whole client on a primary and its replicas that Sentinels watch: what a failover costs, what it cannot cost,
//! and what is said when something is not as the URL says.

#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod acks;
#[path = "../common/mod.rs"]
mod common;
mod counter;
mod doctor;
mod failover;
mod overlap;
mod setup;
mod support;
