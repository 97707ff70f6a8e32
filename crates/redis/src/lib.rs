//! The Redis and Valkey store of Leasehold.
