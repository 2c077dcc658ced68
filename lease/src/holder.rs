//! Who holds a lease, in a way that neither a reused pid nor a reboot nor a container can mistake; and whether he
//! still lives. Reads `/proc`.

#![expect(clippy::disallowed_methods, reason = "reads /proc and the machine's id")]

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{ProcessKey, State};

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
            everybody: stated(Path::new("/proc/1")).is_some(),
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
        self.look_for(lease).0
    }

    /// The same, and who it is that lives.
    #[must_use]
    pub fn look_for(&self, lease: &Lease) -> (Life, Option<ProcessKey>) {
        match self.known(lease) {
            Some(life) => (life, None),
            None => self.look_here(lease),
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
        let taken = || compat.then(|| lease.get("taker").map_or(Life::Unknown, any_lives));
        place.or_else(taken)
    }

    /// Whether anybody lives who may have what was taken by GPU.py's rules: the process for which it was, and those
    /// whose part it was.
    #[must_use]
    pub fn chained(&self, lease: &Lease) -> Life {
        self.place(lease).unwrap_or_else(|| lease.get("chain").map_or(Life::Unknown, any_lives))
    }

    /// What is known by where it was taken.
    fn place(&self, lease: &Lease) -> Option<Life> {
        let same = |field: &str, ours: &str| !ours.is_empty() && lease.get(field) == Some(ours);
        if !same("host", &self.host) {
            return Some(Life::Elsewhere);
        }
        if lease.get("boot").is_some() && !self.boot.is_empty() && !same("boot", &self.boot) {
            return Some(Life::Dead);
        }
        (!same("boot", &self.boot) || !same("pidns", &self.pidns)).then_some(Life::Unknown)
    }

    /// Whether somebody lives whom a lease names that plays by GPU.py's rules: who took it, and those above him
    /// (`chain`).
    #[must_use]
    pub fn look_at_line(&self, lease: &Lease) -> Life {
        if let Some(life) = self.place(lease) {
            return life;
        }
        let key = |(pid, start): (&str, &str)| {
            Some(ProcessKey { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? })
        };
        let holder = lease.get("pid").zip(lease.get("start"));
        let above = lease.get("chain").unwrap_or_default().split(',').filter_map(|one| one.split_once(':'));
        if holder.into_iter().chain(above).filter_map(key).any(lives) {
            return Life::Alive;
        }
        if self.everybody { Life::Dead } else { Life::Unknown }
    }

    fn look_here(&self, lease: &Lease) -> (Life, Option<ProcessKey>) {
        let number = |field| lease.get(field).and_then(|text| text.parse::<u64>().ok());
        let (Some(pid), Some(start_ticks)) =
            (number("pid").and_then(|pid| u32::try_from(pid).ok()), number("start"))
        else {
            return (Life::Unknown, None);
        };
        let holder = ProcessKey { pid, start_ticks };
        if lives(holder) {
            return (Life::Alive, Some(holder));
        }
        let owner = number("uid").and_then(|uid| u32::try_from(uid).ok());
        // Who is not to be seen may be there.
        let seen = self.everybody || owner == Some(rustix::process::geteuid().as_raw());
        if seen { heirs(lease, owner, holder) } else { (Life::Unknown, None) }
    }
}

/// Whether a process lives; one that has ended does not, though its parent has not asked yet.
#[must_use]
pub fn lives(process: ProcessKey) -> bool {
    start(process.pid) == Some(process.start_ticks)
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
pub(crate) fn start(pid: u32) -> Option<u64> {
    let process = Path::new("/proc").join(pid.to_string());
    let stat = stated(&process)?;
    (!ended(&stat) || has_threads(&process)).then_some(stat.key.start_ticks)
}

const fn ended(stat: &Stat) -> bool {
    matches!(stat.state, State::Zombie | State::Dead)
}

/// Whether threads live on whose first one has ended: they hold what the process held.
fn has_threads(process: &Path) -> bool {
    let Ok(threads) = fs::read_dir(process.join("task")) else { return false };
    threads.filter_map(Result::ok).any(|thread| stated(&thread.path()).is_some_and(|stat| !ended(&stat)))
}

pub(crate) fn stated(process: &Path) -> Option<Stat> {
    stat::parse(&fs::read(process.join("stat")).ok()?)
}

/// Whether somebody lives on who was started under the lease, and who.
fn heirs(lease: &Lease, owner: Option<u32>, holder: ProcessKey) -> (Life, Option<ProcessKey>) {
    let Ok(processes) = fs::read_dir("/proc") else { return (Life::Unknown, None) };
    let wanted = format!("{LEASE_VARIABLE}={}", lease.lease);
    let mut life = Life::Dead;
    for process in processes.filter_map(Result::ok) {
        if process.file_name().to_str().is_none_or(|name| name.parse::<u32>().is_err()) {
            continue;
        }
        // Whoever is older than the holder was not started by him.
        let young = |stat: &Stat| stat.key.start_ticks >= holder.start_ticks;
        let Some(stat) = stated(&process.path()).filter(young) else { continue };
        match fs::read(process.path().join("environ")) {
            Ok(environ) if environ.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()) => {
                return (Life::Alive, Some(stat.key));
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
    (life, None)
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
        assert_eq!(with("pidns", "1"), Life::Unknown);
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
