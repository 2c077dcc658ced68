//! Detects orphaned processes: no other process remains in the login session, job or container of their
//! cgroup. That the POSIX session leader has exited is not enough, because processes that fork twice, such
//! as daemons and slurmstepd, are in a session without a leader from the start.

use std::collections::HashMap;
use std::sync::Arc;

use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::workload::keeps_others;
use bailiff_snapshot::{ProcessKey, State};

/// Programs that adopt orphaned processes, by `comm` (truncated to 15 bytes by the kernel). slurmstepd is
/// not in the list, because it runs as long as its step.
const REAPERS: [&str; 7] = ["systemd", "init", "conmon", "tini", "dumb-init", "docker-init", "catatonit"];
/// Prefix of further such programs, for example `containerd-shim-runc-v2`.
const REAPER_PREFIX: &str = "containerd-shim";

/// Maximum number of ancestors followed in one cgroup.
const MOST_ANCESTORS: usize = 64;

fn reaps(comm: &str) -> bool {
    REAPERS.contains(&comm) || comm.starts_with(REAPER_PREFIX)
}

/// Properties of a process that decide whether it or another member of its cgroup is orphaned.
pub(crate) struct Member {
    pub(crate) key: ProcessKey,
    pub(crate) ppid: u32,
    session: u32,
    /// Whether no thread of the process runs.
    ended: bool,
    reaps: bool,
    /// Whether it starts separate workloads and cannot be orphaned, such as a login or a multiplexer.
    keeps_others: bool,
    /// Container, job, pod or unit of the process's cgroup.
    pub(crate) inside: Option<Arc<str>>,
}

impl Member {
    pub(crate) fn new(stat: &Stat, inside: Option<Arc<str>>) -> Self {
        Self {
            key: stat.key,
            ppid: stat.ppid,
            session: stat.session,
            ended: matches!(stat.state, State::Zombie | State::Dead) && stat.threads <= 1,
            reaps: reaps(&stat.comm),
            keeps_others: keeps_others(&stat.comm),
            inside,
        }
    }
}

/// Lookup of all processes, and for each cgroup with holders whether all its members are orphaned.
pub(crate) struct OrphanTable<F> {
    find: F,
    cgroups: HashMap<Arc<str>, bool>,
}

impl<'a, F: Fn(u32) -> Option<&'a Member>> OrphanTable<F> {
    /// Builds the table. `all` must contain every process of the node; `find` returns one by its pid.
    pub(crate) fn of(
        all: impl Iterator<Item = &'a Member>,
        holders: impl Iterator<Item = &'a Member>,
        find: F,
    ) -> Self {
        let inside = holders.filter_map(|holder| holder.inside.as_ref());
        let cgroups = inside.map(|inside| (Arc::clone(inside), true)).collect();
        let mut orphans = Self { find, cgroups };
        for member in all.filter(|member| !member.ended) {
            let Some(inside) = &member.inside else { continue };
            if orphans.cgroups.get(inside) == Some(&true) && !orphans.was_orphaned(member) {
                orphans.cgroups.insert(Arc::clone(inside), false);
            }
        }
        orphans
    }

    /// Returns whether a process is orphaned; `None` if unknown.
    pub(crate) fn orphaned(&self, member: &Member) -> Option<bool> {
        if member.inside.as_ref().is_some_and(|inside| self.cgroups.get(inside) == Some(&true)) {
            return Some(true);
        }
        let of_another = member.session != member.key.pid && member.session != 0;
        (!self.is_reaped(member) || (of_another && self.is_led(member))).then_some(false)
    }

    /// Returns whether the topmost ancestor in the cgroup was reparented and its session leader has exited.
    fn was_orphaned(&self, member: &'a Member) -> bool {
        let mut at = member;
        for _ in 0..MOST_ANCESTORS {
            if at.keeps_others {
                return false;
            }
            match self.parent(at) {
                Some(parent) if parent.inside == at.inside => at = parent,
                _ => return self.is_reaped(at) && !self.is_led(at),
            }
        }
        false
    }

    /// Returns the parent if it is running. A process that started later has only reused the parent's pid.
    fn parent(&self, member: &Member) -> Option<&'a Member> {
        let parent = (self.find)(member.ppid)?;
        (!parent.ended && parent.key.start_ticks <= member.key.start_ticks).then_some(parent)
    }

    fn is_reaped(&self, member: &Member) -> bool {
        member.ppid == 1 || self.parent(member).is_none_or(|parent| parent.reaps)
    }

    /// Returns whether the leader of the process's session is running or is in another PID namespace. A
    /// process that started later has only reused the leader's pid.
    fn is_led(&self, member: &Member) -> bool {
        let leader = (self.find)(member.session).filter(|leader| !leader.ended);
        member.session == 0 || leader.is_some_and(|leader| leader.key.start_ticks <= member.key.start_ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::stat;

    const SESSION: Option<&str> = Some("/user.slice/user-1000.slice/session-3.scope");
    const JOB: Option<&str> = Some("slurm:77");
    const POD: Option<&str> = Some("container:c");
    const ROOT: Option<&str> = None;

    /// Name, pid, parent, session and state of a process. All processes of a case have the same cgroup.
    type One = (&'static str, u32, u32, u32, State);
    const S: State = State::Sleeping;
    const Z: State = State::Zombie;

    fn member((comm, pid, ppid, session, state): One, inside: Option<&str>) -> Member {
        let stat = Stat {
            key: ProcessKey { pid, start_ticks: pid.into() },
            comm: comm.into(),
            state,
            ppid,
            session,
            cpu_ticks: 0,
            reaped_ticks: Some(0),
            threads: 1,
            kernel_thread: false,
        };
        Member::new(&stat, inside.map(Arc::from))
    }

    fn orphaned(inside: Option<&str>, pid: u32, inmates: &[One]) -> Option<bool> {
        let outside = [("systemd", 1, 0, 1, S), ("containerd-shim", 5, 1, 5, S), ("sshd", 6, 1, 6, S)];
        let outside = outside.map(|one| member(one, Some("/init.scope")));
        let all: Vec<Member> =
            outside.into_iter().chain(inmates.iter().map(|one| member(*one, inside))).collect();
        let find = |pid| all.iter().find(|member| member.key.pid == pid);
        let holder = find(pid).unwrap();
        OrphanTable::of(all.iter(), std::iter::once(holder), find).orphaned(holder)
    }

    const LEFT: One = ("python3", 30, 1, 20, S);
    const CHILD: One = ("python3", 31, 30, 20, S);
    /// Name, cgroup, pid in question, members, and expected result.
    type Case = (&'static str, Option<&'static str>, u32, &'static [One], Option<bool>);
    const CASES: &[Case] = &[
        ("the session has ended", SESSION, 30, &[LEFT], Some(true)),
        ("its child is in it as well", SESSION, 31, &[LEFT, CHILD], Some(true)),
        ("so is one with a session of its own", SESSION, 31, &[LEFT, ("sh", 31, 30, 31, S)], Some(true)),
        ("workers of a launcher that has ended", SESSION, 31, &[LEFT, ("python3", 31, 1, 20, S)], Some(true)),
        ("a zombie leads it", SESSION, 30, &[("bash", 20, 6, 20, Z), LEFT], Some(true)),
        ("its shell lives", SESSION, 30, &[("bash", 20, 6, 20, S), LEFT], Some(false)),
        (
            "a daemon that forked twice, and the shell of the login lives",
            SESSION,
            30,
            &[("bash", 10, 6, 10, S), LEFT],
            None,
        ),
        ("its pid was used again", SESSION, 30, &[LEFT, ("bash", 40, 6, 40, S)], None),
        ("a multiplexer lives", SESSION, 30, &[("tmux: server", 10, 1, 9, S), LEFT], None),
        ("a session of its own", SESSION, 30, &[("python3", 30, 1, 30, S)], None),
        (
            "a child of a program",
            SESSION,
            31,
            &[("python3", 30, 1, 30, S), ("python3", 31, 30, 9, S)],
            Some(false),
        ),
        (
            "a task of a step that runs",
            JOB,
            31,
            &[("slurmstepd", 30, 1, 20, S), ("python3", 31, 30, 20, S)],
            Some(false),
        ),
        (
            "a daemon in a job that runs",
            JOB,
            40,
            &[("slurmstepd", 30, 1, 20, S), ("python3", 31, 30, 20, S), ("python3", 40, 1, 35, S)],
            None,
        ),
        ("a daemon in a job that has ended", JOB, 40, &[("python3", 40, 1, 35, S)], Some(true)),
        (
            "a daemon in a container that runs",
            POD,
            30,
            &[("vllm", 10, 5, 10, S), ("python3", 30, 5, 20, S)],
            None,
        ),
        ("a container has ended", POD, 30, &[("python3", 30, 5, 20, S)], Some(true)),
        ("no cgroup that stands for anything", ROOT, 30, &[LEFT], None),
        (
            "a program that is called nearly like a reaper",
            SESSION,
            31,
            &[("initdb", 30, 1, 30, S), ("x", 31, 30, 9, S)],
            Some(false),
        ),
        ("one whose leader is of another namespace", POD, 30, &[("python3", 30, 5, 0, S)], None),
    ];

    #[test]
    fn process_alone_in_its_cgroup_is_orphaned() {
        for (name, inside, pid, inmates, expected) in CASES {
            assert_eq!(orphaned(*inside, *pid, inmates), *expected, "{name}");
        }
    }

    #[test]
    fn reapers_are_known_by_their_whole_names() {
        for name in ["tini", "init", "systemd", "containerd-shim", "containerd-shim-runc-v2"] {
            assert!(reaps(name), "{name}");
        }
        for name in ["tinigrad-launch", "initdb", "systemd-inhibit", "slurmstepd", "conmonitor"] {
            assert!(!reaps(name), "{name}");
        }
    }

    #[test]
    fn a_leader_that_has_ended_lives_while_its_threads_do() {
        let with = |threads| {
            let stat =
                Stat { threads, ..stat::parse(b"7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7").unwrap() };
            Member::new(&stat, None).ended
        };
        assert!(with(1) && !with(2));
    }
}
