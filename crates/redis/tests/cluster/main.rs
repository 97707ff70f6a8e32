//! The store on a real cluster: what every store promises, slots that move, shards that fail, and what users are told.

#![cfg(test)]

mod conformance;
mod doctor;
mod failover;
mod migration;
mod refusals;
mod slots;
mod support;
