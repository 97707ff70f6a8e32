//! A generated page: written, or compared with what is there. What is on it is the business of its module.

use std::fs;
use std::path::Path;

/// Writes the page.
///
/// # Errors
/// A message when the file cannot be written.
pub fn write(root: &Path, path: &str, text: &str) -> Result<(), String> {
    fs::write(root.join(path), text).map_err(|error| format!("{path} cannot be written: {error}"))
}

/// Checks that the page is what would be written now.
///
/// # Errors
/// A message that names the first line that differs and the command that writes the page.
pub fn check(root: &Path, path: &str, text: &str, command: &str) -> Result<(), String> {
    let there = fs::read_to_string(root.join(path)).unwrap_or_default();
    if there == text {
        return Ok(());
    }
    let same = there.lines().zip(text.lines()).take_while(|(there, made)| there == made).count();
    Err(format!("{path} is out of date from line {} on: run `cargo xtask {command}`", same + 1))
}
