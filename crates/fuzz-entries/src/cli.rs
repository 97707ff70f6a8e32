//! What people write for the command: arguments, durations, files of events.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use leasehold_cli::fuzzing;

use crate::assert_sayable;

/// Arguments, separated by NUL as the operating system has them.
pub fn command_line(data: &[u8]) {
    let arguments: Vec<_> =
        data.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    if let Some(said) = fuzzing::command_line(&arguments) {
        assert_sayable(&said);
    }
}

/// A duration: what is read is shown in a way that can be read again, and is not longer.
pub fn duration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match fuzzing::duration(text) {
        Ok((duration, shown)) => {
            // Shown with a decimal point below ten seconds, which is not a form that is read.
            if let Ok((again, _)) = fuzzing::duration(&shown) {
                assert!(again <= duration, "{text} is shown as {shown}");
            }
        }
        Err(said) => assert!(said.len() < 200 + 6 * text.len(), "{said}"),
    }
}

/// A file of events.
pub fn events(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match fuzzing::events(text) {
        Ok((events, orders)) => {
            assert!((1..=events).contains(&orders));
            assert!(events <= text.lines().count());
        }
        Err(said) => assert_sayable(&said),
    }
}
