//! The identity of a lease's holder, robust against reused pids, reboots and containers, and whether the holder is
//! alive. Reads `/proc`.

#![expect(clippy::disallowed_methods, reason = "reads the machine's id")]

use std::path::Path;

use bailiff_proc::{LATE, Proc, Process, ReadError, StatusReads, lives, start, unless_gone};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{Claim, PidNamespace, ProcessKey, workload};

use crate::audit::Lease;
use crate::process::{DEEPEST, any_lives, chain};

/// Environment variable that contains the lease's name in every process under the lease.
pub const LEASE_VARIABLE: &str = bailiff_snapshot::Claim::VARIABLE;

/// Field of a lease whose start times are those of a time namespace.
const SHIFTED: &str = "timens";
/// Field of a lease whose uid is that of a user namespace.
const MAPPED: &str = "userns";

/// The machine, boot and PID namespace of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalHost {
    /// `/etc/machine-id`, or the host name where that file is missing, as in some containers.
    pub host: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The inode of the PID namespace.
    pub pidns: String,
    /// Whether processes of all users are visible: `/proc` is not mounted with `hidepid`, or this process is exempt
    /// from it.
    pub all_users: bool,
}

/// Whether a lease's holder is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The holder, or a process that it started, is running.
    Alive,
    /// The holder and all processes that it started on this host have exited.
    Dead,
    /// The holder is on another machine, or was in another boot. From this host, only expiry can end the lease.
    Elsewhere,
    /// The lease has no holder process: it ends at its time limit.
    Timed,
    /// The holder is on this machine but not visible: it is in another PID namespace or belongs to another user.
    Unknown,
}

/// The state of the process for which a GPU was taken under GPU.py's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The process is running.
    Running,
    /// The process has exited, but processes that it started, or that received the GPU number from it, may still be
    /// running.
    Ended,
    /// The process was in another boot, or in a PID namespace that no longer exists, so none of its descendants
    /// remains.
    Gone,
    /// The state cannot be determined.
    Unknown,
}

impl LocalHost {
    /// Reads the identity of this host. A value that cannot be read is empty and never equal to another.
    pub fn read() -> Self {
        Self::at(Path::new("/proc"))
    }

    /// Reads the identity of the host to which this `/proc` belongs.
    pub(crate) fn at(procfs: &Path) -> Self {
        let proc = Proc::open(procfs).ok();
        let machine_id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let pidns = proc.as_ref().and_then(|proc| proc.own_pid_namespace().ok()).unwrap_or_default();
        let node_name = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self {
            host: Some(machine_id.trim().to_owned()).filter(|id| !id.is_empty()).unwrap_or_else(node_name),
            boot: proc.as_ref().and_then(Proc::boot_id).unwrap_or_default(),
            pidns: inode(&pidns).to_owned(),
            all_users: proc.is_some_and(|proc| proc.stat(1).is_ok()),
        }
    }

    /// Whether `host` and `boot` refer to this machine.
    pub fn is_machine(&self, host: Option<&str>, boot: Option<&str>) -> bool {
        are_one_machine((Some(&self.host), Some(&self.boot)), (host, boot))
    }

    /// Whether a lease was taken on this machine, in this boot and PID namespace. A missing field matches.
    pub fn is_location_of(&self, lease: &Lease) -> bool {
        let same = |field, local: &str| lease.get(field).is_none_or(|value| value == local);
        self.is_machine(lease.get("host"), lease.get("boot"))
            && same("boot", &self.boot)
            && same("pidns", &self.pidns)
    }

    /// The fields of a ticket that identify its holder.
    pub fn holder(&self, pid: u32) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("host", self.host.clone()),
            ("boot", self.boot.clone()),
            ("pidns", self.pidns.clone()),
            ("pid", pid.to_string()),
            ("start", started(pid)),
        ];
        fields.extend(shifts_start_times().then(|| (SHIFTED, "1".to_owned())));
        fields.extend(maps_uids().then(|| (MAPPED, "1".to_owned())));
        fields
    }

    /// The additional fields of a ticket under GPU.py's rules: the waiting process, and all processes that may use the
    /// GPU.
    pub fn taker(&self, parent: u32) -> Vec<(&'static str, String)> {
        let chain: Vec<String> =
            chain(parent).into_iter().map(|(pid, start)| format!("{pid}:{start}")).collect();
        let pid = std::process::id();
        let session = Proc::own().and_then(|proc| proc.stat(parent)).map(|stat| stat.session.to_string());
        vec![
            ("mode", "compat".to_owned()),
            ("taker", format!("{pid}:{}", started(pid))),
            ("chain", chain.join(",")),
            ("session", session.unwrap_or_default()),
        ]
    }

    /// Whether the holder of a lease is alive.
    pub fn life(&self, lease: &Lease) -> Life {
        self.find_living(lease).0
    }

    /// Like [`Self::life`], but also returns a running process.
    pub fn find_living(&self, lease: &Lease) -> (Life, Option<ProcessKey>) {
        match self.known(lease) {
            Some(life) => (life, None),
            None => self.find_living_local(lease),
        }
    }

    /// The holder's state, if it follows from the lease alone. `None` if `/proc` must be read.
    fn known(&self, lease: &Lease) -> Option<Life> {
        let compat = lease.get("mode") == Some("compat");
        if compat && lease.get("known").is_some() {
            // Under GPU.py's rules, a lease outlives the process that took it.
            return Some(Life::Unknown);
        }
        if lease.get("mode") == Some("timed") {
            return Some(Life::Timed);
        }
        let location = self.life_by_location(lease);
        // Before the acknowledgement, the lease depends on the process that is taking it.
        let taken = || compat.then(|| lease.get("taker").map_or(Life::Unknown, life_of));
        location.or_else(taken)
    }

    /// Whether a process is running that may use a GPU taken under GPU.py's rules: the process for which the GPU was
    /// taken, or one of its ancestors that the lease records.
    pub fn chain_life(&self, lease: &Lease) -> Life {
        self.life_by_location(lease).unwrap_or_else(|| {
            match lease.get("chain").map_or(Life::Unknown, life_of) {
                Life::Dead if !self.shows(uid(lease)) => Life::Unknown,
                life => life,
            }
        })
    }

    /// Like [`Self::chain_life`], but the certain exit of all processes is a separate state.
    pub fn recorded(&self, lease: &Lease) -> Recorded {
        match (self.chain_life(lease), self.life_by_location(lease)) {
            (Life::Alive, _) => Recorded::Running,
            (Life::Dead, Some(_)) => Recorded::Gone,
            (Life::Dead, None) => Recorded::Ended,
            (Life::Unknown | Life::Elsewhere | Life::Timed, _) => Recorded::Unknown,
        }
    }

    /// Whether processes of this user are visible.
    fn shows(&self, uid: Option<u32>) -> bool {
        self.all_users || uid == Some(rustix::process::geteuid().as_raw())
    }

    /// The holder's state, as far as it follows from the machine, boot and namespace of the lease.
    fn life_by_location(&self, lease: &Lease) -> Option<Life> {
        let same = |field: &str, local: &str| !local.is_empty() && lease.get(field) == Some(local);
        if !self.is_machine(lease.get("host"), lease.get("boot")) {
            return Some(Life::Elsewhere);
        }
        if lease.get("boot").is_some() && !self.boot.is_empty() && !same("boot", &self.boot) {
            // The lease may be from a clone of this machine, on which the holder still renews it. Leases under
            // GPU.py's rules are not renewed.
            let renews = lease.get("known").is_none();
            return Some(if renews { Life::Elsewhere } else { Life::Dead });
        }
        if !same("boot", &self.boot) {
            return Some(Life::Unknown);
        }
        if same("pidns", &self.pidns) {
            return None;
        }
        let holder = lease.holder().filter(|_| lease.get(SHIFTED).is_none());
        let is_gone = |pidns| is_gone(pidns, (holder, uid(lease)));
        let gone = self.all_users && self.is_host() && lease.get("pidns").is_some_and(is_gone);
        Some(if gone { Life::Dead } else { Life::Unknown })
    }

    /// Whether processes of all PID namespaces are visible from here.
    fn is_host(&self) -> bool {
        PidNamespace::of_link(&format!("pid:[{}]", self.pidns)) == PidNamespace::Host
    }

    fn find_living_local(&self, lease: &Lease) -> (Life, Option<ProcessKey>) {
        let Some(holder) = lease.holder() else { return (Life::Unknown, None) };
        match lives(holder) {
            Ok(true) => return (Life::Alive, Some(holder)),
            Ok(false) => {}
            Err(_) => return (Life::Unknown, None),
        }
        let owner = uid(lease);
        // A process that is not visible may still be running.
        if self.shows(owner) { find_descendant(lease, owner, holder) } else { (Life::Unknown, None) }
    }
}

/// Whether two pairs of host and boot refer to the same machine, in the same boot or in different boots. A container
/// may have its own host name, or share a host name with other containers, but it has the boot id of its machine.
/// Clones of a running machine may share one boot id, but their machine ids differ.
pub(crate) fn are_one_machine(
    one: (Option<&str>, Option<&str>),
    other: (Option<&str>, Option<&str>),
) -> bool {
    if [one.0, other.0].iter().all(|host| host.is_some_and(is_machine_id)) {
        return one.0 == other.0;
    }
    one.1.is_some_and(|boot| !boot.is_empty()) && one.1 == other.1
}

/// Whether this has the format of `/etc/machine-id`, see machine-id(5).
fn is_machine_id(host: &str) -> bool {
    host.len() == 32 && host.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether no visible process is in the PID namespace of a holder, which means that all its processes have exited. The kernel uses
/// numbers of namespaces again, but the first process of the holder's namespace is not younger than the holder. Processes
/// of other users than the owner, who can make reads of them hang, do not belong to the lease.
fn is_gone(pidns: &str, (holder, owner): (Option<ProcessKey>, Option<u32>)) -> bool {
    let link = format!("pid:[{pidns}]");
    let Ok(proc) = Proc::own() else { return false };
    let read = move |proc: &Proc, pid| {
        let process = proc.process(pid)?;
        if process.link("ns/pid")? != link {
            return Ok(None);
        }
        Ok(Some((process.inner_pids()?.last() == Some(&1), process.stat()?)))
    };
    let Ok(read) = proc.pids().and_then(|pids| proc.each(pids, None, read)) else { return false };
    let first =
        read.iter().find_map(|(_, read)| read.as_ref().ok()?.as_ref().filter(|(is_first, _)| *is_first));
    let is_younger =
        first.zip(holder).is_some_and(|((_, first), holder)| first.key.start_ticks > holder.start_ticks);
    read.iter().all(|(pid, read)| match read {
        Ok(None) => true,
        Ok(Some(_)) => is_younger,
        Err(LATE) => !may_belong_to(&proc, *pid, owner),
        Err(_) => is_not_nested(&proc, *pid),
    })
}

/// Whether a process with an unreadable namespace link is in this namespace, or has exited.
fn is_not_nested(proc: &Proc, pid: u32) -> bool {
    let pids = proc.process(pid).and_then(|process| process.inner_pids());
    unless_gone(pids).is_ok_and(|pids| pids.is_none_or(|pids| pids.len() == 1))
}

/// The inode in the link of a PID namespace, as text.
pub(crate) fn inode(link: &str) -> &str {
    link.trim_start_matches("pid:[").trim_end_matches(']')
}

/// Whether one of these processes is alive; the text is `PID:START,PID:START,…`.
fn life_of(processes: &str) -> Life {
    let key = |process: &str| {
        let (pid, start) = process.split_once(':')?;
        // 0 means that the start time is unknown.
        let start_ticks = start.parse().ok().filter(|start| *start != 0)?;
        Some(ProcessKey { pid: pid.parse().ok()?, start_ticks })
    };
    let keys: Vec<Option<ProcessKey>> = processes.split(',').map(key).collect();
    match any_lives(keys.iter().copied().flatten()) {
        Ok(true) => Life::Alive,
        Ok(false) if !keys.contains(&None) => Life::Dead,
        _ => Life::Unknown,
    }
}

/// The uid of a lease's owner, if processes outside of the owner's user namespace show it, too.
fn uid(lease: &Lease) -> Option<u32> {
    lease.number("uid").filter(|_| lease.get(MAPPED).is_none())
}

/// Whether this process has a user namespace with other uids than the initial one.
fn maps_uids() -> bool {
    let map = Proc::own().and_then(|proc| proc.text("self/uid_map")).unwrap_or_default();
    !map.is_empty() && !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether this process has a time namespace in which processes have other start times than outside.
fn shifts_start_times() -> bool {
    let offsets = Proc::own().and_then(|proc| proc.text("self/timens_offsets")).unwrap_or_default();
    let boot_time = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    boot_time.is_some_and(|offset| offset.split_whitespace().any(|number| number != "0"))
}

/// The start time of a process as text; empty if it is unknown.
fn started(pid: u32) -> String {
    start(pid).ok().flatten().map(|start| start.to_string()).unwrap_or_default()
}

/// Whether a process that was started under the lease is running, and which process.
fn find_descendant(lease: &Lease, owner: Option<u32>, holder: ProcessKey) -> (Life, Option<ProcessKey>) {
    let Ok(proc) = Proc::own() else { return (Life::Unknown, None) };
    let read = proc.pids().and_then(|pids| {
        proc.each(pids, None, move |proc, pid| {
            let process = proc.process(pid)?;
            let stat = process.stat()?;
            let claim = if is_younger(&stat, holder) { Some(read_claim(&process)) } else { None };
            Ok((stat, claim))
        })
    });
    let (mut life, mut status_reads) = (Life::Dead, StatusReads::default());
    for (pid, read) in read.unwrap_or_else(|error| vec![(0, Err(error))]) {
        let stat = match read {
            Ok((stat, Some(Ok(Claim::Lease(name))))) if name == lease.lease => {
                // Any user can put the name into an environment.
                if !may_belong_to(&proc, pid, owner) {
                    continue;
                }
                return (Life::Alive, Some(stat.key));
            }
            Ok((_, None | Some(Ok(Claim::Lease(_) | Claim::Nothing)))) | Err(ReadError::Gone) => continue,
            // The environment is unreadable or overwritten.
            Ok((stat, Some(Ok(Claim::Unread) | Err(_)))) => Ok(stat),
            // The owner made the read hang. Nothing more can become known.
            Err(LATE) if life == Life::Unknown || !may_belong_to(&proc, pid, owner) => continue,
            Err(LATE) => {
                let read = proc.process(pid).and_then(|process| status_reads.read(&process));
                read.and_then(|(_, stat)| stat.ok_or(LATE))
            }
            Err(error) => Err(error),
        };
        // Processes of other users do not belong to the lease.
        let is_of_others = stat.is_ok_and(|stat| {
            !may_belong_to(&proc, pid, owner) || is_of_others((&proc, &stat), lease, holder)
        });
        if !is_of_others {
            life = Life::Unknown;
        }
    }
    (life, None)
}

/// Whether a process could have been started by the holder. An older process could not.
const fn is_younger(stat: &Stat, holder: ProcessKey) -> bool {
    stat.key.start_ticks >= holder.start_ticks
}

/// The lease that the environment of a process names. Its owner can make this read hang.
fn claim_of(process: &Process) -> Result<Claim, ReadError> {
    process.patiently(read_claim)
}

fn read_claim(process: &Process) -> Result<Claim, ReadError> {
    let read = |name: &str| {
        let environ = unless_gone(process.bytes(name));
        environ.map(|environ| environ.filter(|environ| !environ.is_empty()))
    };
    if let Some(environ) = read("environ")? {
        return Ok(Claim::of_environment(&environ));
    }
    // The thread-group leader may have exited while other threads are running.
    for thread in unless_gone(process.threads())?.unwrap_or_default() {
        if let Some(environ) = read(&format!("task/{thread}/environ"))? {
            return Ok(Claim::of_environment(&environ));
        }
    }
    // Kernel threads and exited processes have no environment.
    Ok(Claim::Nothing)
}

/// Whether a process that overwrote its environment, as some do to set a title, does not belong to the lease because
/// its nearest ancestor with a readable environment was not started under the lease. The result is false for
/// orphaned processes, which are children of pid 1 or of a program that starts separate workloads, such as a
/// supervisor.
fn is_of_others((proc, stat): (&Proc, &Stat), lease: &Lease, holder: ProcessKey) -> bool {
    let mut parent = stat.ppid;
    for _ in 0..DEEPEST {
        let Ok(process) = proc.process(parent) else { return false };
        let Ok(stat) = process.patiently(Process::stat) else { return false };
        if parent <= 1 {
            return false;
        }
        if !is_younger(&stat, holder) {
            return !workload::keeps_others(&stat.comm);
        }
        match claim_of(&process) {
            Ok(Claim::Lease(name)) if name == lease.lease => return false,
            Ok(Claim::Lease(_) | Claim::Nothing) => return true,
            Ok(Claim::Unread) | Err(_) => parent = stat.ppid,
        }
    }
    false
}

fn may_belong_to(proc: &Proc, pid: u32, owner: Option<u32>) -> bool {
    let is_owned = |found| owner.is_none_or(|owner| owner == found);
    let found = proc.process(pid).and_then(|process| process.owner());
    unless_gone(found).map_or(true, |found| found.is_some_and(is_owned))
}

#[cfg(test)]
mod tests {
    use std::fs;
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
    fn holder_is_identified_by_pid_start_and_boot() {
        let local_host = LocalHost::read();
        let own = local_host.holder(std::process::id());
        assert_eq!(local_host.life(&lease(own.clone())), Life::Alive);
        let with = |field: &'static str, value: &str| {
            let mut about = own.clone();
            about.retain(|(name, _)| *name != field);
            about.push((field, value.to_owned()));
            local_host.life(&lease(about))
        };
        assert_eq!(with("start", "9999999999999"), Life::Dead, "an earlier process had this pid");
        assert_eq!(with("boot", "another"), Life::Elsewhere, "this host was restarted or cloned");
        assert_eq!(
            with("host", "another"),
            Life::Alive,
            "a container of this boot may have another host name"
        );
        assert_other_machines_are_elsewhere(&local_host, &own);
        let outside = if local_host.is_host() { Life::Dead } else { Life::Unknown };
        assert_eq!(with("pidns", "1"), outside, "if all processes are visible, that namespace is empty");
        assert_eq!(with("start", ""), Life::Unknown);
        assert_eq!(with("mode", "compat"), Life::Unknown, "the taker is unknown");
        assert_eq!(with("mode", "timed"), Life::Timed);
    }

    fn assert_other_machines_are_elsewhere(local_host: &LocalHost, own: &[(&'static str, String)]) {
        let at = |host: &str, boot: &str| {
            let mut about = own.to_vec();
            about.retain(|(name, _)| !["host", "boot"].contains(name));
            lease([about, vec![("host", host.to_owned()), ("boot", boot.to_owned())]].concat())
        };
        let [one, other] = ["0123456789abcdef", "fedcba9876543210"].map(|half| half.repeat(2));
        let named = |host: &str| LocalHost { host: host.to_owned(), ..local_host.clone() };
        assert_eq!(local_host.life(&at("another", "another")), Life::Elsewhere);
        assert_eq!(
            named(&one).life(&at(&other, &local_host.boot)),
            Life::Elsewhere,
            "clones of a running machine"
        );
        assert_eq!(named(&one).life(&at("pod", &local_host.boot)), Life::Alive);
        assert_eq!(named("pod").life(&at(&one, &local_host.boot)), Life::Alive);
        for host in ["worker-0", "uninitialized"] {
            assert!(!named(host).is_machine(Some(host), Some("another")), "{host} does not name one machine");
        }
    }

    /// These tests run as root. The namespace of a holder that has exited is compared with another one that has its number.
    #[test]
    fn namespace_that_is_younger_than_the_holder_is_another_one() {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "sh", "-c", "echo; exec sleep 600"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let proc = Proc::own().unwrap();
        let parent = child.id();
        let first =
            proc.pids().unwrap().into_iter().find(|pid| proc.stat(*pid).is_ok_and(|it| it.ppid == parent));
        let first = proc.process(first.unwrap()).unwrap();
        let start = first.stat().unwrap().key.start_ticks;
        let local_host = LocalHost { all_users: true, ..LocalHost::read() };
        let life = |start: u64, field: &'static str| {
            let mut about = local_host.holder(2);
            about.retain(|(name, _)| !["pidns", "start"].contains(name));
            let namespace = inode(&first.link("ns/pid").unwrap()).to_owned();
            about.extend([("pidns", namespace), ("start", start.to_string()), (field, "1".to_owned())]);
            local_host.life(&lease(about))
        };
        let younger = if local_host.is_host() { Life::Dead } else { Life::Unknown };
        let found = [life(start, ""), life(start - 1, ""), life(start - 1, SHIFTED)];
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [Life::Unknown, younger, Life::Unknown]);
    }

    #[test]
    fn uid_of_a_user_namespace_excludes_no_process() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about.extend([("pid", ended().to_string()), ("uid", "4002".to_owned())]);
        let mut descendant = under("8901", "import time\nprint('ready', flush=True)\ntime.sleep(1000)");
        let life = |field| {
            let about = [about.clone(), vec![(field, "1".to_owned())]].concat();
            local_host.life(&Lease { lease: "8901".to_owned(), ..lease(about) })
        };
        let found = [life(""), life(MAPPED)];
        descendant.kill().unwrap();
        descendant.wait().unwrap();
        assert_eq!(found, [Life::Dead, Life::Alive]);
        assert!(!maps_uids());
    }

    #[test]
    fn lease_of_other_namespace_or_boot_is_not_local() {
        let local_host = LocalHost::read();
        let own = local_host.holder(1);
        let is_local_host = |field: &'static str, value: &str| {
            let mut about = own.clone();
            about.retain(|(name, _)| *name != field);
            about.push((field, value.to_owned()));
            local_host.is_location_of(&lease(about))
        };
        assert!(
            local_host.is_location_of(&lease(own.clone()))
                && is_local_host("pidns", "")
                && is_local_host("host", "pod")
        );
        assert!(!is_local_host("pidns", "1") && !is_local_host("boot", "another"));
    }

    #[test]
    fn compat_lease_of_earlier_boot_is_dead() {
        let [local_host, next] =
            ["one", "next"].map(|boot| LocalHost { boot: boot.to_owned(), ..LocalHost::read() });
        let named = |host: &str| {
            let known = [("mode", "compat".to_owned()), ("known", "1".to_owned())];
            let about = LocalHost { host: host.to_owned(), ..local_host.clone() }.holder(1);
            LocalHost { host: host.to_owned(), ..next.clone() }
                .chain_life(&lease([about, known.to_vec()].concat()))
        };
        assert_eq!(named(&"0123456789abcdef".repeat(2)), Life::Dead);
        assert_eq!(named("worker-0"), Life::Elsewhere);
    }

    #[test]
    fn process_with_one_pid_is_not_nested() {
        let procfs = tempfile::tempdir().unwrap();
        fs::create_dir(procfs.path().join("4100")).unwrap();
        let proc = Proc::open(procfs.path()).unwrap();
        for (pids, expected) in [("4100", true), ("4100\t7", false), ("", false)] {
            let text = [b"Name:\ttrainer\xff\nNSpid:\t", pids.as_bytes(), b"\n"].concat();
            fs::write(procfs.path().join("4100/status"), text).unwrap();
            assert_eq!(is_not_nested(&proc, 4100), expected, "{pids}");
        }
        fs::remove_file(procfs.path().join("4100/status")).unwrap();
        assert!(is_not_nested(&proc, 4100), "the process has exited");
    }

    /// A program started under a lease, which has printed that it is ready.
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
    fn process_with_overwritten_environment_may_belong_to_lease() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about
            .extend([("pid", ended().to_string()), ("uid", rustix::process::geteuid().as_raw().to_string())]);
        // Like `prctl(PR_SET_MM_ENV_START)` and libraries for process titles: the kernel then shows the new content.
        let program = "import ctypes, re, time
stat = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
start, end = int(stat[47]), int(stat[48])
ctypes.memset(start, 120, end - start)
print('ready', flush=True)
time.sleep(1000)";
        let mut titled = under("0123", program);
        let proc = Proc::own().unwrap();
        let stat = proc.stat(titled.id()).unwrap();
        let holder = ProcessKey { pid: ended(), start_ticks: 0 };
        let (lease, younger) = (lease(about.clone()), ProcessKey { pid: 1, start_ticks: u64::MAX });
        assert_eq!(claim_of(&proc.process(titled.id()).unwrap()), Ok(Claim::Unread));
        assert!(
            is_of_others((&proc, &stat), &lease, holder),
            "the lease is not in the environment of the parent, which is this test"
        );
        assert!(
            is_of_others((&proc, &stat), &lease, younger),
            "the parent is older than the holder and is not a supervisor"
        );
        assert_eq!(local_host.life(&lease), Life::Dead);
        let orphaned = Stat { ppid: 1, ..stat };
        assert!(
            !is_of_others((&proc, &orphaned), &lease, holder),
            "the process that started the command is unknown"
        );
        titled.kill().unwrap();
        titled.wait().unwrap();
    }

    #[test]
    fn process_with_exited_leader_is_alive() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about.push(("pid", ended().to_string()));
        let program = "import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)";
        let mut descendant = under("4567", program);
        let lease = |about| Lease { lease: "4567".to_owned(), ..lease(about) };
        let proc = Proc::own().unwrap();
        while proc.stat(descendant.id()).unwrap().state != bailiff_snapshot::State::Zombie {
            std::thread::yield_now();
        }
        assert_eq!(local_host.life(&lease(about.clone())), Life::Alive);
        descendant.kill().unwrap();
        descendant.wait().unwrap();
        assert_eq!(local_host.life(&lease(about)), Life::Dead);
    }

    #[test]
    fn holder_is_alive_while_a_descendant_is() {
        let local_host = LocalHost::read();
        let mut about = local_host.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about.push(("pid", ended().to_string()));
        // While a process of another test executes a program, its environment cannot be read.
        let is = |expected: Life| {
            let mut answers = (0..1000).map(|_| local_host.life(&lease(about.clone())));
            answers.find(|life| *life != Life::Unknown) == Some(expected)
        };
        assert!(is(Life::Dead));
        let mut descendant = Command::new("sleep")
            .arg("infinity")
            .env(LEASE_VARIABLE, "0123")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert!(is(Life::Alive));
        descendant.kill().unwrap();
        descendant.wait().unwrap();
        assert!(is(Life::Dead));
    }
}
