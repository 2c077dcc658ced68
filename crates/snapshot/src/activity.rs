//! Activity of a GPU's engines, measured by the GPU itself and averaged over a sampling interval (NVML's GPM).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
}

impl Activity {
    /// Returns the ratios by the names of the engines.
    pub fn by_name(&self) -> BTreeMap<String, f64> {
        self.ratios.iter().map(|(engine, ratio)| (engine.name().to_owned(), *ratio)).collect()
    }
}
