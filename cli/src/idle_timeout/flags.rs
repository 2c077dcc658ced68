//! The command line: the original's, and what it lacks.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, ValueEnum};

use super::NAME;

/// The help, in the original's words where they are about its flags.
pub(crate) const HELP: &str = include_str!("help.txt");

/// The end of the help, as other commands have it, for the man page.
pub(crate) const EXAMPLES: &str = "\
Examples:
  gpu_idle_timeout -t 20 -s 3 -n 7 -d 1 -x python3 train.py
                        ends it after 21 seconds below 20 %, looking from the
                        third second on, and shows each reading
  gpu_idle_timeout -n 720 --signal-name SIGTERM --grace 60 ./job
                        after an hour without any use; a minute to save itself
  gpu_idle_timeout --count all --kill command --signal-name none ./job
                        as the first gpu_idle_timeout.py did

Exit codes:
  the command's own; 256 - N if signal N ended it
  1    it was idle and ended
  2    invalid flags
  69   the driver's library cannot be found
  126  the command cannot be executed
  127  the command was not found

Called gpu_idle_timeout or gpu_idle_timeout.py it exits as that script does: 1 also if the command
or the driver's library is missing, or a value is out of range.";

/// Launches a process and watches GPU usage.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Threshhold in percentage of GPU usage which triggers a failure. Must be greater than 0.
    #[arg(short, long = "threshhold-percentage", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) threshhold_percentage: i64,
    /// How frequently, in seconds, to sample the GPU usage. Must be greater than 0.
    #[arg(short, long, default_value = "5", value_parser = millis, allow_negative_numbers = true)]
    pub(super) sample_freq: u64,
    /// Number of samples in window used to evaluate GPU usage. Must be greater than 0.
    // The alias keeps a short form that a flag of ours would make ambiguous.
    #[arg(short, long, alias = "n", default_value_t = 60, allow_negative_numbers = true)]
    pub(super) num_samples: i64,
    /// Number of samples to delay before evaluating GPU usage.
    #[arg(short, long, default_value_t = 12, allow_negative_numbers = true)]
    pub(super) delay_samples: i64,
    /// Signal to send to the process before killing it; none kills at once.
    #[arg(long, default_value = "SIGQUIT")]
    pub(super) signal_name: String,
    /// Whether to signal the children of the process first.
    #[arg(long)]
    pub(super) signal_children: bool,
    /// Enable debug logging (reports GPU readings each sample period).
    #[arg(short = 'x', long)]
    pub(super) debug: bool,
    /// Which GPUs count.
    #[arg(long, value_enum, value_name = "GPUS", default_value_t = Count::Used)]
    pub(super) count: Count,
    /// Who is killed.
    #[arg(long, value_enum, value_name = "WHOM", default_value_t = Kill::Tree)]
    pub(super) kill: Kill,
    /// Samples in a row that may be unknown before the window restarts.
    #[arg(long, value_name = "SAMPLES", default_value_t = 2)]
    pub(super) max_gap: u32,
    /// Between the signal and the kill, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = millis)]
    pub(super) grace: u64,
    /// The driver's library.
    #[arg(long, env = "BAILIFF_NVML_LIBRARY", hide_env_values = true, value_name = "PATH")]
    pub(super) nvml_library: Option<PathBuf>,
    /// How long the driver may be silent before it counts as hung, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = millis, hide = true)]
    pub(super) deadline: u64,
    /// How far back the driver is asked for samples of processes, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = millis, hide = true)]
    pub(super) lookback: u64,
    /// Command and arguments to execute.
    #[arg(trailing_var_arg = true, value_name = "exec_command_and_args")]
    pub(super) command: Vec<OsString>,
}

/// Which GPUs count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Count {
    /// Those on which the command has a context; all that it can see if it has none.
    Used,
    /// Every GPU of the node, whoever uses it.
    All,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kill {
    /// The command and all that it started.
    Tree,
    /// The command itself.
    Command,
}

/// The program where it is called as the original.
#[derive(Debug, Parser)]
#[command(name = NAME, infer_long_args = true, args_override_self = true)]
struct Called {
    #[command(flatten)]
    flags: Flags,
}

/// Why nothing is begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The help was asked for.
    Help,
    /// Invalid arguments.
    Usage(String),
    /// A value that is not allowed.
    Refused(String),
    /// The driver's library is missing.
    NoDriver(String),
}

/// Understands the words behind the program's name.
pub(super) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Flags, Stop> {
    let words: Vec<OsString> = std::iter::once(OsString::from(NAME)).chain(words).collect();
    Called::try_parse_from(&words).map(|called| called.flags).map_err(|error| stop(&error, &words))
}

/// The first paragraph of the help.
pub(super) fn usage() -> &'static str {
    HELP.split_inclusive("\n\n").next().map_or(HELP, |usage| usage.trim_end())
}

/// As Python's argparse tells it.
fn stop(error: &clap::Error, words: &[OsString]) -> Stop {
    let told = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (argument, value) = (argument(&told(ContextKind::InvalidArg)), told(ContextKind::InvalidValue));
    Stop::Usage(match error.kind() {
        ErrorKind::DisplayHelp => return Stop::Help,
        ErrorKind::InvalidValue if value.is_empty() => format!("argument {argument}: expected one argument"),
        ErrorKind::InvalidValue => {
            let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue) else {
                return Stop::Usage(format!("argument {argument}: invalid choice: '{value}'"));
            };
            let choices: Vec<String> = choices.iter().map(|choice| format!("'{choice}'")).collect();
            format!("argument {argument}: invalid choice: '{value}' (choose from {})", choices.join(", "))
        }
        ErrorKind::ValueValidation => {
            let kind = if SECONDS.iter().any(|name| argument.ends_with(name)) { "float" } else { "int" };
            format!("argument {argument}: invalid {kind} value: '{value}'")
        }
        ErrorKind::UnknownArgument => unknown(&told(ContextKind::InvalidArg), words),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

/// A flag that is none, or the beginning of several; of those that are hidden none is named.
fn unknown(name: &str, words: &[OsString]) -> String {
    let value =
        |word: &&str| word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    let written = words.iter().filter_map(|word| word.to_str()).find(value).unwrap_or(name);
    let command = Called::command();
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let longs = shown.filter_map(|argument| Some(format!("--{}", argument.get_long()?)));
    let meant: Vec<String> = longs.filter(|long| name.len() > 2 && long.starts_with(name)).collect();
    match meant.as_slice() {
        [] => format!("unrecognized arguments: {written}"),
        several => format!("ambiguous option: {written} could match {}", several.join(", ")),
    }
}

/// Flags that take seconds, which may have a fraction.
const SECONDS: [&str; 4] = ["--sample-freq", "--grace", "--deadline", "--look-back"];

/// `-t/--threshhold-percentage`, of clap's `--threshhold-percentage <THRESHHOLD_PERCENTAGE>`.
fn argument(told: &str) -> String {
    let long = told.split(' ').next().unwrap_or_default();
    let command = Called::command();
    let named = command.get_arguments().find(|argument| argument.get_long() == long.strip_prefix("--"));
    match named.and_then(clap::Arg::get_short) {
        Some(short) => format!("-{short}/{long}"),
        None => long.to_owned(),
    }
}

/// Seconds, also with a fraction, in milliseconds; 0 for what is not above it, which is told apart later.
fn millis(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.trim().parse().map_err(|_| "a number of seconds is needed".to_owned())?;
    if seconds.is_nan() || seconds.is_infinite() {
        return Err("a number of seconds is needed".to_owned());
    }
    let span = Duration::try_from_secs_f64(seconds.max(0.0)).map_err(|error| error.to_string())?;
    u64::try_from(span.as_millis()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<Flags, Stop> {
        parse(words.split_ascii_whitespace().map(OsString::from))
    }

    #[test]
    fn words_are_understood_as_argparse_does() {
        // Words, then -t, -s in milliseconds, -n, -d, and the command.
        let cases = [
            ("grep foo", (1, 5_000, 60, 12), "grep foo"),
            ("-t 50 -s 6 -n 5 -d 3 -x grep foo", (50, 6_000, 5, 3), "grep foo"),
            ("-t50 -s=0.25 --num 7 --del=1 a -t 3 -x --help", (50, 250, 7, 1), "a -t 3 -x --help"),
            ("--thr 4 --n 3 a", (4, 5_000, 3, 12), "a"),
            ("-d -3 -t 1 -t 2 a", (2, 5_000, 60, -3), "a"),
            ("-t 5 -- a -- b", (5, 5_000, 60, 12), "a -- b"),
            ("-s -1 -t 0", (0, 0, 60, 12), ""),
        ];
        for (words, (threshold, every, samples, delay), command) in cases {
            let flags = parsed(words).unwrap();
            let numbers =
                (flags.threshhold_percentage, flags.sample_freq, flags.num_samples, flags.delay_samples);
            assert_eq!(numbers, (threshold, every, samples, delay), "{words}");
            let told: Vec<_> = flags.command.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(told.join(" "), command, "{words}");
        }
        assert!(parsed("-x a").unwrap().debug && !parsed("a -x").unwrap().debug);
    }

    #[test]
    fn nonsense_is_told_in_argparses_words() {
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
        for (words, expected) in cases {
            assert_eq!(parsed(words).unwrap_err(), Stop::Usage(expected.to_owned()), "{words}");
        }
        for words in ["-h", "--help", "-x --hel"] {
            assert_eq!(parsed(words).unwrap_err(), Stop::Help, "{words}");
        }
    }

    #[test]
    fn the_help_names_every_flag() {
        for argument in Called::command().get_arguments().filter(|argument| !argument.is_hide_set()) {
            if let Some(long) = argument.get_long() {
                assert!(HELP.contains(&format!("--{long}")), "{long}");
            }
        }
        let examples = EXAMPLES.strip_prefix("Examples:").unwrap().split("\n\n").next().unwrap();
        assert!(HELP.contains(examples));
        assert!(usage().starts_with("usage: gpu_idle_timeout [-h]") && usage().ends_with("..."));
        assert!(HELP.lines().all(|line| line.len() <= 80));
    }
}
