//! A fake driver of one's own for each test, and its scenario, which can be rewritten while it runs.

use std::env;
use std::ffi::c_uint;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;
use tempfile::TempDir;

/// A loaded library and the directory that it and its scenario are in.
pub(crate) struct Driver {
    pub(crate) nvml: Nvml,
    directory: TempDir,
}

/// The library reads the variable at its first initialization; no other test may set it meanwhile.
static VARIABLE: Mutex<()> = Mutex::new(());

impl Driver {
    /// An initialized driver; it reads its scenario at every call.
    pub(crate) fn start(scenario: &str) -> Self {
        let directory = directory(scenario);
        let nvml = initialize(directory.path()).expect("the driver starts");
        Self { nvml, directory }
    }

    /// Swaps the scenario for another as a whole.
    pub(crate) fn rewrite(&self, scenario: &str) {
        rewrite(self.directory.path(), scenario);
    }

    pub(crate) fn gpu(&self, index: u32) -> Device<'_> {
        self.nvml.device_by_index(index).expect("the device is there")
    }
}

/// A directory with a library of its own, since one that is loaded already would not be loaded again.
pub(crate) fn directory(scenario: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::copy(built(), directory.path().join("libnvidia-ml.so.1")).expect("the library was built");
    rewrite(directory.path(), scenario);
    directory
}

/// Loads and initializes the library of this directory.
pub(crate) fn initialize(directory: &Path) -> Result<Nvml, NvmlError> {
    let _guard = VARIABLE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the only other thread that reads the variable would be in this function, and holds the lock.
    unsafe { env::set_var("FAKE_NVML_SCENARIO", directory.join("scenario.yaml")) };
    Nvml::builder().lib_path(directory.join("libnvidia-ml.so.1").as_os_str()).init()
}

/// Writes a scenario beside the one that is there, and puts it in its place.
pub(crate) fn rewrite(directory: &Path, scenario: &str) {
    let new = directory.join("scenario.new");
    fs::write(&new, format!("recheck: 0us\n{scenario}")).expect("the scenario is written");
    fs::rename(new, directory.join("scenario.yaml")).expect("the scenario is swapped");
}

/// The library that cargo built for this test; it lies where the test itself does.
fn built() -> PathBuf {
    let test = env::current_exe().expect("a test is a file");
    test.parent().expect("in a directory").join("libfake_nvml.so")
}

/// One call for the compute list, with room for this many entries of the usual size.
pub(crate) fn compute_list(device: &Device<'_>, room: usize) -> (c_uint, c_uint, Vec<nvmlProcessInfo_t>) {
    // SAFETY: a process entry is numbers only.
    let mut entries = vec![unsafe { std::mem::zeroed::<nvmlProcessInfo_t>() }; room];
    let mut count = c_uint::try_from(room).expect("few");
    let start = if room == 0 { std::ptr::null_mut() } else { entries.as_mut_ptr() };
    let list = device.nvml().lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref().expect("exported");
    // SAFETY: there is room for `count` entries of the size that the driver has unless its scenario says otherwise.
    let code = unsafe { list(device.handle(), &raw mut count, start) };
    if code == 0 {
        entries.truncate(count as usize);
    }
    (code, count, entries)
}
