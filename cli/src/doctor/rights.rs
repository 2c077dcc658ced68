//! Access to `/proc`: its PID namespace, `hidepid`, and the capabilities needed to read other users' files.

use std::path::Path;

use bailiff_proc::Proc;
use bailiff_snapshot::PidNamespace;

use super::check::Check;

/// Bits of `CapEff` (`include/uapi/linux/capability.h`).
const CAPABILITIES: [(&str, u32); 2] = [("CAP_DAC_READ_SEARCH", 2), ("CAP_SYS_PTRACE", 19)];

/// Checks the access to other processes.
pub(super) fn checks(procfs: &Path) -> Vec<Check> {
    let proc = Proc::open(procfs).ok();
    let proc = proc.as_ref();
    let link = proc.and_then(|proc| proc.own_pid_namespace().ok());
    let namespace = link.map_or(PidNamespace::Unknown, |link| PidNamespace::of_link(&link));
    let mounts = proc.and_then(|proc| proc.text("self/mounts").ok()).unwrap_or_default();
    let first = proc.is_some_and(|proc| proc.bytes("1/stat").is_ok());
    let missing = proc.and_then(|proc| proc.own_mask("CapEff:")).map(missing);
    vec![of_namespace(namespace), of_mount(procfs, &mounts, first), of_rights(missing.as_deref())]
}

fn of_namespace(namespace: PidNamespace) -> Check {
    const NAME: &str = "pid namespace";
    match namespace {
        PidNamespace::Host => Check::ok(NAME, "the host's"),
        PidNamespace::Other => Check::warn(
            NAME,
            "not the host's: the driver's PIDs do not match processes here, so processes cannot be identified",
            "set hostPID: true in Kubernetes or --pid=host in Docker, or use an exporter that runs on the host",
        ),
        PidNamespace::Unknown => {
            Check::fail(NAME, "cannot read /proc/self/ns/pid", "mount -t proc proc /proc")
        }
    }
}

/// Checks whether `/proc` hides other users' processes. `first` is whether process 1 is visible; only
/// `hidepid` or another mount hides it.
fn of_mount(procfs: &Path, mounts: &str, first: bool) -> Check {
    const NAME: &str = "/proc";
    let hides = hidepid(procfs, mounts);
    match (first, hides) {
        (true, None) => Check::ok(NAME, "shows the processes of all users"),
        (true, Some(hides)) => Check::ok(
            NAME,
            format!("shows the processes of all users to this user, but not to every user (hidepid={hides})"),
        ),
        (false, hides) => {
            let hides = hides.map(|hides| format!(" (hidepid={hides})")).unwrap_or_default();
            Check::warn(
                NAME,
                format!("hides the processes of other users{hides}: only the PIDs of holders are known"),
                "use the exporter, or sudo; an administrator can run mount -o remount,hidepid=0 /proc (or set gid= for a group)",
            )
        }
    }
}

/// Returns the `hidepid` option of the mount, unless it hides nothing.
fn hidepid<'a>(procfs: &Path, mounts: &'a str) -> Option<&'a str> {
    let mount_options = |line: &'a str| {
        let mut fields = line.split(' ').skip(1);
        let (mount_point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "proc" && Path::new(mount_point) == procfs).then_some(options)
    };
    // The last mount on a mount point is the visible one.
    let options = mounts.lines().filter_map(mount_options).next_back()?;
    let hides = options.split(',').find_map(|option| option.strip_prefix("hidepid="))?;
    (!matches!(hides, "0" | "off")).then_some(hides)
}

/// Returns the capabilities that are missing in `CapEff`.
fn missing(effective: u64) -> Vec<&'static str> {
    let lacks = |bit: u32| effective & (1 << bit) == 0;
    CAPABILITIES.iter().filter(|(_, bit)| lacks(*bit)).map(|(name, _)| *name).collect()
}

fn of_rights(missing: Option<&[&str]>) -> Check {
    const NAME: &str = "rights";
    let hint = "use sudo, grant the capabilities, or use an exporter that has them (AmbientCapabilities=)";
    match missing {
        None => Check::skip(NAME, "cannot read the capabilities in /proc/self/status", None),
        Some([]) => {
            Check::ok(NAME, "open files, I/O counters and environments of all processes are readable")
        }
        Some(missing) => {
            let text = "open files, I/O counters and environments of other users' processes are unreadable";
            Check::skip(NAME, format!("{text} without {}", missing.join(" and ")), Some(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn hidepid_is_read_from_the_last_mount() {
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
    fn missing_capabilities_are_parsed_from_bits() {
        assert_eq!(missing(0x1ff_ffff_ffff), [""; 0]);
        assert_eq!(missing(0x8_0004), [""; 0]);
        assert_eq!(missing(0x8_0000), ["CAP_DAC_READ_SEARCH"]);
        assert_eq!(missing(0), ["CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"]);
    }
}
