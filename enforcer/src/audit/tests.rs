//! Tests of the audit log with full disks, torn lines and disks that recover.
#![expect(clippy::disallowed_methods, reason = "a test of files")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::*;

fn open(path: &Path, max_bytes: u64) -> Audit {
    let settings = AuditSettings { path: path.into(), max_bytes, keep: 3, kept: None };
    Audit::open(settings, About { node: "n1".into(), boot_id: Some("b".into()) }, |_| 0).unwrap()
}

fn record<'a>(id: u64, result: &'a str, detail: &'a str) -> Record<'a> {
    Record {
        id: Some(id),
        policy: "p",
        rule: "r",
        mode: Some(Mode::Enforce),
        step: "terminate",
        result,
        detail,
        ..Record::default()
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn ids(path: &Path) -> Vec<u64> {
    lines(path).iter().filter_map(|line| line["id"].as_u64()).collect()
}

#[test]
fn a_line_says_all_and_drives_no_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let audit = open(&path, 1 << 20);
    audit.record(&record(1, "released", "\u{1b}[2J \u{9b}m \u{202e} \u{1f600} \" \\")).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.trim_end().bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
    let line = lines(&path).pop().unwrap();
    assert_eq!(line["detail"], "\u{1b}[2J \u{9b}m \u{202e} \u{1f600} \" \\");
    for (name, value) in [("node", "n1"), ("boot_id", "b"), ("policy", "p"), ("mode", "enforce")] {
        assert_eq!(line[name], value);
    }
    assert!(humantime::parse_rfc3339(line["time"].as_str().unwrap()).is_ok());
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o137, 0, "0640, less the umask");
}

#[test]
fn torn_line_is_closed_and_action_without_result_is_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let audit = open(&path, 1 << 20);
    for (id, result) in [(1, BEGUN), (1, "released"), (2, BEGUN)] {
        audit.record(&record(id, result, "")).unwrap();
    }
    drop(audit);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time\":\"20").unwrap();
    let audit = open(&path, 1 << 20);
    let open_actions = audit.with(|journal| journal.interrupted());
    assert_eq!(open_actions.iter().map(|begun| begun.id).collect::<Vec<_>>(), [2]);
    drop(audit);
    let last = lines(&path).pop().unwrap();
    assert_eq!((&last["id"], &last["result"]), (&2.into(), &INTERRUPTED.into()));
    assert!(open(&path, 1 << 20).with(|journal| journal.interrupted()).is_empty(), "once only");
}

#[test]
fn rotation_loses_no_line_that_is_to_be_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let audit = open(&path, 1 << 20);
    audit.record(&record(1, "released", "")).unwrap();
    drop(audit);
    let three = 3 * fs::metadata(&path).unwrap().len();
    let audit = open(&path, three);
    for id in 2..=9 {
        audit.record(&record(id, "released", "")).unwrap();
    }
    let names = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"];
    let kept = names.map(|name| ids(&directory.path().join(name)));
    assert_eq!(kept, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]);
}

#[test]
fn log_moved_or_deleted_by_another_program_is_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let audit = open(&path, 1 << 20);
    audit.record(&record(1, "released", "")).unwrap();
    fs::rename(&path, directory.path().join("theirs")).unwrap();
    audit.record(&record(2, "released", "")).unwrap();
    assert_eq!(ids(&path), [2]);
    fs::remove_file(&path).unwrap();
    audit.record(&record(3, "released", "")).unwrap();
    assert_eq!(ids(&path), [3]);
}

#[test]
fn a_link_or_a_fifo_is_no_log() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [link, fifo] {
        let audit = open(&path, 1 << 20);
        audit.record(&record(1, BEGUN, "")).unwrap_err();
        assert!(!audit.status.writable() && audit.status.failures() >= 2);
    }
    assert!(!target.exists());
}

#[test]
fn what_is_left_to_the_writing_thread_is_written_before_the_log_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.jsonl");
    let audit = open(&path, 1 << 20);
    for id in 0..100 {
        audit.later(&record(id, "flagged", ""));
    }
    drop(audit);
    assert_eq!(ids(&path), (0..100).collect::<Vec<_>>());
}

#[test]
fn result_that_was_kept_is_written_and_is_no_interruption() {
    let directory = tempfile::tempdir().unwrap();
    let [path, kept] = ["audit.jsonl", "kept.jsonl"].map(|name| directory.path().join(name));
    let settings = |path: &Path| AuditSettings {
        path: path.into(),
        max_bytes: 1 << 20,
        keep: 3,
        kept: Some(kept.clone()),
    };
    let begun = Audit::open(settings(&path), About::default(), |_| 0).unwrap();
    begun.record(&record(1, BEGUN, "")).unwrap();
    drop(begun);
    assert!(!kept.exists(), "all was written");
    // A directory is not a file, so every write fails.
    let unwritable = Audit::open(settings(directory.path()), About::default(), |_| 0).unwrap();
    unwritable.append(&record(1, "cancelled", ""));
    drop(unwritable);
    assert!(kept.exists());
    let audit = Audit::open(settings(&path), About::default(), |_| 0).unwrap();
    assert!(audit.with(|journal| journal.interrupted()).is_empty());
    drop(audit);
    assert_eq!(
        lines(&path).iter().map(|line| line["result"].clone()).collect::<Vec<_>>(),
        [BEGUN, "cancelled"]
    );
    assert!(!kept.exists(), "it is written once");
}

#[test]
fn results_are_the_last_to_be_dropped() {
    let waiting = Waiting::default();
    waiting.add(Worth::Result, b"result".to_vec());
    let dropped: u64 = (0..2000).map(|_| waiting.add(Worth::Note, b"note".to_vec())).sum();
    assert_eq!(dropped, 2001 - 1024, "they are counted");
    let all = waiting.all();
    assert_eq!((all.len(), all[0].1.as_slice()), (1024, &b"result"[..]));
    waiting.written(&all[..1]);
    assert_eq!(waiting.all(), all[1..]);
}

#[test]
fn full_disk_is_reported_and_lines_are_written_once_there_is_room() {
    let test = format!("{}::a_full_disk", module_path!().split_once("::").unwrap().1);
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args([
            "--mount",
            "/bin/sh",
            "-c",
            "mount -t tmpfs -o size=16k none \"$1\" && shift && exec \"$@\"",
            "sh",
        ])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", &test])
        .env("BAILIFF_TEST_FULL", directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "run on a small file system of its own"]
fn a_full_disk() {
    let directory = PathBuf::from(std::env::var_os("BAILIFF_TEST_FULL").unwrap());
    let path = directory.join("audit.jsonl");
    let audit = open(&path, 1 << 20);
    let mut written = 0;
    while audit.record(&record(written, "released", "some words that fill a line")).is_ok() {
        written += 1;
        assert!(written < 1000, "the disk fills up");
    }
    assert!(written > 10 && !audit.status.writable());
    audit.append(&record(9000, "unkillable", "while nothing could be written"));
    audit.retry();
    assert!(!audit.status.writable());
    assert_eq!(ids(&path), (0..written).collect::<Vec<_>>(), "no line is there in part");
    assert!(fs::read_to_string(&path).unwrap().ends_with('\n'));
    // Makes room on the disk.
    let mut kept: Vec<u8> = fs::read(&path).unwrap();
    kept.truncate(kept.iter().position(|byte| *byte == b'\n').unwrap() + 1);
    fs::write(&path, kept).unwrap();
    audit.retry();
    assert!(audit.status.writable());
    assert_eq!(ids(&path), [0, 9000]);
    assert_eq!(lines(&path).last().unwrap()["result"], "recovered");
}
