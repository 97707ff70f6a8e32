//! Where words go: data to standard output, messages to standard error. A reader that has gone away is not
//! an error, and never a panic.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use crate::failure::Failure;

/// Prints a message for people on standard error, in one line whatever a library put into it.
pub(crate) fn say(message: impl Display) {
    // Nobody is left to be told when standard error is closed.
    let _ = writeln!(io::stderr().lock(), "leasehold: {}", one_line(&message.to_string()));
}

/// The text with its line breaks, and the blanks around them, as single blanks, and other control characters escaped:
/// what others wrote must not reach the terminal as a command.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let escaped = |character: char| {
        if character.is_control() { character.escape_default().to_string() } else { character.to_string() }
    };
    lines.join(" ").chars().map(escaped).collect()
}

/// Prints data on standard output.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader had enough (`leasehold ls | head -1`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::other(format!("standard output cannot be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a value as JSON on standard output.
pub(crate) fn json(value: &serde_json::Value) -> Result<(), Failure> {
    data(&format!("{value:#}\n"))
}

/// How a word may be set off on a terminal.
#[derive(Clone, Copy)]
pub(crate) enum Style {
    Bold,
    Green,
    Yellow,
    Red,
}

/// The text for standard output, coloured if that is a terminal and `NO_COLOR` is not set.
pub(crate) fn styled(text: &str, style: Style) -> String {
    if !colours() {
        return text.to_owned();
    }
    let code = match style {
        Style::Bold => 1,
        Style::Green => 32,
        Style::Yellow => 33,
        Style::Red => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

pub(crate) fn colours() -> bool {
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
