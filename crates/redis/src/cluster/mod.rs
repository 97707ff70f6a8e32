//! Leases in a Redis or Valkey Cluster: a thin router over one ordinary connection for each primary.
//!
//! Owns: which node has a slot, following redirections, the wake connections, and the single-key steps while a slot
//! migrates. Does not own: what is done to a name, which is that of a single server (`scripted.rs`), and redis-rs's
//! own cluster client is not used, since it hides which connection a reply or a push came from.

mod config;
mod doctor;
mod frames;
mod join;
mod line;
mod look;
mod node;
mod renew;
mod route;
mod router;
mod slots;
mod steps;
mod store;
mod wake;

pub use config::ClusterConfig;
pub use store::ClusterStore;
