//! Activity of a GPU's engines, measured by the GPU itself and averaged over a sampling interval (NVML's GPM).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Engines, Truth};

crate::label_values! {
/// A part of a GPU whose activity is measured.
pub enum ActivityEngine {
    /// Time in which a context had work.
    Graphics = "graphics",
    /// Time in which a multiprocessor had work, averaged over all of them.
    Sm = "sm",
    /// Resident warps of the multiprocessors, relative to their maximum.
    SmOccupancy = "sm_occupancy",
    /// Time in which tensor cores had work.
    Tensor = "tensor",
    /// Use of the memory bandwidth.
    Dram = "dram",
    /// The busiest video decoder.
    Nvdec = "nvdec",
    /// The busiest JPEG decoder.
    Jpeg = "jpeg",
    /// The busiest optical flow accelerator.
    Ofa = "ofa",
}
}

crate::label_values! {
/// Why the activity of a GPU is unknown.
pub enum ActivityUnknown {
    /// There is no earlier sample.
    FirstSample = "first_sample",
    /// The GPU (before Hopper) or the driver does not measure it, or does not permit reading it.
    NotSupported = "not_supported",
    /// A call of the driver failed.
    Failed = "failed",
    /// Less than 100 ms or more than a minute has passed since the previous sample.
    Interval = "interval",
    /// The MIG instances are not those of the previous sample.
    InstancesChanged = "instances_changed",
}
}

/// Activity in one interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// From 0 to 1. An engine that the GPU does not have is missing.
    pub ratios: BTreeMap<ActivityEngine, f64>,
    /// Why there are no ratios; `None` also if activity is not read.
    pub unknown: Option<ActivityUnknown>,
    /// Start of the interval, since boot: the end of the previous interval that was read.
    pub from: Duration,
    /// End of the interval, since boot.
    pub until: Duration,
    /// Whether nothing ran on a MIG instance. Known only if the activity of all its engines is.
    pub calm: Truth,
}

impl Activity {
    /// Returns the activity as a utilization in percent. As in the driver's samples of processes, SM is the time in which
    /// a kernel ran, on any multiprocessor.
    pub(crate) fn engines(&self) -> Engines {
        let percent = |engine| (self.ratios.get(&engine).copied().unwrap_or_default() * 100.0).round();
        // A ratio is from 0 to 1.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "percent, from 0 to 100")]
        let percent = |engine| percent(engine) as u32;
        Engines {
            sm: percent(ActivityEngine::Graphics).max(percent(ActivityEngine::Sm)),
            memory: percent(ActivityEngine::Dram),
            encoder: 0,
            decoder: percent(ActivityEngine::Nvdec),
            jpeg: percent(ActivityEngine::Jpeg),
            ofa: percent(ActivityEngine::Ofa),
        }
    }

    /// Returns the ratios by the names of the engines.
    pub fn by_name(&self) -> BTreeMap<String, f64> {
        self.ratios.iter().map(|(engine, ratio)| (engine.name().to_owned(), *ratio)).collect()
    }
}
