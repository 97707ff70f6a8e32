//! What processes write for each other on a Redis server, and what the server replies.

use leasehold_redis::fuzzing;

use crate::assert_sayable;

/// A message on a wake channel.
pub fn push(data: &[u8]) {
    fuzzing::push(data);
}

/// An entry of a queue.
pub fn queue_entry(data: &[u8]) {
    fuzzing::queue_entry(data);
}

/// A reply of the server.
pub fn reply(data: &[u8]) {
    for said in fuzzing::reply(data) {
        assert_sayable(&said);
        // Escaped, a character may take ten.
        assert!(said.len() < 16_384, "a message of {} bytes", said.len());
    }
}
