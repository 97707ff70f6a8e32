//! Randomness behind a trait, so tests own it.

use crate::error::{Error, ErrorKind};

/// A source of random bytes.
pub trait Entropy: Send + Sync + 'static {
    /// Fills the buffer with random bytes.
    ///
    /// # Errors
    /// `Unavailable` when there are none to be had.
    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error>;
}

/// The operating system's random bytes.
#[derive(Clone, Copy, Debug)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), Error> {
        getrandom::fill(buffer).map_err(|source| {
            Error::new(ErrorKind::Unavailable, "the operating system gave no random bytes for an owner token")
                .with_source(source)
        })
    }
}
