//! Entrances for fuzzing to what reads the command line and the files of others. Nothing else uses them.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use crate::args::{Action, Cli};
use crate::usage::one_line;
use crate::{demo, durations, output};

/// Reads a command line, without the program's name. What would be said if it cannot be read.
///
/// # Panics
/// When a command that is to be run is not what was written behind its name.
pub fn command_line(arguments: &[OsString]) -> Option<String> {
    let program = std::iter::once(OsString::from("leasehold"));
    match Cli::try_parse_from(program.chain(arguments.iter().cloned())) {
        Ok(Cli { action: Action::Run(run), .. }) => {
            assert!(arguments.ends_with(&run.command), "{:?} of {arguments:?}", run.command);
            None
        }
        Ok(_) => None,
        Err(error) => {
            Some(if error.use_stderr() { output::one_line(&one_line(&error)) } else { String::new() })
        }
    }
}

/// Checks the definition of the command line itself.
pub fn definition() {
    Cli::command().debug_assert();
}

/// Reads a duration. What it is, shown for people.
///
/// # Errors
/// What would be said.
pub fn duration(text: &str) -> Result<(std::time::Duration, String), String> {
    durations::parse(text).map(|duration| (duration, durations::show(duration)))
}

/// Reads a file of events: how many, of how many orders.
///
/// # Errors
/// What would be said.
pub fn events(text: &str) -> Result<(usize, usize), String> {
    demo::count_events(text).map_err(|failure| output::one_line(&failure.message))
}
