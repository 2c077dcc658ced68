//! A slow audit log: a library that is preloaded into an enforcer delays fsync.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs;

/// The delay for one enforcer.
pub struct SlowSync {
    library: PathBuf,
    delay: PathBuf,
}

impl SlowSync {
    /// Compiles the library into `directory`. The file with the delay is in the same directory;
    /// until [`Self::set`] writes it, syncs are not delayed.
    ///
    /// # Panics
    /// If the library cannot be compiled.
    pub fn new(directory: &Path) -> Self {
        let source = programs::root().join("tests/fixtures/slow_sync.c");
        let (library, delay) = (directory.join("slow_sync.so"), directory.join("slow_sync.ms"));
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
        let output = command.output().expect("a C compiler: tests/setup compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { library, delay }
    }

    /// Preloads the library into a command.
    pub fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("SLOW_SYNC", &self.delay);
    }

    /// Sets the duration of syncs, including those in progress.
    ///
    /// # Panics
    /// If the delay cannot be written.
    pub fn set(&self, milliseconds: u64) {
        let next = self.delay.with_extension("next");
        fs::write(&next, milliseconds.to_string()).expect("a delay can be written");
        fs::rename(next, &self.delay).expect("a delay can be replaced");
    }
}
