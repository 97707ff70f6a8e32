//! Real servers, a fault-injecting proxy and the conformance suite every store passes.
