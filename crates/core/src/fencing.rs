//! Fencing tokens: the number that grows with every grant of a name, and the one rule by which every store
//! mints it. How a token is checked at a protected resource is not decided here.

use std::fmt;
use std::time::Duration;

/// A number that grows with every grant of a name.
///
/// Hand it to the resource you protect: a resource that refuses a token smaller than the newest it has seen
/// keeps a stale holder out, however late that holder wakes up.
///
/// Tokens are whole numbers from 1 to 2^53 − 1, so every language and JSON can carry them without loss.
/// They grow but are not consecutive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest token: 2^53 − 1, the largest whole number that JSON readers keep exactly.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// The token of a store that cannot mint (scripts switched off, and `allow_unfenced` asked for). It is
    /// smaller than every minted token, so a check that has ever seen a real one refuses it.
    pub const UNFENCED: Self = Self(0);

    /// The token with this value, or `None` outside 1 to 2^53 − 1.
    pub fn new(value: u64) -> Option<Self> {
        (1..=Self::MAX.0).contains(&value).then_some(Self(value))
    }

    /// The rule by which every store mints: one more than the last, or the store's own clock in microseconds
    /// since 1970, whichever is larger.
    ///
    /// The clock keeps tokens growing when the last one was lost (failover, flush, eviction), as long as the
    /// store's clock is not behind the last token minted. `None` when the range is used up.
    pub fn mint(last: u64, store_time_since_epoch: Duration) -> Option<Self> {
        let clock = u64::try_from(store_time_since_epoch.as_micros()).ok()?;
        Self::new(last.checked_add(1)?.max(clock))
    }

    /// The token as a number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Whether this token was minted by a store, as opposed to [`FencingToken::UNFENCED`].
    pub fn is_fenced(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minting_grows_past_the_last_token_and_past_the_clock() {
        let now = Duration::from_micros(1_000);
        assert_eq!(FencingToken::mint(0, now).unwrap().get(), 1_000);
        assert_eq!(FencingToken::mint(1_000, now).unwrap().get(), 1_001);
        assert_eq!(FencingToken::mint(5_000, now).unwrap().get(), 5_001);
    }

    #[test]
    fn tokens_stay_below_two_to_the_fifty_three() {
        assert!(FencingToken::mint(FencingToken::MAX.get(), Duration::ZERO).is_none());
        assert!(FencingToken::mint(u64::MAX, Duration::ZERO).is_none());
        assert!(FencingToken::mint(0, Duration::MAX).is_none());
        assert!(FencingToken::new(1 << 53).is_none());
        assert!(FencingToken::new(0).is_none());
    }
}
