//! Reads the directory in which Slurm's hooks save the GPUs of jobs, and count their results.

#![expect(clippy::disallowed_methods, reason = "reads the files of the hooks")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use bailiff_snapshot::slurm::{HookRuns, JobRecord, SlurmSample};
use bailiff_snapshot::{Fault, Gap, Gaps};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;

/// Maximum number of jobs on a node.
const MOST_JOBS: usize = 1024;
/// Maximum size of a record.
const MOST_BYTES: u64 = 64 << 10;

/// Reads the directory; `None` if the hooks have not run.
///
/// # Errors
/// If the directory cannot be read, or does not belong to root.
pub fn read(directory: &Path, gaps: &mut Gaps) -> Result<Option<SlurmSample>, Fault> {
    let Some(jobs) = entries(&directory.join("jobs"))? else { return Ok(None) };
    let mut sample = SlurmSample::default();
    for path in jobs {
        // The hooks write a file of another name, and rename it.
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match record(&path).map(|record| record.filter(|record| is_named_after(&path, record))) {
            Ok(Some(record)) if sample.jobs.len() < MOST_JOBS => sample.jobs.push(record),
            // The job has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Ok(_) | Err(_) => {
                gaps.count(Gap::Slurm);
                sample.unread = true;
            }
        }
    }
    for path in entries(&directory.join("runs"))?.unwrap_or_default() {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.split_once('.'));
        if let (Some((hook, result)), Ok(about)) = (name, fs::symlink_metadata(&path)) {
            let (hook, result) = (hook.to_owned(), result.to_owned());
            sample.runs.push(HookRuns { hook, result, count: about.len() });
        }
    }
    sample.managed = match record(&directory.join("gres.json")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Ok(Some(managed)) => Some(managed),
        Ok(None) | Err(_) => {
            gaps.count(Gap::Slurm);
            None
        }
    };
    sample.jobs.sort_by(|one, other| one.job.cmp(&other.job));
    sample.runs.sort();
    Ok(Some(sample))
}

/// Returns the entries of a directory of root; `None` if it does not exist.
fn entries(directory: &Path) -> Result<Option<Vec<std::path::PathBuf>>, Fault> {
    let fault = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => Fault::NotPermitted,
        _ => Fault::Error,
    };
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault(error)),
        Ok(about) if !about.is_dir() || !is_trusted(about.uid()) => return Err(Fault::NotPermitted),
        Ok(_) => {}
    }
    let listed = fs::read_dir(directory).map_err(fault)?;
    listed.map(|entry| Ok(entry.map_err(fault)?.path())).collect::<Result<_, _>>().map(Some)
}

/// Returns whether a file's owner may write records: root, or the user of this program.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Reads JSON; `None` if it is not a regular file of root with such content.
fn record<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || !is_trusted(about.uid()) || about.len() > MOST_BYTES {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}

fn is_named_after(path: &Path, record: &JobRecord) -> bool {
    path.file_stem().is_some_and(|name| name == record.job.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn invalid_records_are_ignored_and_counted() {
        let home = tempfile::tempdir().unwrap();
        let mut gaps = Gaps::default();
        assert_eq!(read(home.path(), &mut gaps), Ok(None));
        let jobs = home.path().join("jobs");
        fs::create_dir(&jobs).unwrap();
        let record = |job: &str| {
            format!(
                r#"{{"boot_id": "b", "job": "{job}", "sluid": null, "uid": 1, "user": null, "node": "n", "gpus": null, "boot_ms": 1}}"#
            )
        };
        fs::write(jobs.join("7.json"), record("7")).unwrap();
        fs::write(jobs.join("8.json"), record("7")).unwrap();
        fs::write(jobs.join("9.json"), "{").unwrap();
        fs::write(jobs.join("9.123.part"), "{").unwrap();
        symlink(jobs.join("7.json"), jobs.join("6.json")).unwrap();
        let sample = read(home.path(), &mut gaps).unwrap().unwrap();
        let found: Vec<&str> = sample.jobs.iter().map(|record| record.job.as_ref()).collect();
        assert_eq!((found, sample.managed, gaps.of(Gap::Slurm)), (vec!["7"], None, 3));
        assert!(sample.unread);
        for invalid in ["6", "8", "9"] {
            fs::remove_file(jobs.join(format!("{invalid}.json"))).unwrap();
        }
        fs::write(home.path().join("gres.json"), r#"{"boot_id": "b", "minors": [3, 1]}"#).unwrap();
        let sample = read(home.path(), &mut gaps).unwrap().unwrap();
        assert_eq!(sample.managed.map(|managed| managed.minors), Some(vec![3, 1]));
        assert!(!sample.unread);
        for job in 100..=100 + MOST_JOBS {
            fs::write(jobs.join(format!("{job}.json")), record(&job.to_string())).unwrap();
        }
        let sample = read(home.path(), &mut gaps).unwrap().unwrap();
        assert_eq!((sample.jobs.len(), sample.unread), (MOST_JOBS, true));
    }

    #[test]
    fn size_of_a_file_is_the_number_of_runs() {
        let home = tempfile::tempdir().unwrap();
        for directory in ["jobs", "runs"] {
            fs::create_dir(home.path().join(directory)).unwrap();
        }
        fs::write(home.path().join("runs/prolog.clean"), "...").unwrap();
        let runs = read(home.path(), &mut Gaps::default()).unwrap().unwrap().runs;
        assert_eq!(runs, [HookRuns { hook: "prolog".to_owned(), result: "clean".to_owned(), count: 3 }]);
    }
}
