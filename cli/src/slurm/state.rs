//! `/run/bailiff/slurm`: records of jobs, and counts of the hooks' results.

#![expect(clippy::disallowed_methods, reason = "the files of this directory")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bailiff_proc::Proc;
use bailiff_snapshot::slurm::{JobId, JobRecord};
use serde::Serialize;

/// Creates the directory with its subdirectories, readable for its group.
pub(super) fn prepare(state_dir: &Path) -> io::Result<()> {
    for directory in [state_dir.to_owned(), jobs(state_dir), state_dir.join("runs")] {
        match DirBuilder::new().mode(0o750).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    Ok(())
}

/// Replaces a file by JSON.
pub(super) fn write(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&part)?;
    serde_json::to_writer(&mut file, content)?;
    file.write_all(b"\n")?;
    fs::rename(&part, path)
}

/// Counts a result of a hook: the size of the file is the count, so that hooks can count at the same time.
pub(super) fn count(state_dir: &Path, hook: &str, result: &str) -> io::Result<()> {
    let path = state_dir.join(format!("runs/{hook}.{result}"));
    OpenOptions::new().append(true).create(true).mode(0o640).open(path)?.write_all(b".")
}

/// Returns the path of a job's record.
pub(super) fn record_path(state_dir: &Path, job: &JobId) -> PathBuf {
    jobs(state_dir).join(format!("{job}.json"))
}

fn jobs(state_dir: &Path) -> PathBuf {
    state_dir.join("jobs")
}

/// Returns the records of this boot. Files that are invalid or do not belong to root are ignored.
pub(super) fn records(state_dir: &Path) -> io::Result<Vec<JobRecord>> {
    let boot = Proc::own().ok().and_then(|proc| proc.boot_id());
    let entries = match fs::read_dir(jobs(state_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let read = entries.filter_map(|entry| record(&entry.ok()?.path()));
    Ok(read.filter(|record| Some(&record.boot_id) == boot.as_ref()).collect())
}

/// Reads a record; `None` if it is not a regular file of root with a record of the job that its name states.
pub(super) fn record(path: &Path) -> Option<JobRecord> {
    let about = fs::symlink_metadata(path).ok()?;
    if !about.is_file() || about.uid() != 0 || path.extension()? != "json" {
        return None;
    }
    let record: JobRecord = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (path.file_stem()?.to_str()? == record.job.as_ref()).then_some(record)
}

/// Opens the lock of a hook; `None` if another run has it. The lock is held while the file is open.
pub(super) fn lock(state_dir: &Path, name: &str) -> io::Result<Option<File>> {
    let path = state_dir.join(format!("{name}.lock"));
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}
