//! The whole client on real Redis and Valkey servers: what it sends, what it survives, whom it excludes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../common/mod.rs"]
mod common;
mod counter;
mod interop;
mod leases;
mod network;
mod once;
mod python;
mod scripts;
mod support;
mod traffic;
mod waiting;
