//! Reads the shared quota files below one directory, without mmap, and matches them with processes. Users may
//! write anything into their files, so a process is named only if it has the file mapped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use bailiff_ledger::{Ledger, LedgerError as Ill, UNLIMITED, Uuid};
use bailiff_proc::{Proc, Process, ReadError, namespace_inode, open_below};
use bailiff_snapshot::{
    BootId, Fault, Gap, Gaps, InvalidQuota, PidNamespace, ProcessKey, Quota, QuotaGpu, QuotaProcess, Seen,
    Truth,
};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, major, minor, openat};
use rustix::io::Errno;

/// Maximum number of reported files, in total and per user except root; users can create any number.
const MOST: usize = 1024;
const MOST_OF_ONE: usize = 64;
/// Maximum number of names read from the shared directory, or from one of root. From a directory of another user, and of
/// the user's directories, [`MOST_OF_ONE`] are read.
const MOST_NAMES: usize = 8192;
/// Maximum number of figures in all reported files. A process has one for each GPU, and each process and each GPU at most
/// [`OTHER_FIGURES`] more.
const MOST_FIGURES: usize = 1 << 18;
const OTHER_FIGURES: usize = 10;

/// Device and inode of a file, as in `/proc/PID/maps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileId {
    device: (u32, u32),
    inode: u64,
}

/// Identity of a process in its own PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inside {
    namespace: u64,
    pid: u32,
}

/// Reader of the quota files.
pub(crate) struct Quotas {
    directory: PathBuf,
    inside: HashMap<ProcessKey, Inside>,
}

/// What `/proc` showed in this sample.
pub(crate) struct Node<'a> {
    pub(crate) proc: &'a Proc,
    pub(crate) seen: &'a BTreeMap<u32, Seen>,
    pub(crate) boot: Option<&'a BootId>,
    /// Deadline of the reads.
    pub(crate) until: Instant,
}

impl Node<'_> {
    #[expect(clippy::disallowed_methods, reason = "compared with the moment that looking has to end")]
    fn late(&self) -> bool {
        Instant::now() >= self.until
    }
}

impl Quotas {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, inside: HashMap::new() }
    }

    /// Reads all quota files; `None` if the directory does not exist.
    pub(crate) fn read(&mut self, node: &Node<'_>, gaps: &mut Gaps) -> Result<Option<Vec<Quota>>, Fault> {
        let (found, mut whole) = match places(&self.directory, node, gaps) {
            Ok(found) => found,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::ACCESS | Errno::PERM) => return Err(Fault::NotPermitted),
            Err(_) => return Err(Fault::Error),
        };
        let keys = node.seen.values().filter_map(Seen::found).map(|facts| facts.key);
        let mut by_start: HashMap<u64, Vec<ProcessKey>> = HashMap::new();
        for key in keys {
            by_start.entry(key.start_ticks).or_default().push(key);
        }
        self.inside.retain(|key, _| by_start.get(&key.start_ticks).is_some_and(|keys| keys.contains(key)));
        let mut ties =
            Ties { quotas: self, node, own: own(node.proc), by_start: &by_start, mapped: HashMap::new() };
        let (mut ids, mut quotas, mut figures) = (BTreeSet::new(), Vec::new(), 0);
        for place in found {
            if node.late() {
                break;
            }
            // A file with several links is reported once.
            if let Some((id, quota)) = ties.quota(&place)
                && id.is_none_or(|id| ids.insert(id))
            {
                let (processes, gpus) = (quota.processes.len(), quota.gpus.len());
                let more = figures + processes * (gpus + OTHER_FIGURES) + gpus * OTHER_FIGURES;
                if more > MOST_FIGURES {
                    whole = false;
                    continue;
                }
                figures = more;
                quotas.push(quota);
            }
        }
        whole &= !node.late();
        if !whole {
            gaps.count(Gap::Quotas);
        }
        quotas.sort_unstable_by(|one: &Quota, other| one.name.cmp(&other.name));
        Ok(Some(quotas))
    }
}

/// Returns the PID namespace that `/proc` shows. It is not our own if the `/proc` of another namespace is mounted.
fn own(proc: &Proc) -> Option<u64> {
    let first = proc.link("1/ns/pid").ok();
    let initial = || proc.own_pid_namespace().ok().filter(|link| link == PidNamespace::INITIAL);
    namespace_inode(&first.or_else(initial)?)
}

/// Matches quota files with processes in one interval.
struct Ties<'a, 'b> {
    quotas: &'a mut Quotas,
    node: &'a Node<'b>,
    /// Inode of the PID namespace that this `/proc` shows.
    own: Option<u64>,
    by_start: &'a HashMap<u64, Vec<ProcessKey>>,
    /// Files that a process maps with `MAP_SHARED`. Read in every interval, because mappings change.
    mapped: HashMap<ProcessKey, BTreeSet<FileId>>,
}

impl Ties<'_, '_> {
    /// Reads a file; `None` if it is empty, because the first process to use it will initialize it.
    fn quota(&mut self, place: &Place) -> Option<(Option<FileId>, Quota)> {
        let invalid =
            |why| Some((None, Quota { name: place.path.clone(), invalid: Some(why), ..Quota::default() }));
        if place.kind != FileType::RegularFile {
            return invalid(InvalidQuota::NoFile);
        }
        // Do not resolve the path again or follow links, because the owner may replace them meanwhile.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match open_below(&place.directory, &place.name, flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return None,
            Err(Errno::LOOP | Errno::NXIO | Errno::XDEV) => return invalid(InvalidQuota::NoFile),
            Err(_) => return invalid(InvalidQuota::Unreadable),
        };
        let id =
            fstat(&file).ok().filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let Some(id) =
            id.map(|stat| FileId { device: (major(stat.st_dev), minor(stat.st_dev)), inode: stat.st_ino })
        else {
            return invalid(InvalidQuota::NoFile);
        };
        match bailiff_ledger::read_open(&file) {
            Ok(ledger) => Some((Some(id), self.parse(place.path.clone(), ledger, id))),
            Err(Ill::Short(0)) => None,
            Err(ill) => invalid(reason(&ill)),
        }
    }

    fn parse(&mut self, name: String, mut ledger: Ledger, id: FileId) -> Quota {
        let now = self.node.boot.and_then(boot);
        if ledger.boot != Uuid::default() && now.is_some_and(|now| now != ledger.boot) {
            // The content is from an earlier boot, and the next process to use the file resets it.
            ledger.forget();
        }
        // Report each GPU and each process once, because users may write anything into the file.
        let mut uuids = BTreeSet::new();
        let rows: Vec<&bailiff_ledger::LedgerGpu> =
            ledger.gpus.iter().filter(|gpu| uuids.insert(gpu.uuid)).collect();
        let mut named = BTreeSet::new();
        let places = ledger.processes.iter().enumerate().map(|(place, process)| {
            let (alive, found) = self.holder_of(process);
            let found = found.filter(|key| self.maps(*key, id));
            QuotaProcess {
                process: found.filter(|key| named.insert(*key)),
                alive,
                claim: (process.pid, process.start_ticks, process.namespace),
                used: rows.iter().map(|gpu| gpu.by_process.get(place).copied().unwrap_or_default()).collect(),
                denied: process.denied,
                denied_since: None,
            }
        });
        let processes = places.collect();
        let Ledger { faults, uncounted, hooks_missing, .. } = ledger;
        let gpus = rows.into_iter().map(row).collect();
        Quota { name, invalid: None, gpus, processes, faults, uncounted, hooks_missing }
    }

    /// Returns whether a slot's process runs, and its identity if it does.
    fn holder_of(&mut self, claim: &bailiff_ledger::Process) -> (Truth, Option<ProcessKey>) {
        if self.own == Some(claim.namespace) {
            let key = ProcessKey { pid: claim.pid, start_ticks: claim.start_ticks };
            let alive = self.lives(key);
            return (alive, Some(key).filter(|_| alive == Truth::True));
        }
        let wanted = Inside { namespace: claim.namespace, pid: claim.pid };
        let same_start = self.by_start.get(&claim.start_ticks).into_iter().flatten();
        for key in same_start {
            let inside =
                self.quotas.inside.get(key).copied().or_else(|| read_inside(self.node.proc, key.pid));
            self.quotas.inside.extend(inside.map(|inside| (*key, inside)));
            if inside == Some(wanted) {
                return (Truth::True, Some(*key));
            }
        }
        // Only holders were searched, so a process without GPU memory may still run in that namespace.
        (Truth::Unknown, None)
    }

    fn lives(&self, key: ProcessKey) -> Truth {
        let holds = self.by_start.get(&key.start_ticks).is_some_and(|keys| keys.contains(&key));
        if holds || self.node.late() {
            return if holds { Truth::True } else { Truth::Unknown };
        }
        match self.node.proc.stat(key.pid) {
            Ok(stat) => (stat.key == key).into(),
            Err(error) if self.node.proc.proves_exit(error) => Truth::False,
            Err(_) => Truth::Unknown,
        }
    }

    /// Returns whether a holder has the file mapped, as every process that uses it does.
    fn maps(&mut self, key: ProcessKey, file: FileId) -> bool {
        let holds = self.by_start.get(&key.start_ticks).is_some_and(|keys| keys.contains(&key));
        if !holds || (!self.mapped.contains_key(&key) && self.node.late()) {
            return false;
        }
        let proc = self.node.proc;
        let mapped = self.mapped.entry(key).or_insert_with(|| mapped(proc, key).unwrap_or_default());
        mapped.contains(&file)
    }
}

fn row(gpu: &bailiff_ledger::LedgerGpu) -> QuotaGpu {
    QuotaGpu {
        uuid: bailiff_ledger::format_uuid(gpu.uuid),
        limit: Some(gpu.limit).filter(|limit| *limit != UNLIMITED),
        used: gpu.used,
        peak: gpu.peak,
        denied: gpu.denied,
        denied_bytes: gpu.denied_bytes,
        held: None,
        held_around: None,
    }
}

fn reason(ill: &Ill) -> InvalidQuota {
    match ill {
        Ill::NoFile => InvalidQuota::NoFile,
        Ill::Short(_) => InvalidQuota::Short,
        Ill::NoQuota | Ill::Full => InvalidQuota::NoQuota,
        Ill::Version(_) => InvalidQuota::Version,
        Ill::Io(_) => InvalidQuota::Unreadable,
    }
}

/// Converts a boot id to the form in quota files.
fn boot(id: &BootId) -> Option<Uuid> {
    let digits: String = id.0.chars().filter(|digit| *digit != '-').collect();
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

/// A file, with the open directory in which it was found.
struct Place {
    directory: Rc<OwnedFd>,
    name: String,
    /// Path relative to the quota directory.
    path: String,
    kind: FileType,
}

/// Returns the files of a directory and its subdirectories, and whether these are all. Each user's first file
/// comes before any user's second, so that the maximum number does not let one user hide another's files.
fn places(directory: &Path, node: &Node<'_>, gaps: &mut Gaps) -> Result<(Vec<Place>, bool), Errno> {
    let (top, mut whole) = entries(openat(CWD, directory, DIRECTORY, Mode::empty())?, MOST_NAMES)?;
    let mut counts: HashMap<u32, usize> = HashMap::new();
    let mut directories: HashMap<u32, usize> = HashMap::new();
    let mut ranked = Vec::new();
    let mut rank = |owner: u32, place: Place| {
        let count = counts.entry(owner).or_default();
        *count += 1;
        ranked.push((*count, owner, place));
    };
    let mut denied = false;
    for entry in top {
        if entry.place.kind != FileType::Directory {
            rank(entry.owner, entry.place);
            continue;
        }
        let count = directories.entry(entry.owner).or_default();
        *count += 1;
        if (entry.owner != 0 && *count > MOST_OF_ONE) || node.late() {
            whole = false;
            continue;
        }
        let inner = open_below(&entry.place.directory, &entry.place.name, DIRECTORY);
        let most = if entry.owner == 0 { MOST_NAMES } else { MOST_OF_ONE };
        match inner.and_then(|inner| entries(inner, most)) {
            Ok((inner, all)) => {
                whole &= all;
                for mut file in inner.into_iter().filter(|file| file.place.kind != FileType::Directory) {
                    file.place.path = format!("{}/{}", entry.place.name, file.place.name);
                    // The file is attributed to the directory's owner, who controls the directory.
                    rank(entry.owner, file.place);
                }
            }
            // A directory that is unreadable or was removed meanwhile does not hide the others.
            Err(error) => denied |= matches!(error, Errno::ACCESS | Errno::PERM),
        }
    }
    // A missing permission affects several reads; count it once per interval.
    if denied && gaps.of(Gap::NotPermitted) == 0 {
        gaps.count(Gap::NotPermitted);
    }
    let all = ranked.len();
    ranked.retain(|(count, owner, _)| *owner == 0 || *count <= MOST_OF_ONE);
    ranked.sort_by_key(|(count, owner, _)| (*count, *owner));
    ranked.truncate(MOST);
    whole &= ranked.len() == all;
    Ok((ranked.into_iter().map(|(_, _, place)| place).collect(), whole))
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// An entry of a directory.
struct Found {
    owner: u32,
    place: Place,
}

/// Reads at most this many entries of a directory, and returns them, sorted by name, and whether these are all. Skips hidden
/// files, and names that are too long or need escaping in the output.
fn entries(directory: OwnedFd, most: usize) -> Result<(Vec<Found>, bool), Errno> {
    let directory = Rc::new(directory);
    let mut names = Vec::new();
    let mut whole = true;
    // The directory itself and its parent do not count.
    let mut left = most.saturating_add(2);
    for entry in Dir::read_from(&*directory)? {
        let entry = entry?;
        let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        if left == 0 {
            whole = false;
            break;
        }
        left -= 1;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if name.len() > 64 || !name.iter().all(plain) {
            whole = false;
            continue;
        }
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    names.sort_unstable();
    let mut found = Vec::new();
    for name in names {
        let opened = open_below(&directory, &name, OFlags::PATH);
        match opened.and_then(fstat) {
            Ok(about) => {
                let kind = FileType::from_raw_mode(about.st_mode);
                let place = Place { directory: Rc::clone(&directory), path: name.clone(), name, kind };
                found.push(Found { owner: about.st_uid, place });
            }
            Err(Errno::NOENT) => {}
            // For example a mount point (`EXDEV`), below which there may be quotas.
            Err(_) => whole = false,
        }
    }
    Ok((found, whole))
}

/// Returns the identity of a process in its own PID namespace.
fn read_inside(proc: &Proc, pid: u32) -> Option<Inside> {
    let process = proc.process(pid).ok()?;
    let pid = *process.inner_pids().ok()?.last()?;
    Some(Inside { namespace: process.patiently(Process::pid_namespace).ok()?, pid })
}

/// Returns the files that a process maps with `MAP_SHARED`.
fn mapped(proc: &Proc, key: ProcessKey) -> Result<BTreeSet<FileId>, ReadError> {
    let process = proc.process(key.pid)?;
    process.patiently(move |process| {
        let mut files = BTreeSet::new();
        process.each_line("maps", |line| files.extend(shared(line)))?;
        process.check(key)?;
        Ok(files)
    })
}

/// Parses a line of `maps` and returns its file if it is shared: `7f5c8000-7f5c9000 rw-s 0 00:2e 1234 /path`.
fn shared(line: &[u8]) -> Option<FileId> {
    let line = std::str::from_utf8(line.get(..line.len().min(100))?).ok()?;
    let mut words = line.split_ascii_whitespace().skip(1);
    words.next().filter(|rights| rights.ends_with('s'))?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let inode = words.next()?.parse().ok().filter(|inode| *inode != 0)?;
    Some(FileId { device: (number(major)?, number(minor)?), inode })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a directory is filled")]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds_count_toward_the_limit() {
        let long = "x".repeat(65);
        let kinds: [fn(usize) -> String; 3] =
            [|number| format!(".{number}"), |number| format!("\"{number}"), |number| number.to_string()];
        for kind in kinds {
            let directory = tempfile::tempdir().unwrap();
            let open = || openat(CWD, directory.path(), DIRECTORY, Mode::empty()).unwrap();
            for number in 0..9 {
                std::fs::write(directory.path().join(kind(number)), "").unwrap();
            }
            std::fs::write(directory.path().join(&long), "").unwrap();
            let (found, whole) = entries(open(), 3).unwrap();
            assert!(found.len() <= 3 && !whole, "{}", kind(0));
            let (found, _) = entries(open(), 10).unwrap();
            let expected = if kind(0) == "0" { 9 } else { 0 };
            assert_eq!(found.len(), expected, "{}", kind(0));
        }
    }
}
