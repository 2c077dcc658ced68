//! The quota of a command: the library that holds it, and the file in which all that it starts share it.

#![expect(clippy::disallowed_methods, reason = "makes a file, and looks who uses those of others")]

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::process::may_live;
use bailiff_ledger::Ledger;
use bailiff_lifecycle::exit::plain;
use bailiff_snapshot::ProcessKey;
use nix::unistd::geteuid;

use super::environment::Environment;
use super::flags::Run;
use crate::exit::Failure;
use crate::tree;

pub(crate) const LIBRARY: &str = "libbailiff_quota.so";
const SHARED: &str = "WRAPPER_SHARED";

/// A limit that holds while this lives.
pub(crate) struct Quota {
    library: PathBuf,
    file: PathBuf,
    limit: u64,
    /// Somebody uses the file who will outlive us.
    left: bool,
}

impl Quota {
    /// Makes the file; whatever is missing is told before anything is started.
    pub(crate) fn make(limit: u64, flags: &Run) -> Result<Self, Failure> {
        if let Some(other) = env::var_os(SHARED) {
            let other = other.display();
            return Err(Failure::usage(format!(
                "--vram: a quota holds here already ({SHARED}={other}), and another would undo it"
            )));
        }
        let library = library(flags.quota_library.as_deref())?;
        let directory = directory(flags.quota_dir.as_deref())?;
        let ours = Name::ours();
        remove_stale(&directory, &ours);
        let file = directory.join(ours.text());
        bailiff_ledger::create(&file, &[]).map_err(|why| {
            Failure::unavailable(format!("the quota's file {} cannot be made: {why}", file.display()))
        })?;
        let quota = Self { library, file, limit, left: false };
        fs::set_permissions(&quota.file, Permissions::from_mode(0o600))?;
        Ok(quota)
    }

    /// What the command is told.
    pub(crate) fn tell(&self, environment: &mut Environment) {
        // A limit of one GPU would be stronger than that of all.
        environment.leave_out("WRAPPER_MAX_MEMORY");
        environment.leave_out("WRAPPER_DISABLE");
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        environment.set([
            ("LD_PRELOAD", preload),
            (SHARED, self.file.clone().into_os_string()),
            ("WRAPPER_MAX_MEMORY", OsString::from(self.limit.to_string())),
            // Who changes the user may not open the file, and would have a limit for himself alone.
            ("WRAPPER_FAIL_CLOSED", OsString::from("1")),
        ]);
    }

    /// Who had how much; none where nobody has asked for any.
    pub(crate) fn ledger(&self) -> Option<Ledger> {
        bailiff_ledger::read(&self.file).ok()
    }

    /// Leaves the file to those who are left; it is removed when they have ended, by whoever runs the next command.
    pub(crate) fn leave(mut self) {
        self.left = true;
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if !self.left {
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// Why the library cannot be used.
#[derive(Debug)]
pub(crate) struct NoLibrary {
    /// It is there.
    pub(crate) found: bool,
    pub(crate) why: String,
}

impl From<NoLibrary> for Failure {
    fn from(no: NoLibrary) -> Self {
        Self::unavailable(no.why)
    }
}

/// Where the library is.
pub(crate) fn library(told: Option<&Path>) -> Result<PathBuf, NoLibrary> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let beside = |directory: &str| beside.as_ref().map(|beside| beside.join(directory).join(LIBRARY));
    let places: Vec<PathBuf> = match told {
        Some(told) => vec![told.to_owned()],
        None => [beside("../lib/bailiff"), beside("../lib"), beside("")]
            .into_iter()
            .flatten()
            .chain(["/usr/lib/bailiff", "/usr/lib"].map(|directory| Path::new(directory).join(LIBRARY)))
            .collect(),
    };
    let Some(found) = places.iter().find_map(|place| place.canonicalize().ok().filter(|path| path.is_file()))
    else {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let why = format!(
            "the quota library is not there: not {}; --quota-library or BAILIFF_QUOTA_LIBRARY names another place",
            places.join(", nor ")
        );
        return Err(NoLibrary { found: false, why });
    };
    // The loader takes these for the end of a name.
    if found.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        let why = format!("LD_PRELOAD cannot name {}: it has a blank or a colon", found.display());
        return Err(NoLibrary { found: true, why });
    }
    Ok(found)
}

/// A directory for the file, of ours alone: whoever may write the file can claim what he likes in it.
fn directory(told: Option<&Path>) -> Result<PathBuf, Failure> {
    let usual = Path::new("/run/bailiff/quota").join(geteuid().to_string());
    let runtime =
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|directory| directory.is_absolute());
    let runtime = runtime.map(|directory| directory.join("bailiff/quota"));
    let places: Vec<PathBuf> = match told {
        Some(told) => vec![told.to_owned()],
        None => [Some(usual.clone()), runtime].into_iter().flatten().collect(),
    };
    let mut faults = Vec::new();
    for place in places {
        match make(&place, &usual) {
            Ok(directory) => return Ok(directory),
            Err(why) => faults.push(format!("{}: {}", place.display(), plain(&why))),
        }
    }
    Err(Failure::unavailable(format!(
        "there is no place for the quota's file ({}); --quota-dir or BAILIFF_QUOTA_DIR names one",
        faults.join("; ")
    )))
}

fn make(place: &Path, usual: &Path) -> io::Result<PathBuf> {
    // The parent of the usual place is for all users, and root's to make.
    if let Some(above) = place.parent().filter(|_| place != usual) {
        DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    match DirBuilder::new().mode(0o700).create(place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let about = fs::symlink_metadata(place)?;
    if !about.is_dir() || about.uid() != geteuid().as_raw() || about.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a directory that is ours alone to write"));
    }
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
    place.canonicalize()
}

/// What a file is called: by the process that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    namespace: String,
    pid: u32,
    start: u64,
}

impl Name {
    fn ours() -> Self {
        let pid = std::process::id();
        Self { namespace: LocalHost::read().pidns, pid, start: tree::start(pid).unwrap_or_default() }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('-');
        let namespace = words.next()?.to_owned();
        let numbers = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (pid, start) = numbers;
        words.next().is_none().then_some(Self { namespace, pid, start })
    }

    fn text(&self) -> String {
        format!("{}-{}-{}", self.namespace, self.pid, self.start)
    }

    /// Of another namespace nobody can tell.
    fn is_of_the_dead(&self, local_host: &Self) -> bool {
        let maker = ProcessKey { pid: self.pid, start_ticks: self.start };
        self.namespace == local_host.namespace && !may_live(maker)
    }
}

/// Removes files of those that were killed, unless somebody is left whom they have started.
fn remove_stale(directory: &Path, ours: &Name) {
    let files = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let named = files.filter_map(|file| Some((Name::parse(file.file_name().to_str()?)?, file.path())));
    for (name, file) in named.filter(|(name, _)| name.is_of_the_dead(ours)) {
        if !tree::may_use(&file, SHARED, (LIBRARY, name.start)) {
            let _ = fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_who_made_it() {
        let ours = Name::ours();
        assert_eq!(Name::parse(&ours.text()), Some(ours.clone()));
        assert!(!ours.is_of_the_dead(&ours));
        for (other, dead) in [
            (Name { start: ours.start + 1, ..ours.clone() }, true),
            (Name { pid: 4_194_305, ..ours.clone() }, true),
            (Name { namespace: "1".to_owned(), pid: 4_194_305, ..ours.clone() }, false),
        ] {
            assert_eq!(other.is_of_the_dead(&ours), dead, "{other:?}");
        }
        for text in ["", "quota", "1-2", "1-2-x", "1-2-3-4", "1--3"] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }
}
