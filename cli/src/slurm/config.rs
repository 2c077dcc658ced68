//! `/etc/bailiff/slurm.yaml`.

use std::path::Path;
use std::time::Duration;

use bailiff_lifecycle::file;
use bailiff_snapshot::slurm;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Maximum size of the file.
const MOST: u64 = 64 << 10;
/// Maximum length of a process's name in the kernel.
const MAX_COMM: usize = 15;

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    #[serde(rename = "version")]
    _version: Version,
    #[serde(default)]
    pub(super) prolog: Prolog,
    #[serde(default)]
    pub(super) epilog: Epilog,
    #[serde(default)]
    pub(super) health: Health,
    /// Memory in use on a clean GPU, besides the driver's reserve.
    #[serde(default = "tolerance", deserialize_with = "size")]
    pub(super) tolerance: u64,
    /// Minor numbers of the GPUs in the order of gres.conf; `None` to ask slurmd.
    #[serde(default, deserialize_with = "gpus")]
    pub(super) gpus: Option<Vec<u32>>,
    /// Names of GPU monitors that do not count if system users run them, besides the built-in ones.
    #[serde(default, deserialize_with = "names")]
    pub(super) monitors: Vec<String>,
}

/// What a hook does with a result other than clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnResult {
    /// Report it, and succeed.
    Pass,
    /// Fail. Slurm then drains the node.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Prolog {
    #[serde(deserialize_with = "span")]
    pub(super) wait: Duration,
    pub(super) on_not_clean: OnResult,
    pub(super) on_unknown: OnResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Epilog {
    #[serde(deserialize_with = "span")]
    pub(super) wait: Duration,
    /// Whether to end processes of the job that still use its GPUs.
    pub(super) end_leftovers: bool,
    /// Time between SIGTERM and SIGKILL.
    #[serde(deserialize_with = "span")]
    pub(super) grace: Duration,
    pub(super) on_not_clean: OnResult,
    pub(super) on_unknown: OnResult,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Health {
    /// Time limit of each command of Slurm, and of opening the driver.
    #[serde(deserialize_with = "span")]
    pub(super) timeout: Duration,
    /// Whether to drain the node.
    pub(super) drain: bool,
    /// Whether to resume a node that this program drained, after three clean runs.
    pub(super) resume: bool,
}

impl Default for Prolog {
    fn default() -> Self {
        Self { wait: Duration::from_secs(20), on_not_clean: OnResult::Fail, on_unknown: OnResult::Pass }
    }
}

impl Default for Epilog {
    fn default() -> Self {
        let Prolog { on_not_clean, on_unknown, .. } = Prolog::default();
        let (wait, grace) = (Duration::from_secs(30), Duration::from_secs(5));
        Self { wait, end_leftovers: true, grace, on_not_clean, on_unknown }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(20), drain: true, resume: false }
    }
}

impl Default for Config {
    fn default() -> Self {
        let (prolog, epilog, health) = Default::default();
        let (tolerance, gpus, monitors) = (tolerance(), None, Vec::new());
        Self { _version: Version, prolog, epilog, health, tolerance, gpus, monitors }
    }
}

impl Config {
    /// Reads the file. Without a file, the defaults apply.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        match file::within(path, file::PATIENCE, |path| file::read(path, MOST)) {
            Ok((_, text)) => Self::parse(&text).map_err(|error| at(&error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(at(&error)),
        }
    }

    fn parse(text: &[u8]) -> Result<Self, serde_saphyr::Error> {
        serde_saphyr::from_slice(text)
    }
}

/// The version of the format, 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version;

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            1 => Ok(Self),
            other => Err(D::Error::custom(format_args!(
                "version {other} is not supported; this program reads version 1"
            ))),
        }
    }
}

const fn tolerance() -> u64 {
    64 << 20
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    bailiff_size::size(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    crate::args::span(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn gpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u32>>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let minors = slurm::minors_of_files(&text);
    match minors {
        _ if text == "auto" => Ok(None),
        Some(_) => Ok(minors),
        None => Err(D::Error::custom(
            "write `auto`, or device files in the order of gres.conf, such as /dev/nvidia[0-3]",
        )),
    }
}

/// Returns names as the kernel truncates them.
fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut names = Vec::<String>::deserialize(deserializer)?;
    if names.iter().any(|name| name.trim().is_empty() || name.contains('/')) {
        return Err(D::Error::custom(
            "write names of programs without their directory, such as [dcgm-exporter]",
        ));
    }
    for name in &mut names {
        let end = (0..=MAX_COMM.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        name.truncate(end.unwrap_or_default());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_example_has_the_defaults() {
        let text = "\
version: 1
prolog: {wait: 20s, on_not_clean: fail, on_unknown: pass}
epilog: {wait: 30s, end_leftovers: true, grace: 5s, on_not_clean: fail, on_unknown: pass}
health: {timeout: 20s, drain: true, resume: false}
tolerance: 64MiB
gpus: auto
monitors: []
";
        assert_eq!(Config::parse(text.as_bytes()).unwrap(), Config::default());
        assert_eq!(Config::parse(b"version: 1").unwrap(), Config::default());
    }

    #[test]
    fn gpus_are_device_files_in_order() {
        let config = Config::parse(b"version: 1\ngpus: /dev/nvidia[3,0-1]").unwrap();
        assert_eq!(config.gpus, Some(vec![3, 0, 1]));
    }

    #[test]
    fn names_of_monitors_are_those_of_the_kernel() {
        let config = Config::parse(b"version: 1\nmonitors: [gpuwatch, our-gpu-monitor-daemon]").unwrap();
        assert_eq!(config.monitors, ["gpuwatch", "our-gpu-monitor"]);
    }

    #[test]
    fn mistakes_are_errors() {
        for (text, expected) in [
            ("prolog: {}", "version"),
            ("version: 2", "version 2 is not supported"),
            ("version: 1\nprolog: {wiat: 1s}", "wiat"),
            ("version: 1\nprolog: {wait: soon}", "line"),
            ("version: 1\ntolerance: 64MB", "MiB"),
            ("version: 1\nprolog: {on_unknown: drain}", "drain"),
            ("version: 1\ngpus: 0,1", "gres.conf"),
            ("version: 1\nmonitors: [/usr/bin/gpuwatch]", "without their directory"),
            ("version: 1\nmonitors: ['']", "without their directory"),
        ] {
            let error = Config::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
