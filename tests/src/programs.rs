//! Paths of the programs under test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace").to_owned()
}

/// Returns a program or library from this build, in the directory of the running test.
///
/// # Panics
/// If the program has not been built.
pub fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a file");
    let directory = exe.ancestors().skip(1).find(|directory| directory.join(name).exists());
    directory.unwrap_or_else(|| panic!("{name} is not built: run `cargo build --workspace`")).join(name)
}

/// Returns the path of the exporter.
pub fn exporter() -> PathBuf {
    built("bailiff-exporter")
}

/// Returns the path of the enforcer.
pub fn enforcer() -> PathBuf {
    built("bailiff-enforcer")
}

/// Returns the path of the user's command.
pub fn bailiff() -> PathBuf {
    built("bailiff")
}

/// Returns the path of the fake driver.
pub fn fake_nvml() -> PathBuf {
    built("libfake_nvml.so")
}

/// Returns a Python with the packages in `tests/requirements/python.in`.
///
/// # Panics
/// If `tests/setup python` has not been run.
pub fn python() -> PathBuf {
    let python = root().join("target/venv/bin/python");
    assert!(python.exists(), "no target/venv: run `tests/setup python`");
    python
}

/// Returns the directory of the Python packages in `target/venv`.
///
/// # Panics
/// If they are not installed.
pub fn python_packages() -> PathBuf {
    let output = Command::new(python())
        .args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        .output();
    let output = output.expect("python starts");
    String::from_utf8(output.stdout).expect("a path").trim().into()
}

/// Returns a program in `target/tools`, or the system's program.
pub fn tool(name: &str) -> PathBuf {
    let exe = root().join("target/tools/bin").join(name);
    if exe.exists() { exe } else { name.into() }
}
