//! Tests of the `leasehold` command as users meet it: the real program, real processes, a SQLite store in a
//! temporary directory.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod arguments;
mod children;
mod common;
mod exit_codes;
mod job_control;
mod lease;
mod looking;
mod once;
mod redis;
mod redis_setups;
mod signals;
mod watchdog;
mod words;
