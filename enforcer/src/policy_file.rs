//! Reads and watches the rules file. Its path is checked twice a second, because any file, link or directory
//! in it may be replaced. All access runs on threads that may hang; see [`bailiff_lifecycle::file`].

use std::fmt::Write;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_engine::policy::{Faults, LoadContext, Loaded, load};
use bailiff_lifecycle::file::{self, PATIENCE};
use bailiff_lifecycle::permissions::FilePermissions;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::clock::now;
use crate::programs;

/// Maximum size of a rules file, in bytes; a larger one is an error.
const MOST: u64 = 1 << 21;
/// Interval between checks of the path. Changes come in bursts: the file is read once two checks agree.
const POLL: Duration = Duration::from_millis(500);
/// Number of checks after which a changed file is read, even if it is still changing.
const LATEST: u32 = 3;
/// Interval at which an unchanged file is read again.
const UNCHANGED: Duration = Duration::from_mins(1);

/// Content of the rules file and its hash.
#[derive(Debug)]
pub struct Content {
    /// Bytes of the file.
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes, hexadecimal.
    pub sha256: String,
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self { sha256: name(&bytes), bytes }
    }
}

/// The rules of a file, and the hash of its bytes.
#[derive(Debug)]
pub struct Rules {
    /// SHA-256 of the bytes, hexadecimal.
    pub sha256: String,
    /// The rules, or why they are invalid.
    pub loaded: Result<Box<Loaded>, Faults>,
}

/// Returns the context in which a policy is loaded; `now` is the time since the Unix epoch.
pub fn context(now: Duration) -> LoadContext {
    LoadContext {
        now,
        is_redis_address: |address| bailiff_lease::check(address).is_ok(),
        is_mail_address: crate::actions::is_mail_address,
        check_template: crate::actions::check_template,
        check_body: crate::actions::check_body,
    }
}

/// Reads the rules file up to the maximum size, whatever its permissions. May hang.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> io::Result<Content> {
    file::read(path, MOST).map(|(_, bytes)| bytes.into())
}

/// Reads a policy from a pipe up to the maximum size.
///
/// # Errors
/// If it cannot be read.
pub fn from(pipe: impl io::Read) -> io::Result<Content> {
    let mut bytes = Vec::new();
    pipe.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is too large"));
    }
    Ok(bytes.into())
}

/// Reads the file at startup; fails after [`PATIENCE`].
///
/// # Errors
/// If it cannot be read.
pub fn first(path: &Path, permissions: FilePermissions) -> io::Result<(Stamp, Rules)> {
    file::within(path, PATIENCE, move |path| reading(path, permissions))
}

/// Returns why the enforcer would refuse a file because of its permissions, or those of a program that it names. May
/// hang.
pub fn permission_error(path: &Path, bytes: &[u8]) -> Option<io::Error> {
    let strict = FilePermissions::Strict;
    let programs = || programs_in(&load(bytes, "", context(now().wall)));
    strict.check(path).and_then(|()| programs::check_all(&programs(), strict)).err()
}

fn reading(path: &Path, permissions: FilePermissions) -> io::Result<(Stamp, Rules)> {
    permissions.check(path)?;
    let (file, bytes) = file::read(path, MOST)?;
    let loaded = load(&bytes, &path.display().to_string(), context(now().wall));
    let programs = programs_in(&loaded);
    if !programs.is_empty() {
        programs::check_in_time(programs, permissions)?;
    }
    Ok((Stamp::of(&file.metadata()?), Rules { sha256: name(&bytes), loaded: loaded.map(Box::new) }))
}

/// Returns the programs that rules name; none if the rules are invalid, because they are then not used.
fn programs_in(loaded: &Result<Loaded, Faults>) -> Vec<String> {
    loaded.as_ref().map(|loaded| programs::named_in(&loaded.policy)).unwrap_or_default()
}

/// Returns the name of a policy: SHA-256 of its file, hexadecimal.
pub fn name(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Reads the file on request, after changes, and at least once a minute. Sends each result with the requests
/// that it answers. The file must have these permissions. `first` is the stamp of the file at startup.
pub async fn follow<T>(
    ((path, permissions), first): ((PathBuf, FilePermissions), Stamp),
    mut asked: mpsc::UnboundedReceiver<T>,
    to: mpsc::Sender<(Vec<T>, io::Result<Rules>)>,
) {
    let mut poll = interval(POLL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut checks = FileChecks { read: (Instant::now(), Ok(first)), last: None, unread: 0 };
    loop {
        let mut asking = Vec::new();
        tokio::select! {
            first = asked.recv() => match first {
                Some(first) => asking.push(first),
                None => return,
            },
            _ = poll.tick() => {}
        }
        while let Ok(next) = asked.try_recv() {
            asking.push(next);
        }
        let stamp_now = if asking.is_empty() { in_time(&path, stamp).await.map(Some) } else { Ok(None) };
        let now = stamp_now.as_ref().map(|stamp| *stamp).map_err(io::Error::kind).transpose();
        if now.is_some_and(|now| !checks.is_due(now)) {
            continue;
        }
        let read = match stamp_now {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            _ => in_time(&path, move |path| reading(path, permissions)).await,
        };
        checks.read(read.as_ref().map(|(stamp, _)| *stamp).map_err(io::Error::kind));
        if to.send((asking, read.map(|(_, rules)| rules))).await.is_err() {
            return;
        }
    }
}

async fn in_time<T: Send + 'static>(
    path: &Path,
    act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.to_owned();
    spawn_blocking(move || file::within(&path, PATIENCE, act)).await?
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    path.metadata().map(|about| Stamp::of(&about))
}

/// Metadata that shows whether a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(about: &std::fs::Metadata) -> Self {
        Self {
            inode: (about.dev(), about.ino()),
            size: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

/// Result of a check of the path: the stamp of the file, or an error.
type FileStamp = Result<Stamp, io::ErrorKind>;

/// History of the checks of the path.
#[derive(Debug)]
struct FileChecks {
    /// Time of the last read, and the stamp of the file at that time.
    read: (Instant, FileStamp),
    /// Result of the last check, and the number of checks since the file has differed from the last read.
    last: Option<FileStamp>,
    unread: u32,
}

impl FileChecks {
    /// Records a check. Returns whether the file must be read.
    fn is_due(&mut self, now: FileStamp) -> bool {
        let calm = self.last.replace(now) == Some(now) || now == Err(io::ErrorKind::TimedOut);
        let (at, read) = self.read;
        if read == now {
            self.unread = 0;
            return at.elapsed() >= UNCHANGED;
        }
        self.unread += 1;
        calm || self.unread >= LATEST
    }

    fn read(&mut self, as_what: FileStamp) {
        self.read = (Instant::now(), as_what);
        self.unread = 0;
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test of files")]
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Followed {
        directory: tempfile::TempDir,
        asks: mpsc::UnboundedSender<&'static str>,
        reads: mpsc::Receiver<(Vec<&'static str>, io::Result<Rules>)>,
    }

    impl Followed {
        fn new(set: impl FnOnce(&Path)) -> Self {
            let directory = tempfile::tempdir().unwrap();
            set(directory.path());
            let path = directory.path().join("rules.yaml");
            let (stamp, _) = first(&path, FilePermissions::Strict).unwrap();
            let (asks, asked) = mpsc::unbounded_channel();
            let (to, reads) = mpsc::channel(1);
            tokio::spawn(follow(((path, FilePermissions::Strict), stamp), asked, to));
            Self { directory, asks, reads }
        }

        async fn until(&mut self, text: &str) {
            while self
                .reads
                .recv()
                .await
                .unwrap()
                .1
                .ok()
                .is_none_or(|read| read.sha256 != name(text.as_bytes()))
            {}
        }
    }

    /// Edits the file three times and waits until each version is read.
    async fn edited(mut followed: Followed, edit: impl Fn(&Path, &str)) {
        for text in ["one", "two", "three"] {
            edit(followed.directory.path(), text);
            tokio::time::timeout(Duration::from_secs(20), followed.until(text)).await.expect(text);
        }
    }

    #[tokio::test]
    async fn all_requests_are_answered_by_one_reading() {
        let mut followed =
            Followed::new(|directory| fs::write(directory.join("rules.yaml"), "zero").unwrap());
        followed.asks.send("SIGHUP").unwrap();
        followed.asks.send("HTTP").unwrap();
        let mut answered = Vec::new();
        while answered.len() < 2 {
            let (asked, read) = followed.reads.recv().await.unwrap();
            assert_eq!(read.unwrap().sha256, name(b"zero"));
            answered.extend(asked);
        }
        assert_eq!(answered, ["SIGHUP", "HTTP"]);
    }

    #[test]
    fn a_burst_of_changes_is_read_when_it_is_over_or_takes_long() {
        let stamp = |size| Ok(Stamp { inode: (1, 1), size, modified: (0, 0), changed: (0, 0) });
        let mut checks = FileChecks { read: (Instant::now(), stamp(0)), last: None, unread: 0 };
        let is_due: Vec<bool> = [0, 1, 1].map(|size| checks.is_due(stamp(size))).into();
        assert_eq!(is_due, [false, false, true]);
        checks.read(stamp(1));
        let is_due: Vec<bool> = [1, 2, 3, 4].map(|size| checks.is_due(stamp(size))).into();
        assert_eq!(is_due, [false, false, false, true]);
        checks.read(stamp(4));
        assert!(checks.is_due(Err(io::ErrorKind::TimedOut)), "a hanging path is not checked twice");
    }

    #[tokio::test]
    async fn truncated_and_written() {
        let followed = Followed::new(|directory| fs::write(directory.join("rules.yaml"), "zero").unwrap());
        edited(followed, |directory, text| fs::write(directory.join("rules.yaml"), text).unwrap()).await;
    }

    #[tokio::test]
    async fn moved_over() {
        let followed = Followed::new(|directory| fs::write(directory.join("rules.yaml"), "zero").unwrap());
        let edit = |directory: &Path, text: &str| {
            fs::write(directory.join(".next"), text).unwrap();
            fs::rename(directory.join(".next"), directory.join("rules.yaml")).unwrap();
        };
        edited(followed, edit).await;
    }

    /// Replaces the file as the kubelet does: `rules.yaml -> ..data/rules.yaml`, `..data -> ..TIME`.
    #[tokio::test]
    async fn a_config_map_swapped() {
        let swap = |directory: &Path, text: &str| {
            let version = format!("..{text}");
            fs::create_dir_all(directory.join(&version)).unwrap();
            fs::write(directory.join(&version).join("rules.yaml"), text).unwrap();
            let _ = fs::remove_file(directory.join("..data_tmp"));
            symlink(&version, directory.join("..data_tmp")).unwrap();
            fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
        };
        let followed = Followed::new(|directory| {
            swap(directory, "zero");
            symlink("..data/rules.yaml", directory.join("rules.yaml")).unwrap();
        });
        edited(followed, swap).await;
    }

    #[test]
    fn what_is_no_file_is_no_policy() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(directory.path()).is_err());
        assert!(read(&directory.path().join("none")).is_err());
    }
}
