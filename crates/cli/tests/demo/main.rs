//! Tests of `leasehold demo` as users meet it: the real program with its workers, its carrier and its database.
//! What it reports is compared with what must be true of every run; exact counts of a run without a lock are not.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;
mod ends;
mod input;
mod page;
mod runs;
