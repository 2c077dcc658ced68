//! The flags of `gpu_idle_timeout.py`, and additional ones.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, ValueEnum};

use super::NAME;
use crate::output::joined;

/// Help text. The texts of the flags of `gpu_idle_timeout.py` are unchanged.
pub(crate) const HELP: &str = include_str!("help.txt");

/// Examples and exit codes for the man page.
pub(crate) const EXAMPLES: &str = "\
Examples:
  gpu_idle_timeout -t 20 -s 3 -n 7 -d 1 -x python3 train.py
                        stops the command after 21 seconds below 20 %, without
                        a delay at the start, and logs each sample
  gpu_idle_timeout -n 720 --signal-name SIGTERM --grace 60 ./job
                        sends SIGTERM after an hour without GPU use, and
                        SIGKILL if the job still runs 60 seconds later
  gpu_idle_timeout --count all --kill command --signal-name none ./job
                        behaves like the first version of gpu_idle_timeout.py

Exit codes:
  the command's own; 256 - N if signal N ended it
  1    the command was idle and was stopped
  2    invalid flags
  69   NVML library not found
  126  the command cannot be executed
  127  the command was not found

  Under the name gpu_idle_timeout or gpu_idle_timeout.py the exit codes are those of that script: 1
  also if the command or the NVML library is missing, or a value is out of range.";

/// The flags of `idle-timeout`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// GPU utilization in percent below which the command counts as idle.
    #[arg(short, long = "threshhold-percentage", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) threshhold_percentage: i64,
    /// Sampling interval in seconds.
    #[arg(short, long, default_value = "5", value_parser = millis, allow_negative_numbers = true)]
    pub(super) sample_freq: u64,
    /// Number of consecutive idle samples after which the command is stopped.
    // The alias keeps the abbreviation `--n`, which --nvml-library would make ambiguous.
    #[arg(short, long, alias = "n", default_value_t = 60, allow_negative_numbers = true)]
    pub(super) num_samples: i64,
    /// Number of samples to skip at the start.
    #[arg(short, long, default_value_t = 12, allow_negative_numbers = true)]
    pub(super) delay_samples: i64,
    /// Signal to send before SIGKILL; `none` sends SIGKILL immediately.
    #[arg(long, default_value = "SIGQUIT")]
    pub(super) signal_name: String,
    /// Send the signal to the descendants of the command first.
    #[arg(long)]
    pub(super) signal_children: bool,
    /// Log the GPU utilization of each sample.
    #[arg(short = 'x', long)]
    pub(super) debug: bool,
    /// GPUs that must be idle.
    #[arg(long, value_enum, value_name = "GPUS", default_value_t = Count::Used)]
    pub(super) count: Count,
    /// Processes to kill.
    #[arg(long, value_enum, value_name = "WHOM", default_value_t = Kill::Tree)]
    pub(super) kill: Kill,
    /// Number of consecutive unknown samples that do not restart the window.
    #[arg(long, value_name = "SAMPLES", default_value_t = 2)]
    pub(super) max_gap: u32,
    /// Time between the signal and SIGKILL, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = millis)]
    pub(super) grace: u64,
    /// NVML library; default: libnvidia-ml.so.1 from the library search path.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(super) nvml_library: Option<PathBuf>,
    /// Timeout of driver calls, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = millis, hide = true)]
    pub(super) deadline: u64,
    /// Period of process samples requested from the driver, in seconds.
    #[arg(long = "look-back", value_name = "SECONDS", default_value = "10", value_parser = millis, hide = true)]
    pub(super) lookback: u64,
    /// Command to run and its arguments.
    #[arg(trailing_var_arg = true, value_name = "exec_command_and_args")]
    pub(super) command: Vec<OsString>,
}

/// The GPUs that must be idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Count {
    /// GPUs on which the command has a context, or all visible GPUs if it has none.
    Used,
    /// All GPUs of the node, including use by other processes.
    All,
}

/// The processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kill {
    /// The command and all processes that it started.
    Tree,
    /// The command only.
    Command,
}

/// Command line of the program under the name `gpu_idle_timeout`.
#[derive(Debug, Parser)]
#[command(name = NAME, infer_long_args = true, args_override_self = true)]
struct ScriptArgs {
    #[command(flatten)]
    flags: Flags,
}

/// Why no command is started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The help was requested.
    Help,
    /// Invalid arguments.
    Usage(String),
    /// A value is out of range.
    Refused(String),
    /// The NVML library is missing.
    NoDriver(String),
}

/// Parses the arguments after the program's name.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags, Stop> {
    let args: Vec<OsString> = std::iter::once(OsString::from(NAME)).chain(args).collect();
    ScriptArgs::try_parse_from(&args).map(|args| args.flags).map_err(|error| stop(&error, &args))
}

/// Converts an error of clap into the message of Python's argparse.
fn stop(error: &clap::Error, args: &[OsString]) -> Stop {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (argument, value) = (argument(&context(ContextKind::InvalidArg)), context(ContextKind::InvalidValue));
    Stop::Usage(match error.kind() {
        ErrorKind::DisplayHelp => return Stop::Help,
        ErrorKind::InvalidValue if value.is_empty() => format!("argument {argument}: expected one argument"),
        ErrorKind::InvalidValue => {
            let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue) else {
                return Stop::Usage(format!("argument {argument}: invalid choice: '{value}'"));
            };
            let choices = joined(choices.iter().map(|choice| format!("'{choice}'")), ", ");
            format!("argument {argument}: invalid choice: '{value}' (choose from {choices})")
        }
        ErrorKind::ValueValidation => {
            let kind = if SECONDS.iter().any(|name| argument.ends_with(name)) { "float" } else { "int" };
            format!("argument {argument}: invalid {kind} value: '{value}'")
        }
        ErrorKind::UnknownArgument => unknown(&context(ContextKind::InvalidArg), args),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

/// Returns the message for an unknown or ambiguous flag; hidden flags are not listed.
fn unknown(name: &str, args: &[OsString]) -> String {
    let matches =
        |arg: &&str| arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    let given = args.iter().filter_map(|arg| arg.to_str()).find(matches).unwrap_or(name);
    let command = ScriptArgs::command();
    let visible = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let longs = visible.filter_map(|argument| Some(format!("--{}", argument.get_long()?)));
    let candidates: Vec<String> = longs.filter(|long| name.len() > 2 && long.starts_with(name)).collect();
    match candidates.as_slice() {
        [] => format!("unrecognized arguments: {given}"),
        several => format!("ambiguous option: {given} could match {}", several.join(", ")),
    }
}

/// Flags that take a number of seconds with an optional fraction.
const SECONDS: [&str; 4] = ["--sample-freq", "--grace", "--deadline", "--look-back"];

/// Converts clap's `--threshhold-percentage <THRESHHOLD_PERCENTAGE>` to argparse's
/// `-t/--threshhold-percentage`.
fn argument(name: &str) -> String {
    let long = name.split(' ').next().unwrap_or_default();
    let command = ScriptArgs::command();
    let named = command.get_arguments().find(|argument| argument.get_long() == long.strip_prefix("--"));
    match named.and_then(clap::Arg::get_short) {
        Some(short) => format!("-{short}/{long}"),
        None => long.to_owned(),
    }
}

/// Parses seconds with an optional fraction into milliseconds. Negative values become 0, which is refused
/// later.
fn millis(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if seconds.is_nan() || seconds.is_infinite() {
        return Err("expected a number of seconds".to_owned());
    }
    let span = Duration::try_from_secs_f64(seconds.max(0.0)).map_err(|error| error.to_string())?;
    u64::try_from(span.as_millis()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Flags, Stop> {
        parse(args.split_ascii_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_are_parsed_as_by_argparse() {
        // Arguments; expected values of -t, -s in milliseconds, -n and -d; expected command.
        let cases = [
            ("grep foo", (1, 5_000, 60, 12), "grep foo"),
            ("-t 50 -s 6 -n 5 -d 3 -x grep foo", (50, 6_000, 5, 3), "grep foo"),
            ("-t50 -s=0.25 --num 7 --del=1 a -t 3 -x --help", (50, 250, 7, 1), "a -t 3 -x --help"),
            ("--thr 4 --n 3 a", (4, 5_000, 3, 12), "a"),
            ("-d -3 -t 1 -t 2 a", (2, 5_000, 60, -3), "a"),
            ("-t 5 -- a -- b", (5, 5_000, 60, 12), "a -- b"),
            ("-s -1 -t 0", (0, 0, 60, 12), ""),
        ];
        for (args, (threshold, interval, samples, delay), command) in cases {
            let flags = parsed(args).unwrap();
            let numbers =
                (flags.threshhold_percentage, flags.sample_freq, flags.num_samples, flags.delay_samples);
            assert_eq!(numbers, (threshold, interval, samples, delay), "{args}");
            let parsed_command: Vec<_> = flags.command.iter().map(|arg| arg.to_string_lossy()).collect();
            assert_eq!(parsed_command.join(" "), command, "{args}");
        }
        assert!(parsed("-x a").unwrap().debug && !parsed("a -x").unwrap().debug);
    }

    #[test]
    fn invalid_arguments_have_argparse_messages() {
        let cases = [
            ("-t x a", "argument -t/--threshhold-percentage: invalid int value: 'x'"),
            ("-t 1.5 a", "argument -t/--threshhold-percentage: invalid int value: '1.5'"),
            ("-s x a", "argument -s/--sample-freq: invalid float value: 'x'"),
            ("-s inf a", "argument -s/--sample-freq: invalid float value: 'inf'"),
            ("-t", "argument -t/--threshhold-percentage: expected one argument"),
            ("--foo a", "unrecognized arguments: --foo"),
            ("--foo=3 a", "unrecognized arguments: --foo=3"),
            ("--s 3 a", "ambiguous option: --s could match --sample-freq, --signal-name, --signal-children"),
            (
                "-x --s=3 a",
                "ambiguous option: --s=3 could match --sample-freq, --signal-name, --signal-children",
            ),
            ("--sig 3 a", "ambiguous option: --sig could match --signal-name, --signal-children"),
            ("--d 3 a", "ambiguous option: --d could match --delay-samples, --debug"),
            ("--de 3 a", "ambiguous option: --de could match --delay-samples, --debug"),
            ("--count some a", "argument --count: invalid choice: 'some' (choose from 'used', 'all')"),
        ];
        for (args, expected) in cases {
            assert_eq!(parsed(args).unwrap_err(), Stop::Usage(expected.to_owned()), "{args}");
        }
        for args in ["-h", "--help", "-x --hel"] {
            assert_eq!(parsed(args).unwrap_err(), Stop::Help, "{args}");
        }
    }

    #[test]
    fn help_names_every_flag() {
        for argument in ScriptArgs::command().get_arguments().filter(|argument| !argument.is_hide_set()) {
            if let Some(long) = argument.get_long() {
                assert!(HELP.contains(&format!("--{long}")), "{long}");
            }
        }
        let examples = EXAMPLES.strip_prefix("Examples:").unwrap().split("\n\n").next().unwrap();
        assert!(HELP.contains(examples));
        let usage = crate::python::usage(HELP);
        assert!(usage.starts_with("usage: gpu_idle_timeout [-h]") && usage.ends_with("..."));
        assert!(HELP.lines().all(|line| line.len() <= 80));
    }
}
