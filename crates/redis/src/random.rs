//! Random values for connection ids and for spreading retries. Owns no source of randomness.

use std::time::Duration;

use leasehold_core::{Entropy, Error, SystemEntropy};

/// A new id for a connection: 96 random bits, so nobody is ever told what was meant for another.
pub(crate) fn connection_id() -> Result<String, Error> {
    let mut bits = [0_u8; 12];
    SystemEntropy.fill(&mut bits)?;
    Ok(bits.iter().fold(String::new(), |id, byte| format!("{id}{byte:02x}")))
}

/// A duration between half of this one and all of it; all of it when there is no randomness to be had.
pub(crate) fn jittered(most: Duration) -> Duration {
    let mut bits = [0_u8; 2];
    match SystemEntropy.fill(&mut bits) {
        Ok(()) => most / 2 + (most / 2).mul_f64(f64::from(u16::from_be_bytes(bits)) / f64::from(u16::MAX)),
        Err(_) => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_hold_no_space() {
        let (one, other) = (connection_id().unwrap(), connection_id().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == 24 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn jitter_keeps_at_least_half() {
        let most = Duration::from_secs(2);
        for _ in 0..100 {
            let drawn = jittered(most);
            assert!(most / 2 <= drawn && drawn <= most);
        }
    }
}
