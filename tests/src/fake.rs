//! The fake driver's scenario: a file that the driver reads again when it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use crate::programs;

/// The scenario in one test, which may change while the driver is running.
pub struct Scenario {
    directory: TempDir,
}

impl Scenario {
    /// Creates a scenario with this text.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn new(text: &str) -> Self {
        let scenario = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        scenario.set(text);
        scenario
    }

    /// Returns a scenario from `tests/fakes/nvml/scenarios`.
    ///
    /// # Panics
    /// If there is no scenario with this name.
    pub fn named(name: &str) -> Self {
        let path = programs::root().join("tests/fakes/nvml/scenarios").join(format!("{name}.yaml"));
        Self::new(&fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Replaces the text.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set(&self, text: &str) {
        let next = self.directory.path().join("next");
        fs::write(&next, text).expect("a scenario can be written");
        // The kernel's own timestamps advance by up to 10 ms at a time, and inodes are reused. The fake driver would
        // not notice a second change within that time.
        let file = fs::File::options().write(true).open(&next).expect("a scenario can be opened");
        file.set_modified(SystemTime::now()).expect("a scenario has a modification time");
        fs::rename(next, self.path()).expect("a scenario can be replaced");
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("scenario.yaml")
    }

    /// Returns a directory with the same lifetime.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}
