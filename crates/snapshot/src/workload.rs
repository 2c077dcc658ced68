//! Workload of a process: its Slurm job, else its container, pod, systemd unit or process tree. Processes are
//! read through a function of the pid, so that callers provide their own access to `/proc`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::slurm::is_slurmstepd;
use crate::stat::Stat;
use crate::text_limit::fits;
use crate::{Place, ProcessKey, Truth};

/// Maximum number of consecutive ancestors that started in the same clock tick. More of them are a loop,
/// because parents are otherwise older than their children.
const MOST_IN_A_TICK: usize = 1024;

/// Shells, by `comm`, sorted. A shell that leads its session is an interactive prompt, or the script for
/// which the session was created. The processes that it starts are separate workloads.
const SHELLS: [&str; 21] = [
    "ash", "bash", "busybox", "csh", "dash", "elvish", "fish", "ksh", "ksh93", "lksh", "mksh", "nu", "osh",
    "posh", "pwsh", "rbash", "sh", "tcsh", "xonsh", "yash", "zsh",
];

/// Programs that start separate workloads and belong to none of them, by `comm` (truncated to 15 bytes by the
/// kernel), sorted: multiplexers, logins, supervisors and desktops.
const SESSION_HOSTS: &str = "\
    (sd-pam) SCREEN abduco atd cinnamon-sessio conmon cron crond dbus-broker-lau dbus-daemon doas \
    dropbear dtach gdm-session-wor gdm-wayland-ses gdm-x-session gnome-session-b gnome-shell init \
    kwin_wayland kwin_x11 lightdm login mate-session mosh-server pkexec plasmashell runuser screen \
    script sddm-helper shpool slurmd slurmd-wlm slurmstepd slurmstepd-wlm sshd startplasma-x11 su sudo \
    supervisord systemd tmate ttyd xfce4-session zellij";

/// Name prefixes of programs that start separate workloads: `tmux: server`, `containerd-shim-runc-v2`.
const SESSION_HOST_PREFIXES: [&str; 4] = ["tmux", "sshd-", "containerd-shim", "systemd-"];

/// Workload of a process. Within one boot, equal text means the same workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// Cgroup: `slurm:PATH`, `container:PATH`, `pod:PATH` or `unit:PATH`, where PATH ends with the name of the
    /// job, container, pod or unit.
    Named(Arc<str>),
    /// Process tree: this process and its descendants in the same session.
    Tree(ProcessKey),
}

impl fmt::Display for Workload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => out.write_str(name),
            Self::Tree(root) => write!(out, "tree:{}@{}", root.pid, root.start_ticks),
        }
    }
}

/// What the cgroup of a process shows about its workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// The cgroup was not read, or its hierarchies contradict each other.
    Unknown,
    /// The cgroup is the workload.
    Named(Arc<str>),
    /// The cgroup can hold several workloads, so the process tree decides.
    Tree,
}

impl Home {
    /// Determines the workload from the cgroup.
    pub fn of(place: &Place) -> Self {
        // The external step contains Slurm's own sleep process, which belongs to root, and adopted sessions.
        let external = place.slurm_step.as_deref() == Some("extern");
        match named(place) {
            Some(_) if external => return Self::Tree,
            Some(name) => return Self::Named(name),
            None if place.cgroup.is_empty() => return Self::Unknown,
            None => {}
        }
        match (innermost_unit(&place.cgroup), &place.unit) {
            (None, None) => Self::Tree,
            (Some(unit), Some(name)) if unit.name() == name => {
                // The name is in every line of the stream, so a longer path is not used.
                if unit.is_workload() && fits(unit.path) {
                    Self::Named(format!("unit:{}", unit.path).into())
                } else {
                    Self::Tree
                }
            }
            // Hierarchies of version 1 contradict each other.
            _ => Self::Unknown,
        }
    }
}

/// Returns the name of the Slurm job, container or pod of a place: its kind and full path, because the same
/// id at another path is different. A container in a job is part of the job.
fn named(place: &Place) -> Option<Arc<str>> {
    let boundary = place.boundary.as_ref()?;
    let kind = match (&place.slurm_job, &place.container) {
        (Some(_), _) => "slurm",
        (None, Some(_)) => "container",
        (None, None) => "pod",
    };
    Some(format!("{kind}:{boundary}").into())
}

/// Returns the cgroup that contains a process and may hold many workloads: a container, a Slurm job, a pod, a
/// login session or another scope. Returns `None` for a service or any other cgroup.
pub fn enclosure(place: &Place) -> Option<Arc<str>> {
    if place.in_service() {
        return None;
    }
    named(place).or_else(|| {
        let unit = innermost_unit(&place.cgroup).filter(|unit| fits(unit.path))?;
        place.unit.as_ref().filter(|name| unit.name() == *name).map(|_| unit.path.into())
    })
}

/// Returns whether two processes are in one cgroup, or below one container, job, pod or unit, where processes
/// may create further cgroups.
pub fn share_cgroup(one: &Place, other: &Place) -> bool {
    !one.cgroup.is_empty() && around(one) == around(other) && Home::of(one) == Home::of(other)
}

fn around(place: &Place) -> &str {
    let unit = || innermost_unit(&place.cgroup).map_or(place.cgroup.as_str(), |unit| unit.path);
    place.boundary.as_deref().unwrap_or_else(unit)
}

/// A systemd unit in a cgroup path.
struct Unit<'a> {
    /// Path up to and including the unit.
    path: &'a str,
    /// Whether a user's own manager created it.
    of_user: bool,
}

impl<'a> Unit<'a> {
    fn name(&self) -> &'a str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns whether the unit is one workload. Sessions, managers, and scopes that terminals, multiplexers
    /// and desktops create for a shell or an application can contain several workloads.
    fn is_workload(&self) -> bool {
        match self.name().rsplit_once('.') {
            Some((name, "scope")) if self.of_user => name.starts_with("run-"),
            Some((name, "scope")) => name != "init" && !name.starts_with("session-"),
            Some((name, _)) if self.of_user => !name.starts_with("app-"),
            Some((name, _)) => !name.starts_with("user@"),
            None => false,
        }
    }
}

fn innermost_unit(path: &str) -> Option<Unit<'_>> {
    let mut innermost = None;
    let mut of_user = false;
    let mut end = 0;
    for part in path.split_inclusive('/') {
        let name = part.trim_end_matches('/');
        if matches!(name.rsplit_once('.'), Some((_, "service" | "scope"))) {
            innermost = path.get(..end + name.len()).map(|path| Unit { path, of_user });
        }
        of_user |= name.starts_with("user@");
        end += part.len();
    }
    innermost
}

/// Properties of a process that determine its own workload or that of its children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Pid and start time.
    pub key: ProcessKey,
    /// Its parent's pid.
    pub ppid: u32,
    /// Pid of the session leader.
    pub session: u32,
    /// What its cgroup shows about its workload.
    pub home: Home,
    /// Root of its process tree, if it was determined. Its ancestors then need not be read again.
    root: Root,
    kind: Kind,
}

/// Root of a process tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Root {
    #[default]
    NotDetermined,
    Known(ProcessKey),
    Unknown,
}

/// Kind of a program, which determines the workload of the processes that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Program,
    Shell,
    SessionHost,
    KernelThread,
}

impl Node {
    /// Returns the node of a process with this `stat`, owner and cgroup.
    pub fn new(stat: &Stat, uid: Option<u32>, home: Home) -> Self {
        let kind = if stat.kernel_thread { Kind::KernelThread } else { Kind::of(&stat.comm) };
        // `slurmstepd` runs in the cgroup of its job, but is not part of the job. A user's process can have its name.
        let is_slurms = uid.is_none_or(|uid| uid == 0) && is_slurmstepd(&stat.comm);
        let home = if is_slurms && home != Home::Unknown { Home::Tree } else { home };
        Self { key: stat.key, ppid: stat.ppid, session: stat.session, home, root: Root::NotDetermined, kind }
    }

    /// Saves the workload that was determined, for the processes below. `None` if it is unknown.
    pub fn set_workload(&mut self, found: Option<&Workload>) {
        self.root = match found {
            Some(Workload::Tree(root)) => Root::Known(*root),
            None if self.kind != Kind::KernelThread => Root::Unknown,
            Some(Workload::Named(_)) | None => Root::NotDetermined,
        };
    }

    /// Returns whether the processes that it starts are separate workloads.
    fn stands_apart(&self) -> bool {
        self.kind == Kind::SessionHost || (self.kind == Kind::Shell && self.key.pid == self.session)
    }
}

impl Kind {
    fn of(comm: &str) -> Self {
        // The name of a login shell may start with a dash.
        let name = comm.strip_prefix('-').unwrap_or(comm);
        if SHELLS.binary_search(&name).is_ok() {
            Self::Shell
        } else if SESSION_HOSTS.split(' ').any(|host| host == name)
            || SESSION_HOST_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        {
            Self::SessionHost
        } else {
            Self::Program
        }
    }
}

/// Returns whether a program with this name starts separate workloads and belongs to none of them: a login, a
/// supervisor, a multiplexer, a desktop.
pub fn keeps_others(comm: &str) -> bool {
    Kind::of(comm) == Kind::SessionHost
}

/// Result of reading one pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The process exists.
    There(Node),
    /// The process certainly does not exist.
    Gone,
    /// The process could not be read, or may be hidden.
    Unknown,
}

/// Returns the workload of a process; `None` if unknown. `lookup` is called for each ancestor in turn.
pub fn workload(node: &Node, lookup: impl FnMut(u32) -> Lookup) -> Option<Workload> {
    match &node.home {
        Home::Named(name) => return Some(Workload::Named(Arc::clone(name))),
        Home::Tree if node.kind != Kind::KernelThread => {}
        Home::Tree | Home::Unknown => return None,
    }
    let mut climb = Climb { lookup, in_a_tick: 0 };
    let mut root = node.clone();
    loop {
        // No process shares a workload with pid 1.
        let parent = if root.ppid == 1 { Lookup::Gone } else { climb.parent(&root) };
        let parent = match parent {
            Lookup::There(parent) if parent.session == node.session && !parent.stands_apart() => parent,
            Lookup::There(_) | Lookup::Gone => return Some(Workload::Tree(root.key)),
            Lookup::Unknown => return None,
        };
        match (&parent.home, parent.root) {
            (Home::Named(_), _) => return Some(Workload::Tree(root.key)),
            (Home::Unknown, _) | (Home::Tree, Root::Unknown) => return None,
            (Home::Tree, Root::Known(found)) => return Some(Workload::Tree(found)),
            (Home::Tree, Root::NotDetermined) => root = parent,
        }
    }
}

/// Returns whether a process descends from a certain ancestor, across all workloads. `meant` returns `Some` of the result
/// if the ancestor decides it, and `None` to continue upwards. The result is `None` if it is unknown, for example because
/// an ancestor could not be read before the decision.
pub fn descends(
    node: &Node,
    meant: impl Fn(ProcessKey) -> Option<Truth>,
    lookup: impl FnMut(u32) -> Lookup,
) -> Option<bool> {
    let mut climb = Climb { lookup, in_a_tick: 0 };
    let mut below = node.clone();
    loop {
        below = match climb.parent(&below) {
            Lookup::There(parent) => parent,
            Lookup::Gone => return Some(false),
            Lookup::Unknown => return None,
        };
        if let Some(answer) = meant(below.key) {
            return answer.known();
        }
    }
}

/// Returns the start time of the nearest ancestor that was read, as that of each of these processes, which were not: a
/// process does not start before its parent. `parent` returns the parent of a process that was not read.
pub fn starts_of_ancestors(
    pids: impl ExactSizeIterator<Item = u32>,
    parent: impl Fn(u32) -> Option<u32>,
    start: impl Fn(u32) -> Option<u64>,
) -> HashMap<u32, u64> {
    let most = pids.len();
    let mut starts: HashMap<u32, u64> = HashMap::with_capacity(most);
    for pid in pids {
        let (mut line, mut next) = (Vec::new(), Some(pid));
        // With a reused pid, processes may seem to descend from each other.
        let found = loop {
            let Some(at) = next.filter(|_| line.len() <= most) else { break 0 };
            if let Some(found) = starts.get(&at).copied().or_else(|| start(at)) {
                break found;
            }
            line.push(at);
            next = parent(at);
        };
        starts.extend(line.into_iter().map(|pid| (pid, found)));
    }
    starts
}

/// Returns the pids of all processes, oldest process first, and parents before their children, so that what was found for a
/// parent is reused: users can nest processes deeply, also in one clock tick, in which a parent can have the higher pid.
pub fn oldest_first<'a>(
    all: impl Iterator<Item = &'a Node>,
    node: impl Fn(u32) -> Option<&'a Node>,
) -> Vec<u32> {
    let mut keys: Vec<ProcessKey> = all.map(|node| node.key).collect();
    keys.sort_unstable_by_key(|key| (key.start_ticks, key.pid));
    let mut order = Vec::with_capacity(keys.len());
    let mut known = HashSet::with_capacity(keys.len());
    for ProcessKey { pid, start_ticks } in keys {
        let (mut line, mut next) = (Vec::new(), pid);
        let is_due = |node: &&Node| node.key.start_ticks == start_ticks;
        while let Some(node) = node(next).filter(is_due).filter(|_| known.insert(next)) {
            line.push(next);
            next = node.ppid;
        }
        order.extend(line.into_iter().rev());
    }
    order
}

/// Walk from a process to its ancestors.
struct Climb<L> {
    lookup: L,
    in_a_tick: usize,
}

impl<L: FnMut(u32) -> Lookup> Climb<L> {
    /// Returns the parent of a process. A process younger than the child is not its parent, but reused the
    /// parent's pid. Kernel threads do not count as parents.
    fn parent(&mut self, child: &Node) -> Lookup {
        if child.ppid == 0 {
            return Lookup::Gone;
        }
        let parent = match (self.lookup)(child.ppid) {
            Lookup::There(parent) => parent,
            other => return other,
        };
        if parent.kind == Kind::KernelThread || parent.key.start_ticks > child.key.start_ticks {
            return Lookup::Gone;
        }
        let same_tick = parent.key.start_ticks == child.key.start_ticks;
        self.in_a_tick = if same_tick { self.in_a_tick + 1 } else { 0 };
        if self.in_a_tick > MOST_IN_A_TICK { Lookup::Unknown } else { Lookup::There(parent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::text_limit::LONGEST_PATH;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "9c5b4a5e-7d1f-4f0e-9a3b-0a1b2c3d4e5f";

    fn home(cgroup: &str) -> Home {
        Home::of(&Place::parse(&format!("0::{cgroup}\n")))
    }

    fn named(name: &str) -> Home {
        Home::Named(name.into())
    }

    #[test]
    fn what_a_cgroup_says() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        let (docker, pod) =
            (format!("/system.slice/docker-{ID}.scope"), format!("/kubepods/besteffort/pod{POD}"));
        let job = "/system.slice/slurmstepd.scope/job_77";
        let cases = [
            (format!("{docker}/child"), format!("container:{docker}")),
            (format!("{docker}/{}", "deep/".repeat(LONGEST_PATH)), format!("container:{docker}")),
            (format!("{docker}/docker-{POD}.scope/a.service"), format!("container:{docker}")),
            (format!("{pod}/{ID}/child"), format!("container:{pod}/{ID}")),
            (format!("{pod}/child/{ID}"), format!("pod:{pod}")),
            (format!("{job}/step_0/user/task_0"), format!("slurm:{job}")),
            (format!("{job}/step_0/user/docker-{ID}.scope"), format!("slurm:{job}")),
            (format!("{job}/docker-{ID}.scope"), format!("slurm:{job}")),
            ("/system.slice/nb.service".into(), "unit:/system.slice/nb.service".into()),
            ("/system.slice/nb.service/child/of/it".into(), "unit:/system.slice/nb.service".into()),
            ("/a.service/b.service/c".into(), "unit:/a.service/b.service".into()),
            ("/system.slice/run-r12.scope".into(), "unit:/system.slice/run-r12.scope".into()),
            ("/machine.slice/vm.scope".into(), "unit:/machine.slice/vm.scope".into()),
            (format!("{user}/app.slice/nb.service"), format!("unit:{user}/app.slice/nb.service")),
            (format!("{user}/app.slice/run-u7.scope"), format!("unit:{user}/app.slice/run-u7.scope")),
        ];
        for (cgroup, expected) in cases {
            assert_eq!(home(&cgroup), named(&expected), "{cgroup}");
        }
    }

    #[test]
    fn what_holds_many_workloads_is_none() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        let below = [
            "app.slice/vte-spawn-9c5b.scope",
            "app.slice/tmux-spawn-9c5b.scope",
            "app.slice/app-gnome-code-4711.scope",
            "app.slice/app-org.kde.konsole@4711.service",
            "app.slice/app-org.kde.konsole@4711.service/tab(4712).scope",
            "app.slice/nb.service/tmux-spawn-1.scope",
            "init.scope",
            "",
        ];
        let below = below.map(|below| format!("{user}/{below}"));
        let external = "/system.slice/slurmstepd.scope/job_77/step_extern/user/task_special";
        let session = "/user.slice/user-1000.slice/session-3.scope";
        let others = ["/", session, external, "/init.scope", "/process_api/17"];
        for cgroup in below.iter().map(String::as_str).chain(others) {
            assert_eq!(home(cgroup), Home::Tree, "{cgroup}");
        }
    }

    #[test]
    fn a_cgroup_that_was_not_read_or_contradicts_itself_says_nothing() {
        assert_eq!(Home::of(&Place::default()), Home::Unknown);
        let text = "9:name=systemd:/here\n4:memory:/system.slice/a.service\n";
        assert_eq!(Home::of(&Place::parse(text)), Home::Unknown);
        let text = format!("4:memory:/docker/{ID}\n0::/kubepods/pod{POD}/{ID}\n");
        assert_eq!(Home::of(&Place::parse(&text)), Home::Unknown, "one id and two things");
        let colon = "/user.slice/user-1.slice/user@1.service/app.slice/dbus-:1.2-a@0.service";
        assert_eq!(home(colon), named(&format!("unit:{colon}")), "a name may have colons");
    }

    #[test]
    fn one_id_at_two_paths_is_two_workloads() {
        let paths = [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/own.slice/docker-{ID}.scope"),
        ];
        let homes: HashSet<String> = paths.iter().map(|path| format!("{:?}", home(path))).collect();
        assert_eq!(homes.len(), 3);
    }

    #[test]
    fn cgroup_is_shared_below_one_boundary_or_unit() {
        let container = format!("/docker/{ID}");
        let user = "/user.slice/user-1000.slice/user@1000.service/app.slice";
        let job = "/system.slice/slurmstepd.scope/job_77";
        let cases = [
            (format!("{container}/a"), format!("{container}/b/docker-{ID}.scope"), true),
            (container.clone(), "/docker".to_owned(), false),
            (format!("{user}/nb.service"), format!("{user}/nb.service/a"), true),
            (format!("{user}/nb.service"), format!("{user}/other.service"), false),
            (format!("{user}/vte-spawn-1.scope"), format!("{user}/vte-spawn-2.scope"), false),
            (format!("{job}/step_0/user"), format!("{job}/step_1/user"), true),
            (format!("{job}/step_0/user"), format!("{job}/step_extern/user"), false),
            ("/made/a".into(), "/made/a".into(), true),
            ("/made/a".into(), "/made/b".into(), false),
        ];
        for (one, other, shared) in cases {
            let place = |path: &str| Place::parse(&format!("0::{path}"));
            assert_eq!(share_cgroup(&place(&one), &place(&other)), shared, "{one} {other}");
        }
        assert!(
            !share_cgroup(&Place::default(), &Place::default()),
            "what was not read is shared with nothing"
        );
    }

    /// Returns a process in this session whose start tick equals its pid.
    fn node(pid: u32, ppid: u32, session: u32, comm: &str) -> Node {
        let stat = Stat {
            key: ProcessKey { pid, start_ticks: u64::from(pid) },
            comm: comm.into(),
            state: State::Sleeping,
            ppid,
            session,
            cpu_ticks: 0,
            reaped_ticks: Some(0),
            threads: 1,
            kernel_thread: comm == "kthreadd",
        };
        Node::new(&stat, Some(1000), Home::Tree)
    }

    fn table(nodes: impl IntoIterator<Item = Node>) -> HashMap<u32, Node> {
        nodes.into_iter().map(|node| (node.key.pid, node)).collect()
    }

    fn lookup(table: &HashMap<u32, Node>) -> impl Fn(u32) -> Lookup + '_ {
        |pid| table.get(&pid).cloned().map_or(Lookup::Gone, Lookup::There)
    }

    fn is(pid: u32) -> impl Fn(ProcessKey) -> Option<Truth> {
        move |key| (key.pid == pid).then_some(Truth::True)
    }

    fn root(table: &HashMap<u32, Node>, pid: u32) -> Option<u32> {
        match workload(&table[&pid], lookup(table))? {
            Workload::Tree(root) => Some(root.pid),
            Workload::Named(name) => panic!("{name} is no tree"),
        }
    }

    #[test]
    fn the_root_of_a_tree() {
        let machine = table([
            node(2, 0, 0, "kthreadd"),
            node(20, 1, 20, "sshd"),
            node(21, 20, 20, "sshd-session"),
            // Alice's prompt with two jobs, one of which is a script.
            node(30, 21, 30, "bash"),
            node(31, 30, 30, "bash"),
            node(32, 31, 30, "python3"),
            node(33, 32, 30, "pt_data_worker"),
            node(34, 30, 30, "python3"),
            // A separate session, led by a program.
            node(40, 34, 40, "python3"),
            node(41, 40, 40, "sh"),
            node(42, 41, 40, "nvcc"),
            // A multiplexer in her session, with a window and a job in it.
            node(50, 30, 30, "tmux: server"),
            node(51, 50, 51, "-zsh"),
            node(52, 51, 51, "train"),
            node(53, 30, 30, "sudo"),
            node(54, 53, 30, "train"),
            node(60, 2, 0, "train"),
            node(61, 1, 61, "train"),
            node(62, 999, 62, "train"),
            node(63, 61, 30, "train"),
        ]);
        let cases = [
            (30, 30, "a prompt is a workload of its own"),
            (31, 31, "a job of the prompt's"),
            (32, 31, "a script's own shell is of its tree"),
            (33, 31, "all the way up"),
            (34, 34, "another job of the same prompt"),
            (40, 40, "a session of its own"),
            (42, 40, "a leader that is no shell is of its tree"),
            (52, 52, "below a login shell in a multiplexer"),
            (50, 50, "a multiplexer is not its shell's job"),
            (54, 54, "below sudo"),
            (60, 60, "below a kernel thread"),
            (61, 61, "below pid 1"),
            (62, 62, "its parent has gone"),
            (63, 63, "its parent is of another session"),
        ];
        for (pid, expected, why) in cases {
            assert_eq!(root(&machine, pid), Some(expected), "{pid}: {why}");
        }
        assert_eq!(workload(&machine[&2], lookup(&machine)), None, "a kernel thread has none");
    }

    #[test]
    fn a_younger_parent_only_has_the_pid() {
        let child = node(70, 80, 5, "train");
        let same_tick = Node { key: ProcessKey { pid: 80, start_ticks: 70 }, ..node(80, 1, 5, "sh") };
        let one_later = Node { key: ProcessKey { pid: 80, start_ticks: 71 }, ..same_tick.clone() };
        for (parent, expected, below) in [(same_tick, 80, true), (one_later, 70, false)] {
            let machine = table([child.clone(), parent]);
            assert_eq!(root(&machine, 70), Some(expected));
            assert_eq!(descends(&child, is(80), lookup(&machine)), Some(below));
        }
    }

    #[test]
    fn a_tree_ends_below_a_cgroup_of_its_own_and_starts_in_none() {
        let unit = named("unit:/system.slice/nb.service");
        let outer = Node { home: unit.clone(), ..node(10, 1, 10, "jupyter") };
        let machine = table([outer, node(11, 10, 10, "python3"), node(12, 11, 10, "python3")]);
        assert_eq!(root(&machine, 12), Some(11), "the service is another workload");
        let found = workload(&machine[&10], |_| panic!("no lookup is needed"));
        assert_eq!(found.map(|found| found.to_string()).as_deref(), Some("unit:/system.slice/nb.service"));
        assert_eq!(Workload::Tree(machine[&11].key).to_string(), "tree:11@11");
    }

    #[test]
    fn what_was_not_read_makes_it_unknown_only_where_it_matters() {
        let unread = |node: Node| Node { home: Home::Unknown, ..node };
        let cases = [
            ("its own cgroup", table([unread(node(12, 11, 10, "python3")), node(11, 1, 10, "sh")]), None),
            ("its parent's", table([node(12, 11, 10, "python3"), unread(node(11, 1, 10, "sh"))]), None),
            ("a prompt's", table([node(12, 11, 11, "python3"), unread(node(11, 1, 11, "sh"))]), Some(12)),
            ("another session's", table([node(12, 11, 12, "a"), unread(node(11, 1, 11, "a"))]), Some(12)),
        ];
        for (what, machine, expected) in cases {
            assert_eq!(root(&machine, 12), expected, "{what}");
        }
        let child = node(12, 11, 10, "python3");
        assert_eq!(workload(&child, |_| Lookup::Unknown), None);
        assert_eq!(descends(&child, |_| Some(Truth::True), |_| Lookup::Unknown), None);
        assert_eq!(descends(&child, |_| Some(Truth::True), |_| Lookup::Gone), Some(false));
    }

    #[test]
    fn descent_crosses_sessions_and_shells() {
        let nodes = [node(10, 1, 10, "train"), node(11, 10, 11, "bash"), node(12, 11, 12, "tmux: server")];
        let machine = table(nodes.into_iter().chain([node(13, 12, 13, "worker"), node(14, 1, 14, "other")]));
        let below = |pid: u32| descends(&machine[&pid], is(10), lookup(&machine));
        assert_eq!([10, 11, 12, 13, 14].map(below), [false, true, true, true, false].map(Some));
    }

    #[test]
    fn what_was_found_before_is_not_looked_for_again() {
        let mut machine = table([node(10, 1, 10, "train"), node(11, 10, 10, "a"), node(12, 11, 10, "b")]);
        let root_10 = Workload::Tree(ProcessKey { pid: 10, start_ticks: 10 });
        machine.get_mut(&11).expect("it is there").set_workload(Some(&root_10));
        machine.remove(&10);
        assert_eq!(root(&machine, 12), Some(10));
        assert_eq!(descends(&machine[&12], |_| Some(Truth::False), lookup(&machine)), Some(false));
    }

    #[test]
    fn processes_that_were_not_read_start_with_their_ancestor() {
        let parents = HashMap::from([(30, 7), (20, 30), (40, 20), (50, 51), (51, 50), (60, 3)]);
        let starts = starts_of_ancestors(
            [20, 30, 40, 50, 51, 60].into_iter(),
            |pid| parents.get(&pid).copied(),
            |pid| (pid == 7).then_some(100),
        );
        assert_eq!([30, 20, 40].map(|pid| starts[&pid]), [100, 100, 100]);
        assert_eq!([50, 51, 60].map(|pid| starts[&pid]), [0, 0, 0], "no ancestor was read");
    }

    /// Pids fell to the lowest within the tick, so that each process has a lower pid than its parent.
    #[test]
    fn processes_that_were_nested_in_a_tick_have_a_known_workload() {
        let mut machine = table((100..5_000).map(|pid| {
            let key = ProcessKey { pid, start_ticks: 7 };
            Node { key, ..node(pid, if pid == 4_999 { 1 } else { pid + 1 }, 4_999, "python3") }
        }));
        let mut asked = 0;
        for pid in oldest_first(machine.values(), |pid| machine.get(&pid)) {
            let counted = |pid| {
                asked += 1;
                lookup(&machine)(pid)
            };
            let found = workload(&machine[&pid], counted);
            assert_eq!(found, Some(Workload::Tree(ProcessKey { pid: 4_999, start_ticks: 7 })), "{pid}");
            machine.get_mut(&pid).expect("it is there").set_workload(found.as_ref());
        }
        assert!(asked < 5_000, "the root of each parent is known");
    }

    /// Results are the same if the roots of older processes are already known.
    #[test]
    fn found_before_or_not_the_answer_is_the_same() {
        let names = ["python3", "bash", "sudo", "python3", "sh"];
        let nodes = (10u32..60)
            .map(|pid| node(pid, pid - 1 - pid % 3, 10 + (pid / 20) * 10, names[(pid as usize * 7) % 5]));
        let mut machine = table(nodes);
        machine.get_mut(&32).expect("it is there").home = Home::Unknown;
        let mut settled = machine.clone();
        let mut unknown = 0;
        for pid in 10..60 {
            let alone = workload(&machine[&pid], lookup(&machine));
            assert_eq!(workload(&settled[&pid], lookup(&settled)), alone, "{pid}");
            unknown += u32::from(alone.is_none());
            settled.get_mut(&pid).expect("it is there").set_workload(alone.as_ref());
        }
        assert!(unknown > 1, "the processes below one whose cgroup is unknown");
    }

    #[test]
    fn names_of_programs() {
        let hosts: Vec<&str> = SESSION_HOSTS.split(' ').collect();
        for list in [SHELLS.as_slice(), &hosts] {
            assert!(list.is_sorted(), "they are searched in order");
            assert!(list.iter().all(|name| name.len() <= 15), "the kernel cuts longer ones");
        }
        let cases = [
            ("bash", Kind::Shell),
            ("-bash", Kind::Shell),
            ("bashful", Kind::Program),
            ("tmux: server", Kind::SessionHost),
            ("screen", Kind::SessionHost),
            ("containerd-shim", Kind::SessionHost),
            ("(sd-pam)", Kind::SessionHost),
            ("sshd-session", Kind::SessionHost),
            ("python3", Kind::Program),
            ("", Kind::Program),
        ];
        for (comm, kind) in cases {
            assert_eq!(Kind::of(comm), kind, "{comm}");
        }
    }

    prop_compose! {
        fn any_node()(pid in 0u32..40, ppid in 0u32..40, start_ticks in 0u64..4, session in 0u32..4, other in 0usize..6)
            -> Node {
            let comm = ["python3", "bash", "sudo", "kthreadd", "python3", "python3"][other];
            let home = if other == 4 { Home::Unknown } else { Home::Tree };
            Node { key: ProcessKey { pid, start_ticks }, home, ..node(pid, ppid, session, comm) }
        }
    }

    proptest! {
        #[test]
        fn the_walk_up_ends_whatever_the_table(nodes in prop::collection::vec(any_node(), 1..60)) {
            let machine = table(nodes);
            for node in machine.values() {
                let mut asked = 0;
                let counted = |pid| { asked += 1; lookup(&machine)(pid) };
                let found = workload(node, counted);
                prop_assert!(asked <= 5 * (MOST_IN_A_TICK + 1));
                if let Some(Workload::Tree(root)) = found {
                    prop_assert!(root.start_ticks <= node.key.start_ticks);
                    prop_assert!(machine[&root.pid].session == node.session);
                }
                let _ = descends(node, is(41), lookup(&machine));
            }
        }

        #[test]
        fn parents_come_before_their_children(nodes in prop::collection::vec(any_node(), 1..60)) {
            let machine = table(nodes);
            let order = oldest_first(machine.values(), |pid| machine.get(&pid));
            prop_assert_eq!(order.len(), machine.len());
            let starts = order.iter().map(|pid| machine[pid].key.start_ticks);
            prop_assert!(starts.is_sorted());
            let mut before = HashSet::new();
            for pid in order {
                let parent = |pid: u32| machine.get(&machine[&pid].ppid).map(|parent| parent.key);
                let start = machine[&pid].key.start_ticks;
                let mut line = std::iter::successors(Some(pid), |pid| parent(*pid).filter(|it| it.start_ticks == start).map(|it| it.pid));
                let is_loop = line.nth(machine.len()).is_some();
                let same_tick = parent(pid).filter(|parent| parent.start_ticks == start);
                prop_assert!(is_loop || same_tick.is_none_or(|parent| before.contains(&parent.pid)));
                before.insert(pid);
            }
        }

        #[test]
        fn nothing_in_a_path_panics(text: String, parts in prop::collection::vec("(user@1|run-a|a|é)?(\\.service|\\.scope)?", 0..6)) {
            let _ = home(&text);
            let _ = home(&parts.join("/"));
        }
    }

    #[test]
    fn slurms_shepherd_is_no_part_of_its_job() {
        let home = home("/system.slice/slurmstepd.scope/job_77/step_0/slurm");
        let of = |comm: &str, uid| {
            let stat = crate::stat::Stat {
                key: ProcessKey { pid: 4100, start_ticks: 5 },
                comm: comm.into(),
                state: State::Sleeping,
                ppid: 1,
                session: 4100,
                cpu_ticks: 0,
                reaped_ticks: None,
                threads: 1,
                kernel_thread: false,
            };
            workload(&Node::new(&stat, uid, home.clone()), |_| Lookup::Gone).map(|found| found.to_string())
        };
        let job = Some("slurm:/system.slice/slurmstepd.scope/job_77");
        assert_eq!(of("python3", Some(0)).as_deref(), job);
        assert_eq!(of("slurmstepd", Some(1000)).as_deref(), job, "a user chose the name");
        for (comm, uid) in [("slurmstepd", Some(0)), ("slurmstepd-wlm", Some(0)), ("slurmstepd", None)] {
            assert_eq!(of(comm, uid).as_deref(), Some("tree:4100@5"), "{comm} {uid:?}");
        }
    }
}
