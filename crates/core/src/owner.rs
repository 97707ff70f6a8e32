//! Owner tokens: the unguessable value that proves ownership, the label operators read, and the forms a lock
//! key's value can have. Where the value is kept is the store's business.

use std::fmt;
use std::sync::Arc;

use crate::entropy::Entropy;
use crate::error::Error;

const SECRET_BYTES: usize = 16;
const SECRET_CHARS: usize = 22;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Who holds a lease, as operators read it: `host:pid` unless the application gives a name of its own.
///
/// 1 to 64 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// The longest label, in bytes.
    pub const MAX_BYTES: usize = 64;

    /// Checks and wraps a label.
    ///
    /// # Errors
    /// `Config` when it is empty, longer than 64 bytes, or holds anything but visible ASCII characters.
    pub fn new(label: impl AsRef<str>) -> Result<Self, Error> {
        let label = label.as_ref();
        if label.is_empty() || label.len() > Self::MAX_BYTES || !label.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::config(format!(
                "the label {label:?} is not usable: give 1 to {} visible ASCII characters without spaces",
                Self::MAX_BYTES
            )));
        }
        Ok(Self(label.into()))
    }

    /// `host:pid` of this process.
    pub fn of_this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host: String = host.chars().filter(char::is_ascii_graphic).take(48).collect();
        Self(format!("{host}:{}", std::process::id()).into())
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value that proves ownership of one acquisition: 128 random bits in base64url, then `@` and the label.
///
/// It is a secret: whoever has it can release or resume the lease. `Debug` shows the label only, and there is
/// no `Display`; [`OwnerToken::expose`] gives the whole value to those who must pass it on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerToken(Arc<str>);

impl OwnerToken {
    /// A new token from 128 random bits.
    ///
    /// # Errors
    /// `Unavailable` when the operating system gives no random bits.
    pub fn generate(entropy: &dyn Entropy, label: &Label) -> Result<Self, Error> {
        let mut secret = [0_u8; SECRET_BYTES];
        entropy.fill(&mut secret)?;
        Ok(Self(format!("{}@{label}", encode(secret)).into()))
    }

    /// Reads a token back, for instance from `LEASEHOLD_OWNER_TOKEN`.
    ///
    /// # Errors
    /// `Config` when the text has not the form of an owner token. The message does not repeat it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let form = || {
            Error::config(
                "this is not an owner token: it must be 22 base64url characters, then @ and a label of 1 to 64 \
                 visible ASCII characters",
            )
        };
        let (secret, label) = text.split_at_checked(SECRET_CHARS).ok_or_else(form)?;
        let label = label.strip_prefix('@').ok_or_else(form)?;
        if !secret.bytes().all(|b| ALPHABET.contains(&b)) || Label::new(label).is_err() {
            return Err(form());
        }
        Ok(Self(text.into()))
    }

    /// The whole value. Keep it out of logs.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The part that says who: safe to print.
    pub fn label(&self) -> &str {
        self.0.get(SECRET_CHARS + 1..).unwrap_or_default()
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerToken(…@{})", self.label())
    }
}

/// What the value of a lock key says. Every store keeps one of these forms, so tools that look at a store
/// understand what another client wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// A lease of this owner.
    Owner(OwnerToken),
    /// An operator broke the lease; the name stays taken until the time of the old lease has passed.
    Broken {
        /// Who broke it.
        by: String,
    },
    /// Released before its `min_hold` had passed; the name stays taken until then.
    Kept {
        /// Who held it.
        by: String,
    },
    /// Written by a client that is not Leasehold but follows the documented `SET key token NX PX` pattern.
    Foreign,
}

impl KeyValue {
    const BROKEN: &'static str = "~broken@";
    const KEPT: &'static str = "~kept@";

    /// Reads the value of a lock key.
    pub fn parse(value: &str) -> Self {
        // Anybody can write anything there, and what is behind the mark is shown to operators.
        let marked = |mark| value.strip_prefix(mark).filter(|by| Label::new(by).is_ok()).map(str::to_owned);
        if let Some(by) = marked(Self::BROKEN) {
            return Self::Broken { by };
        }
        if let Some(by) = marked(Self::KEPT) {
            return Self::Kept { by };
        }
        OwnerToken::parse(value).map_or(Self::Foreign, Self::Owner)
    }

    /// The value that replaces an owner token when an operator breaks a lease.
    pub fn broken(by: &Label) -> String {
        format!("{}{by}", Self::BROKEN)
    }

    /// The value that keeps a name taken after an early release.
    pub fn kept(owner: &OwnerToken) -> String {
        format!("{}{}", Self::KEPT, owner.label())
    }
}

fn encode(secret: [u8; SECRET_BYTES]) -> String {
    let number = u128::from_be_bytes(secret);
    (0..SECRET_CHARS)
        .map(|place| {
            let shift = 128_i32 - 6 * (i32::try_from(place).unwrap_or(0) + 1);
            let six_bits = if shift >= 0 { number >> shift } else { number << -shift };
            char::from(ALPHABET[usize::try_from(six_bits & 63).unwrap_or(0)])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SystemEntropy;

    #[test]
    fn tokens_survive_being_written_and_read() {
        let label = Label::new("web-1:42").unwrap();
        let token = OwnerToken::generate(&SystemEntropy, &label).unwrap();
        assert_eq!(OwnerToken::parse(token.expose()).unwrap(), token);
        assert_eq!(token.label(), "web-1:42");
        assert_eq!(KeyValue::parse(token.expose()), KeyValue::Owner(token));
    }

    #[test]
    fn the_secret_is_base64url_of_all_128_bits() {
        assert_eq!(encode([0; 16]), "A".repeat(22));
        assert_eq!(encode([255; 16]), format!("{}w", "_".repeat(21)));
        assert_eq!(encode(*b"0123456789abcdef"), "MDEyMzQ1Njc4OWFiY2RlZg");
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = OwnerToken::generate(&SystemEntropy, &Label::new("web").unwrap()).unwrap();
        assert_eq!(format!("{token:?}"), "OwnerToken(…@web)");
    }

    #[test]
    fn other_values_are_foreign_or_tombstones() {
        for foreign in
            ["", "1", "a-uuid-of-another-library-000000", "MDEyMzQ1Njc4OWFiY2RlZg", "é".repeat(20).as_str()]
        {
            assert_eq!(KeyValue::parse(foreign), KeyValue::Foreign);
        }
        for no_label in ["~broken@", "~kept@", "~broken@\u{1b}[31m", "~kept@two words", "~kept@a\nb"] {
            assert_eq!(KeyValue::parse(no_label), KeyValue::Foreign, "{no_label:?}");
        }
        let by = Label::new("ops").unwrap();
        assert_eq!(KeyValue::parse(&KeyValue::broken(&by)), KeyValue::Broken { by: "ops".into() });
    }

    #[test]
    fn a_bad_token_is_not_repeated_in_the_error() {
        let error = OwnerToken::parse("secretsecretsecret").unwrap_err();
        assert!(!error.to_string().contains("secretsecret"));
    }
}
