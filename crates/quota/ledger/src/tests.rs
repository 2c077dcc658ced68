//! Tests that quota files are created, limited and read correctly, and that invalid files are
//! rejected.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;

const FIRST: Uuid = [1; 16];
const SECOND: Uuid = [2; 16];

fn create_file(limits: &[(Uuid, u64)]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quota");
    create(&path, limits).unwrap();
    (directory, path)
}

fn limits(path: &Path) -> Vec<(Uuid, u64)> {
    read(path).unwrap().gpus.iter().map(|gpu| (gpu.uuid, gpu.limit)).collect()
}

#[test]
fn created_file_is_read_back() {
    let (_directory, path) = create_file(&[(FIRST, 100), (SECOND, UNLIMITED)]);
    assert_eq!(limits(&path), [(FIRST, 100), (SECOND, UNLIMITED)]);
    let ledger = read(&path).unwrap();
    assert_eq!(ledger.processes, []);
    assert!(ledger.gpus.iter().all(|gpu| gpu.used == 0 && gpu.peak == 0 && gpu.by_process.is_empty()));
    assert_eq!(fs::metadata(&path).unwrap().len(), 25_728);
}

#[test]
fn existing_file_is_not_overwritten() {
    let (_directory, path) = create_file(&[(FIRST, 100)]);
    assert!(matches!(create(&path, &[]), Err(LedgerError::Io(_))));
    assert_eq!(limits(&path), [(FIRST, 100)]);
}

#[test]
fn limits_change_and_rows_are_added_until_full() {
    let (_directory, path) = create_file(&[(FIRST, 100)]);
    set_limit(&path, FIRST, 50).unwrap();
    set_limit(&path, SECOND, 70).unwrap();
    assert_eq!(limits(&path), [(FIRST, 50), (SECOND, 70)]);
    for more in 3..=16 {
        set_limit(&path, [more; 16], 1).unwrap();
    }
    assert!(matches!(set_limit(&path, [17; 16], 1), Err(LedgerError::Full)));
    set_limit(&path, [16; 16], 2).unwrap();
    let many: Vec<(Uuid, u64)> = (1..=17).map(|at| ([at; 16], 1)).collect();
    assert!(matches!(create(&path.with_extension("more"), &many), Err(LedgerError::Full)));
}

#[test]
fn implausible_values_are_read_unchanged() {
    let (_directory, path) = create_file(&[(FIRST, 100)]);
    let mut bytes = fs::read(&path).unwrap();
    // Two processes whose names are not UTF-8; one uses more memory than any GPU has.
    for (slot, pid, used) in [(0, 7u32, u64::MAX), (127, u32::MAX, 5)] {
        let at = 128 + 64 * 16 + 64 * slot;
        bytes[at..at + 4].copy_from_slice(&pid.to_le_bytes());
        bytes[at + 24..at + 40].fill(0xff);
        let at = 128 + 64 * 16 + 64 * 128 + 8 * slot;
        bytes[at..at + 8].copy_from_slice(&used.to_le_bytes());
    }
    // The high-water mark is higher than the number of slots.
    bytes[40..44].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let ledger = read(&path).unwrap();
    let pids: Vec<u32> = ledger.processes.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [7, u32::MAX]);
    assert_eq!(ledger.processes[0].name, "\u{fffd}".repeat(16));
    assert_eq!(ledger.gpus[0].by_process, [u64::MAX, 5]);
    assert_eq!(ledger.gpus[0].used, u64::MAX);
}

#[test]
fn uuid_is_formatted_like_the_driver() {
    let uuid = *b"\x0a\x0b\x0c\x0d\x0e\x0f\x40\x01\x80\x02\xff\x03\x04\x05\x06\x07";
    assert_eq!(format_uuid(uuid), "0a0b0c0d-0e0f-4001-8002-ff0304050607");
}

#[test]
fn invalid_file_is_refused() {
    let (directory, path) = create_file(&[(FIRST, 100)]);
    let good = fs::read(&path).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for (bytes, expected) in [
        (Vec::new(), "it has 0 bytes, but 25728 are required"),
        (good[..100].to_vec(), "it has 100 bytes, but 25728 are required"),
        (good[..25_727].to_vec(), "it has 25727 bytes, but 25728 are required"),
        (vec![0; 25_728], "it is not a quota file"),
        (changed(0, b'X'), "it is not a quota file"),
        (changed(12, 0), "it is not a quota file"),
        (changed(8, 2), "it has version 2, not 1"),
        (changed(11, 0xff), "it has version 4278190081, not 1"),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), expected);
        assert_eq!(set_limit(&path, FIRST, 1).unwrap_err().to_string(), expected);
    }
    let mut longer = good.clone();
    longer.extend_from_slice(&[0xff; 100]);
    fs::write(&path, longer).unwrap();
    assert_eq!(limits(&path), [(FIRST, 100)], "trailing bytes are ignored");
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(matches!(read(&link), Err(LedgerError::Io(_))), "a symbolic link is rejected");
    let fifo = directory.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    assert!(
        matches!(read(&fifo), Err(LedgerError::NoFile)),
        "a FIFO is rejected, and opening it does not block"
    );
    assert!(matches!(read(directory.path()), Err(LedgerError::NoFile)));
    assert!(matches!(read(&directory.path().join("none")), Err(LedgerError::Io(_))));
}

#[test]
fn truncation_during_a_read_is_an_error_only() {
    let (_directory, path) = create_file(&[(FIRST, 100)]);
    let good = fs::read(&path).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(0).unwrap();
                file.write_all_at(&good, 0).unwrap();
            }
        });
        let (mut whole, mut short, mut other) = (0, 0, None);
        while (whole < 100 || short < 100) && other.is_none() {
            match read(&path) {
                Ok(_) => whole += 1,
                Err(LedgerError::Short(_) | LedgerError::NoQuota) => short += 1,
                Err(fault) => other = Some(fault.to_string()),
            }
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(other, None);
    });
}
