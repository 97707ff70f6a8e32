//! `leasehold completions` and `leasehold man`: made from the definition of the arguments.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::{data, say};

/// Prints a completion script.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut script);
    data(&String::from_utf8_lossy(&script))
}

/// Prints the manual page, or writes it and those of all commands into a directory.
pub(crate) fn pages(dir: Option<&Path>) -> Result<(), Failure> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        let rendered = Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| Failure::other(format!("the manual page cannot be made: {error}")))?;
        return data(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir(dir)
        .or_else(|error| if dir.is_dir() { Ok(()) } else { Err(error) })
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(|error| Failure::other(format!("{} cannot be written: {error}", dir.display())))?;
    say(format_args!("wrote the manual pages to {}", dir.display()));
    Ok(())
}
