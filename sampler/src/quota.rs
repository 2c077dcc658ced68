//! Files of shared quotas, below one folder: read without being mapped, and tied to the processes that use them. What
//! stands in them is a claim of whoever may write them, so a process is named only if it has the file mapped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_ledger::{Fault as Ill, Ledger, UNLIMITED, Uuid};
use bailiff_snapshot::{
    Fault, Gap, Gaps, Invalid, ProcessKey, Quota, QuotaGpu, QuotaProcess, Seen, Truth, stat,
};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, major, minor, openat};
use rustix::io::Errno;

use crate::proc::{Folder, Missing};

/// Files of one folder that are read: a user may make as many as he likes.
const MOST_IN_A_FOLDER: usize = 128;
/// Files and folders that are looked at.
const MOST: usize = 1024;
/// How long it is believed that a process does not use a file: it asks for memory some time after its start.
const FRESH: Duration = Duration::from_secs(10);

/// A file, as a process that has it mapped shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileId {
    device: (u32, u32),
    inode: u64,
}

/// Who a process is in its own namespace of pids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inside {
    namespace: u64,
    pid: u32,
}

/// All that is known of quotas.
pub(crate) struct Quotas {
    folder: PathBuf,
    inside: HashMap<ProcessKey, Option<Inside>>,
    /// Whether a process uses a file, and when that was seen, since boot.
    uses: HashMap<(ProcessKey, FileId), (bool, Duration)>,
}

/// What `/proc` told in this beat.
pub(crate) struct Node<'a> {
    pub(crate) root: &'a Folder,
    pub(crate) seen: &'a BTreeMap<u32, Seen>,
    /// Since boot.
    pub(crate) now: Duration,
}

impl Quotas {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, inside: HashMap::new(), uses: HashMap::new() }
    }

    /// All files; `None` where there is no folder.
    pub(crate) fn look(&mut self, node: &Node<'_>, gaps: &mut Gaps) -> Result<Option<Vec<Quota>>, Fault> {
        let names = match files(&self.folder, gaps) {
            Ok(names) => names,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::ACCESS | Errno::PERM) => return Err(Fault::NotPermitted),
            Err(_) => return Err(Fault::Error),
        };
        let keys = node.seen.values().filter_map(Seen::found).map(|facts| facts.key);
        let mut by_start: HashMap<u64, Vec<ProcessKey>> = HashMap::new();
        let mut live = BTreeSet::new();
        for key in keys {
            by_start.entry(key.start_ticks).or_default().push(key);
            live.insert(key);
        }
        let own = ["1/ns/pid", "self/ns/pid"].iter().find_map(|link| inode(&node.root.link(link).ok()?));
        let quotas = names.into_iter().filter_map(|name| {
            let mut ties = Ties { quotas: self, node, own, by_start: &by_start };
            ties.quota(name)
        });
        let quotas = quotas.collect();
        self.inside.retain(|key, _| live.contains(key));
        self.uses.retain(|(key, _), (_, at)| live.contains(key) || node.now.saturating_sub(*at) < FRESH);
        Ok(Some(quotas))
    }
}

/// One beat's work of tying places to processes.
struct Ties<'a, 'b> {
    quotas: &'a mut Quotas,
    node: &'a Node<'b>,
    /// The namespace of pids that `/proc` shows.
    own: Option<u64>,
    by_start: &'a HashMap<u64, Vec<ProcessKey>>,
}

impl Ties<'_, '_> {
    /// What a file says; `None` where it is empty, as whoever sets a quota may leave it to the first who uses it.
    fn quota(&mut self, name: String) -> Option<Quota> {
        let opened = bailiff_ledger::open_to_read(&self.quotas.folder.join(&name));
        let read = opened.and_then(|file| Ok((bailiff_ledger::read_open(&file)?, file)));
        match read {
            Ok((ledger, file)) => Some(self.told(name, &ledger, &file)),
            Err(Ill::Short(0)) => None,
            // It has ended since the folder was looked at.
            Err(Ill::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(ill) => Some(Quota { name, invalid: Some(invalid(&ill)), ..Quota::default() }),
        }
    }

    fn told(&mut self, name: String, ledger: &Ledger, file: &File) -> Quota {
        let id = fstat(file)
            .ok()
            .map(|stat| FileId { device: (major(stat.st_dev), minor(stat.st_dev)), inode: stat.st_ino });
        // Each GPU and each process once, whatever somebody has written there.
        let mut uuids = BTreeSet::new();
        let rows: Vec<&bailiff_ledger::Gpu> =
            ledger.gpus.iter().filter(|gpu| uuids.insert(gpu.uuid)).collect();
        let mut named = BTreeSet::new();
        let places = ledger.processes.iter().enumerate().map(|(place, process)| {
            let (alive, found) = self.who(process);
            let found = found.filter(|key| id.is_some_and(|id| self.uses(*key, id)));
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
        let Ledger { faults, uncounted, hooks_missing, .. } = *ledger;
        let gpus = rows.into_iter().map(row).collect();
        Quota { name, invalid: None, gpus, processes, faults, uncounted, hooks_missing }
    }

    /// Whom a place means, and whether he lives.
    fn who(&mut self, claim: &bailiff_ledger::Process) -> (Truth, Option<ProcessKey>) {
        if self.own == Some(claim.namespace) {
            let key = ProcessKey { pid: claim.pid, start_ticks: claim.start_ticks };
            let alive = self.lives(key);
            return (alive, Some(key).filter(|_| alive == Truth::True));
        }
        let wanted = Inside { namespace: claim.namespace, pid: claim.pid };
        let same_start = self.by_start.get(&claim.start_ticks).into_iter().flatten();
        let (root, inside) = (self.node.root, &mut self.quotas.inside);
        let mut of = |key: ProcessKey| *inside.entry(key).or_insert_with(|| read_inside(root, key.pid));
        match same_start.copied().find(|key| of(*key) == Some(wanted)) {
            Some(key) => (Truth::True, Some(key)),
            // The node has other namespaces than those of who holds memory.
            None => (Truth::Unknown, None),
        }
    }

    fn lives(&self, key: ProcessKey) -> Truth {
        let mut buffer = Vec::new();
        match self.node.root.read_piece(&format!("{}/stat", key.pid), &mut buffer) {
            Ok(line) => stat::parse(line).map_or(Truth::Unknown, |stat| (stat.key == key).into()),
            Err(Missing::Gone) if self.node.root.shows_others() => Truth::False,
            Err(_) => Truth::Unknown,
        }
    }

    /// Whether a process has the file mapped, as all have that use it.
    fn uses(&mut self, key: ProcessKey, file: FileId) -> bool {
        let (now, root) = (self.node.now, self.node.root);
        if let Some((uses, at)) = self.quotas.uses.get(&(key, file))
            && (*uses || now.saturating_sub(*at) < FRESH)
        {
            return *uses;
        }
        let uses = maps(root, key, file).unwrap_or(false);
        self.quotas.uses.insert((key, file), (uses, now));
        uses
    }
}

fn row(gpu: &bailiff_ledger::Gpu) -> QuotaGpu {
    QuotaGpu {
        uuid: uuid(gpu.uuid),
        limit: Some(gpu.limit).filter(|limit| *limit != UNLIMITED),
        used: gpu.used,
        peak: gpu.peak,
        denied: gpu.denied,
        denied_bytes: gpu.denied_bytes,
        held: None,
    }
}

fn invalid(ill: &Ill) -> Invalid {
    match ill {
        Ill::NoFile => Invalid::NoFile,
        Ill::Short(_) => Invalid::Short,
        Ill::NoQuota | Ill::Full => Invalid::NoQuota,
        Ill::Version(_) => Invalid::Version,
        // A link is not followed.
        Ill::Io(error) if Errno::from_io_error(error) == Some(Errno::LOOP) => Invalid::NoFile,
        Ill::Io(_) => Invalid::Unreadable,
    }
}

/// A UUID as the driver writes it.
fn uuid(bytes: Uuid) -> String {
    let number = u128::from_be_bytes(bytes);
    let part = |from: u32, bits: u32| number >> from & ((1 << bits) - 1);
    let (first, last) = (part(96, 32), part(0, 48));
    format!("{first:08x}-{:04x}-{:04x}-{:04x}-{last:012x}", part(80, 16), part(64, 16), part(48, 16))
}

/// The files of a folder and of those in it, by path below it, in order.
fn files(folder: &Path, gaps: &mut Gaps) -> Result<Vec<String>, Errno> {
    let mut denied = false;
    let mut files = Vec::new();
    for (name, kind) in entries(folder, OFlags::empty())?.into_iter().take(MOST) {
        if kind != FileType::Directory {
            files.push(name);
            continue;
        }
        // One that is another's, or has gone meanwhile, does not hide the rest.
        let inner = match entries(&folder.join(&name), OFlags::NOFOLLOW) {
            Ok(inner) => inner,
            Err(error) => {
                denied |= matches!(error, Errno::ACCESS | Errno::PERM);
                continue;
            }
        };
        let inner = inner.into_iter().filter(|(_, kind)| *kind != FileType::Directory);
        files.extend(inner.take(MOST_IN_A_FOLDER).map(|(inner, _)| format!("{name}/{inner}")));
    }
    files.truncate(MOST);
    // What denies this denies other things, too: one beat, one count.
    if denied && gaps.of(Gap::NotPermitted) == 0 {
        gaps.count(Gap::NotPermitted);
    }
    Ok(files)
}

/// Names that can stand on a page as they are, in order, each with what it is.
fn entries(folder: &Path, flags: OFlags) -> Result<Vec<(String, FileType)>, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut entries = Vec::new();
    for entry in Dir::new(openat(CWD, folder, flags, Mode::empty())?)?.take(MOST) {
        let entry = entry?;
        let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        let name = entry.file_name().to_bytes();
        if !name.starts_with(b".") && name.len() <= 64 && name.iter().all(plain) {
            entries.push((String::from_utf8_lossy(name).into_owned(), entry.file_type()));
        }
    }
    entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}

/// Who a process is to itself (`NSpid` of `/proc/PID/status`, Linux 4.1).
fn read_inside(root: &Folder, pid: u32) -> Option<Inside> {
    let process = root.folder(&pid.to_string()).ok()?;
    let mut buffer = Vec::new();
    let status = String::from_utf8_lossy(process.read("status", &mut buffer).ok()?).into_owned();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let pid = pids.split_ascii_whitespace().next_back()?.parse().ok()?;
    Some(Inside { namespace: inode(&process.link("ns/pid").ok()?)?, pid })
}

/// The number in `pid:[4026531836]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Whether a file stands among the mappings of a process, which is still the one that is meant.
fn maps(root: &Folder, key: ProcessKey, file: FileId) -> Result<bool, Missing> {
    let process = root.folder(&key.pid.to_string())?;
    let mut buffer = Vec::new();
    let same = process.read("stat", &mut buffer).map(stat::parse)?.is_some_and(|stat| stat.key == key);
    let (device, inode) = (format!("{:02x}:{:02x}", file.device.0, file.device.1), file.inode.to_string());
    let wanted = |line: &[u8]| {
        // Address, rights, offset, device, inode.
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).skip(3);
        words.next() == Some(device.as_bytes()) && words.next() == Some(inode.as_bytes())
    };
    Ok(same && process.has_line("maps", wanted)?)
}
