//! The memory quota of a command: the preloaded library, and the file that its processes share.

#![expect(clippy::disallowed_methods, reason = "creates a file")]

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bailiff_lease::holder::LocalHost;
use bailiff_ledger::Ledger;
use bailiff_lifecycle::exit::plain;
use bailiff_proc::{is_in_foreign_mount, may_live, open_below, start};
use bailiff_snapshot::ProcessKey;
use nix::unistd::geteuid;
use rustix::fs::{FileType, OFlags, Stat, fstat};

use super::environment::Environment;
use super::flags::Run;
use crate::exit::Failure;
use crate::output::joined;
use crate::process_tree;

pub(crate) const LIBRARY: &str = "libbailiff_quota.so";
const SHARED: &str = "WRAPPER_SHARED";

/// Maximum number of directories among which the own one is looked for, because any user can create directories.
const MOST_DIRECTORIES: usize = 4096;

/// A quota; dropping it removes its file.
pub(crate) struct Quota {
    library: PathBuf,
    file: PathBuf,
    limit: u64,
    /// Whether to keep the file, because processes that use it are still running.
    keep: bool,
}

impl Quota {
    /// Creates the file. Fails before anything is started if the library or a directory is missing.
    pub(crate) fn create(limit: u64, flags: &Run) -> Result<Self, Failure> {
        if let Some(other) = env::var_os(SHARED) {
            let other = other.display();
            return Err(Failure::usage(format!(
                "--vram: this process already runs under a quota ({SHARED}={other}); quotas cannot be nested"
            )));
        }
        let library = library(flags.quota_library.as_deref())?;
        let directory = directory(flags.quota_dir.as_deref())?;
        let own = FileName::own();
        remove_stale(&directory, &own);
        let file = directory.join(own.text());
        bailiff_ledger::create(&file, &[]).map_err(|why| {
            Failure::unavailable(format!("cannot create the quota file {}: {why}", file.display()))
        })?;
        let quota = Self { library, file, limit, keep: false };
        fs::set_permissions(&quota.file, Permissions::from_mode(0o600))?;
        Ok(quota)
    }

    /// Adds the variables of the quota library to the command's environment.
    pub(crate) fn add_to(&self, environment: &mut Environment) {
        // A per-GPU limit (`WRAPPER_MAX_MEMORY_0`) would take precedence over the limit for all GPUs.
        environment.remove_prefix("WRAPPER_MAX_MEMORY");
        environment.remove_prefix("WRAPPER_DISABLE");
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        environment.set([
            ("LD_PRELOAD", preload),
            (SHARED, self.file.clone().into_os_string()),
            ("WRAPPER_MAX_MEMORY", OsString::from(self.limit.to_string())),
            // A process that changes its user may fail to open the file; without this it would get a private
            // limit.
            ("WRAPPER_FAIL_CLOSED", OsString::from("1")),
        ]);
    }

    /// Returns the recorded usage; `None` if the file cannot be read.
    pub(crate) fn ledger(&self) -> Option<Ledger> {
        bailiff_ledger::read(&self.file).ok()
    }

    /// Keeps the file for the remaining processes; the next `bailiff run` removes it after they have exited.
    pub(crate) fn keep_file(mut self) {
        self.keep = true;
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// Why the library cannot be used.
#[derive(Debug)]
pub(crate) struct LibraryError {
    /// Whether the file exists.
    pub(crate) found: bool,
    pub(crate) why: String,
}

impl From<LibraryError> for Failure {
    fn from(error: LibraryError) -> Self {
        Self::unavailable(error.why)
    }
}

/// Returns whether a file and its directory belong to root or the current user, and not all users can change them. A copy of
/// this program can be in a directory such as `/tmp`, where others can put a library, or mount a file system that reports any
/// owner.
fn belongs_to_us(file: &Path) -> bool {
    let is_safe = |path: &Path| {
        path.metadata().is_ok_and(|about| {
            let is_owned = about.uid() == 0 || about.uid() == geteuid().as_raw();
            is_owned && about.mode() & 0o002 == 0
        })
    };
    !is_in_foreign_mount(file) && is_safe(file) && file.parent().is_some_and(is_safe)
}

/// Returns the path of the quota library.
pub(crate) fn library(configured: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let own_directory = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let beside = |directory: &str| own_directory.as_ref().map(|own| own.join(directory).join(LIBRARY));
    let candidates: Vec<PathBuf> = match configured {
        Some(configured) => vec![configured.to_owned()],
        None => [beside("../lib/bailiff"), beside("../lib"), beside("")]
            .into_iter()
            .flatten()
            .chain(["/usr/lib/bailiff", "/usr/lib"].map(|directory| Path::new(directory).join(LIBRARY)))
            .collect(),
    };
    let usable = |path: &PathBuf| {
        // Such a file system may not respond.
        if configured.is_none() && is_in_foreign_mount(path) {
            return None;
        }
        let path = path.canonicalize().ok().filter(|path| path.is_file())?;
        (configured.is_some() || belongs_to_us(&path)).then_some(path)
    };
    let Some(found) = candidates.iter().find_map(usable) else {
        let paths = joined(candidates.iter().map(|path| path.display()), ", ");
        let why = format!(
            "quota library not found (searched {paths}); set --quota-library or BAILIFF_QUOTA_LIBRARY"
        );
        return Err(LibraryError { found: false, why });
    };
    // These characters separate entries of LD_PRELOAD.
    if found.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        let why = format!(
            "LD_PRELOAD does not support the path {}: it contains whitespace or a colon",
            found.display()
        );
        return Err(LibraryError { found: true, why });
    }
    Ok(found)
}

/// Returns a directory that only this user can write to, because any process that can write to the file can
/// change the usage recorded in it.
fn directory(configured: Option<&Path>) -> Result<PathBuf, Failure> {
    let default = Path::new("/run/bailiff/quota").join(geteuid().to_string());
    let runtime =
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|directory| directory.is_absolute());
    let runtime = runtime.map(|directory| directory.join("bailiff/quota"));
    let candidates: Vec<PathBuf> = match configured {
        Some(configured) => vec![configured.to_owned()],
        None => [Some(default.clone()), runtime].into_iter().flatten().collect(),
    };
    let mut errors = Vec::new();
    for candidate in candidates {
        let created = match create_directory(&candidate, &default) {
            // Whatever is there is not a usable directory of this user.
            Err(_) if candidate == default && exists(&default) => unpredictable_directory(&default),
            created => created,
        };
        match created {
            Ok(directory) => return Ok(directory),
            Err(error) => errors.push(format!("{}: {}", candidate.display(), plain(&error))),
        }
    }
    Err(Failure::unavailable(format!(
        "no usable directory for the quota file ({}); set --quota-dir or BAILIFF_QUOTA_DIR",
        errors.join("; ")
    )))
}

fn create_directory(path: &Path, default: &Path) -> io::Result<PathBuf> {
    // The parent of the default directory is shared by all users and created by root.
    if let Some(parent) = path.parent().filter(|_| path != default) {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let is_own = |uid: u32, mode: u32| uid == geteuid().as_raw() && mode & 0o022 == 0;
    let is_usable = if path.parent() == default.parent() {
        let found = shared_entry(path)?;
        FileType::from_raw_mode(found.st_mode) == FileType::Directory && is_own(found.st_uid, found.st_mode)
    } else {
        let metadata = fs::symlink_metadata(path)?;
        metadata.is_dir() && is_own(metadata.uid(), metadata.mode())
    };
    if !is_usable {
        return Err(io::Error::other("not a directory that only this user can write to"));
    }
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
    path.canonicalize()
}

/// Returns the attributes of an entry in the directory that all users share. Any user can create such an entry, also a link
/// to a file of root, or mount a file system over it, which may report any owner.
fn shared_entry(path: &Path) -> io::Result<Stat> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(fstat(open_below(fs::File::open(parent)?, name, OFlags::PATH)?)?)
}

fn exists(path: &Path) -> bool {
    shared_entry(path).map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
}

/// Returns a directory beside the default one, with a name that other users cannot predict: each user can create
/// directories there, also the one with this user's uid as its name. The directory is used again by later runs.
fn unpredictable_directory(default: &Path) -> io::Result<PathBuf> {
    let parent = default.parent().unwrap_or(default);
    let prefix = format!("{}-", geteuid());
    for entry in fs::read_dir(parent)?.take(MOST_DIRECTORIES).filter_map(Result::ok) {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(&prefix)
            && let Ok(directory) = create_directory(&path, default)
        {
            return Ok(directory);
        }
    }
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let path = parent.join(format!("{prefix}{:016x}", u64::from_ne_bytes(random)));
    create_directory(&path, default)
}

/// The name of a quota file: it identifies the process that created it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileName {
    namespace: String,
    pid: u32,
    start: u64,
}

impl FileName {
    fn own() -> Self {
        let pid = std::process::id();
        Self { namespace: LocalHost::read().pidns, pid, start: start(pid).ok().flatten().unwrap_or_default() }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let namespace = parts.next()?.to_owned();
        let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let (pid, start) = numbers;
        parts.next().is_none().then_some(Self { namespace, pid, start })
    }

    fn text(&self) -> String {
        format!("{}-{}-{}", self.namespace, self.pid, self.start)
    }

    /// Returns whether the creator has exited. A process in another PID namespace cannot be checked and
    /// counts as running.
    fn is_stale(&self, own: &Self) -> bool {
        let creator = ProcessKey { pid: self.pid, start_ticks: self.start };
        self.namespace == own.namespace && !may_live(creator)
    }
}

/// Removes quota files whose creators have exited, unless a process may still use the file.
fn remove_stale(directory: &Path, own: &FileName) {
    let files = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let named = files.filter_map(|file| Some((FileName::parse(file.file_name().to_str()?)?, file.path())));
    for (name, file) in named.filter(|(name, _)| name.is_stale(own)) {
        if !process_tree::may_use(&file, SHARED, (LIBRARY, name.start)) {
            let _ = fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_that_others_can_change_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(LIBRARY);
        fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (of_directory, of_file, is_usable) in
            [(0o755, 0o644, true), (0o1777, 0o644, false), (0o755, 0o646, false)]
        {
            mode(directory.path(), of_directory);
            mode(&file, of_file);
            assert_eq!(belongs_to_us(&file), is_usable, "{of_directory:o} {of_file:o}");
        }
    }

    #[test]
    fn quota_file_name_identifies_its_creator() {
        let own = FileName::own();
        assert_eq!(FileName::parse(&own.text()), Some(own.clone()));
        assert!(!own.is_stale(&own));
        for (other, stale) in [
            (FileName { start: own.start + 1, ..own.clone() }, true),
            (FileName { pid: 4_194_305, ..own.clone() }, true),
            (FileName { namespace: "1".to_owned(), pid: 4_194_305, ..own.clone() }, false),
        ] {
            assert_eq!(other.is_stale(&own), stale, "{other:?}");
        }
        for text in ["", "quota", "1-2", "1-2-x", "1-2-3-4", "1--3"] {
            assert_eq!(FileName::parse(text), None, "{text}");
        }
    }
}
