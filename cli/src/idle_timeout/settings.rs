//! The settings that flags give, and which values are invalid.

#![expect(clippy::disallowed_methods, reason = "reads which GPUs the command can see")]

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::Signal;

use super::flags::{Flags, Kill, Stop};
use super::visible::Visible;
use super::watch::Rule;

/// The driver keeps its samples for a while only: it is asked so often at least, as the exporter does.
const LONGEST_PACE: Duration = Duration::from_secs(5);

/// A command and how it is watched.
pub(super) struct Settings {
    pub(super) rule: Rule,
    pub(super) visible: Visible,
    /// Between two samples.
    pub(super) every: Duration,
    /// In how many samples it has to be idle.
    pub(super) samples: u32,
    /// How many looks make a sample.
    pub(super) looks: u32,
    /// Samples before the first that counts, itself included; below 1 is as 1.
    pub(super) delay: i64,
    /// None kills at once.
    pub(super) signal: Option<Signal>,
    pub(super) signal_children: bool,
    pub(super) kill: Kill,
    pub(super) grace: Duration,
    pub(super) debug: bool,
    pub(super) sampler: bailiff_sampler::Settings,
    /// A program and its arguments.
    pub(super) command: Vec<OsString>,
}

impl TryFrom<Flags> for Settings {
    type Error = Stop;

    /// The first fault in the original's order and words.
    fn try_from(flags: Flags) -> Result<Self, Stop> {
        let refused = |why: &str| Stop::Refused(why.to_owned());
        let positive = |number: i64, why| u32::try_from(number).ok().filter(|number| *number > 0).ok_or(why);
        if flags.command.is_empty() {
            return Err(refused("You must append the program and arguments you would like to execute."));
        }
        let threshold =
            positive(flags.threshhold_percentage, "THRESHHOLD_PERCENTAGE must be greater than 0.");
        let threshold = threshold.map_err(refused)?;
        if flags.sample_freq == 0 {
            return Err(refused("SAMPLE_FREQ must be greater than 0."));
        }
        let samples = positive(flags.num_samples, "NUM_SAMPLES must be greater than 0.").map_err(refused)?;
        let every = Duration::from_millis(flags.sample_freq);
        let looks = u32::try_from(every.as_nanos().div_ceil(LONGEST_PACE.as_nanos())).unwrap_or(u32::MAX);
        let variable = |name| std::env::var(name).ok();
        Ok(Self {
            rule: Rule {
                threshold,
                looks: samples.saturating_mul(looks),
                max_gap: flags.max_gap.saturating_mul(looks),
                count: flags.count,
            },
            visible: Visible::parse(
                variable("CUDA_VISIBLE_DEVICES").as_deref(),
                variable("CUDA_DEVICE_ORDER").as_deref(),
            ),
            every,
            samples,
            looks,
            delay: flags.delay_samples,
            signal: signal(&flags.signal_name)?,
            signal_children: flags.signal_children,
            kill: flags.kill,
            grace: Duration::from_millis(flags.grace),
            debug: flags.debug,
            sampler: bailiff_sampler::Settings {
                nvml_library: flags.nvml_library,
                interval: every / looks,
                deadline: Duration::from_millis(flags.deadline),
                lookback: Duration::from_millis(flags.lookback),
                ..bailiff_sampler::Settings::default()
            },
            command: flags.command,
        })
    }
}

fn signal(name: &str) -> Result<Option<Signal>, Stop> {
    if name.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let named = nix::sys::signal::Signal::from_str(name).ok();
    let signal = named.and_then(|named| Signal::from_named_raw(named as i32));
    signal.map(Some).ok_or_else(|| Stop::Refused(format!("unknown SIGNAL '{name}'.")))
}

/// A span in seconds, as Python writes a number: `6`, `0.6`.
pub(super) fn seconds(span: Duration, times: u64) -> String {
    let millis = span.as_millis() * u128::from(times);
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle_timeout::flags::parse;

    fn refused(words: &str) -> Option<String> {
        let flags = parse(words.split_ascii_whitespace().map(OsString::from)).unwrap();
        match Settings::try_from(flags) {
            Err(Stop::Refused(why)) => Some(why),
            _ => None,
        }
    }

    #[test]
    fn the_first_fault_is_told() {
        let cases = [
            ("-t 0", Some("You must append the program and arguments you would like to execute.")),
            ("-t 0 -s 0 a", Some("THRESHHOLD_PERCENTAGE must be greater than 0.")),
            ("-t -1 a", Some("THRESHHOLD_PERCENTAGE must be greater than 0.")),
            ("-s 0 -n 0 a", Some("SAMPLE_FREQ must be greater than 0.")),
            ("-s 0.0001 a", Some("SAMPLE_FREQ must be greater than 0.")),
            ("-n 0 a", Some("NUM_SAMPLES must be greater than 0.")),
            ("--signal-name KILL a", Some("unknown SIGNAL 'KILL'.")),
            ("--signal-name SIGNONE a", Some("unknown SIGNAL 'SIGNONE'.")),
            ("--signal-name SIGKILL a", None),
            ("--signal-name none -d -5 a", None),
        ];
        for (words, expected) in cases {
            assert_eq!(refused(words).as_deref(), expected, "{words}");
        }
    }

    #[test]
    fn seconds_are_written_as_python_does() {
        for (millis, times, expected) in [
            (6000, 1, "6"),
            (6000, 5, "30"),
            (600, 2, "1.2"),
            (20, 5, "0.1"),
            (1500, 2, "3"),
            (1, 10, "0.01"),
        ] {
            assert_eq!(seconds(Duration::from_millis(millis), times), expected);
        }
    }
}
