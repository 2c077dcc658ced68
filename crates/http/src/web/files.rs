//! The files of a web config. They are compared byte by byte, because a change may leave time and size the
//! same.

use std::path::{Path, PathBuf};

use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::file;
use bailiff_lifecycle::permissions::FilePermissions;

/// Maximum size of a file.
const MOST: u64 = 1 << 20;

/// Content of a file, or the reason why it could not be read.
type Content = Result<Vec<u8>, String>;

/// Files that were read, in the order of reading.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    permissions: FilePermissions,
    read: Vec<(PathBuf, Content)>,
}

impl Files {
    /// Creates an empty list. Relative paths are resolved against the directory of this file. Files must have these
    /// permissions.
    pub(super) fn beside(file: &Path, permissions: FilePermissions) -> Self {
        let directory = file.parent().map(Path::to_owned).unwrap_or_default();
        Self { directory, permissions, read: Vec::new() }
    }

    /// Reads a file and stores its content.
    pub(super) fn read(&mut self, path: &Path) -> Content {
        let path = self.directory.join(path);
        let content = read(&path, self.permissions);
        self.read.push((path, content.clone()));
        content
    }

    /// Resolves a path.
    pub(super) fn place(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    /// Returns whether every file still has the same content.
    pub(super) fn still(&self) -> bool {
        self.read.iter().all(|(path, content)| read(path, self.permissions) == *content)
    }
}

fn read(path: &Path, permissions: FilePermissions) -> Content {
    let read = permissions.check(path).and_then(|()| file::read(path, MOST));
    read.map(|(_, bytes)| bytes).map_err(|error| plain(&error))
}
