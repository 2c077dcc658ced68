//! Who holds a lease, in a way that neither a reused pid nor a reboot nor a container can mistake; and whether he
//! still lives. Reads `/proc`.

#![expect(clippy::disallowed_methods, reason = "reads /proc and the machine's id")]

use std::fs;
use std::path::{Path, PathBuf};

use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{Claim, PidNamespace, ProcessKey, workload};

use crate::audit::Lease;
use crate::process::{DEEPEST, all, any_lives, chain, directory, lives, pids, start, stated, unless_gone};

/// The environment of every process of a lease has its name.
pub const LEASE_VARIABLE: &str = bailiff_snapshot::Claim::VARIABLE;

/// Where this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalHost {
    /// `/etc/machine-id`; where there is none, as in some containers, the host's name.
    pub host: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The inode of the PID namespace.
    pub pidns: String,
    /// Processes of all users are to be seen: `/proc` is not mounted with `hidepid`, or we may look all the same.
    pub everybody: bool,
}

/// What is known of a holder's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// He lives, or somebody whom he started does.
    Alive,
    /// He is dead, and so is everybody whom he started, as far as anybody here could be one of them.
    Dead,
    /// He is on another machine, or was in another boot: from here only time can tell.
    Elsewhere,
    /// There is none: it was taken for a time, and ends with it.
    Timed,
    /// He is on this machine, and from here it cannot be told: in another PID namespace, or another user's.
    Unknown,
}

/// What is known of the process for which a GPU was taken by GPU.py's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It runs.
    Running,
    /// It has ended; what it started, or gave the number to, may run.
    Ended,
    /// It was of another boot, or of a PID namespace that is gone: nothing of it is left.
    Gone,
    /// It cannot be told.
    Unknown,
}

impl LocalHost {
    /// This machine, this boot, this PID namespace; what cannot be read is empty, and never equal to anybody's.
    #[must_use]
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let pidns = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = Some(text("/etc/machine-id")).filter(|id| !id.is_empty());
        let host = host.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        Self {
            host,
            boot: text("/proc/sys/kernel/random/boot_id"),
            pidns: pidns.to_string_lossy().trim_start_matches("pid:[").trim_end_matches(']').to_owned(),
            everybody: matches!(stated(&directory(1)), Ok(Some(_))),
        }
    }

    /// Whether this machine is meant, by its name and a boot of it.
    #[must_use]
    pub fn is_machine(&self, host: Option<&str>, boot: Option<&str>) -> bool {
        are_one_machine((Some(&self.host), Some(&self.boot)), (host, boot))
    }

    /// Whether a lease was taken where we are: on this machine, in this boot and this PID namespace, as far as it tells.
    #[must_use]
    pub fn is_place_of(&self, lease: &Lease) -> bool {
        let same = |field, ours: &str| lease.get(field).is_none_or(|theirs| theirs == ours);
        self.is_machine(lease.get("host"), lease.get("boot"))
            && same("boot", &self.boot)
            && same("pidns", &self.pidns)
    }

    /// What a ticket says of its holder.
    #[must_use]
    pub fn holder(&self, pid: u32) -> Vec<(&'static str, String)> {
        vec![
            ("host", self.host.clone()),
            ("boot", self.boot.clone()),
            ("pidns", self.pidns.clone()),
            ("pid", pid.to_string()),
            ("start", started(pid)),
        ]
    }

    /// What a ticket that plays by GPU.py's rules says beside that: who waits, and all who may have the GPU after him.
    #[must_use]
    pub fn taker(&self, parent: u32) -> Vec<(&'static str, String)> {
        let chain: Vec<String> =
            chain(parent).into_iter().map(|(pid, start)| format!("{pid}:{start}")).collect();
        let pid = std::process::id();
        let session = stated(&directory(parent)).ok().flatten().map(|stat| stat.session.to_string());
        vec![
            ("mode", "compat".to_owned()),
            ("taker", format!("{pid}:{}", started(pid))),
            ("chain", chain.join(",")),
            ("session", session.unwrap_or_default()),
        ]
    }

    /// Whether the holder of a lease lives.
    #[must_use]
    pub fn life(&self, lease: &Lease) -> Life {
        self.look_for(lease).0
    }

    /// The same, and who it is that lives.
    #[must_use]
    pub fn look_for(&self, lease: &Lease) -> (Life, Option<ProcessKey>) {
        match self.known(lease) {
            Some(life) => (life, None),
            None => self.look_local_host(lease),
        }
    }

    /// What is known of a holder without a look; none where a look can tell.
    fn known(&self, lease: &Lease) -> Option<Life> {
        let compat = lease.get("mode") == Some("compat");
        if compat && lease.get("known").is_some() {
            // By GPU.py's rules it outlives whoever took it.
            return Some(Life::Unknown);
        }
        if lease.get("mode") == Some("timed") {
            return Some(Life::Timed);
        }
        let place = self.place(lease);
        // Until whoever took it has said so, it is as good as its taker's life.
        let taken = || compat.then(|| lease.get("taker").map_or(Life::Unknown, life_of));
        place.or_else(taken)
    }

    /// Whether anybody lives who may have what was taken by GPU.py's rules: the process for which it was, and those
    /// whose part it was.
    #[must_use]
    pub fn chained(&self, lease: &Lease) -> Life {
        self.place(lease).unwrap_or_else(|| match lease.get("chain").map_or(Life::Unknown, life_of) {
            Life::Dead if !self.shows(number(lease, "uid")) => Life::Unknown,
            life => life,
        })
    }

    /// The same, and whether that is certain of all that they started.
    #[must_use]
    pub fn recorded(&self, lease: &Lease) -> Recorded {
        match (self.chained(lease), self.place(lease)) {
            (Life::Alive, _) => Recorded::Running,
            (Life::Dead, Some(_)) => Recorded::Gone,
            (Life::Dead, None) => Recorded::Ended,
            (Life::Unknown | Life::Elsewhere | Life::Timed, _) => Recorded::Unknown,
        }
    }

    /// Processes of this user are to be seen.
    fn shows(&self, uid: Option<u32>) -> bool {
        self.everybody || uid == Some(rustix::process::geteuid().as_raw())
    }

    /// What is known by where it was taken.
    fn place(&self, lease: &Lease) -> Option<Life> {
        let same = |field: &str, ours: &str| !ours.is_empty() && lease.get(field) == Some(ours);
        if !self.is_machine(lease.get("host"), lease.get("boot")) {
            return Some(Life::Elsewhere);
        }
        if lease.get("boot").is_some() && !self.boot.is_empty() && !same("boot", &self.boot) {
            // Perhaps a copy of this machine, whose holder renews; by GPU.py's rules nobody does.
            let renews = lease.get("known").is_none();
            return Some(if renews { Life::Elsewhere } else { Life::Dead });
        }
        if !same("boot", &self.boot) {
            return Some(Life::Unknown);
        }
        if same("pidns", &self.pidns) {
            return None;
        }
        let gone = self.everybody && self.is_host() && lease.get("pidns").is_some_and(is_gone);
        Some(if gone { Life::Dead } else { Life::Unknown })
    }

    /// Processes of all PID namespaces are to be seen from here.
    fn is_host(&self) -> bool {
        PidNamespace::of_link(&format!("pid:[{}]", self.pidns)) == PidNamespace::Host
    }

    fn look_local_host(&self, lease: &Lease) -> (Life, Option<ProcessKey>) {
        let Some((pid, start_ticks)) = number(lease, "pid").zip(number(lease, "start")) else {
            return (Life::Unknown, None);
        };
        let holder = ProcessKey { pid, start_ticks };
        match lives(holder) {
            Ok(true) => return (Life::Alive, Some(holder)),
            Ok(false) => {}
            Err(_) => return (Life::Unknown, None),
        }
        let owner = number(lease, "uid");
        // Who is not to be seen may be there.
        if self.shows(owner) { heirs(lease, owner, holder) } else { (Life::Unknown, None) }
    }
}

/// Whether two who name their machine and its boot are on one, in this boot or another. A container may have a name of its
/// own, or that of many; the boot is the machine's, also there. Copies of a machine that ran may have one boot, and ids
/// that differ.
pub(crate) fn are_one_machine(
    one: (Option<&str>, Option<&str>),
    other: (Option<&str>, Option<&str>),
) -> bool {
    if [one.0, other.0].iter().all(|host| host.is_some_and(is_machine_id)) {
        return one.0 == other.0;
    }
    one.1.is_some_and(|boot| !boot.is_empty()) && one.1 == other.1
}

/// As `/etc/machine-id` is written, machine-id(5).
fn is_machine_id(host: &str) -> bool {
    host.len() == 32 && host.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Nobody is left in a PID namespace, by all that is to be seen: whoever was in it has ended, and whoever he started.
fn is_gone(pidns: &str) -> bool {
    let theirs = format!("pid:[{pidns}]");
    let is_elsewhere = |process: PathBuf| match fs::read_link(process.join("ns/pid")) {
        Ok(namespace) => namespace.as_os_str() != theirs.as_str(),
        Err(_) => is_not_nested(&process),
    };
    all().is_ok_and(|mut processes| processes.all(|process| process.is_ok_and(is_elsewhere)))
}

/// A process whose namespace is not ours to read is in this one, or has ended.
fn is_not_nested(process: &Path) -> bool {
    pids(process).is_ok_and(|pids| pids.is_none_or(|pids| pids.len() == 1))
}

/// Whether one lives of processes written `pid:start`, one after the other.
fn life_of(processes: &str) -> Life {
    let key = |process: &str| {
        let (pid, began) = process.split_once(':')?;
        // Nobody knows when it began.
        let start_ticks = began.parse().ok().filter(|began| *began != 0)?;
        Some(ProcessKey { pid: pid.parse().ok()?, start_ticks })
    };
    let keys: Vec<Option<ProcessKey>> = processes.split(',').map(key).collect();
    match any_lives(keys.iter().copied().flatten()) {
        Ok(true) => Life::Alive,
        Ok(false) if !keys.contains(&None) => Life::Dead,
        _ => Life::Unknown,
    }
}

fn number<T: std::str::FromStr>(lease: &Lease, field: &str) -> Option<T> {
    lease.get(field)?.parse().ok()
}

/// When it started, in words; none where that is not to be known.
fn started(pid: u32) -> String {
    start(pid).ok().flatten().map(|start| start.to_string()).unwrap_or_default()
}

/// Whether somebody lives on who was started under the lease, and who.
fn heirs(lease: &Lease, owner: Option<u32>, holder: ProcessKey) -> (Life, Option<ProcessKey>) {
    let Ok(processes) = all() else { return (Life::Unknown, None) };
    let mut life = Life::Dead;
    for process in processes {
        let Ok((Ok(stat), process)) = process.map(|process| (stated(&process), process)) else {
            life = Life::Unknown;
            continue;
        };
        let Some(stat) = stat.filter(|stat| is_younger(stat, holder)) else { continue };
        match named(&process) {
            Some(Claim::Lease(name)) if name == lease.lease => return (Life::Alive, Some(stat.key)),
            Some(Claim::Lease(_) | Claim::Nothing) => {}
            // Of somebody's process whose environment does not tell it cannot be told; others' are not heirs.
            Some(Claim::Unread) | None => {
                if may_be_his(&process, owner) && !is_of_others(&stat, lease, holder) {
                    life = Life::Unknown;
                }
            }
        }
    }
    (life, None)
}

/// Whoever is older than the holder was not started by him.
const fn is_younger(stat: &Stat, holder: ProcessKey) -> bool {
    stat.key.start_ticks >= holder.start_ticks
}

/// The lease that the environment of a process names; none where it is not ours to read.
fn named(process: &Path) -> Option<Claim> {
    let environ = |of: &Path| Some(unless_gone(fs::read(of.join("environ"))).ok()?.unwrap_or_default());
    let found = environ(process)?;
    if !found.is_empty() {
        return Some(Claim::of_environment(&found));
    }
    // Its first thread may have ended, and others not.
    for thread in unless_gone(fs::read_dir(process.join("task"))).ok()?.into_iter().flatten() {
        let found = environ(&thread.ok()?.path())?;
        if !found.is_empty() {
            return Some(Claim::of_environment(&found));
        }
    }
    // A kernel's thread has none, and whoever has ended has none any more.
    Some(Claim::Nothing)
}

/// A process that has written something else over its environment, as some do for a title: whether the next one above it
/// that has one was not started under the lease. Whoever loses his parent is given to the first process, or to one that
/// only starts other people's work.
fn is_of_others(stat: &Stat, lease: &Lease, holder: ProcessKey) -> bool {
    let mut parent = stat.ppid;
    for _ in 0..DEEPEST {
        let process = directory(parent);
        let Ok(Some(stat)) = stated(&process) else { return false };
        if parent <= 1 {
            return false;
        }
        if !is_younger(&stat, holder) {
            return !workload::keeps_others(&stat.comm);
        }
        match named(&process) {
            Some(Claim::Lease(name)) if name == lease.lease => return false,
            Some(Claim::Lease(_) | Claim::Nothing) => return true,
            Some(Claim::Unread) | None => parent = stat.ppid,
        }
    }
    false
}

fn may_be_his(process: &Path, owner: Option<u32>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_his = |found: fs::Metadata| owner.is_none_or(|owner| owner == found.uid());
    unless_gone(fs::metadata(process)).map_or(true, |found| found.is_some_and(is_his))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn lease(about: Vec<(&'static str, String)>) -> Lease {
        let about = about.into_iter().map(|(field, value)| (field.to_owned(), value.into())).collect();
        Lease { lease: "0123".to_owned(), state: "held".to_owned(), expires: 0.0, about }
    }

    fn ended() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn a_pid_is_no_identity() {
        let local_host = LocalHost::read();
        let ours = local_host.holder(std::process::id());
        assert_eq!(local_host.life(&lease(ours.clone())), Life::Alive);
        let with = |field: &'static str, value: &str| {
            let mut about = ours.clone();
            about.retain(|(name, _)| *name != field);
            about.push((field, value.to_owned()));
            local_host.life(&lease(about))
        };
        assert_eq!(with("start", "9999999999999"), Life::Dead, "another had this pid");
        assert_eq!(with("boot", "another"), Life::Elsewhere, "this host was restarted, or is a copy");
        assert_eq!(with("host", "another"), Life::Alive, "a container of this boot may be called otherwise");
        about_another_machine(&local_host, &ours);
        let outside = if local_host.is_host() { Life::Dead } else { Life::Unknown };
        assert_eq!(with("pidns", "1"), outside, "where all are to be seen nobody is in that namespace");
        assert_eq!(with("start", ""), Life::Unknown);
        assert_eq!(with("mode", "compat"), Life::Unknown, "nobody knows who took it");
        assert_eq!(with("mode", "timed"), Life::Timed);
    }

    fn about_another_machine(local_host: &LocalHost, ours: &[(&'static str, String)]) {
        let at = |host: &str, boot: &str| {
            let mut about = ours.to_vec();
            about.retain(|(name, _)| !["host", "boot"].contains(name));
            lease([about, vec![("host", host.to_owned()), ("boot", boot.to_owned())]].concat())
        };
        let [one, other] = ["0123456789abcdef", "fedcba9876543210"].map(|half| half.repeat(2));
        let named = |host: &str| LocalHost { host: host.to_owned(), ..local_host.clone() };
        assert_eq!(local_host.life(&at("another", "another")), Life::Elsewhere);
        assert_eq!(
            named(&one).life(&at(&other, &local_host.boot)),
            Life::Elsewhere,
            "copies of a machine that ran"
        );
        assert_eq!(named(&one).life(&at("pod", &local_host.boot)), Life::Alive);
        assert_eq!(named("pod").life(&at(&one, &local_host.boot)), Life::Alive);
        for host in ["worker-0", "uninitialized"] {
            assert!(!named(host).is_machine(Some(host), Some("another")), "{host} is no name of one machine");
        }
    }

    #[test]
    fn whoever_is_in_another_namespace_or_boot_is_not_local_host() {
        let local_host = LocalHost::read();
        let ours = local_host.holder(1);
        let is_local_host = |field: &'static str, value: &str| {
            let mut about = ours.clone();
            about.retain(|(name, _)| *name != field);
            about.push((field, value.to_owned()));
            local_host.is_place_of(&lease(about))
        };
        assert!(
            local_host.is_place_of(&lease(ours.clone()))
                && is_local_host("pidns", "")
                && is_local_host("host", "pod")
        );
        assert!(!is_local_host("pidns", "1") && !is_local_host("boot", "another"));
    }

    #[test]
    fn by_the_rules_of_gpu_py_nobody_renews_so_a_boot_tells() {
        let [local_host, next] =
            ["one", "next"].map(|boot| LocalHost { boot: boot.to_owned(), ..LocalHost::read() });
        let named = |host: &str| {
            let known = [("mode", "compat".to_owned()), ("known", "1".to_owned())];
            let about = LocalHost { host: host.to_owned(), ..local_host.clone() }.holder(1);
            LocalHost { host: host.to_owned(), ..next.clone() }
                .chained(&lease([about, known.to_vec()].concat()))
        };
        assert_eq!(named(&"0123456789abcdef".repeat(2)), Life::Dead);
        assert_eq!(named("worker-0"), Life::Elsewhere);
    }

    #[test]
    fn process_of_one_pid_is_not_nested_whatever_bytes_its_name_has() {
        let process = tempfile::tempdir().unwrap();
        for (pids, expected) in [("4100", true), ("4100\t7", false), ("", false)] {
            let text = [b"Name:\ttrainer\xff\nNSpid:\t", pids.as_bytes(), b"\n"].concat();
            fs::write(process.path().join("status"), text).unwrap();
            assert_eq!(is_not_nested(process.path()), expected, "{pids}");
        }
        assert!(is_not_nested(Path::new("/proc/0")), "it has ended");
    }

    /// A program that was started under a lease, and has said that it is as it should be.
    fn under(lease: &str, program: &str) -> std::process::Child {
        let mut child = Command::new("python3")
            .args(["-c", program])
            .env(LEASE_VARIABLE, lease)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        child
    }

    #[test]
    fn whoever_has_overwritten_his_environment_may_be_an_heir() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about
            .extend([("pid", ended().to_string()), ("uid", rustix::process::geteuid().as_raw().to_string())]);
        // What `prctl(PR_SET_MM_ENV_START)` and libraries for titles do: the kernel shows what lies there then.
        let program = "import ctypes, re, time
spot = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
start, end = int(spot[47]), int(spot[48])
ctypes.memset(start, 120, end - start)
print('ready', flush=True)
time.sleep(1000)";
        let mut titled = under("0123", program);
        let stat = stated(&directory(titled.id())).unwrap().unwrap();
        let holder = ProcessKey { pid: ended(), start_ticks: 0 };
        let (of_it, unattributed) = (lease(about.clone()), ProcessKey { pid: 1, start_ticks: u64::MAX });
        assert_eq!(named(&directory(titled.id())), Some(Claim::Unread));
        assert!(is_of_others(&stat, &of_it, holder), "this test has an environment, and started it");
        assert!(is_of_others(&stat, &of_it, unattributed), "this test is older, and no keeper of others");
        assert_eq!(local_host.life(&of_it), Life::Dead);
        let left_behind = Stat { ppid: 1, ..stat };
        assert!(!is_of_others(&left_behind, &of_it, holder), "nobody can tell who started it");
        titled.kill().unwrap();
        titled.wait().unwrap();
    }

    #[test]
    fn a_process_lives_on_in_its_threads_though_its_first_has_ended() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about.push(("pid", ended().to_string()));
        let program = "import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)";
        let mut heir = under("4567", program);
        let lease = |about| Lease { lease: "4567".to_owned(), ..lease(about) };
        while stated(&directory(heir.id())).unwrap().unwrap().state != bailiff_snapshot::State::Zombie {
            std::thread::yield_now();
        }
        assert_eq!(local_host.life(&lease(about.clone())), Life::Alive);
        heir.kill().unwrap();
        heir.wait().unwrap();
        assert_eq!(local_host.life(&lease(about)), Life::Dead);
    }

    #[test]
    fn a_holder_lives_on_in_whom_he_started() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about.push(("pid", ended().to_string()));
        assert_eq!(local_host.life(&lease(about.clone())), Life::Dead);
        let mut heir = Command::new("sleep")
            .arg("infinity")
            .env(LEASE_VARIABLE, "0123")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(local_host.life(&lease(about.clone())), Life::Alive);
        heir.kill().unwrap();
        heir.wait().unwrap();
        assert_eq!(local_host.life(&lease(about)), Life::Dead);
    }
}
