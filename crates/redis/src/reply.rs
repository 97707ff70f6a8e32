//! Reading the values of replies. A reply of another shape than documented is an error, never a panic.

use redis::Value;

/// A reply that has not the documented shape.
#[derive(Debug)]
pub(crate) struct BadReply;

/// The bytes of a text, whichever way it was sent.
pub(crate) fn bytes(value: &Value) -> Result<&[u8], BadReply> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text.as_bytes()),
        Value::Okay => Ok(b"OK"),
        _ => Err(BadReply),
    }
}

pub(crate) fn text(value: &Value) -> Result<&str, BadReply> {
    std::str::from_utf8(bytes(value)?).map_err(|_| BadReply)
}

/// A whole number, sent as such or as decimal text.
pub(crate) fn integer(value: &Value) -> Result<i64, BadReply> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::Boolean(truth) => Ok(i64::from(*truth)),
        other => text(other)?.parse().map_err(|_| BadReply),
    }
}

/// A number that is not negative.
pub(crate) fn number(value: &Value) -> Result<u64, BadReply> {
    u64::try_from(integer(value)?).map_err(|_| BadReply)
}

pub(crate) fn array(value: &Value) -> Result<&[Value], BadReply> {
    match value {
        Value::Array(items) | Value::Set(items) => Ok(items),
        Value::Nil => Ok(&[]),
        _ => Err(BadReply),
    }
}

/// The field of a map, sent as one or as a flat array of pairs.
pub(crate) fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let is_named = |key: &Value| text(key).is_ok_and(|key| key == name);
    match value {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| is_named(key)).map(|(_, value)| value),
        Value::Array(items) => items.chunks_exact(2).find(|pair| is_named(&pair[0])).map(|pair| &pair[1]),
        _ => None,
    }
}

/// The server's `TIME` in microseconds since 1970.
pub(crate) fn time_micros(value: &Value) -> Result<u64, BadReply> {
    match array(value)? {
        [seconds, micros] => number(seconds)?
            .checked_mul(1_000_000)
            .and_then(|s| s.checked_add(number(micros).ok()?))
            .ok_or(BadReply),
        _ => Err(BadReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_either_form() {
        assert_eq!(number(&Value::Int(5)).unwrap(), 5);
        assert_eq!(number(&Value::BulkString(b"1764440000000000".to_vec())).unwrap(), 1_764_440_000_000_000);
        assert!(number(&Value::Int(-1)).is_err());
        assert!(number(&Value::BulkString(b"1e3".to_vec())).is_err());
        assert!(number(&Value::Nil).is_err());
    }

    #[test]
    fn maps_are_read_from_either_form() {
        let (key, value) = (Value::SimpleString("mode".into()), Value::SimpleString("standalone".into()));
        for map in [Value::Map(vec![(key.clone(), value.clone())]), Value::Array(vec![key, value])] {
            assert_eq!(text(field(&map, "mode").unwrap()).unwrap(), "standalone");
            assert!(field(&map, "role").is_none());
        }
    }

    #[test]
    fn times_that_overflow_are_refused() {
        let part = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(time_micros(&Value::Array(vec![part("2"), part("5")])).unwrap(), 2_000_005);
        assert!(time_micros(&Value::Array(vec![part("99999999999999999"), part("0")])).is_err());
    }
}
