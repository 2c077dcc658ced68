//! `/run/bailiff/slurm`: records of jobs, and counts of the hooks' results.

#![expect(clippy::disallowed_methods, reason = "the files of this directory")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_proc::clock::since_boot;
use bailiff_proc::{Proc, Process};
use bailiff_sampler::read_slurm_directory;
use bailiff_snapshot::Gaps;
use bailiff_snapshot::slurm::{JobId, JobRecord, ManagedGpus};
use serde::Serialize;

use super::programs::is_slurms;

/// Time after a prolog in which its job may not yet have a step.
const NEW: Duration = Duration::from_mins(1);

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

/// Saves the GPUs of gres.conf for the exporter, unless that was done before.
pub(super) fn save_managed(state_dir: &Path, minors: &[u32]) -> io::Result<()> {
    let path = state_dir.join("gres.json");
    let Some(boot_id) = Proc::own().ok().and_then(|proc| proc.boot_id()) else { return Ok(()) };
    let managed = ManagedGpus { boot_id, minors: minors.to_vec() };
    let saved = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if saved.as_ref() == Some(&managed) { Ok(()) } else { write(&path, &managed) }
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

/// Deletes the record of a job.
pub(super) fn forget(state_dir: &Path, job: &JobId) -> io::Result<()> {
    match fs::remove_file(record_path(state_dir, job)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn jobs(state_dir: &Path) -> PathBuf {
    state_dir.join("jobs")
}

/// Returns the records of this boot.
pub(super) fn records(state_dir: &Path) -> io::Result<Vec<JobRecord>> {
    let boot = Proc::own().ok().and_then(|proc| proc.boot_id());
    let found = read_slurm_directory(state_dir, &mut Gaps::default());
    let found =
        found.map_err(|fault| io::Error::other(format!("{}: {}", state_dir.display(), fault.name())))?;
    let records = found.unwrap_or_default().jobs.into_iter();
    Ok(records.filter(|record| Some(&record.boot_id) == boot.as_ref()).collect())
}

/// Returns the records of jobs that run: a `slurmstepd` of the job exists, or its prolog ran less than a minute ago. The
/// record of a job whose epilog was killed stays, and must not make its GPUs look shared.
pub(super) fn running(state_dir: &Path) -> io::Result<Vec<JobRecord>> {
    let mut records = records(state_dir)?;
    let titles = step_titles()?;
    let runs = |record: &JobRecord| {
        let ids = [Some(&record.job), record.sluid.as_ref()];
        ids.into_iter().flatten().any(|id| titles.iter().any(|title| title.contains(&format!("[{id}."))))
    };
    let is_new =
        |record: &JobRecord| since_boot().saturating_sub(Duration::from_millis(record.boot_ms)) < NEW;
    records.retain(|record| is_new(record) || runs(record));
    Ok(records)
}

/// Returns the titles of root's `slurmstepd` processes, such as `slurmstepd: [17.batch]`.
fn step_titles() -> io::Result<Vec<String>> {
    let proc = Proc::own()?;
    let step = |process: &Process| {
        // A user can give another name and title to a program of root, such as su, but not another file.
        let is_step = process.owner().ok()? == 0 && is_slurms(&process.exe().ok()?, "slurmstepd");
        is_step.then(|| process.cmdline().ok()).flatten()
    };
    let read = proc.each(proc.pids()?, None, move |proc, pid| Ok(step(&proc.process(pid)?)))?;
    let titles = read.into_iter().filter_map(|(_, title)| title.ok().flatten());
    Ok(titles.map(|title| String::from_utf8_lossy(&title).into_owned()).collect())
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
