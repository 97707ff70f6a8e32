//! The Redis wire protocol (RESP2 and RESP3): values, where a frame ends, and a plain blocking connection.
//! Owns nothing about what commands mean.

mod connection;
mod scan;
mod value;

pub use connection::Connection;
pub use scan::{FrameScanner, Malformed};
pub use value::RespValue;

/// Encodes a command as a client sends it.
pub fn encode_command<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The arguments of a request frame, either an array of strings or an inline command.
pub fn decode_command(frame: &[u8]) -> Vec<Vec<u8>> {
    if frame.first() != Some(&b'*') {
        return frame
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
    }
    match RespValue::decode(frame) {
        Some(RespValue::Array(items)) => items.into_iter().filter_map(RespValue::into_bytes).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_survives_encoding_and_decoding() {
        let arguments: [&[u8]; 3] = [b"SET", b"k\r\n", b"\xff\x00"];
        assert_eq!(decode_command(&encode_command(&arguments)), arguments);
    }

    #[test]
    fn an_inline_command_is_split_at_spaces() {
        assert_eq!(decode_command(b"PING  hello\r\n"), [b"PING".to_vec(), b"hello".to_vec()]);
    }
}
