//! Accounting of processes in a scenario.

use serde::Deserialize;

use crate::units::{Bytes, Micros};

/// Data about processes that the driver keeps, including exited processes.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Accounting {
    pub(crate) enabled: bool,
    pub(crate) processes: Vec<Accounted>,
}

/// A remembered process.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Accounted {
    pub(crate) pid: u32,
    #[serde(default)]
    pub(crate) max_memory: Bytes,
    #[serde(default)]
    pub(crate) gpu: u32,
    #[serde(default)]
    pub(crate) memory: u32,
    /// Run time. As in the driver, it is reported as 0 while the process is running.
    #[serde(default)]
    pub(crate) time: Micros,
    #[serde(default)]
    pub(crate) running: bool,
    /// Sums of utilization at the first query, of engines and of memory, for the second version of the call. While the
    /// process is running, they grow by the utilization in each sampling period.
    #[serde(default)]
    pub(crate) sums: (u64, u64),
}
