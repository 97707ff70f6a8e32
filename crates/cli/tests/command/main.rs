//! Tests of the `leasehold` command as users meet it: the real program, real processes, a SQLite store in a
//! temporary directory.

mod arguments;
mod children;
mod common;
mod exit_codes;
mod lease;
mod signals;
mod watchdog;
