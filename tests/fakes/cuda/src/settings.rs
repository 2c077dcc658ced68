//! Settings from the environment, read once.
#![expect(clippy::disallowed_methods, reason = "the one file that reads variables")]

use std::env;
use std::ffi::OsString;
use std::sync::OnceLock;

use crate::truth::GPUS;

/// Settings from the environment.
pub(crate) struct Settings {
    pub(crate) gpus: i32,
    /// Memory of each GPU in bytes.
    pub(crate) memory: u64,
    /// File that records the allocations of several processes.
    pub(crate) truth: Option<OsString>,
    /// The row length of pitched memory is a multiple of this.
    pub(crate) pitch: usize,
    /// Whether a device reset keeps allocations from pools.
    pub(crate) reset_keeps_pools: bool,
    /// Functions that this driver does not export, separated by commas.
    missing: String,
}

impl Settings {
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.missing.split(',').any(|missing| missing == name)
    }
}

/// Returns the settings at the time of the library's first call.
pub(crate) fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        gpus: number("FAKE_CUDA_GPUS").and_then(|gpus| i32::try_from(gpus).ok()).unwrap_or(2).min(most()),
        memory: number("FAKE_CUDA_MEMORY").unwrap_or(16 << 30),
        truth: env::var_os("FAKE_CUDA_TRUTH"),
        pitch: number("FAKE_CUDA_PITCH").and_then(|pitch| usize::try_from(pitch).ok()).unwrap_or(512),
        reset_keeps_pools: env::var_os("FAKE_CUDA_RESET_KEEPS_POOLS").is_some(),
        missing: env::var("FAKE_CUDA_MISSING").unwrap_or_default(),
    })
}

fn most() -> i32 {
    i32::try_from(GPUS).unwrap_or(i32::MAX)
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}
