//! Was a process left behind? It was, when it has been handed to a reaper, is no service, and the session
//! that it was started in has no leader any more.

use bailiff_snapshot::Place;
use bailiff_snapshot::stat::Stat;

/// Programs that take in other people's children, by `comm` (cut to 15 bytes by the kernel).
const REAPERS: [&str; 9] = [
    "systemd",
    "init",
    "containerd-shim",
    "conmon",
    "tini",
    "dumb-init",
    "docker-init",
    "catatonit",
    "slurmstepd",
];

/// The parent of a process, as far as it matters.
pub(crate) struct Parent {
    /// Pid 1 of this namespace or of its own.
    pub(crate) is_init: bool,
    /// Its name.
    pub(crate) comm: String,
}

impl Parent {
    fn reaps(&self) -> bool {
        self.is_init || REAPERS.iter().any(|reaper| self.comm.starts_with(reaper))
    }
}

/// Whether it was left behind; `None` where that cannot be told. `leader` is the stat of the process that has
/// the session's number now.
pub(crate) fn orphaned(
    stat: &Stat,
    place: &Place,
    parent: Option<&Parent>,
    leader: Option<&Stat>,
) -> Option<bool> {
    if place.in_service() {
        return Some(false);
    }
    let reaped = stat.ppid == 1 || parent?.reaps();
    if !reaped {
        return Some(false);
    }
    if stat.session == 0 || stat.session == stat.key.pid {
        return None;
    }
    // A younger process with the session's number is not its leader: the pid was used again.
    Some(leader.is_none_or(|leader| leader.key.start_ticks > stat.key.start_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::{ProcessKey, State};

    fn stat(pid: u32, ppid: u32, session: u32, start_ticks: u64) -> Stat {
        Stat {
            key: ProcessKey { pid, start_ticks },
            comm: "python3".into(),
            state: State::Sleeping,
            ppid,
            session,
            cpu_ticks: 0,
            reaped_ticks: Some(0),
            threads: 1,
            kernel_thread: false,
        }
    }

    #[test]
    fn only_a_reaped_child_of_an_ended_session_is_left_behind() {
        let shell = Parent { is_init: false, comm: "bash".into() };
        let shim = Parent { is_init: false, comm: "containerd-shim".into() };
        let place = Place::default();
        let service = Place { unit: Some("nb.service".into()), ..Place::default() };
        let (old, young) = (stat(10, 1, 10, 5), stat(10, 1, 10, 50));
        let cases = [
            ("child of a shell", stat(20, 9, 10, 7), &place, Some(&shell), None, Some(false)),
            ("leader gone", stat(20, 1, 10, 7), &place, None, None, Some(true)),
            ("leader lives", stat(20, 1, 10, 7), &place, None, Some(&old), Some(false)),
            ("leader's pid used again", stat(20, 1, 10, 7), &place, None, Some(&young), Some(true)),
            ("in a container", stat(20, 9, 10, 7), &place, Some(&shim), None, Some(true)),
            ("a session of its own", stat(20, 1, 20, 7), &place, None, None, None),
            ("a service", stat(20, 1, 10, 7), &service, None, None, Some(false)),
            ("parent not seen", stat(20, 9, 10, 7), &place, None, None, None),
        ];
        for (name, stat, place, parent, leader, expected) in cases {
            assert_eq!(orphaned(&stat, place, parent, leader), expected, "{name}");
        }
    }
}
