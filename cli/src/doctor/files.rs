//! Small files of `/proc` and of the system, read whole or not at all.

#![expect(clippy::disallowed_methods, reason = "reads files")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A file's text.
pub(super) fn text(path: &Path) -> Option<String> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A file's bytes.
pub(super) fn bytes(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

/// Where a link points.
pub(super) fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}

/// The pids that a `/proc` shows.
pub(super) fn pids(procfs: &Path) -> Vec<u32> {
    let entries = fs::read_dir(procfs).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Where libraries are looked for: beside this program, where the loader is told to, and where systems have them.
pub(super) fn libraries() -> Vec<PathBuf> {
    let exe = env::current_exe().ok();
    let beside = exe.as_deref().and_then(Path::parent).map(Path::to_owned);
    let lib = beside.as_deref().and_then(Path::parent).map(|prefix| prefix.join("lib"));
    let told = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let systems = [
        "/usr/local/lib",
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ];
    let folders = beside.into_iter().chain(lib).chain(env::split_paths(&told).collect::<Vec<_>>());
    folders.chain(systems.map(PathBuf::from)).filter(|folder| folder.is_absolute()).collect()
}
