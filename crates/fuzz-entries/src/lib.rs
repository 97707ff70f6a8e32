//! What is fuzzed: one function for each kind of input that others write. A function panics when a promise is broken:
//! when something panics, hangs, shows a secret, or breaks a line of output.
//!
//! The fuzzer (`fuzz/`) calls them with inputs it grows by coverage; a test replays what it found, kept in
//! `fuzz/corpus`, and some random changes of it.

#![allow(clippy::missing_panics_doc, reason = "to panic is how they report")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a fuzz target that cannot go on panics")]

mod cli;
mod redis;
mod server;
mod sqlite;
mod texts;

pub use cli::{command_line, duration, events};
pub use redis::{push, queue_entry, reply};
pub use server::lying_server;
pub use sqlite::store_file;
pub use texts::{name, owner_token, url};

/// A name and the function for it.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("push", push),
    ("queue_entry", queue_entry),
    ("reply", reply),
    ("lying_server", lying_server),
    ("owner_token", owner_token),
    ("name", name),
    ("url", url),
    ("store_file", store_file),
    ("events", events),
    ("command_line", command_line),
    ("duration", duration),
];

/// What is said to users is one line without control characters.
pub(crate) fn assert_sayable(said: &str) {
    assert!(!said.chars().any(char::is_control), "a control character in a message: {said:?}");
}
