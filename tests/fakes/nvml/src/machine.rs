//! The machine that a scenario describes, computed once: devices, lists and samples that are ready to be
//! returned.

mod faults;
mod gpu;
mod lists;

use std::fmt;
use std::time::Duration;

pub(crate) use self::faults::Wrong;
pub(crate) use self::gpu::{Activity, Gpu, Instance, MADE_UP_PID, Unit};
pub(crate) use self::lists::{Entry, List, pack};
use crate::clock::Clock;
use crate::code::{Answer, Code};
use crate::scenario::Scenario;

/// Maximum number of devices, which is above that of real machines. Each device needs a place for its handle.
pub(crate) const MOST_GPUS: usize = 64;
/// Maximum number of instances of a device.
pub(crate) const MOST_INSTANCES: u32 = 7;

/// The machine whose data the library returns.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) driver: String,
    pub(crate) nvml: String,
    pub(crate) cuda: i32,
    pub(crate) init: Init,
    pub(crate) clock: Clock,
    pub(crate) period: u64,
    pub(crate) ring: u32,
    pub(crate) entry_bytes: usize,
    pub(crate) gpm_metrics: u32,
    pub(crate) recheck: Duration,
    pub(crate) missing: Vec<String>,
    pub(crate) wrong: Wrong,
    pub(crate) gpus: Vec<Gpu>,
}

/// Result of initializing the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Init {
    /// Initialization succeeds or fails at once.
    Answers(Answer),
    /// Initialization does not return until the scenario changes.
    Hangs,
}

/// Error: the scenario is invalid, with the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense(pub(crate) String);

impl fmt::Display for Nonsense {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl Machine {
    /// Reads a machine from a scenario's text. `exported` returns whether a function exists.
    pub(crate) fn read(text: &str, exported: fn(&str) -> bool) -> Result<Self, Nonsense> {
        let scenario: Scenario = serde_saphyr::from_str(text).map_err(|error| Nonsense(error.to_string()))?;
        Self::compile(scenario, exported)
    }

    fn compile(written: Scenario, exported: fn(&str) -> bool) -> Result<Self, Nonsense> {
        ensure([16, 24, 32, 40].contains(&written.entry_bytes), || {
            format!("entry_bytes: {} is not 16, 24, 32 or 40", written.entry_bytes)
        })?;
        ensure(written.sampling_period.0 > 0, || "sampling_period: must be above 0".to_owned())?;
        ensure(written.ring > 0, || "ring: must be above 0".to_owned())?;
        for name in &written.missing {
            ensure(exported(name), || format!("missing: there is no function {name}"))?;
        }
        let mut gpus = Vec::new();
        for entry in &written.gpus {
            gpu::expand(entry, &mut gpus, exported)?;
        }
        for gpu in &mut gpus {
            gpu.pack(written.entry_bytes);
        }
        Ok(Self {
            init: init(&written.init)?,
            wrong: Wrong::of_driver(&written.faults, exported)?,
            driver: written.driver,
            nvml: written.nvml,
            cuda: written.cuda,
            clock: written.clock,
            period: written.sampling_period.0,
            ring: written.ring,
            entry_bytes: written.entry_bytes,
            gpm_metrics: written.gpm_metrics,
            recheck: Duration::from_micros(written.recheck.0),
            missing: written.missing,
            gpus,
        })
    }

    /// Returns whether the driver does not export this function.
    pub(crate) fn lacks(&self, function: &str) -> bool {
        self.missing.iter().any(|name| name == function)
    }

    /// Returns when the driver last recorded samples.
    pub(crate) fn newest_stamp(&self) -> u64 {
        let now = self.clock.now();
        now - now % self.period
    }
}

fn init(word: &str) -> Result<Init, Nonsense> {
    if word == "hang" {
        return Ok(Init::Hangs);
    }
    let code = Code::named(word).ok_or_else(|| Nonsense(format!("init: no error is called {word}")))?;
    Ok(Init::Answers(if code == Code::SUCCESS { Ok(()) } else { Err(code) }))
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Nonsense> {
    if holds { Ok(()) } else { Err(Nonsense(otherwise())) }
}

#[cfg(test)]
mod tests;
