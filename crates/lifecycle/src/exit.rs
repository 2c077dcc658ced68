//! Exit codes, and how a program reports an error in one line.

#![expect(clippy::disallowed_methods, reason = "a panic ends the program here, whatever thread it is on")]

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Parser};

/// Exit codes of all programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// Failure.
    Failed = 1,
    /// Invalid flags or settings file (`EX_USAGE` of sysexits.h).
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Invalid content of a settings file: position and reason, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FileError(pub String);

/// Why a program exits early.
#[derive(Debug)]
pub enum Stop {
    /// Help or version was requested; the text is printed unchanged.
    Shown(String),
    /// Invalid command line, and the command whose help explains it.
    Flags {
        /// The error.
        why: String,
        /// Program and subcommand; empty for the program alone.
        command: String,
    },
    /// No command was given; the help is printed.
    Nothing(String),
    /// Invalid flags or settings.
    Usage(String),
    /// Invalid content of a settings file: position and reason, in one line.
    File(String),
    /// Failure.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        error.downcast::<FileError>().map_or_else(Self::Failed, Self::from)
    }
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Self {
        Self::File(error.0)
    }
}

impl From<clap::Error> for Stop {
    fn from(error: clap::Error) -> Self {
        let text = error.to_string();
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            Self::Nothing(text)
        } else if error.use_stderr() {
            Self::Flags { why: one_line(&text), command: String::new() }
        } else {
            Self::Shown(text)
        }
    }
}

/// Parses a program's flags. An error names the command with the relevant help.
///
/// # Errors
/// If help was requested, or the arguments are invalid.
pub fn parse<P: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<P, Stop> {
    let args: Vec<OsString> = args.into_iter().collect();
    P::try_parse_from(&args).map_err(|error| match Stop::from(error) {
        Stop::Flags { why, .. } => Stop::Flags { why, command: command(&P::command(), &args) },
        other => other,
    })
}

/// Returns the program and the subcommands that these arguments name.
fn command(program: &Command, args: &[OsString]) -> String {
    let (mut deepest, mut path) = (program, program.get_name().to_owned());
    for below in args.iter().skip(1) {
        if let Some(below) = deepest.find_subcommand(below) {
            deepest = below;
            path = format!("{path} {}", below.get_name());
        }
    }
    path
}

/// Prints in one line why a program exits, and returns its exit code.
#[must_use = "it is the exit code"]
pub fn report_outcome(program: &str, outcome: Result<(), Stop>) -> Exit {
    let Err(stop) = outcome else { return Exit::Done };
    let (text, exit) = match stop {
        Stop::Shown(text) => {
            print(io::stdout(), text.trim_end());
            return Exit::Done;
        }
        Stop::Nothing(text) => (text, Exit::Usage),
        Stop::Flags { why, command } => {
            let command = if command.is_empty() { program } else { &command };
            (format!("{program}: {why}; see {command} --help"), Exit::Usage)
        }
        // Errors in a file are printed in full, without a reference to `--help`.
        Stop::Usage(why) if why.contains('\n') => (format!("{program}: {why}"), Exit::Usage),
        Stop::Usage(why) => (format!("{program}: {why}; see {program} --help"), Exit::Usage),
        Stop::File(why) => (format!("{program}: {why}"), Exit::Usage),
        Stop::Failed(error) => (format!("{program}: {error:#}"), Exit::Failed),
    };
    print(io::stderr(), text.trim_end());
    exit
}

/// Makes a panic in any thread exit the program with [`Exit::Failed`], so that the service manager restarts
/// it. Otherwise a daemon would continue without one of its parts.
pub fn end_on_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        previous(info);
        std::process::exit(Exit::Failed as i32);
    }));
}

/// Formats an operating system error like our own errors: in lower case, without a number.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Prints a line. A closed output (`--help | head`) is not an error.
fn print(mut to: impl io::Write, text: &str) {
    let _ = writeln!(to, "{text}");
}

/// Joins clap's paragraphs into one line, as suits logs.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join("; ").trim_start_matches("error: ").replace(":;", ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    #[command(name = "program")]
    struct Flags {
        #[arg(long)]
        number: Option<u8>,
        #[command(subcommand)]
        below: Option<Below>,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Below {
        Run {
            #[arg(long)]
            size: u8,
        },
    }

    #[test]
    fn invalid_flag_is_reported_in_one_line_with_its_command() {
        for (args, expected, help) in [
            (&["program", "--nubmer=1"][..], "unexpected argument '--nubmer'", "program"),
            (&["/bin/program", "--number=x"], "invalid value 'x'", "program"),
            (&["program", "run", "--size", "x"], "invalid value 'x'", "program run"),
            (&["program", "run"], "the following required arguments", "program run"),
        ] {
            let args = args.iter().map(OsString::from);
            let Err(Stop::Flags { why, command }) = parse::<Flags>(args) else {
                panic!("{expected}: the flags were taken")
            };
            assert!(why.starts_with(expected) && !why.contains('\n'), "{why}");
            assert_eq!(command, help, "{why}");
        }
    }

    #[test]
    fn help_is_no_failure() {
        let error = Flags::try_parse_from(["program", "--help"]).expect_err("help ends the parsing");
        assert!(matches!(Stop::from(error), Stop::Shown(_)));
    }

    #[test]
    fn the_systems_errors_read_like_ours() {
        assert_eq!(plain(&io::Error::from_raw_os_error(98)), "address already in use");
    }
}
