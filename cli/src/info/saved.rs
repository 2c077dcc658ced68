//! Reports saved by tag in the user's state directory.

#![expect(clippy::disallowed_methods, reason = "reads and writes the user's files")]

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bailiff_lifecycle::exit::plain;
use serde::Deserialize;

use super::report::{InfoReport, VERSION};
use crate::exit::Failure;

/// Saves a report under its tag; replaces an earlier one.
pub(crate) fn save(report: &InfoReport) -> Result<(), Failure> {
    let directory = directory()?;
    write(&directory, report).map_err(|error| {
        Failure::from(io::Error::new(
            error.kind(),
            format!("cannot save the report in {}: {}", directory.display(), plain(&error)),
        ))
    })
}

fn write(directory: &Path, report: &InfoReport) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let temporary = directory.join(format!(".{}.{}", report.tag, std::process::id()));
    fs::write(&temporary, serde_json::to_vec(report)?)?;
    fs::rename(&temporary, file(directory, &report.tag))
}

/// Reads the report saved under a tag.
pub(crate) fn read(tag: &str) -> Result<InfoReport, Failure> {
    let directory = directory()?;
    let text = fs::read(file(&directory, tag)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::usage(format!(
            "--since: there is no saved report {tag:?}; to save one, run `bailiff info --tag {tag}`{}",
            known_tags(&directory)
        )),
        _ => Failure::from(error),
    })?;
    parse(&text).ok_or_else(|| {
        Failure::usage(format!(
            "--since: the saved report {tag:?} has an unsupported version; to replace it, run \
             bailiff info --tag {tag}"
        ))
    })
}

fn parse(text: &[u8]) -> Option<InfoReport> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_slice(text).ok()?;
    (head.version == VERSION).then(|| serde_json::from_slice(text).ok()).flatten()
}

/// Lists the existing tags for the error message of an unknown tag.
fn known_tags(directory: &Path) -> String {
    let names = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".json").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    if names.is_empty() { String::new() } else { format!("; saved reports: {}", names.join(", ")) }
}

fn file(directory: &Path, tag: &str) -> PathBuf {
    directory.join(format!("{tag}.json"))
}

/// Returns the directory of saved reports. As in the XDG base directory specification, a relative path is
/// ignored.
fn directory() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        Failure::usage("cannot save reports: neither XDG_STATE_HOME nor HOME is an absolute path")
    })?;
    Ok(state.join("bailiff/info"))
}
