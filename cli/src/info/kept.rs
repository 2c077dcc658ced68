//! Reports that are kept under their tags, in the user's own directory.

#![expect(clippy::disallowed_methods, reason = "reads and writes the user's own files")]

use std::env;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bailiff_lifecycle::exit::plain;
use serde::Deserialize;

use super::report::{Report, VERSION};
use crate::exit::Failure;

/// Keeps a report under its tag, in place of one that had it before.
pub(crate) fn keep(report: &Report) -> Result<(), Failure> {
    let directory = directory()?;
    write(&directory, report).map_err(|error| {
        Failure::from(io::Error::new(
            error.kind(),
            format!("the report cannot be kept in {}: {}", directory.display(), plain(&error)),
        ))
    })
}

fn write(directory: &Path, report: &Report) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let next = directory.join(format!(".{}.{}", report.tag, std::process::id()));
    fs::write(&next, serde_json::to_vec(report)?)?;
    fs::rename(&next, file(directory, &report.tag))
}

/// The report that was kept under a tag.
pub(crate) fn read(tag: &str) -> Result<Report, Failure> {
    let directory = directory()?;
    let text = fs::read(file(&directory, tag)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::usage(format!(
            "--since: no report was kept as {tag:?}; `bailiff info --tag {tag}` keeps one{}",
            others(&directory)
        )),
        _ => Failure::from(error),
    })?;
    understood(&text).ok_or_else(|| {
        Failure::usage(format!("--since: what was kept as {tag:?} is of another version of this program"))
    })
}

fn understood(text: &[u8]) -> Option<Report> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_slice(text).ok()?;
    (head.version == VERSION).then(|| serde_json::from_slice(text).ok()).flatten()
}

/// The tags that there are, for whoever mistyped one.
fn others(directory: &Path) -> String {
    let names = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".json").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    if names.is_empty() { String::new() } else { format!("; there are {}", names.join(", ")) }
}

fn file(directory: &Path, tag: &str) -> PathBuf {
    directory.join(format!("{tag}.json"))
}

/// As the XDG base directory specification has it: a path that is not absolute is none.
fn directory() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state =
        state.ok_or_else(|| Failure::usage("neither XDG_STATE_HOME nor HOME says where reports are kept"))?;
    Ok(state.join("bailiff/info"))
}
