//! The last check before an action: whether these are the evaluated processes, and whether they may be acted
//! upon. Pure: their current identity is read elsewhere.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bailiff_snapshot::{FIRST_USER, ProcessKey, is_criu};

use crate::process::{Devices, ProcessInfo};
use crate::verdict::{Member, Outcome, Subject};

/// Programs that no rule may act upon.
struct Protected {
    why: &'static str,
    /// Names as the kernel truncates them (15 bytes). A star matches any suffix.
    names: &'static [&'static str],
    runs_as: RunsAs,
    /// Whether they are protected in containers too. A container's own services are part of the container.
    contained: bool,
}

/// Who runs a program. Any process can choose its name, so a name alone protects nothing.
enum RunsAs {
    /// Only root and system users do. In a container, anyone can be root, so the name of the program's file counts as well.
    System,
    /// Any user may. The name of the program's file must be one of its names.
    Anyone,
}

const fn on_host(why: &'static str, names: &'static [&'static str]) -> Protected {
    Protected { why, names, runs_as: RunsAs::System, contained: false }
}

const PROTECTED: [Protected; 12] = [
    Protected {
        contained: true,
        ..on_host("it is a driver service", &["nvidia-persiste*", "nv-fabricmanage*", "nvidia-fabricma*"])
    },
    Protected { contained: true, ..on_host("it is DCGM", &["nv-hostengine", "dcgm*", "nvidia-dcgm"]) },
    Protected {
        contained: true,
        runs_as: RunsAs::Anyone,
        ..on_host("it is part of MPS", &["nvidia-cuda-mps*"])
    },
    Protected {
        runs_as: RunsAs::Anyone,
        ..on_host(
            "it is a display server",
            &[
                "Xorg*",
                "X",
                "Xwayland",
                "gnome-shell",
                "kwin_*",
                "mutter*",
                "sway",
                "Hyprland",
                "weston*",
                "gamescope*",
            ],
        )
    },
    on_host("it is part of systemd", &["systemd*", "(sd-pam)", "(systemd)"]),
    on_host("it is an init process", &["init", "tini"]),
    on_host("it restores processes", &["criu"]),
    on_host("it manages login sessions", &["sshd*", "login"]),
    on_host("it is a message bus", &["dbus-daemon", "dbus-broker*"]),
    on_host(
        "it is a container runtime",
        &[
            "containerd",
            "containerd-shim*",
            "dockerd",
            "docker-proxy",
            "docker-init",
            "cri-dockerd",
            "runc*",
            "crun*",
            "conmon*",
            "crio",
        ],
    ),
    on_host("it is part of Kubernetes", &["kubelet", "k3s-*"]),
    // Debian adds `-wlm`.
    on_host(
        "it is part of Slurm",
        &[
            "slurmd",
            "slurmd-wlm",
            "slurmstepd",
            "slurmstepd-wlm",
            "slurmctld",
            "slurmctld-wlm",
            "slurmdbd",
            "slurmdbd-wlm",
            "munged",
        ],
    ),
];

impl Protected {
    fn names(&self, comm: &str) -> bool {
        // The kernel truncates names to 15 bytes; names from other sources are truncated here.
        let comm = comm.get(..15).unwrap_or(comm);
        self.names.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => comm.starts_with(start),
            None => comm == *name,
        })
    }

    /// Returns whether a process with such a name really is such a program. If a property is unknown without permission to
    /// read it, it is assumed to be right.
    fn is_genuine(&self, process: &Traits<'_>) -> bool {
        process.exe_uid.is_none_or(|owner| owner == 0)
            && match self.runs_as {
                RunsAs::System => {
                    process.uid.is_none_or(|uid| uid < FIRST_USER)
                        && (!process.contained || self.names_program(process))
                }
                RunsAs::Anyone => self.names_program(process),
            }
    }

    fn names_program(&self, process: &Traits<'_>) -> bool {
        match process.exe {
            Some(path) => {
                let path = path.strip_suffix(" (deleted)").unwrap_or(path);
                process.exe_uid.is_some() && self.names(path.rsplit('/').next().unwrap_or_default())
            }
            // A path that is too long to be read may have any name.
            None => process.exe_uid.is_none(),
        }
    }
}

/// Properties of a process that the built-in protection examines.
#[derive(Debug, Clone, Copy)]
pub struct Traits<'a> {
    /// Pid.
    pub pid: u32,
    /// Name.
    pub comm: &'a str,
    /// Effective owner.
    pub uid: Option<u32>,
    /// Whether it runs in a container.
    pub contained: bool,
    /// Path of its program; `None` if unknown.
    pub exe: Option<&'a str>,
    /// Owner of the program's file; `None` if unknown.
    pub exe_uid: Option<u32>,
    /// Whether CRIU is known to have restored it.
    pub restored: bool,
    /// Whether the driver lists its pid on a GPU, but may mean a process that has exited.
    pub reused_pid: bool,
}

impl<'a> From<&'a ProcessInfo> for Traits<'a> {
    fn from(person: &'a ProcessInfo) -> Self {
        Self {
            pid: person.stat.key.pid,
            comm: &person.stat.comm,
            uid: Some(person.uid),
            contained: person.place.container.is_some(),
            exe: person.exe.as_deref(),
            exe_uid: person.exe_uid,
            restored: false,
            reused_pid: false,
        }
    }
}

/// Why a process that CRIU restored is exempt: with driver 595, ending one hung the node (NVIDIA/cuda-checkpoint issue 53).
pub const RESTORED: &str = "CRIU restored it, and ending it can hang the driver (restored_process)";

/// Why a process is exempt whose pid the driver lists since before its start: what is observed of the GPU may concern the earlier
/// process.
const REUSED_PID: &str = "the driver has listed its pid since before its start, and may mean a process that has exited (reused_pid)";

/// Returns whether a process is CRIU, whose children were restored by it.
pub fn restores(process: &ProcessInfo) -> bool {
    let program = (process.exe.as_deref(), process.exe_uid);
    is_criu(&process.stat.comm, Some(process.uid), program) && !process.place.is_contained()
}

/// Returns why the built-in protection exempts a process.
pub fn builtin(process: &Traits<'_>, root: Root) -> Option<&'static str> {
    if process.pid <= 1 {
        return Some("it is the init process (PID 1)");
    }
    match process.uid {
        None => return Some("its owner is unknown"),
        Some(0) if !process.contained && root == Root::Protected => {
            return Some("it runs as root outside a container");
        }
        Some(_) => {}
    }
    if process.restored {
        return Some(RESTORED);
    }
    if process.reused_pid {
        return Some(REUSED_PID);
    }
    let protected = with_name(process.comm, process.contained);
    protected.filter(|protected| protected.is_genuine(process)).map(|protected| protected.why)
}

/// Returns whether a process with this name can be protected by its name.
pub fn is_named(comm: &str, contained: bool) -> bool {
    with_name(comm, contained).is_some()
}

fn with_name(comm: &str, contained: bool) -> Option<&'static Protected> {
    PROTECTED.iter().find(|protected| (protected.contained || !contained) && protected.names(comm))
}

/// Whether root's processes outside containers are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// They are protected.
    Protected,
    /// The file says `allow_root: true`.
    Allowed,
}

/// The policy's exemptions, evaluated for a process read from `/proc`; returns the reason.
#[derive(Clone)]
pub struct Protect(pub Arc<Asked>);

/// Returns why a process is protected.
pub type Asked = dyn Fn(&ProcessInfo) -> Option<String> + Send + Sync;

impl fmt::Debug for Protect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Protect")
    }
}

/// Limits of an action that come from the policy.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Whether root's processes may be acted upon.
    pub root: Root,
    /// Maximum number of processes that are ended together.
    pub max_processes: usize,
    /// The exporter, by the socket of its stream.
    pub exporter: Option<ProcessKey>,
    /// The policy's `protect` and the rule's exceptions.
    pub protect: Option<Protect>,
    /// What happens to processes that are stopped, traced or frozen.
    pub on_hold: OnHold,
}

/// What happens to a target that is stopped, traced or frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnHold {
    /// Nothing: the rule is about idleness, and the target was put on hold on purpose.
    Exempt,
    /// It is signalled, then continued or thawed so that it can handle the signal.
    Continued,
}

/// This program, the exporter and their ancestors, by pid, with the reason why they are exempt.
#[derive(Debug, Clone, Default)]
pub struct Ourselves(pub BTreeMap<u32, &'static str>);

/// A process as it is now, read after its pidfd was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its identity.
    pub person: ProcessInfo,
    /// Whether it has a device file open; `None` if that is not needed.
    pub devices: Option<Devices>,
}

impl Found {
    /// Returns its identity.
    pub fn key(&self) -> ProcessKey {
        self.person.stat.key
    }
}

/// Why an action is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The result of the action; it is never one with an effect.
    pub outcome: Outcome,
    /// Human-readable reason.
    pub why: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn refused(why: impl Into<String>) -> Self {
        Self { outcome: Outcome::Refused, why: why.into() }
    }

    fn changed(why: String) -> Self {
        Self { outcome: Outcome::IdentityChanged, why }
    }
}

/// Compares the verified processes with the evaluated subject. Returns notes on the running ones for the audit
/// log.
///
/// # Errors
/// If a pid belongs to another process now, if an identity was never fully known, or if no process is left.
pub fn identify(subject: &Subject, found: &[Found]) -> Result<Vec<String>, Refusal> {
    let mut notes = Vec::new();
    let mut living = 0;
    let holders = subject.members.iter().filter(|member| member.holds);
    let holds = holders.clone().next().is_some();
    for member in holders {
        let Some(key) = member.key else {
            return Err(Refusal::refused(format!(
                "pid {} is listed by the driver, but there is no such process",
                member.pid
            )));
        };
        let Some(now) = found.iter().find(|found| found.key().pid == key.pid) else { continue };
        same(member, key, now)?;
        living += 1;
        match now.devices {
            Some(Devices::Open) => {}
            Some(Devices::Denied) => {
                notes.push(format!(
                    "no permission to check whether process {} has a device file open",
                    key.pid
                ));
            }
            Some(Devices::None) | None => {
                return Err(Refusal::refused(format!(
                    "the driver lists process {}, but it has no device file open",
                    key.pid
                )));
            }
        }
    }
    if living == 0 && subject.may_have_no_process() {
        // The job or pod may go on without these processes.
        let outcome = Outcome::Reprieved;
        let why = "all processes of the target that held GPU memory have exited".to_owned();
        return if holds { Err(Refusal { outcome, why }) } else { Ok(notes) };
    }
    if living == 0 {
        return Err(Refusal {
            outcome: Outcome::Gone,
            why: "all processes of the target that held GPU memory have exited".to_owned(),
        });
    }
    Ok(notes)
}

fn same(member: &Member, key: ProcessKey, now: &Found) -> Result<(), Refusal> {
    if now.key() != key {
        return Err(Refusal::changed(format!("pid {} now belongs to another process", key.pid)));
    }
    match member.uid {
        None => return Err(Refusal::refused(format!("the owner of process {} was unknown", key.pid))),
        Some(uid) if uid != now.person.uid => {
            return Err(Refusal::changed(format!("process {} now has uid {}", key.pid, now.person.uid)));
        }
        Some(_) => {}
    }
    // An owner can move processes below this directory, so a cgroup below it does not prove identity.
    let confinement = now.person.place.confinement();
    if member.confinement.is_empty() || confinement.is_empty() {
        return Err(Refusal::refused(format!("the cgroup of process {} is unknown", key.pid)));
    }
    if member.confinement != confinement {
        return Err(Refusal::changed(format!("process {} is now in another cgroup", key.pid)));
    }
    Ok(())
}

/// Checks whether a group of processes may be acted upon. One exempt member exempts all. All must have the same owner, if one
/// is given.
///
/// # Errors
/// With the exempt process and the reason.
pub fn permit(
    owner: Option<u32>,
    group: &[Found],
    ourselves: &Ourselves,
    limits: &Limits,
) -> Result<(), Refusal> {
    if group.len() > limits.max_processes {
        let most = limits.max_processes;
        return Err(Refusal::refused(format!(
            "the target has {} processes; the maximum is {most}",
            group.len()
        )));
    }
    let protected = group.iter().find_map(|found| {
        let why = exempted(owner, found, ourselves, limits)?;
        Some(Refusal::refused(format!("process {} is exempt: {why}", found.key().pid)))
    });
    protected.map_or(Ok(()), Err)
}

fn exempted(owner: Option<u32>, found: &Found, ourselves: &Ourselves, limits: &Limits) -> Option<String> {
    let person = &found.person;
    let key = found.key();
    if let Some(why) = ourselves.0.get(&key.pid) {
        return Some((*why).to_owned());
    }
    // Not by the state: an ordinary process that waits for a core dump is idle, too.
    if person.stat.kernel_thread {
        return Some("it is a kernel thread".to_owned());
    }
    if let Some(why) = builtin(&Traits::from(person), limits.root) {
        return Some(why.to_owned());
    }
    if let Some(owner) = owner.filter(|owner| *owner != person.uid) {
        return Some(format!("it has uid {}, but the target has uid {owner}", person.uid));
    }
    let protect = limits.protect.as_ref()?;
    (protect.0)(person)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::stat::Stat;
    use bailiff_snapshot::{Place, State};
    use proptest::prelude::*;

    use crate::Kind;
    use crate::view::TargetId;

    const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    type Change<T> = fn(&mut T);

    fn person(pid: u32) -> ProcessInfo {
        let stat = Stat {
            key: ProcessKey { pid, start_ticks: 7 },
            comm: "python3".into(),
            state: State::Sleeping,
            ppid: 50,
            session: pid,
            cpu_ticks: 0,
            reaped_ticks: None,
            threads: 1,
            kernel_thread: false,
        };
        let (place, unified) = (Place::parse("0::/here").into(), Some("/here".into()));
        ProcessInfo { stat, uid: 1000, place, unified, exe: None, exe_uid: None }
    }

    fn found(pid: u32) -> Found {
        Found { person: person(pid), devices: Some(Devices::Open) }
    }

    fn limits() -> Limits {
        Limits {
            root: Root::Protected,
            max_processes: 3,
            exporter: None,
            protect: None,
            on_hold: OnHold::Exempt,
        }
    }

    fn ourselves() -> Ourselves {
        let us = "it is the enforcer or one of its ancestors";
        Ourselves(BTreeMap::from([(60, "it belongs to the exporter"), (90, us), (91, us)]))
    }

    fn subject(pids: &[u32]) -> Subject {
        let member = |pid: &u32| Member {
            key: Some(ProcessKey { pid: *pid, start_ticks: 7 }),
            pid: *pid,
            uid: Some(1000),
            comm: "python3".into(),
            exe: None,
            cgroup: "/here".into(),
            confinement: "/here".into(),
            notebook: None,
            vram: Some(1),
            holds: true,
        };
        let members = pids.iter().map(member).collect();
        let id = TargetId("workload:x".into());
        Subject {
            id,
            kind: Kind::Workload,
            uid: Some(1000),
            user: None,
            gpus: Vec::new(),
            job: None,
            pod: None,
            members,
        }
    }

    #[test]
    fn names_are_written_as_the_kernel_cuts_them() {
        for name in PROTECTED.iter().flat_map(|protected| protected.names) {
            assert!(name.trim_end_matches('*').len() <= 15, "{name}");
        }
    }

    #[test]
    fn services_are_protected_by_name_and_no_others() {
        let named = "systemd systemd-logind (sd-pam) init sshd sshd-session dbus-daemon dbus-broker-lau containerd \
            containerd-shim-runc-v2 containerd-shim dockerd docker-proxy runc crun conmon crio kubelet slurmd \
            slurmstepd slurmstepd-wlm slurmctld munged criu nvidia-persistenced nvidia-persiste nv-fabricmanager nv-fabricmanage \
            nv-hostengine dcgm-exporter nvidia-dcgm Xorg X Xwayland gnome-shell kwin_wayland sway weston \
            nvidia-cuda-mps-control nvidia-cuda-mps";
        let others = "python3 jupyterhub jupyterhub-singl bailiff bailiff-exporte bailiff-x Xbase initial swaylike crior";
        let plain = |comm| Traits { comm, uid: Some(998), ..traits() };
        for comm in named.split_ascii_whitespace() {
            assert!(builtin(&plain(comm), Root::Allowed).is_some(), "{comm}");
        }
        for comm in others.split_ascii_whitespace().chain([""]) {
            assert_eq!(builtin(&plain(comm), Root::Protected), None, "{comm}");
        }
        for (comm, protected) in [("tini", false), ("sshd", false), ("nvidia-cuda-mps", true)] {
            let inside = Traits { contained: true, ..plain(comm) };
            assert_eq!(builtin(&inside, Root::Protected).is_some(), protected, "{comm} in a container");
        }
        for pid in [0, 1] {
            assert!(builtin(&Traits { pid, ..plain("python3") }, Root::Allowed).is_some());
        }
    }

    #[test]
    fn name_protects_only_the_programs_that_have_it() {
        let cases = [
            ("dcgm-mine", Some(998), None, None, true),
            ("dcgm-mine", Some(998), Some("/usr/bin/dcgm"), Some(0), true),
            ("dcgm-mine", Some(998), Some("/opt/dcgm"), Some(998), false),
            ("dcgm-mine", Some(1000), None, None, false),
            ("sshd", Some(4002), Some("/usr/sbin/sshd"), Some(0), false),
            ("systemd", Some(1000), Some("/usr/lib/systemd/systemd"), Some(0), false),
            ("Xorg", Some(1000), Some("/usr/lib/xorg/Xorg"), Some(0), true),
            ("X", Some(1000), Some("/usr/lib/xorg/Xorg (deleted)"), Some(0), true),
            ("Xorg", Some(1000), None, None, true),
            ("Xorg", Some(1000), Some("/home/u/fuse/Xorg"), None, false),
            ("Xorg", Some(1000), None, Some(0), false),
            ("Xorg", Some(1000), None, Some(u32::MAX), false),
            ("Xorg", Some(1000), Some("/usr/bin/python3.11"), Some(0), false),
            ("Xorg", Some(1000), Some("/home/u/Xorg"), Some(1000), false),
            ("nvidia-cuda-mps", Some(1000), Some("/usr/bin/nvidia-cuda-mps-server"), Some(0), true),
            ("nvidia-cuda-mps", Some(1000), Some("/usr/bin/python3"), Some(0), false),
        ];
        for (comm, uid, exe, exe_uid, protected) in cases {
            let traits = Traits { comm, uid, exe, exe_uid, ..traits() };
            assert_eq!(builtin(&traits, Root::Protected).is_some(), protected, "{traits:?}");
        }
        // In a container, anyone can be root.
        for (exe, protected) in [("/usr/bin/dcgm-exporter", true), ("/usr/bin/python3.11", false)] {
            let traits =
                Traits { comm: "dcgm-exporter", uid: Some(0), exe: Some(exe), exe_uid: Some(0), ..traits() };
            let inside = Traits { contained: true, ..traits };
            assert_eq!(builtin(&inside, Root::Protected).is_some(), protected, "{inside:?}");
        }
    }

    /// Returns an ordinary process whose program is unknown.
    fn traits() -> Traits<'static> {
        Traits {
            pid: 4100,
            comm: "python3",
            uid: Some(1000),
            contained: false,
            exe: None,
            exe_uid: None,
            restored: false,
            reused_pid: false,
        }
    }

    #[test]
    fn restored_process_and_one_with_a_reused_pid_are_protected() {
        let restored = Traits { restored: true, ..traits() };
        assert_eq!(
            (builtin(&traits(), Root::Allowed), builtin(&restored, Root::Allowed)),
            (None, Some(RESTORED))
        );
        let reused = Traits { reused_pid: true, ..traits() };
        assert_eq!(builtin(&reused, Root::Allowed), Some(REUSED_PID));
        let docker = format!("0::/docker/{CONTAINER}");
        for (comm, uid, exe, cgroup, expected) in [
            ("criu", 0, None, "0::/", true),
            ("criu", 0, Some("/usr/sbin/criu"), "0::/", true),
            ("criu", 0, Some("/usr/sbin/criu (deleted)"), "0::/", true),
            ("criu", 0, Some("/usr/bin/su"), "0::/", false),
            ("criu", 0, Some("/tmp/notcriu"), "0::/", false),
            ("criu", 1000, None, "0::/", false),
            ("criu", 0, None, docker.as_str(), false),
            ("sh", 0, None, "0::/", false),
        ] {
            let mut person = ProcessInfo { uid, exe: exe.map(Into::into), ..person(100) };
            (person.stat.comm, person.place) = (comm.into(), Place::parse(cgroup).into());
            assert_eq!(restores(&person), expected, "{person:?}");
        }
    }

    #[test]
    fn root_is_protected_outside_containers() {
        let cases = [
            (Some(0), false, Root::Protected, true),
            (Some(0), true, Root::Protected, false),
            (Some(0), false, Root::Allowed, false),
            (Some(1000), false, Root::Protected, false),
            (None, true, Root::Allowed, true),
        ];
        for (uid, contained, root, protected) in cases {
            let traits = Traits { uid, contained, ..traits() };
            assert_eq!(builtin(&traits, root).is_some(), protected, "{uid:?} {contained} {root:?}");
        }
    }

    #[test]
    fn a_group_is_permitted_whole_or_not_at_all() {
        let ours = ourselves();
        let with = |change: fn(&mut ProcessInfo)| {
            let mut group = vec![found(100), found(101)];
            change(&mut group[1].person);
            permit(Some(1000), &group, &ours, &limits()).map_err(|refusal| refusal.why)
        };
        assert_eq!(with(|_| {}), Ok(()));
        // A process whose leader waits for a core dump has the state of an idle kernel thread.
        assert_eq!(with(|person| person.stat.state = State::Idle), Ok(()));
        let cases: [(Change<ProcessInfo>, &str); 8] = [
            (|person| person.stat.key.pid = 90, "it is the enforcer"),
            (|person| person.stat.key.pid = 91, "it is the enforcer"),
            (|person| person.stat.key.pid = 60, "exporter"),
            (|person| person.stat.key.pid = 1, "init process"),
            (|person| person.stat.kernel_thread = true, "kernel"),
            (|person| (person.stat.comm, person.uid) = ("sshd".into(), 998), "sessions"),
            (|person| person.uid = 1001, "it has uid 1001"),
            (|person| person.uid = 0, "runs as root"),
        ];
        for (change, why) in cases {
            assert!(with(change).unwrap_err().contains(why), "{why}");
        }
        let four: Vec<Found> = (100..104).map(found).collect();
        assert!(permit(Some(1000), &four, &ours, &limits()).unwrap_err().why.contains("the maximum is 3"));
        let mut contained = found(100);
        contained.person.uid = 0;
        contained.person.place = Place::parse(&format!("0::/docker/{CONTAINER}")).into();
        assert_eq!(permit(Some(0), &[contained], &ours, &limits()), Ok(()), "root of a container is anybody");
    }

    #[test]
    fn holder_that_moved_below_its_own_boundary_is_the_same() {
        let docker = format!("/docker/{CONTAINER}");
        let users = "/user.slice/user-1000.slice";
        let job = "/system.slice/slurmstepd.scope/job_7";
        let cases = [
            (format!("{docker}/a"), format!("{docker}/b/docker-{CONTAINER}.scope"), true),
            (docker, "/docker".to_owned(), false),
            (format!("{users}/user@1000.service/a.service"), format!("{users}/user@1000.service/b"), true),
            (format!("{users}/session-3.scope"), "/user.slice/user-1001.slice/session-3.scope".into(), false),
            ("/system.slice/a.service/one".to_owned(), "/system.slice/a.service/two.service".into(), true),
            ("/system.slice/a.service".to_owned(), "/system.slice/b.service".into(), false),
            (format!("{job}/step_0"), format!("{job}/step_1"), true),
            (format!("{job}/step_0"), format!("{job}8/step_0"), false),
            ("/made/a".to_owned(), "/made/b".into(), false),
        ];
        for (before, after, same) in cases {
            let place = |path: &str| Arc::new(Place::parse(&format!("0::{path}")));
            let mut subject = subject(&[100]);
            subject.members[0].confinement = place(&before).confinement().to_owned();
            let mut now = found(100);
            now.person.place = place(&after);
            assert_eq!(identify(&subject, &[now]).is_ok(), same, "{before} {after}");
        }
    }

    #[test]
    fn holders_with_the_same_identity_are_accepted() {
        let both = subject(&[100, 101]);
        assert_eq!(identify(&both, &[found(100), found(101)]), Ok(vec![]));
        assert_eq!(identify(&both, &[found(101), found(102)]), Ok(vec![]), "one has ended, one came");
        assert_eq!(identify(&both, &[found(102)]).unwrap_err().outcome, Outcome::Gone);
        let cases: [(Change<Found>, Outcome); 6] = [
            (|found| found.person.stat.key.start_ticks = 8, Outcome::IdentityChanged),
            (|found| found.person.uid = 1001, Outcome::IdentityChanged),
            (|found| found.person.place = Place::parse("0::/there").into(), Outcome::IdentityChanged),
            (|found| found.person.place = Arc::default(), Outcome::Refused),
            (|found| found.devices = Some(Devices::None), Outcome::Refused),
            (|found| found.devices = None, Outcome::Refused),
        ];
        for (change, outcome) in cases {
            let mut now = vec![found(100), found(101)];
            change(&mut now[1]);
            assert_eq!(identify(&both, &now).unwrap_err().outcome, outcome);
        }
        let mut job = subject(&[100]);
        job.job = Some(bailiff_snapshot::slurm::JobRecord {
            boot_id: String::new(),
            job: "7".parse().unwrap(),
            sluid: None,
            uid: 1000,
            user: None,
            account: None,
            node: String::new(),
            gpus: None,
            boot_ms: 0,
        });
        assert_eq!(identify(&job, &[]).unwrap_err().outcome, Outcome::Reprieved, "the job goes on");
        job.members.clear();
        assert_eq!(identify(&job, &[found(102)]), Ok(vec![]), "a job without GPU memory");
        let mut denied = found(100);
        denied.devices = Some(Devices::Denied);
        assert_eq!(identify(&subject(&[100]), &[denied]).unwrap().len(), 1, "it is noted");
    }

    proptest! {
        /// A permitted group has one owner and no protected process.
        #[test]
        fn nothing_protected_is_ever_permitted(
            people in proptest::collection::vec((0_u32..110, 0_u32..3, "[a-zX-]{0,15}|sshd|systemd|Xorg"), 0..5),
            owner in 0_u32..3,
        ) {
            let group: Vec<Found> = people.iter().map(|(pid, uid, comm)| {
                let mut one = found(*pid);
                one.person.uid = *uid;
                one.person.stat.comm.clone_from(comm);
                one
            }).collect();
            let ours = ourselves();
            if permit(Some(owner), &group, &ours, &limits()).is_ok() {
                prop_assert!(group.len() <= 3);
                for one in &group {
                    let pid = one.key().pid;
                    prop_assert!(pid > 1 && ![60, 90, 91].contains(&pid));
                    prop_assert!(one.person.uid == owner && owner != 0);
                    prop_assert!(!["sshd", "systemd", "Xorg"].contains(&one.person.stat.comm.as_str()));
                }
            }
        }
    }
}
