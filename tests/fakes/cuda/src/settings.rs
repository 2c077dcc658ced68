//! What the environment asks for, read once.
#![expect(clippy::disallowed_methods, reason = "the one file that reads variables")]

use std::env;
use std::ffi::OsString;
use std::sync::OnceLock;

use crate::truth::GPUS;

/// What the environment asks for.
pub(crate) struct Settings {
    pub(crate) gpus: i32,
    /// Of each GPU, in bytes.
    pub(crate) memory: u64,
    /// A file for the ground truth of several processes.
    pub(crate) truth: Option<OsString>,
    /// Rows of pitched memory are a multiple of this.
    pub(crate) pitch: usize,
    /// A reset of a device leaves what was allocated from pools.
    pub(crate) reset_keeps_pools: bool,
    /// Functions that this driver is too old to have, separated by commas.
    missing: String,
}

impl Settings {
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.missing.split(',').any(|missing| missing == name)
    }
}

/// What the environment asked for when the library was first called.
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
