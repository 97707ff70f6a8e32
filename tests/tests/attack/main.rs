//! The client under attack, on real servers: connections that freeze, break and lie, encryption and rights, secrets,
//! and the failures that users of other lock libraries met.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod deadlines;
mod fenced;
#[cfg(target_os = "linux")]
mod flood;
mod keys;
mod logs;
mod lost_replies;
#[cfg(target_os = "linux")]
mod names;
mod outages;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod reconnects;
mod refusals;
mod rights;
mod secrets;
#[cfg(target_os = "linux")]
mod server_clock;
mod start;
#[path = "../redis/support.rs"]
#[allow(dead_code, reason = "each test binary uses its part of this module")]
mod support;
mod tls;
