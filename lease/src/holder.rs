//! Who holds a lease, in a way that neither a reused pid nor a reboot nor a container can mistake; and whether he
//! still lives. Reads `/proc`.

#![expect(clippy::disallowed_methods, reason = "reads /proc and the machine's id")]

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{PidNamespace, State};
use rustix::io::Errno;

use crate::audit::Lease;

/// The environment of every process of a lease has its name.
pub const LEASE_VARIABLE: &str = bailiff_snapshot::Claim::VARIABLE;

/// Where this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// `/etc/machine-id`.
    pub host: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// The inode of the PID namespace.
    pub pidns: String,
}

/// What is known of a holder's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// He lives, or somebody whom he started does.
    Alive,
    /// He is dead, and so is everybody whom he started, as far as anybody here could be one of them.
    Dead,
    /// He is on another machine.
    Elsewhere,
    /// There is none: it was taken for a time, and ends with it.
    Timed,
    /// He is on this machine, and from here it cannot be told: in another PID namespace, or another user's.
    Unknown,
}

impl Here {
    /// This machine, this boot, this PID namespace; what cannot be read is empty, and never equal to anybody's.
    #[must_use]
    pub fn look() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let pidns = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = Some(text("/etc/machine-id")).filter(|id| !id.is_empty());
        let host = host.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        Self {
            host,
            boot: text("/proc/sys/kernel/random/boot_id"),
            pidns: pidns.to_string_lossy().trim_start_matches("pid:[").trim_end_matches(']').to_owned(),
        }
    }

    /// What a ticket says of its holder.
    #[must_use]
    pub fn holder(&self, pid: u32) -> Vec<(&'static str, String)> {
        vec![
            ("host", self.host.clone()),
            ("boot", self.boot.clone()),
            ("pidns", self.pidns.clone()),
            ("pid", pid.to_string()),
            ("start", start(pid).map(|start| start.to_string()).unwrap_or_default()),
        ]
    }

    /// What a ticket that plays by GPU.py's rules says beside that: who waits, and all who may have the GPU after him.
    #[must_use]
    pub fn taker(&self, parent: u32) -> Vec<(&'static str, String)> {
        let chain: Vec<String> =
            chain(parent).into_iter().map(|(pid, start)| format!("{pid}:{start}")).collect();
        let pid = std::process::id();
        vec![
            ("mode", "compat".to_owned()),
            ("taker", format!("{pid}:{}", start(pid).unwrap_or_default())),
            ("chain", chain.join(",")),
        ]
    }

    /// Whether the holder of a lease lives.
    #[must_use]
    pub fn life(&self, lease: &Lease) -> Life {
        let compat = lease.get("mode") == Some("compat");
        if compat && lease.get("known").is_some() {
            // By GPU.py's rules it outlives whoever took it.
            return Life::Unknown;
        }
        if lease.get("mode") == Some("timed") {
            return Life::Timed;
        }
        if let Some(life) = self.place(lease) {
            return life;
        }
        if compat {
            return lease.get("taker").map_or(Life::Unknown, any_lives);
        }
        let began = lease.get("pid").and_then(|pid| start(pid.parse().ok()?));
        if began.is_some_and(|began| lease.get("start") == Some(began.to_string().as_str())) {
            return Life::Alive;
        }
        if lease.get("start").is_none() { Life::Unknown } else { heirs(lease) }
    }

    /// Whether anybody lives who may have what was taken by GPU.py's rules: the process for which it was, and those
    /// whose part it was.
    #[must_use]
    pub fn chained(&self, lease: &Lease) -> Life {
        self.place(lease).unwrap_or_else(|| lease.get("chain").map_or(Life::Unknown, any_lives))
    }

    /// What the place alone says of a holder's life; nothing where he can be looked at from here.
    fn place(&self, lease: &Lease) -> Option<Life> {
        let same = |field: &str, ours: &str| !ours.is_empty() && lease.get(field) == Some(ours);
        if !same("host", &self.host) {
            return Some(Life::Elsewhere);
        }
        if lease.get("boot").is_some() && !self.boot.is_empty() && !same("boot", &self.boot) {
            return Some(Life::Dead);
        }
        if !same("boot", &self.boot) {
            return Some(Life::Unknown);
        }
        if same("pidns", &self.pidns) {
            return None;
        }
        let gone = self.is_host() && lease.get("pidns").is_some_and(is_gone);
        Some(if gone { Life::Dead } else { Life::Unknown })
    }

    /// Processes of all PID namespaces are to be seen from here.
    fn is_host(&self) -> bool {
        PidNamespace::of_link(&format!("pid:[{}]", self.pidns)) == PidNamespace::Host
    }
}

/// Nobody is left in a PID namespace, by all that is to be seen: whoever was in it has ended, and whoever he started.
fn is_gone(pidns: &str) -> bool {
    // Where `/proc` is mounted with `hidepid` not all are to be seen.
    let Some(_) = stated(Path::new("/proc/1")) else { return false };
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let theirs = format!("pid:[{pidns}]");
    let numbered = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    processes.filter_map(Result::ok).filter(|process| numbered(&process.file_name())).all(|process| {
        match fs::read_link(process.path().join("ns/pid")) {
            Ok(namespace) => namespace.as_os_str() != theirs.as_str(),
            Err(_) => is_not_nested(&process.path()),
        }
    })
}

/// A process whose namespace is not ours to read is in this one, or has ended.
fn is_not_nested(process: &Path) -> bool {
    match fs::read_to_string(process.join("status")) {
        Ok(status) => status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .is_some_and(|pids| pids.split_whitespace().count() == 1),
        Err(error) => {
            error.kind() == ErrorKind::NotFound || Errno::from_io_error(&error) == Some(Errno::SRCH)
        }
    }
}

/// A process and, as long as it is but a part of its parent, that: a shell's subshell, or a shell that runs a line for a
/// program (`sh -c`). Each with its start.
fn chain(pid: u32) -> Vec<(u32, u64)> {
    let mut chain = Vec::new();
    let mut pid = pid;
    while pid > 1
        && let Some(stat) = stated(&Path::new("/proc").join(pid.to_string()))
        && !chain.iter().any(|(met, _)| *met == pid)
    {
        chain.push((pid, stat.key.start_ticks));
        if !is_part(pid, stat.ppid) {
            break;
        }
        pid = stat.ppid;
    }
    chain
}

fn is_part(pid: u32, parent: u32) -> bool {
    let words = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let ours = words(pid);
    let line = ours
        .split(|byte| *byte == 0)
        .nth(1)
        .is_some_and(|word| word.starts_with(b"-") && !word.starts_with(b"--") && word.ends_with(b"c"));
    line || !ours.is_empty() && ours == words(parent)
}

/// Of processes written `pid:start`, one after the other.
fn any_lives(processes: &str) -> Life {
    let mut life = Life::Dead;
    for process in processes.split(',') {
        let Some((pid, began)) = process.split_once(':') else { return Life::Unknown };
        let (Ok(pid), Ok(began)) = (pid.parse(), began.parse::<u64>()) else { return Life::Unknown };
        match start(pid) {
            _ if began == 0 => life = Life::Unknown,
            Some(start) if start == began => return Life::Alive,
            _ => {}
        }
    }
    life
}

/// When a process that is there started; none of one that has ended, though its parent has not asked yet.
fn start(pid: u32) -> Option<u64> {
    let stat = stated(&Path::new("/proc").join(pid.to_string()))?;
    (!matches!(stat.state, State::Zombie | State::Dead)).then_some(stat.key.start_ticks)
}

fn stated(process: &Path) -> Option<Stat> {
    stat::parse(&fs::read(process.join("stat")).ok()?)
}

/// Whether somebody lives on who was started under the lease.
fn heirs(lease: &Lease) -> Life {
    let Ok(processes) = fs::read_dir("/proc") else { return Life::Unknown };
    let owner = lease.get("uid").and_then(|uid| uid.parse::<u32>().ok());
    let begun = lease.get("start").and_then(|start| start.parse::<u64>().ok()).unwrap_or_default();
    let wanted = format!("{LEASE_VARIABLE}={}", lease.lease);
    let mut life = Life::Dead;
    for process in processes.filter_map(Result::ok) {
        if process.file_name().to_str().is_none_or(|name| name.parse::<u32>().is_err()) {
            continue;
        }
        // Whoever is older than the holder was not started by him.
        if stated(&process.path()).is_none_or(|stat| stat.key.start_ticks < begun) {
            continue;
        }
        match fs::read(process.path().join("environ")) {
            Ok(environ) if environ.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()) => {
                return Life::Alive;
            }
            // Of somebody's process whose environment is not ours to read it cannot be told; others' are not heirs.
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied && may_be_his(&process.path(), owner) =>
            {
                life = Life::Unknown;
            }
            Ok(_) | Err(_) => {}
        }
    }
    life
}

fn may_be_his(process: &Path, owner: Option<u32>) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(process).is_ok_and(|found| owner.is_none_or(|owner| owner == found.uid()))
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
        let here = Here::look();
        let ours = here.holder(std::process::id());
        assert_eq!(here.life(&lease(ours.clone())), Life::Alive);
        let with = |field: &'static str, value: &str| {
            let mut about = ours.clone();
            about.retain(|(name, _)| *name != field);
            about.push((field, value.to_owned()));
            here.life(&lease(about))
        };
        assert_eq!(with("start", "9999999999999"), Life::Dead, "another had this pid");
        assert_eq!(with("boot", "another"), Life::Dead, "this host was started anew");
        assert_eq!(with("host", "another"), Life::Elsewhere);
        let outside = if here.is_host() { Life::Dead } else { Life::Unknown };
        assert_eq!(with("pidns", "1"), outside, "where all are to be seen nobody is in that namespace");
        assert_eq!(with("start", ""), Life::Unknown);
        assert_eq!(with("mode", "compat"), Life::Unknown, "nobody knows who took it");
        assert_eq!(with("mode", "timed"), Life::Timed);
    }

    #[test]
    fn a_holder_lives_on_in_whom_he_started() {
        let here = Here::look();
        let mut about = here.holder(std::process::id());
        about.retain(|(field, _)| *field != "pid");
        about.push(("pid", ended().to_string()));
        assert_eq!(here.life(&lease(about.clone())), Life::Dead);
        let mut heir = Command::new("sleep")
            .arg("infinity")
            .env(LEASE_VARIABLE, "0123")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(here.life(&lease(about.clone())), Life::Alive);
        heir.kill().unwrap();
        heir.wait().unwrap();
        assert_eq!(here.life(&lease(about)), Life::Dead);
    }
}
