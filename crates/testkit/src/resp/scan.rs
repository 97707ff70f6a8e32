//! Finds where a frame ends in a stream of bytes that arrives in pieces, without decoding it. Owns no I/O.

/// The bytes are not RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the bytes are not RESP")
    }
}

impl std::error::Error for Malformed {}

/// Longer than any header line the protocol has; keeps a stream without line ends from being buffered for ever.
const LONGEST_LINE_BYTES: usize = 1 << 20;

/// Splits a byte stream into frames. Feed bytes with [`extend`](Self::extend), take frames with
/// [`next_frame`](Self::next_frame). Bytes are scanned once, however small the pieces are.
#[derive(Debug)]
pub struct FrameScanner {
    buffer: Vec<u8>,
    /// Where the current frame begins.
    start: usize,
    /// Everything before this was recognised as part of the current frame.
    position: usize,
    /// Elements still missing until the current frame is complete.
    missing: u64,
    /// Whether a line that starts with a letter is an inline command (requests) or an error (replies).
    inline_allowed: bool,
}

impl FrameScanner {
    /// For what a server sends.
    pub fn replies() -> Self {
        Self { buffer: Vec::new(), start: 0, position: 0, missing: 1, inline_allowed: false }
    }

    /// For what a client sends, inline commands included.
    pub fn requests() -> Self {
        Self { inline_allowed: true, ..Self::replies() }
    }

    /// Adds bytes that arrived.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.position -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, if it is there. An attribute (`|`) belongs to the frame of the value after it.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not RESP; [`take_rest`](Self::take_rest) then hands them out.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        while self.missing > 0 {
            if !self.step()? {
                return Ok(None);
            }
        }
        let frame = self.buffer[self.start..self.position].to_vec();
        self.start = self.position;
        self.missing = 1;
        Ok(Some(frame))
    }

    /// All bytes that were not handed out as frames.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.buffer.split_off(self.start);
        *self = Self { inline_allowed: self.inline_allowed, ..Self::replies() };
        rest
    }

    /// Recognises one element; false when its bytes are not all there.
    fn step(&mut self) -> Result<bool, Malformed> {
        let unread = &self.buffer[self.position..];
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else {
            return if unread.len() > LONGEST_LINE_BYTES { Err(Malformed) } else { Ok(false) };
        };
        let line_bytes = end + 1;
        let (kind, header) = (unread[0], &unread[1..=end]);
        let (body_bytes, elements) = match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => (0, 0),
            b'$' | b'!' | b'=' => (length(header)?.map_or(0, |bytes| bytes + 2), 0),
            b'*' | b'~' | b'>' => (0, length(header)?.unwrap_or(0)),
            b'%' => (0, 2 * length(header)?.unwrap_or(0)),
            // The value that the attribute describes comes after its pairs and is still missing.
            b'|' => (0, 2 * length(header)?.unwrap_or(0) + 1),
            _ if self.inline_allowed && self.position == self.start => (0, 0),
            _ => return Err(Malformed),
        };
        let end = usize::try_from(body_bytes).map_err(|_| Malformed)?.saturating_add(line_bytes);
        if unread.len() < end {
            return Ok(false);
        }
        self.position += end;
        self.missing = self.missing - 1 + elements;
        Ok(true)
    }
}

/// The number in a header line; `None` for the null of RESP2 (`-1`).
fn length(header: &[u8]) -> Result<Option<u64>, Malformed> {
    let text = std::str::from_utf8(header).map_err(|_| Malformed)?.trim_end();
    if text == "-1" {
        return Ok(None);
    }
    // No server sends more than 512 MB in one string; a larger number is noise and must not overflow.
    text.parse::<u32>().map(|number| Some(u64::from(number))).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-42\r\n",
        b"$5\r\nhe\r\no\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5e10\r\n",
        b"(3492890328409238509324850943850943825024385\r\n",
        b"!5\r\nERR x\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
        b"~2\r\n:1\r\n:2\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        b"|1\r\n+ttl\r\n:3600\r\n*1\r\n$1\r\na\r\n",
    ];

    #[test]
    fn frames_of_every_type_end_where_they_should_however_they_are_cut() {
        let stream: Vec<u8> = FRAMES.concat();
        for piece_bytes in 1..=stream.len() {
            let mut scanner = FrameScanner::replies();
            let mut seen = Vec::new();
            for piece in stream.chunks(piece_bytes) {
                scanner.extend(piece);
                while let Some(frame) = scanner.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, FRAMES, "in pieces of {piece_bytes} bytes");
            assert!(scanner.take_rest().is_empty());
        }
    }

    #[test]
    fn what_is_not_resp_is_refused_and_handed_back() {
        for noise in [&b"HTTP/1.1 200\r\n"[..], b"$x\r\n", b"*99999999999\r\n", b"$-2\r\n"] {
            let mut scanner = FrameScanner::replies();
            scanner.extend(noise);
            assert_eq!(scanner.next_frame(), Err(Malformed));
            assert_eq!(scanner.take_rest(), noise);
        }
    }

    #[test]
    fn an_inline_command_is_a_frame_of_a_client_only() {
        let mut scanner = FrameScanner::requests();
        scanner.extend(b"PING\r\n*1\r\n$4\r\nPING\r\n");
        assert_eq!(scanner.next_frame().unwrap().unwrap(), b"PING\r\n");
        assert_eq!(scanner.next_frame().unwrap().unwrap(), b"*1\r\n$4\r\nPING\r\n");
        assert_eq!(scanner.next_frame(), Ok(None));
    }
}
