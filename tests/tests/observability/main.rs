//! What operators see: every row of `docs/observability.md` happens, with the labels it says, and the document
//! says all that the code does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod acquisitions;
mod documented;
mod events;
mod leases;
mod servers;
mod support;
