//! An exhaustive model of the protocol on one Redis server (`docs/protocol.md`): two or three processes, one
//! name, every order of events, and a few faults in each run.
//!
//! What it leaves out, so that the search ends: tokens are numbers, time is a handful of ticks, a waiter polls
//! and a holder renews at most once in a tick, repeated notices count once, and the larger configurations read
//! replies as soon as they are sent. It owns no timing, no Lua and no client code: those have tests of their own.

#![expect(unreachable_pub, reason = "nothing in a test is reachable from outside")]

mod ahead;
mod check;
mod client;
mod controls;
mod promises;
mod properties;
mod protocol;
mod rules;
mod server;
mod state;
mod step;
mod steps;
