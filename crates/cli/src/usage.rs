//! Turns what the argument parser complains about into one line that says what to do.

use std::process::ExitCode;

use clap::CommandFactory;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Cli;
use crate::failure::{Failure, USAGE};
use crate::output::{data, say};

/// The arguments, or the exit code after help was printed or a misuse was told.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render();
            let shown = if crate::output::colours() { text.ansi().to_string() } else { text.to_string() };
            finish(data(&shown))
        }
        _ => {
            say(one_line(&error));
            ExitCode::from(USAGE)
        }
    })
}

/// Prints a failure; its exit code.
pub(crate) fn finish(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure.message);
            ExitCode::from(failure.code)
        }
    }
}

pub(crate) fn one_line(error: &clap::Error) -> String {
    let rendered = error.render().to_string();
    let command = command_of_this_process();
    let help = format!("see {command} --help");
    match error.kind() {
        ErrorKind::MissingSubcommand => {
            let commands: Vec<_> = Cli::command()
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
                .map(|command| command.get_name().to_owned())
                .collect();
            format!("say what to do: {}; {help}", commands.join(", "))
        }
        ErrorKind::InvalidUtf8 => {
            format!("names and options must be valid UTF-8 (arguments of the command need not); {help}")
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(missing)) => missing.join(" and "),
                _ => String::new(),
            };
            let missing = missing.replace(['<', '>'], "").replace("...", "");
            format!("{missing} missing: write {}; {help}", example_of(&command))
        }
        _ => {
            let words = rendered.split("\n\nUsage:").next().unwrap_or(&rendered);
            let words = words.split("\n\nFor more information").next().unwrap_or(words);
            let words = words.strip_prefix("error: ").unwrap_or(words);
            let advice = |line: &&str| !line.is_empty() && !line.starts_with("tip: to pass");
            let lines: Vec<_> = words.lines().map(str::trim).filter(advice).collect();
            format!("{}; {help}", lines.join("; "))
        }
    }
}

/// `leasehold run`, if that is what was written.
fn command_of_this_process() -> String {
    let cli = Cli::command();
    let action = std::env::args_os()
        .skip(1)
        .find_map(|argument| cli.get_subcommands().find(|known| argument == known.get_name()));
    action.map_or_else(|| "leasehold".to_owned(), |action| format!("leasehold {}", action.get_name()))
}

fn example_of(command: &str) -> &'static str {
    match command {
        "leasehold run" => "leasehold run NAME -- COMMAND",
        "leasehold once" => "leasehold once NAME -- COMMAND",
        "leasehold show" => "leasehold show NAME",
        "leasehold sql" => "leasehold sql postgres",
        "leasehold break" => "leasehold break NAME",
        "leasehold completions" => "leasehold completions bash",
        _ => "leasehold COMMAND",
    }
}
