//! Seal and check on real databases: PostgreSQL, MariaDB and SQLite, and Redis for what is kept there.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod cases;
mod databases;
mod holders;
mod lost_update;
mod plain_clients;
mod redis;
mod refusals;
mod round_trips;
mod schedules;
mod single_statement;
mod trigger;
