//! The whole client on a real cluster: a count across processes while slots move and a shard fails over, and a shard
//! that hangs beside others that do not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../common/mod.rs"]
mod common;
mod counter;
mod shards;
