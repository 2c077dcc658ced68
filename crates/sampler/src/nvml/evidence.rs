//! Reads the evidence about utilization: the lookback and the driver's samples. The table in
//! `bailiff_snapshot::utilization` interprets it.

use std::time::Duration;

use bailiff_snapshot::{Answer, DeviceSampler, Gap, Reading};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::{Context, not_offered, raw};

/// The driver's newest timestamps in the last two samples. The lookback covers two intervals and at least a
/// given span, measured on the driver's clock, which is never compared with our clock.
#[derive(Default)]
pub(super) struct Stamps {
    last: Option<u64>,
    before_last: Option<u64>,
}

impl Stamps {
    fn see(&mut self, newest: u64) {
        self.before_last = self.last;
        self.last = Some(newest);
    }

    /// Returns the start of the lookback, given the driver's newest timestamp.
    fn since(&self, newest: u64, lookback: Duration) -> u64 {
        let by_span = newest.saturating_sub(u64::try_from(lookback.as_micros()).unwrap_or(u64::MAX));
        // A late sample makes the lookback longer, never shorter.
        self.before_last.or(self.last).map_or(by_span, |seen| seen.min(by_span))
    }
}

/// Reads the device's own utilization samples, then those of its processes.
pub(super) fn read(device: &Device<'_>, stamps: &mut Stamps, context: &mut Context<'_>) -> Reading {
    let sampler = sampler(device, stamps.last.unwrap_or_default());
    let since = match sampler {
        DeviceSampler::Stamped { newest, .. } => stamps.since(newest, context.lookback),
        DeviceSampler::CurrentOnly { .. } | DeviceSampler::Silent => stamps.before_last.unwrap_or_default(),
    };
    let answer = match raw::utilization(device, since) {
        Ok(samples) if samples.is_empty() => Answer::Nothing,
        Ok(samples) => Answer::Samples(samples),
        Err(NvmlError::NotFound) => Answer::Nothing,
        Err(error) if not_offered(&error) => Answer::NotSupported,
        Err(_) => {
            context.gaps.count(Gap::Utilization);
            Answer::Failed
        }
    };
    match (sampler, &answer) {
        (DeviceSampler::Stamped { newest, .. }, _) => stamps.see(newest),
        // Without device samples, only the timestamps of process samples are on the driver's clock.
        (_, Answer::Samples(samples)) => {
            stamps.see(samples.iter().map(|sample| sample.stamp).max().unwrap_or_default());
        }
        _ => {}
    }
    Reading { since, answer, sampler, ..Reading::default() }
}

fn sampler(device: &Device<'_>, last: u64) -> DeviceSampler {
    let samples = match raw::device_samples(device, last) {
        // If there is no newer sample, sampling stopped or the driver's clock was set back. Reading from 0
        // shows which of the two happened.
        Err(NvmlError::NotFound) if last > 0 => raw::device_samples(device, 0),
        samples => samples,
    };
    match samples {
        Ok((samples, filled)) => {
            let newest = samples.iter().map(|(stamp, _)| *stamp).max();
            let maximum = samples.iter().map(|(_, percent)| *percent).max();
            match (newest, maximum) {
                (Some(newest), Some(maximum)) => DeviceSampler::Stamped { newest, maximum, filled },
                _ => DeviceSampler::Silent,
            }
        }
        Err(error) if not_offered(&error) => device
            .utilization_rates()
            .map_or(DeviceSampler::Silent, |rates| DeviceSampler::CurrentOnly { utilization: rates.gpu }),
        Err(_) => DeviceSampler::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SECONDS: Duration = Duration::from_secs(2);

    #[test]
    fn lookback_is_two_intervals_of_the_drivers_clock() {
        let mut stamps = Stamps::default();
        assert_eq!(stamps.since(10_000_000, TWO_SECONDS), 8_000_000, "the first lookback is the given span");
        stamps.see(10_000_000);
        assert_eq!(stamps.since(11_000_000, TWO_SECONDS), 9_000_000);
        stamps.see(11_000_000);
        assert_eq!(stamps.since(12_000_000, TWO_SECONDS), 10_000_000);
        stamps.see(12_000_000);
        assert_eq!(stamps.since(30_000_000, TWO_SECONDS), 11_000_000, "a late sample extends the lookback");
    }
}
