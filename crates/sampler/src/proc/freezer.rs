//! Detects processes in frozen cgroups. If no cgroup file system is visible, the state from `/proc` is used.

use std::collections::HashMap;
use std::path::Path;

use bailiff_proc::Directory;
use bailiff_snapshot::State;
use bailiff_snapshot::freezer::{self, File};

/// Mount point of the cgroup file system.
const CGROUPS: &str = "/sys/fs/cgroup";

pub(crate) struct Freezer {
    root: Option<Directory>,
    /// Whether each file read in this sample shows a frozen cgroup.
    read: HashMap<String, bool>,
}

impl Freezer {
    pub(crate) fn new() -> Self {
        Self { root: Directory::open(Path::new(CGROUPS)).ok(), read: HashMap::new() }
    }

    /// Starts a new sample.
    pub(crate) fn begin(&mut self) {
        self.read.clear();
    }

    /// Returns the existing files that show whether the cgroups in this `/proc/PID/cgroup` are frozen.
    pub(crate) fn files(&self, cgroup: &str) -> Vec<File> {
        let Some(root) = &self.root else { return Vec::new() };
        freezer::files(cgroup).into_iter().filter(|(path, _)| root.exists(path)).collect()
    }

    /// Returns `Frozen` for a waiting process (`S`, `D`) in a frozen cgroup, otherwise `state`.
    pub(crate) fn state(&mut self, state: State, files: &[File], buffer: &mut Vec<u8>) -> State {
        let waits = matches!(state, State::Sleeping | State::DiskSleep);
        if waits && files.iter().any(|file| self.is_frozen(file, buffer)) { State::Frozen } else { state }
    }

    fn is_frozen(&mut self, (path, line): &File, buffer: &mut Vec<u8>) -> bool {
        if let Some(frozen) = self.read.get(path) {
            return *frozen;
        }
        let text = self.root.as_ref().and_then(|root| root.read(path, buffer).ok());
        let frozen =
            text.is_some_and(|text| text.split(|byte| *byte == b'\n').any(|it| it == line.as_bytes()));
        self.read.insert(path.clone(), frozen);
        frozen
    }
}
