//! Where the frames of RESP begin and end. Their content is read by redis-rs.

/// A first byte or a length that no frame has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadFrame;

/// Frames inside each other; deeper ones come from no server.
const DEEPEST: usize = 8;
/// Elements of one frame; more come from no server that only sends messages.
const MOST_ELEMENTS: usize = 4_096;

/// The length of the first frame, or `None` while it is not whole.
pub(super) fn first_frame(bytes: &[u8]) -> Result<Option<usize>, BadFrame> {
    frame(bytes, 0)
}

fn frame(bytes: &[u8], depth: usize) -> Result<Option<usize>, BadFrame> {
    if depth > DEEPEST {
        return Err(BadFrame);
    }
    let Some(line) = bytes.iter().position(|&byte| byte == b'\n').map(|at| at + 1) else { return Ok(None) };
    let number = || {
        let text = std::str::from_utf8(&bytes[1..line]).map_err(|_| BadFrame)?.trim_end();
        text.parse::<i64>().map_err(|_| BadFrame)
    };
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(Some(line)),
        b'$' | b'=' | b'!' => {
            // A negative length is null. The text is followed by a line end.
            let whole = usize::try_from(number()?).map_or(line, |length| line + length + 2);
            Ok((bytes.len() >= whole).then_some(whole))
        }
        kind @ (b'*' | b'~' | b'>' | b'%') => {
            let elements = usize::try_from(number()?).unwrap_or(0) * if kind == b'%' { 2 } else { 1 };
            if elements > MOST_ELEMENTS {
                return Err(BadFrame);
            }
            let mut length = line;
            for _ in 0..elements {
                let Some(element) = frame(&bytes[length..], depth + 1)? else { return Ok(None) };
                length += element;
            }
            Ok(Some(length))
        }
        _ => Err(BadFrame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_once_it_is_whole_and_not_before() {
        let frames = [
            "+PONG\r\n",
            "-MOVED 5 127.0.0.1:7000\r\n",
            "$5\r\nab\r\nc\r\n",
            "$-1\r\n",
            ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$4\r\n1 gr\r\n",
            "%1\r\n$6\r\nserver\r\n*2\r\n:1\r\n_\r\n",
        ];
        for whole in frames {
            for length in 0..whole.len() {
                assert_eq!(first_frame(&whole.as_bytes()[..length]), Ok(None), "{whole:?} cut at {length}");
            }
            let followed = format!("{whole}+more\r\n");
            assert_eq!(first_frame(followed.as_bytes()), Ok(Some(whole.len())), "{whole:?}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bad in ["hello\r\n", "$x\r\n", "*999999999\r\n"] {
            assert_eq!(first_frame(bad.as_bytes()), Err(BadFrame), "{bad:?}");
        }
        assert_eq!(first_frame("*1\r\n".repeat(20).as_bytes()), Err(BadFrame));
    }
}
