//! Reads the activity of a GPU or a MIG instance: the averages between two samples of the GPU's counters.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{Activity, ActivityEngine, ActivityUnknown, Gap, Gaps, Truth};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::DeviceAttributes;

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

/// Maximum activity of each engine of a MIG instance on which nothing runs, 15 times that of a GPU whose processes do
/// nothing, and 20 times that of its memory (`docs/decisions/0021-gpm-and-idle-processes.md`).
const CALM: f64 = 0.001;
const CALM_DRAM: f64 = 0.0001;

type Metrics = [Result<f64, NvmlError>; COUNT];

/// The MIG instances of a GPU, by UUID.
pub(super) type Instances = Vec<Option<String>>;

/// Earlier sample of a device.
#[derive(Default)]
pub(super) struct Gpm {
    is_supported: Option<bool>,
    /// Engines of a MIG instance; `None` if they are unknown, or for a whole GPU.
    pub(super) engines: Option<DeviceAttributes>,
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
        let from = self.earlier.as_ref().map_or(now, |(_, from, _)| *from);
        let activity = Activity { from, until: now, ..Activity::default() };
        match self.measure((gpu, instance), (now, instances)) {
            Ok(metrics) => {
                let ratios = ratios(&metrics, gaps);
                let calm = self.engines.as_ref().map_or(Truth::Unknown, |engines| calm(&metrics, engines));
                Activity { ratios, calm, ..activity }
            }
            Err(unknown) => {
                if unknown == ActivityUnknown::Failed {
                    self.earlier = None;
                    gaps.count(Gap::Telemetry);
                }
                Activity { unknown: Some(unknown), ..activity }
            }
        }
    }

    /// Discards the earlier sample, because the instances may have been replaced since.
    pub(super) fn forget(&mut self) {
        self.earlier = None;
    }

    fn measure(
        &mut self,
        (gpu, instance): (&Device<'_>, Option<u32>),
        (now, instances): (Duration, &Instances),
    ) -> Result<Metrics, ActivityUnknown> {
        if self.is_supported.is_none() {
            self.is_supported = known(raw::gpm_is_supported(gpu))?;
        }
        let sample =
            if self.is_supported == Some(true) { known(raw::gpm_sample(gpu, instance))? } else { None };
        let sample = sample.ok_or(ActivityUnknown::NotSupported)?;
        let earlier = self.earlier.replace((sample, now, instances.clone()));
        let (before, then, instances_then) = earlier.ok_or(ActivityUnknown::FirstSample)?;
        usable((then, &instances_then), (now, instances))?;
        let (sample, ..) = self.earlier.as_ref().ok_or(ActivityUnknown::FirstSample)?;
        known(raw::gpm_metrics::<COUNT>(gpu, (&before, sample), ids()))?.ok_or(ActivityUnknown::NotSupported)
    }
}

/// Checks whether the activity between two samples may be used, given their times and the instances at these times.
fn usable(
    (then, instances_then): (Duration, &Instances),
    (now, instances): (Duration, &Instances),
) -> Result<(), ActivityUnknown> {
    if instances_then != instances {
        return Err(ActivityUnknown::InstancesChanged);
    }
    let is_usable = (SHORTEST..=LONGEST).contains(&now.saturating_sub(then));
    if is_usable { Ok(()) } else { Err(ActivityUnknown::Interval) }
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

/// Returns each metric with its engine.
fn by_engine(metrics: &Metrics) -> impl Iterator<Item = (ActivityEngine, &Result<f64, NvmlError>)> {
    let engines = METRICS.into_iter().flat_map(|(engine, first, last)| (first..=last).map(move |_| engine));
    engines.zip(metrics)
}

/// Returns the activity of each engine that reported a percentage. Others are counted as gaps.
fn ratios(metrics: &Metrics, gaps: &mut Gaps) -> BTreeMap<ActivityEngine, f64> {
    let mut ratios = BTreeMap::new();
    for (engine, metric) in by_engine(metrics) {
        match metric {
            Ok(percent) if (0.0..=100.0).contains(percent) => {
                let ratio = ratios.entry(engine).or_insert(0.0_f64);
                *ratio = ratio.max(percent / 100.0);
            }
            Ok(_) => gaps.count(Gap::Implausible),
            Err(error) if not_offered(error) || matches!(error, NvmlError::InvalidArg) => {}
            Err(_) => gaps.count(Gap::Telemetry),
        }
    }
    ratios
}

/// Returns whether nothing ran on an instance with these engines; unknown unless the activity of all units is known.
fn calm(metrics: &Metrics, has: &DeviceAttributes) -> Truth {
    let engines = [
        (ActivityEngine::Graphics, 1, CALM),
        (ActivityEngine::Sm, 1, CALM),
        (ActivityEngine::Dram, 1, CALM_DRAM),
        (ActivityEngine::Nvdec, has.shared_decoder_count, CALM),
        (ActivityEngine::Jpeg, has.shared_jpeg_count, CALM),
        (ActivityEngine::Ofa, has.shared_ofa_count, CALM),
    ];
    // The metrics that are read do not include encoders.
    let without_encoders = if has.shared_encoder_count == 0 { Truth::True } else { Truth::Unknown };
    let is_known = |percent: &f64| (0.0..=100.0).contains(percent);
    engines.into_iter().fold(without_encoders, |all, (engine, units, limit)| {
        let of_engine = by_engine(metrics).filter(|(other, _)| *other == engine);
        let percents: Vec<f64> = of_engine.filter_map(|(_, metric)| metric.as_ref().ok().copied()).collect();
        let is_complete = percents.iter().all(is_known) && percents.len() >= units as usize;
        let is_calm = percents.iter().all(|percent| *percent / 100.0 <= limit);
        if !is_complete || all == Truth::Unknown { Truth::Unknown } else { all.and(is_calm.into()) }
    })
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
    fn window_is_usable_between_a_tenth_of_a_second_and_a_minute_with_the_same_instances() {
        let then = Duration::from_secs(1000);
        let after = |window| {
            let now = then + window;
            usable((then, &vec![]), (now, &vec![]))
        };
        let interval = Err(ActivityUnknown::Interval);
        for (window, expected) in [
            (Duration::ZERO, interval),
            (Duration::from_millis(99), interval),
            (Duration::from_micros(99_999), interval),
            (Duration::from_millis(100), Ok(())),
            (Duration::from_secs(10), Ok(())),
            (Duration::from_mins(1), Ok(())),
            (Duration::from_millis(60_001), interval),
            (Duration::from_hours(1), interval),
        ] {
            assert_eq!(after(window), expected, "{window:?}");
        }
        let earlier = then.saturating_sub(Duration::from_secs(10));
        assert_eq!(usable((then, &vec![]), (earlier, &vec![])), interval, "the clock was set back");

        let instances = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect();
        let (one, two): (Instances, Instances) = (instances(&["MIG-1"]), instances(&["MIG-1", "MIG-2"]));
        let now = then + Duration::from_secs(10);
        for (before, after, expected) in [
            (&one, &one, Ok(())),
            (&one, &two, Err(ActivityUnknown::InstancesChanged)),
            (&two, &one, Err(ActivityUnknown::InstancesChanged)),
            (&one, &vec![None], Err(ActivityUnknown::InstancesChanged)),
        ] {
            assert_eq!(usable((then, before), (now, after)), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn result_that_is_not_offered_is_absent_and_others_fail() {
        assert_eq!(known(Ok(1)), Ok(Some(1)));
        for error in [NvmlError::NotSupported, NvmlError::NoPermission, NvmlError::FunctionNotFound] {
            assert_eq!(known::<()>(Err(error)), Ok(None));
        }
        assert_eq!(known::<()>(Err(NvmlError::UnexpectedVariant(25))), Ok(None), "another version");
        for error in [NvmlError::Timeout, NvmlError::Unknown, NvmlError::UnexpectedVariant(24)] {
            assert_eq!(known::<()>(Err(error)), Err(ActivityUnknown::Failed));
        }
    }

    #[test]
    fn instance_is_calm_if_all_its_engines_are_known_to_be() {
        let has = DeviceAttributes {
            multiprocessor_count: 16,
            shared_copy_engine_count: 1,
            shared_decoder_count: 2,
            shared_encoder_count: 0,
            shared_jpeg_count: 1,
            shared_ofa_count: 0,
            gpu_instance_slice_count: 1,
            compute_instance_slice_count: 1,
            memory_size_mb: 16384,
        };
        let calm_with = |changes: &[(usize, Result<f64, NvmlError>)], has: &DeviceAttributes| {
            let mut metrics: Metrics = std::array::from_fn(|_| Err(NvmlError::NotSupported));
            // Graphics, SM, DRAM, two decoders, one JPEG decoder.
            for (at, percent) in [(0, 0.1), (1, 0.0), (4, 0.01), (5, 0.0), (6, 0.0), (13, 0.0)] {
                metrics[at] = Ok(percent);
            }
            for (at, metric) in changes {
                metrics[*at] = metric.as_ref().map(|percent| *percent).map_err(|_| NvmlError::Timeout);
            }
            calm(&metrics, has)
        };
        assert_eq!(calm_with(&[], &has), Truth::True);
        for (at, percent) in [(0, 0.11), (1, 0.11), (4, 0.011), (5, 0.11), (6, 100.0), (13, 0.11)] {
            assert_eq!(calm_with(&[(at, Ok(percent))], &has), Truth::False, "{at}");
            for unknown in [Ok(f64::NAN), Ok(100.5), Ok(-0.1), Err(NvmlError::Timeout)] {
                assert_eq!(calm_with(&[(at, unknown)], &has), Truth::Unknown, "{at}");
            }
        }
        // Occupancy and tensor cores are parts of what the others measure.
        assert_eq!(calm_with(&[(2, Ok(50.0)), (3, Err(NvmlError::Timeout))], &has), Truth::True);
        assert_eq!(calm_with(&[(0, Ok(90.0)), (1, Err(NvmlError::Timeout))], &has), Truth::Unknown);
        let more = [
            DeviceAttributes { shared_encoder_count: 1, ..has.clone() },
            DeviceAttributes { shared_ofa_count: 1, ..has.clone() },
            DeviceAttributes { shared_decoder_count: 3, ..has.clone() },
        ];
        for has in more {
            assert_eq!(calm_with(&[], &has), Truth::Unknown, "{has:?}");
        }
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
