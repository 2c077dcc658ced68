//! Cgroup directories: opened without following links, read and frozen. Workloads are identified by inode.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_proc::readable;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, fstatfs, openat};
use rustix::io::Errno;

use super::permit::Permit;
use crate::clock::Deadline;
use bailiff_engine::verdict::Subject;

/// File system type of cgroup v2 (`CGROUP2_SUPER_MAGIC`, `include/uapi/linux/magic.h`).
pub(super) const CGROUP2: u64 = 0x6367_7270;
/// File system type of cgroup v1 (`CGROUP_SUPER_MAGIC`, same header).
const CGROUP1: u64 = 0x0027_e0eb;
/// Mount points below the cgroup root: cgroup v2 (first two), and v1 hierarchies that show the workload.
const HIERARCHIES: [&str; 7] = ["", "unified", "systemd", "memory", "pids", "freezer", "devices"];
/// Maximum depth of nested cgroups.
const DEEPEST: u32 = 16;
/// Time limit for reading which processes are in a cgroup and below it.
const READING: Duration = Duration::from_millis(500);
/// Time limit for freezing; a process in state D does not freeze.
const FREEZE: Duration = Duration::from_secs(1);

/// Returns the cgroup of the subject if it is a whole container or unit and contains the cgroup `unified`.
pub(super) fn path<'a>(subject: &'a Subject, unified: &str) -> Option<&'a str> {
    let (kind, path) = boundary(subject)?;
    let below = unified.strip_prefix(path)?;
    let last = path.rsplit('/').next().filter(|last| !last.is_empty())?;
    let slice = last.rsplit_once('.').is_some_and(|(_, suffix)| suffix == "slice");
    let whole = matches!(kind, "container" | "unit") && !slice;
    (whole && (below.is_empty() || below.starts_with('/'))).then_some(path)
}

/// Returns the kind and path of a workload's cgroup: a container, a job, a pod or a unit.
fn boundary(subject: &Subject) -> Option<(&str, &str)> {
    let (kind, path) = subject.id.0.strip_prefix("workload:")?.split_once(':')?;
    // A path with `..` comes from a nested cgroup namespace, and would lead out of the mounted hierarchy.
    let plain = path.starts_with('/') && path.split('/').all(|part| part != "..");
    plain.then_some((kind, path))
}

/// Open directories of a workload's cgroup, one in each hierarchy that has it. A cgroup that was removed and
/// created again has the same path but another inode. If no cgroups are mounted, only paths are compared.
#[derive(Debug, Default)]
pub(super) struct Boundary {
    path: String,
    held: Vec<(PathBuf, OwnedFd)>,
}

impl Boundary {
    pub(super) fn open(root: Option<&Path>, subject: &Subject) -> Self {
        let Some((root, (_, path))) = root.zip(boundary(subject)) else { return Self::default() };
        let roots = HIERARCHIES.iter().map(|hierarchy| root.join(hierarchy));
        let held = roots.filter_map(|root| Some((open(&root, path, &[CGROUP2, CGROUP1]).ok()?, root)));
        Self { path: path.to_owned(), held: held.map(|(held, root)| (root, held)).collect() }
    }

    /// Returns whether each path still leads to the open directory.
    pub(super) fn stands(&self) -> bool {
        self.held.iter().all(|(root, held)| {
            let now = open(root, &self.path, &[CGROUP2, CGROUP1]);
            now.and_then(|now| Ok(inode(&now)? == inode(held)?)).unwrap_or(false)
        })
    }
}

fn inode(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    fstat(directory).map(|stat| (stat.st_dev, stat.st_ino))
}

pub(super) fn open(root: &Path, path: &str, systems: &[u64]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut directory = openat(CWD, root, flags, Mode::empty())?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        directory = openat(&directory, part, flags, Mode::empty())?;
    }
    let system = fstatfs(&directory)?;
    if u64::try_from(system.f_type).is_ok_and(|magic| systems.contains(&magic)) {
        Ok(directory)
    } else {
        Err(Errno::NOTSUP)
    }
}

/// A cgroup that stays frozen until this is dropped.
pub(super) struct Frozen<'a>(&'a OwnedFd);

impl<'a> Frozen<'a> {
    pub(super) fn new(directory: &'a OwnedFd, _: &Permit) -> Result<Self, Errno> {
        write(directory, "cgroup.freeze", b"1")?;
        let frozen = Self(directory);
        let deadline = Deadline::after(FREEZE);
        while !is_frozen(directory)? && !deadline.passed() {
            // Freezing does not make any file of the cgroup readable, so its state is read repeatedly.
            readable(&[], Some(deadline.or(Deadline::after(Duration::from_millis(5)))))?;
        }
        Ok(frozen)
    }
}

/// Thaws the cgroup, so that processes that were not killed continue.
impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = write(self.0, "cgroup.freeze", b"0")
            && error != Errno::NOENT
            && error != Errno::NODEV
        {
            tracing::error!(%error, "cannot thaw a cgroup that the enforcer froze");
        }
    }
}

fn is_frozen(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(read(directory, "cgroup.events")?.lines().any(|line| line == "frozen 1"))
}

/// Returns the pid of a process in a cgroup or below it that is not one of these, if there is one. A pid in another PID namespace
/// reads as 0, which is none of these.
///
/// # Errors
/// If a cgroup cannot be read, or not all in time: users can have very many.
pub(super) fn other_process(directory: &OwnedFd, ours: &BTreeSet<u32>) -> Result<Option<u32>, Errno> {
    other_below(directory, ours, (0, Deadline::after(READING)))
}

fn other_below(
    directory: &OwnedFd,
    ours: &BTreeSet<u32>,
    (depth, until): (u32, Deadline),
) -> Result<Option<u32>, Errno> {
    if depth > DEEPEST {
        return Err(Errno::LOOP);
    }
    if until.passed() {
        return Err(Errno::TIMEDOUT);
    }
    for line in read(directory, "cgroup.procs")?.lines() {
        let pid = line.trim().parse().map_err(|_| Errno::INVAL)?;
        if !ours.contains(&pid) {
            return Ok(Some(pid));
        }
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && !matches!(name.to_bytes(), b"." | b"..") {
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let below = openat(directory, name, flags, Mode::empty())?;
            if let Some(other) = other_below(&below, ours, (depth + 1, until))? {
                return Ok(Some(other));
            }
        }
    }
    Ok(None)
}

pub(super) fn put(directory: &OwnedFd, name: &str, _: &Permit) -> Result<(), Errno> {
    write(directory, name, b"1")
}

fn write(directory: &OwnedFd, name: &str, text: &[u8]) -> Result<(), Errno> {
    let file = openat(directory, name, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    rustix::io::write(&file, text).map(drop)
}

pub(super) fn read(directory: &OwnedFd, name: &str) -> Result<String, Errno> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut piece))?;
        if read == 0 {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        text.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_engine::Kind;
    use bailiff_engine::view::TargetId;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "creates directories that look like cgroups")]
    fn other_processes_of_nested_cgroups_are_found_in_time_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let create = |path: &Path, pids: &str| {
            std::fs::create_dir_all(path).unwrap();
            std::fs::write(path.join("cgroup.procs"), pids).unwrap();
        };
        create(root.path(), "7\n8\n");
        create(&root.path().join("a"), "");
        create(&root.path().join("a/b"), "9\n");
        let directory = openat(CWD, root.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let other = |ours: &[u32]| other_process(&directory, &ours.iter().copied().collect());
        assert_eq!([other(&[7, 8, 9]), other(&[7, 8]), other(&[8, 9])], [Ok(None), Ok(Some(9)), Ok(Some(7))]);
        let late = other_below(&directory, &BTreeSet::new(), (0, Deadline::after(Duration::ZERO)));
        assert_eq!(late, Err(Errno::TIMEDOUT));
        let deepest = root.path().join("a/b").join(vec!["c"; 15].join("/"));
        for path in deepest.ancestors().take(15) {
            create(path, "");
        }
        assert_eq!(other(&[7, 8, 9]), Err(Errno::LOOP));
    }

    #[test]
    fn only_the_whole_of_a_container_or_unit_has_a_path() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let docker = format!("/docker/{id}");
        let container = format!("workload:container:{docker}");
        let unit = "workload:unit:/system.slice/nb.service";
        let cases = [
            (container.as_str(), docker.clone(), Some(docker.as_str())),
            (&container, format!("{docker}/child/of/it"), Some(&docker)),
            (&container, format!("{docker}0/child"), None),
            (&container, format!("/system.slice/docker-{id}.scope"), None),
            (&container, "/".to_owned(), None),
            ("workload:container:/../docker/1", "/../docker/1".to_owned(), None),
            (unit, "/system.slice/nb.service/x".into(), Some("/system.slice/nb.service")),
            (unit, "/system.slice/nb.service2".into(), None),
            ("workload:unit:/system.slice", "/system.slice/nb.service".into(), None),
            ("workload:unit:/a/../nb.service", "/a/../nb.service".into(), None),
            ("workload:unit:", "/x".into(), None),
            ("workload:slurm:/slurmstepd.scope/job_77", "/slurmstepd.scope/job_77".into(), None),
            ("workload:tree:1@2", "/user.slice/user-1.slice/session-1.scope".into(), None),
            ("process:1@2", "/".into(), None),
        ];
        for (name, unified, expected) in cases {
            let subject = Subject {
                id: TargetId(name.into()),
                kind: Kind::Workload,
                uid: None,
                user: None,
                gpus: Vec::new(),
                job: None,
                pod: None,
                members: Vec::new(),
            };
            assert_eq!(path(&subject, &unified), expected, "{name} in {unified}");
        }
    }
}
