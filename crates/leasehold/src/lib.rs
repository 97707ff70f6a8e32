//! A distributed lock on Redis that tells its holder when it is lost and gives every grant a fencing token.
