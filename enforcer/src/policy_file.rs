//! The policy's file and its changes. The folder is watched, not the file: editors, `mv` and `ConfigMap`s put another
//! file in its place. A look every minute is the net below.

#![expect(clippy::disallowed_methods, reason = "the one file that reads the policy")]

use std::fmt::Write;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// More is no policy; the reader says so.
const MOST: u64 = (1 << 20) + 1;
/// Changes come in bursts: a file is read when they have paused.
const CALM: Duration = Duration::from_millis(200);
/// However long a burst goes on, the file is read after this.
const LATEST: Duration = Duration::from_secs(1);
/// Without any word the file is looked at this often.
const LOOK: Duration = Duration::from_mins(1);

/// The file's bytes, and their name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// What it says.
    pub bytes: Vec<u8>,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// Reads the file, bounded.
///
/// # Errors
/// Where it cannot be read.
pub fn read(path: &Path) -> io::Result<Content> {
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    let sha256 = name(&bytes);
    Ok(Content { bytes, sha256 })
}

/// The name of a policy: SHA-256 of its file, hexadecimal.
#[must_use]
pub fn name(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Tells whenever the file may have changed, until nobody wants to know any more.
pub async fn watch(path: PathBuf, to: mpsc::Sender<()>) {
    let (stirred, mut stirs) = mpsc::channel(1);
    loop {
        // Made anew each time: a folder that was deleted and made again is another one.
        let watching = Watching::begin(&path, stirred.clone());
        let next_look = Instant::now() + LOOK;
        loop {
            tokio::select! {
                Some(()) = stirs.recv() => calm(&mut stirs).await,
                () = sleep_until(next_look) => break,
            }
            if to.send(()).await.is_err() {
                return;
            }
            if !watching.still(&path) {
                break;
            }
        }
        if to.send(()).await.is_err() {
            return;
        }
    }
}

/// Waits until changes have paused.
async fn calm(stirs: &mut mpsc::Receiver<()>) {
    let latest = Instant::now() + LATEST;
    loop {
        let until = (Instant::now() + CALM).min(latest);
        tokio::select! {
            Some(()) = stirs.recv() => {}
            () = sleep_until(until) => return,
        }
        if Instant::now() >= latest {
            return;
        }
    }
}

/// The folders that are watched: the file's, and where it is a link, that of the file behind it.
struct Watching {
    folders: Vec<PathBuf>,
    _watcher: Option<RecommendedWatcher>,
}

impl Watching {
    fn begin(path: &Path, stirred: mpsc::Sender<()>) -> Self {
        let folders = folders(path);
        let watcher = watcher(stirred).and_then(|mut watcher| {
            for folder in &folders {
                watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "changes of the policy are seen once a minute only");
        }
        Self { folders, _watcher: watcher.ok() }
    }

    /// The file is still in these folders.
    fn still(&self, path: &Path) -> bool {
        folders(path) == self.folders
    }
}

fn watcher(stirred: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading is an event as well.
        if !matches!(event.map(|event| event.kind), Ok(EventKind::Access(_))) {
            // One that is waiting already says the same.
            let _ = stirred.try_send(());
        }
    })
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let of = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut folders = vec![of(path)];
    folders.extend(path.canonicalize().ok().map(|real| of(&real)));
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Watched {
        folder: tempfile::TempDir,
        words: mpsc::Receiver<()>,
    }

    impl Watched {
        fn new(set: impl FnOnce(&Path)) -> Self {
            let folder = tempfile::tempdir().unwrap();
            set(folder.path());
            let (to, words) = mpsc::channel(1);
            tokio::spawn(watch(folder.path().join("rules.yaml"), to));
            Self { folder, words }
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("rules.yaml")
        }

        async fn until(&mut self, text: &str) {
            while read(&self.path()).map(|content| content.bytes).unwrap_or_default() != text.as_bytes() {
                self.words.recv().await.unwrap();
            }
            // The word of this very change, not of an earlier one.
            self.words.recv().await.unwrap();
        }
    }

    /// Changes a file in three ways, and each is told of.
    async fn edited(mut watched: Watched, edit: impl Fn(&Path, &str)) {
        tokio::task::yield_now().await;
        for text in ["one", "two", "three"] {
            edit(watched.folder.path(), text);
            tokio::time::timeout(Duration::from_secs(20), watched.until(text)).await.expect(text);
        }
    }

    #[tokio::test]
    async fn truncated_and_written() {
        let watched = Watched::new(|folder| fs::write(folder.join("rules.yaml"), "zero").unwrap());
        edited(watched, |folder, text| fs::write(folder.join("rules.yaml"), text).unwrap()).await;
    }

    #[tokio::test]
    async fn moved_over() {
        let watched = Watched::new(|folder| fs::write(folder.join("rules.yaml"), "zero").unwrap());
        let edit = |folder: &Path, text: &str| {
            fs::write(folder.join(".next"), text).unwrap();
            fs::rename(folder.join(".next"), folder.join("rules.yaml")).unwrap();
        };
        edited(watched, edit).await;
    }

    /// As the kubelet does it: `rules.yaml -> ..data/rules.yaml`, `..data -> ..TIME`.
    #[tokio::test]
    async fn a_config_map_swapped() {
        let swap = |folder: &Path, text: &str| {
            let version = format!("..{text}");
            fs::create_dir_all(folder.join(&version)).unwrap();
            fs::write(folder.join(&version).join("rules.yaml"), text).unwrap();
            let _ = fs::remove_file(folder.join("..data_tmp"));
            symlink(&version, folder.join("..data_tmp")).unwrap();
            fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        };
        let watched = Watched::new(|folder| {
            swap(folder, "zero");
            symlink("..data/rules.yaml", folder.join("rules.yaml")).unwrap();
        });
        edited(watched, swap).await;
    }

    #[test]
    fn what_is_no_file_is_no_policy() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).is_err());
        assert!(read(&folder.path().join("none")).is_err());
    }
}
