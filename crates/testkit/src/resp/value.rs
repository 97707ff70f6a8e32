//! A decoded RESP value. Owns no I/O and no limits: what is decoded was framed before.

/// What a server answers or pushes. Attributes are skipped.
#[derive(Clone, Debug, PartialEq)]
pub enum RespValue {
    /// `+OK`
    Simple(String),
    /// `-ERR …` or the blob form of RESP3.
    Error(String),
    /// `:42`
    Integer(i64),
    /// A string of bytes, also the verbatim form (without its format prefix).
    Bulk(Vec<u8>),
    /// Null of either protocol version.
    Null,
    /// `#t` or `#f`
    Boolean(bool),
    /// `,1.5`
    Double(f64),
    /// A number of any size, as text.
    BigNumber(String),
    /// An ordered list.
    Array(Vec<RespValue>),
    /// Pairs, in the server's order.
    Map(Vec<(RespValue, RespValue)>),
    /// An unordered list.
    Set(Vec<RespValue>),
    /// An out-of-band message.
    Push(Vec<RespValue>),
}

impl RespValue {
    /// Decodes one complete frame; `None` if it is not one.
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let mut rest = frame;
        let value = take_value(&mut rest)?;
        rest.is_empty().then_some(value)
    }

    /// Text of a string, a number or an error.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Simple(text) | Self::Error(text) | Self::BigNumber(text) => Some(text.clone()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Integer(number) => Some(number.to_string()),
            Self::Double(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// A number, also when the server sent it as text.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            other => other.text()?.parse().ok(),
        }
    }

    /// The elements of an array, a set or a push.
    pub fn items(&self) -> Option<&[RespValue]> {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => Some(items),
            _ => None,
        }
    }

    /// Whether the server refused the command.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Whether there is no value.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(crate) fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }
}

fn take_value(rest: &mut &[u8]) -> Option<RespValue> {
    let line = take_line(rest)?;
    let (kind, header) = line.split_first()?;
    let text = || String::from_utf8_lossy(header).into_owned();
    let number = || std::str::from_utf8(header).ok()?.parse::<i64>().ok();
    Some(match kind {
        b'+' => RespValue::Simple(text()),
        b'-' => RespValue::Error(text()),
        b':' => RespValue::Integer(number()?),
        b'(' => RespValue::BigNumber(text()),
        b',' => RespValue::Double(text().parse().ok()?),
        b'#' => RespValue::Boolean(header == b"t"),
        b'_' => RespValue::Null,
        b'$' | b'*' if header == b"-1" => RespValue::Null,
        b'$' => RespValue::Bulk(take_blob(rest, number()?)?),
        b'=' => RespValue::Bulk(take_blob(rest, number()?)?.get(4..)?.to_vec()),
        b'!' => RespValue::Error(String::from_utf8_lossy(&take_blob(rest, number()?)?).into_owned()),
        b'*' => RespValue::Array(take_values(rest, number()?)?),
        b'~' => RespValue::Set(take_values(rest, number()?)?),
        b'>' => RespValue::Push(take_values(rest, number()?)?),
        b'%' => RespValue::Map(take_pairs(rest, number()?)?),
        b'|' => {
            take_pairs(rest, number()?)?;
            take_value(rest)?
        }
        _ => return None,
    })
}

fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    Some(line)
}

fn take_blob(rest: &mut &[u8], length: i64) -> Option<Vec<u8>> {
    let length = usize::try_from(length).ok()?;
    let blob = rest.get(..length)?.to_vec();
    *rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
    Some(blob)
}

fn take_values(rest: &mut &[u8], count: i64) -> Option<Vec<RespValue>> {
    (0..count).map(|_| take_value(rest)).collect()
}

fn take_pairs(rest: &mut &[u8], count: i64) -> Option<Vec<(RespValue, RespValue)>> {
    (0..count).map(|_| Some((take_value(rest)?, take_value(rest)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_type_are_decoded() {
        let bulk = |text: &str| RespValue::Bulk(text.into());
        let cases: Vec<(&[u8], RespValue)> = vec![
            (b"+OK\r\n", RespValue::Simple("OK".into())),
            (b"-ERR no\r\n", RespValue::Error("ERR no".into())),
            (b":-42\r\n", RespValue::Integer(-42)),
            (b"$5\r\nhe\r\no\r\n", bulk("he\r\no")),
            (b"$-1\r\n", RespValue::Null),
            (b"*-1\r\n", RespValue::Null),
            (b"_\r\n", RespValue::Null),
            (b"#t\r\n", RespValue::Boolean(true)),
            (b",1.5\r\n", RespValue::Double(1.5)),
            (b"(123456789012345678901\r\n", RespValue::BigNumber("123456789012345678901".into())),
            (b"!5\r\nERR x\r\n", RespValue::Error("ERR x".into())),
            (b"=7\r\ntxt:abc\r\n", bulk("abc")),
            (b"*2\r\n:1\r\n*0\r\n", RespValue::Array(vec![RespValue::Integer(1), RespValue::Array(vec![])])),
            (b"%1\r\n$1\r\na\r\n:1\r\n", RespValue::Map(vec![(bulk("a"), RespValue::Integer(1))])),
            (b"~1\r\n:1\r\n", RespValue::Set(vec![RespValue::Integer(1)])),
            (b">1\r\n$1\r\na\r\n", RespValue::Push(vec![bulk("a")])),
            (b"|1\r\n+ttl\r\n:1\r\n:7\r\n", RespValue::Integer(7)),
        ];
        for (frame, value) in cases {
            assert_eq!(RespValue::decode(frame), Some(value), "{}", String::from_utf8_lossy(frame));
        }
    }

    #[test]
    fn half_a_frame_is_no_value() {
        assert_eq!(RespValue::decode(b"*2\r\n:1\r\n"), None);
        assert_eq!(RespValue::decode(b"$5\r\nab\r\n"), None);
    }
}
