//! Reads regular files whose paths the administrator specifies. Files are read in threads, because
//! the file system may hang.

#![expect(clippy::disallowed_methods, reason = "the one file that opens what the administrator names")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Deadline for the file system.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Paths that are being read by a thread.
static BUSY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static FREED: Condvar = Condvar::new();

/// Reads a regular file that has at most this many bytes. May hang.
///
/// # Errors
/// If the file is not a regular file (such as a FIFO), is too large, or cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<(File, Vec<u8>)> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    // Without `O_NONBLOCK`, opening a FIFO without a writer would block forever.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return refused("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    (&file).take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return refused(format!("the file is longer than {most} bytes"));
    }
    Ok((file, bytes))
}

/// Returns the first line of a regular file of text that has at most this many bytes, without surrounding
/// spaces; `None` if the file is empty.
///
/// # Errors
/// As for [`read`] and [`within`], and if the file is not UTF-8.
pub fn first_line(path: &Path, most: u64) -> io::Result<Option<String>> {
    let (_, bytes) = within(path, PATIENCE, move |path| read(path, most))?;
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    Ok(text.lines().next().map(|line| line.trim().to_owned()))
}

/// Calls `act` with a path in a new thread. While that call hangs, no further thread is started for
/// the path.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] after the deadline, otherwise the errors of `act`.
pub fn within<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, format!("no response for {limit:?} (hung file system)"));
    let place = Place::take(path, limit).ok_or_else(late)?;
    let (sender, receiver) = sync_channel(1);
    Builder::new().name("file".to_owned()).spawn(move || {
        let done = act(&place.0);
        drop(place);
        drop(sender.send(done));
    })?;
    receiver.recv_timeout(limit).map_err(|_| late())?
}

/// Marks a path as in use until dropped.
struct Place(PathBuf);

impl Place {
    fn take(path: &Path, limit: Duration) -> Option<Self> {
        let taken = |busy: &mut BTreeSet<PathBuf>| busy.contains(path);
        let waited = FREED.wait_timeout_while(busy(), limit, taken);
        let (mut busy, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out() && busy.insert(path.to_owned())).then(|| Self(path.to_owned()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        busy().remove(&self.0);
        FREED.notify_all();
    }
}

fn busy() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn a_thread_that_hangs_keeps_its_path_and_no_other() {
        let (release, released) = channel::<()>();
        let hangs = move |_: &Path| Ok(released.recv().is_ok());
        let stuck = within(Path::new("/a"), SHORT, hangs).expect_err("the read hangs");
        assert_eq!(stuck.to_string(), "no response for 20ms (hung file system)");
        let again = within(Path::new("/a"), SHORT, |_| Ok(())).expect_err("the read still hangs");
        assert_eq!(again.kind(), io::ErrorKind::TimedOut);
        within(Path::new("/b"), LONG, |_| Ok(())).expect("another path");
        drop(release);
        within(Path::new("/a"), LONG, |_| Ok(())).expect("the file system is back");
    }

    #[test]
    fn two_that_want_the_same_path_take_turns() {
        let readers: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(|| within(Path::new("/c"), LONG, |_| Ok(std::process::id()))))
            .collect();
        for reader in readers {
            reader.join().expect("no panic").expect("each read succeeds");
        }
    }

    #[test]
    fn what_is_no_regular_file_or_too_long_is_not_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a FIFO");
        for path in [directory.path(), &pipe] {
            assert_eq!(read(path, 9).expect_err("no file").to_string(), "not a regular file");
        }
        let file = directory.path().join("file");
        std::fs::write(&file, "0123456789").expect("the directory is writable");
        assert_eq!(read(&file, 9).expect_err("long").to_string(), "the file is longer than 9 bytes");
        assert_eq!(read(&file, 10).expect("the file fits").1, b"0123456789");
    }
}
