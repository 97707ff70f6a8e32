//! `leasehold watch` in a real terminal, by way of tmux: what it shows of real locks, which keys it takes, and
//! that it gives the terminal back.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../command/common.rs"]
#[allow(dead_code, reason = "each test binary uses its part of this module")]
mod common;
mod ends;
mod shows;
mod terminal;
