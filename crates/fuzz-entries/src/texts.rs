//! Texts that users and other programs write: owner tokens, names, URLs.

use leasehold_core::{KeyValue, Label, Name, Namespace, OwnerToken};
use leasehold_redis::RedisConfig;

use crate::assert_sayable;

/// Shorter texts are in any message by chance.
const SECRET_CHARS: usize = 12;

/// The value of a lock key, and a token from an environment variable.
pub fn owner_token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match OwnerToken::parse(text) {
        Ok(token) => {
            assert_eq!(token.expose(), text);
            assert_eq!(KeyValue::parse(text), KeyValue::Owner(token.clone()));
            assert!(Label::new(token.label()).is_ok());
            let secret = &text[..22];
            assert!(!format!("{token:?}").contains(secret) || token.label().contains(secret));
            assert!(
                matches!(KeyValue::parse(&KeyValue::kept(&token)), KeyValue::Kept { by } if by == token.label())
            );
        }
        Err(error) => {
            assert_sayable(&error.to_string());
            assert!(!matches!(KeyValue::parse(text), KeyValue::Owner(_)));
        }
    }
}

/// A name, a namespace and a label, separated by line feeds.
pub fn name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.splitn(3, '\n');
    let (name, namespace, label) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    if let Err(error) = Label::new(label) {
        assert_sayable(&error.to_string());
    }
    let namespace = match Namespace::new(namespace) {
        Ok(namespace) => namespace,
        Err(error) => return assert_sayable(&error.to_string()),
    };
    match Name::new(name) {
        Ok(read) => {
            assert_eq!(read.as_str(), name);
            assert_eq!(namespace.key(&read), format!("{}{name}", namespace.as_str()));
            assert!(name.len() <= Name::MAX_BYTES && !name.is_empty());
            assert_sayable(&format!("{read} {read:?}"));
        }
        Err(error) => assert_sayable(&error.to_string()),
    }
}

/// A password and a URL around it, separated by a line feed; without one it is a URL as it is.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((password, rest)) = text.split_once('\n') else {
        return told(
            RedisConfig::from_url(text).map(|config| format!("{config:?} {}", config.describe())),
            None,
        );
    };
    // As it should be written, and as people write it.
    let (encoded, raw) = (percent_encoded(password), format!("redis://app:{password}@{rest}"));
    for url in [format!("redis://app:{encoded}@{rest}"), raw] {
        let shown = RedisConfig::from_url(&url).map(|config| format!("{config:?} {}", config.describe()));
        told(shown, Some(password).filter(|password| is_secret(password, rest)));
    }
    if let Ok(config) =
        RedisConfig::from_url(&format!("redis://app:{encoded}@host/?namespace={}", percent_encoded(rest)))
    {
        assert_eq!(config.namespace().as_str(), rest);
    }
}

fn told(shown: Result<String, leasehold_core::Error>, secret: Option<&str>) {
    let shown = shown.unwrap_or_else(|error| {
        let said = error.to_string();
        assert_sayable(&said);
        format!("{said} {error:?}")
    });
    if let Some(secret) = secret {
        assert!(!shown.contains(secret), "a password in {shown:?}");
    }
}

/// Whether it would not be in a message anyway.
fn is_secret(password: &str, rest: &str) -> bool {
    let plain = password.bytes().all(|byte| byte.is_ascii_alphanumeric());
    // A URL is read without its line breaks and tabs, and its host in small letters and decoded.
    let whole = rest.chars().filter(|character| !character.is_control()).collect::<String>();
    let elsewhere = whole.to_ascii_lowercase().contains(&password.to_ascii_lowercase());
    let literal = rest.is_ascii() && !rest.contains('%');
    password.len() >= SECRET_CHARS && plain && literal && !elsewhere && !FIXED_WORDS.contains(password)
}

/// Words of our own in which a password may be by chance.
const FIXED_WORDS: &str = "unknownparameternamespacescripting";

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02X}"))
}
