//! Reads the activity of a GPU or a MIG instance: the averages between two samples of the GPU's counters.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{Activity, ActivityEngine, ActivityUnknown, Gap, Gaps};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::not_offered;
use super::raw::{self, GpmSample};

/// Shortest interval that the driver averages over (`nvml.h`).
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_mins(1);
/// Number of metrics that are read.
const COUNT: usize = 23;

/// Metrics (`nvmlGpmMetricId_t`) of each engine: the first and the last one. Of several units, the busiest counts.
const METRICS: [(ActivityEngine, u32, u32); ActivityEngine::ALL.len()] = [
    (ActivityEngine::Graphics, 1, 1),
    (ActivityEngine::Sm, 2, 2),
    (ActivityEngine::SmOccupancy, 3, 3),
    (ActivityEngine::Tensor, 5, 5),
    (ActivityEngine::Dram, 10, 10),
    (ActivityEngine::Nvdec, 30, 37),
    (ActivityEngine::Jpeg, 40, 47),
    (ActivityEngine::Ofa, 50, 51),
];

/// The MIG instances of a GPU, by UUID.
pub(super) type Instances = Vec<Option<String>>;

/// Earlier sample of a device.
#[derive(Default)]
pub(super) struct Gpm {
    is_supported: Option<bool>,
    /// The sample, the time since boot at which it was taken, and the instances at that time.
    earlier: Option<(GpmSample, Duration, Instances)>,
}

impl Gpm {
    /// Returns the activity since the previous call. `instance` is the id of a MIG instance of this GPU.
    pub(super) fn read(
        &mut self,
        (gpu, instance): (&Device<'_>, Option<u32>),
        (now, instances): (Duration, &Instances),
        gaps: &mut Gaps,
    ) -> Activity {
        let result = self.measure((gpu, instance), (now, instances), gaps);
        result.map_or_else(
            |unknown| {
                if unknown == ActivityUnknown::Failed {
                    self.earlier = None;
                    gaps.count(Gap::Telemetry);
                }
                Activity { ratios: BTreeMap::new(), unknown: Some(unknown) }
            },
            |ratios| Activity { ratios, unknown: None },
        )
    }

    fn measure(
        &mut self,
        (gpu, instance): (&Device<'_>, Option<u32>),
        (now, instances): (Duration, &Instances),
        gaps: &mut Gaps,
    ) -> Result<BTreeMap<ActivityEngine, f64>, ActivityUnknown> {
        if self.is_supported.is_none() {
            self.is_supported = known(raw::gpm_is_supported(gpu))?;
        }
        let sample =
            if self.is_supported == Some(true) { known(raw::gpm_sample(gpu, instance))? } else { None };
        let sample = sample.ok_or(ActivityUnknown::NotSupported)?;
        let earlier = self.earlier.replace((sample, now, instances.clone()));
        let (before, then, instances_then) = earlier.ok_or(ActivityUnknown::FirstSample)?;
        if instances_then != *instances {
            return Err(ActivityUnknown::InstancesChanged);
        }
        let interval = now.saturating_sub(then);
        let (sample, ..) = self.earlier.as_ref().ok_or(ActivityUnknown::FirstSample)?;
        if !(SHORTEST..=LONGEST).contains(&interval) {
            return Err(ActivityUnknown::Interval);
        }
        let metrics = known(raw::gpm_metrics::<COUNT>(gpu, (&before, sample), ids()))?;
        Ok(ratios(&metrics.ok_or(ActivityUnknown::NotSupported)?, gaps))
    }
}

/// Returns the result of a call; `None` if it is not offered.
fn known<T>(result: Result<T, NvmlError>) -> Result<Option<T>, ActivityUnknown> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if not_offered(&error) => Ok(None),
        Err(_) => Err(ActivityUnknown::Failed),
    }
}

fn ids() -> [u32; COUNT] {
    let mut all = METRICS.into_iter().flat_map(|(_, first, last)| first..=last);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

/// Returns the activity of each engine that reported a percentage. Others are counted as gaps.
fn ratios(metrics: &[Result<f64, NvmlError>; COUNT], gaps: &mut Gaps) -> BTreeMap<ActivityEngine, f64> {
    let mut ratios = BTreeMap::new();
    for (id, metric) in ids().into_iter().zip(metrics) {
        let engine = METRICS.into_iter().find(|(_, first, last)| (*first..=*last).contains(&id));
        match (engine, metric) {
            (Some((engine, ..)), Ok(percent)) if (0.0..=100.0).contains(percent) => {
                let ratio = ratios.entry(engine).or_insert(0.0_f64);
                *ratio = ratio.max(percent / 100.0);
            }
            (_, Ok(_)) => gaps.count(Gap::Implausible),
            (_, Err(error)) if not_offered(error) || matches!(error, NvmlError::InvalidArg) => {}
            (_, Err(_)) => gaps.count(Gap::Telemetry),
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_its_metrics() {
        let expected: Vec<u32> =
            [1, 2, 3, 5, 10].into_iter().chain(30..=37).chain(40..=47).chain(50..=51).collect();
        assert_eq!(ids().to_vec(), expected);
        assert_eq!(METRICS.map(|(engine, ..)| engine), ActivityEngine::ALL);
    }

    #[test]
    fn only_percentages_are_published_and_the_busiest_unit_counts() {
        let mut metrics = std::array::from_fn(|_| Err(NvmlError::NotSupported));
        let values = [(0, 0.64), (1, f64::NAN), (2, 100.5), (3, -1.0), (4, 100.0), (5, 20.0), (6, 30.0)];
        for (at, value) in values {
            metrics[at] = Ok(value);
        }
        metrics[13] = Err(NvmlError::Timeout);
        let mut gaps = Gaps::default();
        let found: Vec<(&str, f64)> =
            ratios(&metrics, &mut gaps).into_iter().map(|(engine, ratio)| (engine.name(), ratio)).collect();
        assert_eq!(found, [("graphics", 0.0064), ("dram", 1.0), ("nvdec", 0.3)]);
        assert_eq!((gaps.of(Gap::Implausible), gaps.of(Gap::Telemetry)), (3, 1));
    }
}
