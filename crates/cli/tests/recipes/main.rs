//! The recipes in `docs/recipes`, as they stand there: shell is run with the real command on a store of its own,
//! manifests and units are parsed, checked by their own tools where there are some, and their commands are run.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod kitchen;
mod manifests;
mod shell;
