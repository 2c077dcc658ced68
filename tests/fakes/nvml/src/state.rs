//! State across calls: how often the library was initialized, and the machine that the scenario file currently
//! describes.
#![expect(
    clippy::disallowed_methods,
    reason = "the one file that reads the scenario and the variable that names it"
)]

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use crate::clock;
use crate::machine::Machine;

/// Environment variable with the path of the scenario file.
const VARIABLE: &str = "FAKE_NVML_SCENARIO";
/// The path, read once, because the host program may set variables while they are read.
static FILE: LazyLock<Option<OsString>> = LazyLock::new(|| env::var_os(VARIABLE));

static INITIALIZED: AtomicU32 = AtomicU32::new(0);
static SCENARIO: Mutex<Scenario> = Mutex::new(Scenario { looked: None, seen: None, machine: None });

/// The file, and the machine that was last read from it.
struct Scenario {
    looked: Option<Instant>,
    seen: Option<Seen>,
    machine: Option<Arc<Machine>>,
}

/// Metadata of the file at the last read. While it is unchanged, the file is not read again.
#[derive(PartialEq)]
enum Seen {
    Missing,
    File { modified: (i64, i64), bytes: u64, inode: u64 },
}

/// Returns the machine that the file describes, or the last valid machine. `None` if the file has never been valid.
pub(crate) fn machine() -> Option<Arc<Machine>> {
    let mut scenario = SCENARIO.lock().unwrap_or_else(PoisonError::into_inner);
    scenario.reload();
    scenario.machine.clone()
}

/// Counts an initialization. Each needs its own shutdown.
pub(crate) fn initialize() {
    INITIALIZED.fetch_add(1, Ordering::SeqCst);
}

/// Undoes one initialization. Returns false if the library is not initialized.
pub(crate) fn shut_down() -> bool {
    INITIALIZED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)).is_ok()
}

/// Returns whether the library is initialized.
pub(crate) fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::SeqCst) > 0
}

impl Scenario {
    fn reload(&mut self) {
        let now = clock::moment();
        let patience = self.machine.as_ref().map_or(Duration::ZERO, |machine| machine.recheck);
        if self.looked.is_some_and(|looked| now.duration_since(looked) < patience) {
            return;
        }
        self.looked = Some(now);
        let Some(path) = FILE.as_ref() else {
            if self.seen.replace(Seen::Missing).is_none() {
                complain(&format!("{VARIABLE} names no file"));
            }
            return;
        };
        let seen = fs::metadata(path).map_or(Seen::Missing, |file| Seen::File {
            modified: (file.mtime(), file.mtime_nsec()),
            bytes: file.len(),
            inode: file.ino(),
        });
        if self.seen.as_ref() == Some(&seen) {
            return;
        }
        self.seen = Some(seen);
        match read(path) {
            Ok(machine) => self.machine = Some(Arc::new(machine)),
            Err(error) => complain(&format!("{}: {error}", path.display())),
        }
    }
}

fn read(path: &OsStr) -> Result<Machine, String> {
    let text = fs::read_to_string(path).map_err(|error: io::Error| error.to_string())?;
    Machine::read(&text, crate::exports).map_err(|nonsense| nonsense.to_string())
}

/// Prints an error to stderr, because the host program has no other place for it. A closed stderr must not end the
/// program.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "fake-nvml: {text}");
}
