//! What the driver reported about the utilization of a GPU, before it is evaluated.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Utilization of each engine of a GPU by one process, in percent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engines {
    /// Streaming multiprocessors.
    pub sm: u32,
    /// Memory bandwidth.
    pub memory: u32,
    /// Video encoder.
    pub encoder: u32,
    /// Video decoder.
    pub decoder: u32,
    /// JPEG decoder; 0 from older drivers, which do not report it.
    pub jpeg: u32,
    /// Optical flow accelerator; 0 from older drivers, which do not report it.
    pub ofa: u32,
}

impl Engines {
    /// Returns the utilization of the busiest engine. Memory bandwidth is not an engine and does not count.
    pub fn busiest(&self) -> u32 {
        [self.sm, self.encoder, self.decoder, self.jpeg, self.ofa].into_iter().fold(0, u32::max)
    }

    pub(crate) fn each(&self) -> [u32; 6] {
        [self.sm, self.memory, self.encoder, self.decoder, self.jpeg, self.ofa]
    }

    pub(crate) fn or_busier(self, other: Self) -> Self {
        Self {
            sm: self.sm.max(other.sm),
            memory: self.memory.max(other.memory),
            encoder: self.encoder.max(other.encoder),
            decoder: self.decoder.max(other.decoder),
            jpeg: self.jpeg.max(other.jpeg),
            ofa: self.ofa.max(other.ofa),
        }
    }
}

/// Utilization sample of one pid, as stored by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UtilSample {
    /// Pid as reported by the driver.
    pub pid: u32,
    /// Timestamp of the driver, in microseconds of its own clock.
    pub stamp: u64,
    /// Percent of each engine, unchecked.
    pub engines: Engines,
}

/// The driver's response to a query for samples newer than [`Reading::since`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The driver was not queried, or the query failed.
    #[default]
    Failed,
    /// The device does not support the query.
    NotSupported,
    /// `NVML_ERROR_NOT_FOUND`: no process has a sample.
    Nothing,
    /// Samples of some processes.
    Samples(Vec<UtilSample>),
}

/// Utilization of the device as a whole in the window (`nvmlDeviceGetSamples`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSampler {
    /// No samples, so no process can be called idle.
    #[default]
    Silent,
    /// Samples with timestamps.
    Stamped {
        /// Newest timestamp.
        newest: u64,
        /// Largest utilization since the previous sample, in percent.
        maximum: u32,
        /// Whether the response filled the driver's buffer, so that older samples may be lost.
        filled: bool,
    },
    /// Samples are not supported, but the device's current utilization was read.
    CurrentOnly {
        /// Current utilization in percent.
        utilization: u32,
    },
}

/// Utilization evidence of one GPU and its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Timestamp of the driver at which the lookback starts: only newer samples were queried.
    pub since: u64,
    /// The driver's response about processes.
    pub answer: Answer,
    /// Utilization of the device as a whole.
    pub sampler: DeviceSampler,
    /// Pids for which the driver's accounting counted work since the previous sample.
    pub accounted: BTreeSet<u32>,
    /// Pids with implausible samples; filled in by [`Self::cleaned`].
    #[serde(skip)]
    pub doubted: BTreeSet<u32>,
    /// Whether there were samples of unlisted pids, so that some work cannot be attributed.
    #[serde(skip)]
    pub strangers: bool,
}
