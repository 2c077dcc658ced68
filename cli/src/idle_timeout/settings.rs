//! The validated settings of a session.

#![expect(clippy::disallowed_methods, reason = "reads environment variables")]

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::Signal;

use super::detector::IdleRule;
use super::flags::{Flags, Kill, Stop};
use crate::visible::Visible;

/// The maximum time between two queries of the driver, which keeps its own samples only for a limited time.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// A command and its idle detection.
pub(super) struct IdleTimeoutSettings {
    pub(super) rule: IdleRule,
    pub(super) visible: Visible,
    /// The interval of `--sample-freq`.
    pub(super) sample_interval: Duration,
    /// Number of samples in which the command must be idle.
    pub(super) samples: u32,
    /// The number of driver samples per interval.
    pub(super) samples_per_interval: u32,
    /// The number of the first sample that counts; values below 1 mean 1.
    pub(super) delay: i64,
    /// First signal to the command; `None` sends SIGKILL immediately.
    pub(super) signal: Option<Signal>,
    pub(super) signal_children: bool,
    pub(super) kill: Kill,
    pub(super) grace: Duration,
    pub(super) debug: bool,
    pub(super) sampler: bailiff_sampler::SamplerSettings,
    /// The program and its arguments.
    pub(super) command: Vec<OsString>,
}

impl TryFrom<Flags> for IdleTimeoutSettings {
    type Error = Stop;

    /// Fails with the first error, in the order and with the text of `gpu_idle_timeout.py`.
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
        let sample_interval = Duration::from_millis(flags.sample_freq);
        let samples_per_interval =
            u32::try_from(sample_interval.as_nanos().div_ceil(MAX_INTERVAL.as_nanos())).unwrap_or(u32::MAX);
        let variable = |name| std::env::var(name).ok();
        Ok(Self {
            rule: IdleRule {
                threshold,
                samples: samples.saturating_mul(samples_per_interval),
                max_gap: flags.max_gap.saturating_mul(samples_per_interval),
                count: flags.count,
            },
            visible: Visible::parse(
                variable("CUDA_VISIBLE_DEVICES").as_deref(),
                variable("CUDA_DEVICE_ORDER").as_deref(),
            ),
            sample_interval,
            samples,
            samples_per_interval,
            delay: flags.delay_samples,
            signal: signal(&flags.signal_name)?,
            signal_children: flags.signal_children,
            kill: flags.kill,
            grace: Duration::from_millis(flags.grace),
            debug: flags.debug,
            sampler: bailiff_sampler::SamplerSettings {
                nvml_library: flags.nvml_library,
                interval: sample_interval / samples_per_interval,
                deadline: Duration::from_millis(flags.deadline),
                lookback: Duration::from_millis(flags.lookback),
                ..bailiff_sampler::SamplerSettings::default()
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

/// Formats a multiple of a duration in seconds as Python prints a number: `6`, `0.6`.
pub(super) fn seconds(span: Duration, times: u64) -> String {
    let millis = span.as_millis() * u128::from(times);
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle_timeout::flags::parse;

    fn refused(args: &str) -> Option<String> {
        let flags = parse(args.split_ascii_whitespace().map(OsString::from)).unwrap();
        match IdleTimeoutSettings::try_from(flags) {
            Err(Stop::Refused(why)) => Some(why),
            _ => None,
        }
    }

    #[test]
    fn first_invalid_setting_is_reported() {
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
        for (args, expected) in cases {
            assert_eq!(refused(args).as_deref(), expected, "{args}");
        }
    }

    #[test]
    fn seconds_are_formatted_as_by_python() {
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
