//! Root's record of a Slurm job, which the prolog saved. The enforcer reads it itself before it cancels a job, because the
//! exporter's stream only repeats it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;
use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::file::{self, PATIENCE};
use bailiff_snapshot::slurm::{JobId, JobRecord};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

/// Maximum size of a record.
const MOST: u64 = 64 << 10;

/// Checks that root's record of a job is the one that the exporter has read, and that the job was started in this boot.
///
/// # Errors
/// If there is none, if another user can change it, or if the two differ.
pub(super) fn check(
    directory: &Path,
    boot_id: Option<&str>,
    expected: &JobRecord,
    owner: u32,
) -> Result<(), Refusal> {
    let id = expected.job.clone();
    let read = file::within(directory, PATIENCE, move |directory| read(directory, &id, owner));
    let changed = |why: String| Refusal { outcome: Outcome::IdentityChanged, why: format!("changed: {why}") };
    let place = format!("the record of job {} in {}", expected.job, directory.display());
    let own = read.map_err(|error| changed(format!("{place} cannot be read: {}", plain(&error))))?;
    let same = [
        ("boot ID", own.boot_id == expected.boot_id && Some(own.boot_id.as_str()) == boot_id),
        ("job", (&own.job, &own.sluid) == (&expected.job, &expected.sluid)),
        ("uid", own.uid == expected.uid),
        ("node", own.node == expected.node),
        ("GPUs", own.gpus == expected.gpus),
        ("start", own.boot_ms == expected.boot_ms),
    ];
    match same.into_iter().find(|(_, same)| !same) {
        None => Ok(()),
        Some((what, _)) => Err(changed(format!("{place} has another {what} than the snapshot"))),
    }
}

fn read(directory: &Path, job: &JobId, owner: u32) -> io::Result<JobRecord> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let jobs = openat(CWD, directory.join("jobs"), flags | OFlags::DIRECTORY, Mode::empty())?;
    check_owner(&jobs, FileType::Directory, owner)?;
    let record = openat(&jobs, format!("{job}.json"), flags, Mode::empty())?;
    check_owner(&record, FileType::RegularFile, owner)?;
    let mut text = Vec::new();
    File::from(record).take(MOST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(io::Error::other(format!("it is longer than {MOST} bytes")));
    }
    serde_json::from_slice(&text).map_err(|error| io::Error::other(format!("it is invalid: {error}")))
}

/// Checks that only the owner can change a file or directory.
fn check_owner(file: &OwnedFd, kind: FileType, owner: u32) -> io::Result<()> {
    let about = fstat(file)?;
    let others = Mode::from_raw_mode(about.st_mode) & (Mode::WGRP | Mode::WOTH);
    if FileType::from_raw_mode(about.st_mode) != kind {
        return Err(io::Error::other("it is not a regular file"));
    }
    if about.st_uid != owner || !others.is_empty() {
        return Err(io::Error::other(format!("a user other than uid {owner} can change it")));
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "writes records")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::process::geteuid;
    use serde_json::{Value, json};

    use super::*;

    fn record() -> Value {
        json!({
            "boot_id": "b", "job": "7", "sluid": null, "uid": 1000, "user": "alice", "node": "n1", "boot_ms": 5,
            "gpus": [{"position": 0, "minor": 1, "uuid": "GPU-1"}],
        })
    }

    /// Returns the reason why a job is not cancelled if root's record is this file.
    fn refusal(write: impl FnOnce(&Path), boot_id: &str) -> Option<String> {
        let home = tempfile::tempdir().unwrap();
        let jobs = home.path().join("jobs");
        fs::create_dir(&jobs).unwrap();
        fs::set_permissions(&jobs, Permissions::from_mode(0o750)).unwrap();
        write(&jobs.join("7.json"));
        let expected: JobRecord = serde_json::from_value(record()).unwrap();
        let checked = check(home.path(), Some(boot_id), &expected, geteuid().as_raw());
        checked.err().map(|refusal| {
            assert_eq!(refusal.outcome, Outcome::IdentityChanged);
            assert!(refusal.why.starts_with("changed: the record of job 7 in "), "{}", refusal.why);
            refusal.why
        })
    }

    /// Writes a record.
    type Write<'a> = &'a dyn Fn(&Path);

    fn save(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o640)).unwrap();
    }

    #[test]
    fn record_must_be_the_one_of_the_snapshot() {
        assert_eq!(refusal(|path| save(path, &record().to_string()), "b"), None);
        for (key, value, what) in [
            ("boot_id", json!("a"), "boot ID"),
            ("job", json!("8"), "job"),
            ("sluid", json!("s5K1KKYAYG5D00"), "job"),
            ("uid", json!(0), "uid"),
            ("node", json!("n2"), "node"),
            ("gpus", json!([]), "GPUs"),
            ("gpus", Value::Null, "GPUs"),
            ("gpus", json!([{"position": 0, "minor": 1, "uuid": "GPU-2"}]), "GPUs"),
            ("boot_ms", json!(6), "start"),
        ] {
            let mut other = record();
            other[key] = value;
            let why = refusal(|path| save(path, &other.to_string()), "b").unwrap();
            assert!(why.ends_with(&format!("has another {what} than the snapshot")), "{why}");
        }
        let why = refusal(|path| save(path, &record().to_string()), "another").unwrap();
        assert!(why.ends_with("has another boot ID than the snapshot"), "{why}");
    }

    #[test]
    fn record_must_be_a_file_that_only_its_owner_can_change() {
        let text = record().to_string();
        let cases: [(Write<'_>, &str); 6] = [
            (&|_| (), "no such file or directory"),
            (&|path| save(path, &text[..40]), "it is invalid: EOF"),
            (&|path| save(path, &format!("{text}{}", " ".repeat(64 << 10))), "it is longer than 65536 bytes"),
            (&|path| fs::create_dir(path).unwrap(), "it is not a regular file"),
            (
                &|path| {
                    save(&path.with_extension("other"), &text);
                    symlink("7.other", path).unwrap();
                },
                "symbolic link",
            ),
            (
                &|path| {
                    save(path, &text);
                    fs::set_permissions(path, Permissions::from_mode(0o660)).unwrap();
                },
                "can change it",
            ),
        ];
        for (write, part) in cases {
            let why = refusal(write, "b").unwrap();
            assert!(why.contains(part), "{part}: {why}");
        }
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("jobs")).unwrap();
        save(&home.path().join("jobs/7.json"), &text);
        let expected: JobRecord = serde_json::from_value(record()).unwrap();
        let another = geteuid().as_raw() + 1;
        let why = check(home.path(), Some("b"), &expected, another).unwrap_err().why;
        assert!(why.contains(&format!("a user other than uid {another} can change it")), "{why}");
    }
}
