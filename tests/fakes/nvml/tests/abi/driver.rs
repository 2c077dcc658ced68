//! A separate fake driver for each test. Its scenario can be rewritten while it is running.

use std::env;
use std::ffi::c_uint;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;
use tempfile::TempDir;

/// A loaded library, and the directory that contains it and its scenario.
pub(crate) struct Driver {
    pub(crate) nvml: Nvml,
    directory: TempDir,
}

/// The library reads the variable at its first initialization, during which other tests must not set it.
static VARIABLE: Mutex<()> = Mutex::new(());

impl Driver {
    /// Returns an initialized driver that reads its scenario at every call.
    pub(crate) fn start(scenario: &str) -> Self {
        let directory = directory(scenario);
        let nvml = initialize(directory.path()).expect("the driver starts");
        Self { nvml, directory }
    }

    /// Replaces the scenario atomically.
    pub(crate) fn rewrite(&self, scenario: &str) {
        rewrite(self.directory.path(), scenario);
    }

    pub(crate) fn gpu(&self, index: u32) -> Device<'_> {
        self.nvml.device_by_index(index).expect("the device exists")
    }
}

/// Creates a directory with its own copy of the library, because a library that is already loaded would not be
/// loaded again.
pub(crate) fn directory(scenario: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::copy(built(), directory.path().join("libnvidia-ml.so.1")).expect("the library was built");
    rewrite(directory.path(), scenario);
    directory
}

/// Loads and initializes the library in this directory.
pub(crate) fn initialize(directory: &Path) -> Result<Nvml, NvmlError> {
    let _guard = VARIABLE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: other threads read the variable only in this function, and this thread holds the lock.
    unsafe { env::set_var("FAKE_NVML_SCENARIO", directory.join("scenario.yaml")) };
    Nvml::builder().lib_path(directory.join("libnvidia-ml.so.1").as_os_str()).init()
}

/// Writes a scenario to a new file, and renames it over the current file.
pub(crate) fn rewrite(directory: &Path, scenario: &str) {
    let new = directory.join("scenario.new");
    fs::write(&new, format!("recheck: 0us\n{scenario}")).expect("the scenario is written");
    fs::rename(new, directory.join("scenario.yaml")).expect("the scenario is swapped");
}

/// Returns the library that cargo built for this test, which is in the test's directory.
fn built() -> PathBuf {
    let test = env::current_exe().expect("a test is a file");
    test.parent().expect("in a directory").join("libfake_nvml.so")
}

/// Queries the compute list once, with room for this many entries of the default size.
pub(crate) fn compute_list(device: &Device<'_>, room: usize) -> (c_uint, c_uint, Vec<nvmlProcessInfo_t>) {
    // SAFETY: a process entry consists only of numbers.
    let mut entries = vec![unsafe { std::mem::zeroed::<nvmlProcessInfo_t>() }; room];
    let mut count = c_uint::try_from(room).expect("few");
    let start = if room == 0 { std::ptr::null_mut() } else { entries.as_mut_ptr() };
    let list = device.nvml().lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref().expect("exported");
    // SAFETY: there is room for `count` entries of the driver's default size.
    let code = unsafe { list(device.handle(), &raw mut count, start) };
    if code == 0 {
        entries.truncate(count as usize);
    }
    (code, count, entries)
}
