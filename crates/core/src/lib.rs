//! The lock engine: names, owner tokens, fencing tokens, the lease state machine, waiting, guards and the store contract.
