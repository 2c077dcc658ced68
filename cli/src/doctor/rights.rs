//! What `/proc` shows us: its PID namespace, `hidepid`, and the capabilities that open the files of others.

use std::path::Path;

use bailiff_snapshot::{PidNamespace, Status};

use super::check::Check;
use super::files;

/// Bits of `CapEff` (`include/uapi/linux/capability.h`).
const CAPABILITIES: [(&str, u32); 2] = [("CAP_DAC_READ_SEARCH", 2), ("CAP_SYS_PTRACE", 19)];

/// What is seen of processes.
pub(super) fn checks(procfs: &Path) -> Vec<Check> {
    let link = files::link(&procfs.join("self/ns/pid"));
    let namespace = link.map_or(PidNamespace::Unknown, |link| PidNamespace::of_link(&link.to_string_lossy()));
    let mounts = files::text(&procfs.join("self/mounts")).unwrap_or_default();
    let first = files::bytes(&procfs.join("1/stat")).is_some();
    let missing = files::bytes(&procfs.join("self/status")).and_then(|status| missing(&status));
    vec![of_namespace(namespace), of_mount(procfs, &mounts, first), of_rights(missing.as_deref())]
}

fn of_namespace(namespace: PidNamespace) -> Check {
    const NAME: &str = "pid namespace";
    match namespace {
        PidNamespace::Host => Check::ok(NAME, "the host's"),
        PidNamespace::Other => Check::warn(
            NAME,
            "not the host's: the driver's pids name other processes here, so nobody can be named",
            "hostPID: true in Kubernetes, --pid=host with docker; or ask an exporter that runs on the host",
        ),
        PidNamespace::Unknown => {
            Check::fail(NAME, "self/ns/pid of /proc cannot be read", "mount -t proc proc /proc")
        }
    }
}

/// `first` tells whether the first process is seen, which only `hidepid` and another mount hide.
fn of_mount(procfs: &Path, mounts: &str, first: bool) -> Check {
    const NAME: &str = "/proc";
    let hides = hidepid(procfs, mounts);
    match (first, hides) {
        (true, None) => Check::ok(NAME, "shows the processes of all users"),
        (true, Some(hides)) => Check::ok(
            NAME,
            format!("shows us the processes of all users, and not everybody (hidepid={hides})"),
        ),
        (false, hides) => {
            let hides = hides.map(|hides| format!(" (hidepid={hides})")).unwrap_or_default();
            Check::warn(
                NAME,
                format!("hides the processes of others{hides}: holders are known by pid alone"),
                "ask the exporter, or sudo; admins: mount -o remount,hidepid=0 /proc, or gid= of a group",
            )
        }
    }
}

/// The mount's option, where it hides something.
fn hidepid<'a>(procfs: &Path, mounts: &'a str) -> Option<&'a str> {
    let of_it = |line: &'a str| {
        let mut words = line.split(' ').skip(1);
        let (place, kind, options) = (words.next()?, words.next()?, words.next()?);
        (kind == "proc" && Path::new(place) == procfs).then_some(options)
    };
    // The last mount on a place is the one that is seen.
    let options = mounts.lines().filter_map(of_it).next_back()?;
    let hides = options.split(',').find_map(|option| option.strip_prefix("hidepid="))?;
    (!matches!(hides, "0" | "off")).then_some(hides)
}

/// The capabilities that we lack; none where that cannot be told.
fn missing(status: &[u8]) -> Option<Vec<&'static str>> {
    let effective = Status::new(status).mask("CapEff:")?;
    let lacks = |bit: u32| effective & (1 << bit) == 0;
    Some(CAPABILITIES.iter().filter(|(_, bit)| lacks(*bit)).map(|(name, _)| *name).collect())
}

fn of_rights(missing: Option<&[&str]>) -> Check {
    const NAME: &str = "rights";
    let hint = "sudo, or the capabilities; an exporter that has them (AmbientCapabilities=) tells everybody in its group";
    match missing {
        None => Check::skip(NAME, "self/status of /proc does not tell our capabilities", None),
        Some([]) => Check::ok(NAME, "open files, bytes read and written, and environments of all processes"),
        Some(missing) => {
            let what =
                "open files, bytes read and written, and environments of others' processes are unknown to us";
            Check::skip(NAME, format!("{what}, without {}", missing.join(" and ")), Some(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn the_last_mount_tells_what_is_hidden() {
        let proc = Path::new("/proc");
        let cases = [
            ("proc /proc proc rw,nosuid 0 0\n", None),
            ("proc /proc proc rw,hidepid=invisible 0 0\n", Some("invisible")),
            ("proc /proc proc rw,hidepid=2,gid=27 0 0\n", Some("2")),
            ("proc /proc proc rw,hidepid=off 0 0\n", None),
            ("proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0\n", None),
            ("proc /mnt/proc proc rw,hidepid=2 0 0\nsysfs /proc sysfs hidepid=2 0 0\n", None),
            ("", None),
        ];
        for (mounts, hides) in cases {
            assert_eq!(hidepid(proc, mounts), hides, "{mounts}");
        }
        let state = |mounts, first| of_mount(proc, mounts, first).state;
        assert_eq!((state("", true), state("", false)), (State::Ok, State::Warn));
    }

    #[test]
    fn capabilities_are_bits() {
        let of = |bits: &str| missing(format!("Name:\tx\nCapEff:\t{bits}\n").as_bytes());
        assert_eq!(of("000001ffffffffff"), Some(vec![]));
        assert_eq!(of("0000000000080004"), Some(vec![]));
        assert_eq!(of("0000000000080000"), Some(vec!["CAP_DAC_READ_SEARCH"]));
        assert_eq!(of("0000000000000000"), Some(vec!["CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"]));
        assert_eq!((of("x"), missing(b"")), (None, None));
    }
}
