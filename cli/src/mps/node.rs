//! The parts of MPS on this machine, as its `/proc` shows them.

#![expect(clippy::disallowed_methods, reason = "reads /proc, and looks at directories of logs")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bailiff_mps::Listener;
use bailiff_mps::place::{Daemon, Directories, Part, Seen};
use rustix::fs::{Access, access};

use super::gpus::Gpu;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) daemons: Vec<Found<Daemon>>,
    pub(super) servers: Vec<Found<Option<Directories>>>,
}

/// A process.
#[derive(Debug)]
pub(super) struct Found<T> {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) is: T,
}

impl Node {
    /// Looks at every process.
    pub(super) fn look(procfs: &Path) -> Self {
        let entries = fs::read_dir(procfs).into_iter().flatten();
        let mut pids: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        let mut node = Self::default();
        for pid in pids {
            match part(&procfs.join(pid.to_string())) {
                Some((uid, Part::Daemon(is))) => node.daemons.push(Found { pid, uid, is }),
                Some((uid, Part::Server(is))) => node.servers.push(Found { pid, uid, is }),
                _ => {}
            }
        }
        node
    }

    /// A daemon that names this pipe directory: one that may be believed, where there is one.
    pub(super) fn daemon(&self, pipes: &Path) -> Option<&Found<Daemon>> {
        let named = || self.daemons.iter().filter(|daemon| daemon.is.pipes() == Some(pipes));
        named().find(|daemon| is_believed(daemon.uid)).or_else(|| named().next())
    }

    /// The daemon that listens in this pipe directory, whatever others name. None where it is nobody's whose environment may be
    /// read and believed.
    pub(super) fn listening(&self, pipes: &Path) -> Option<&Found<Daemon>> {
        let listener = Listener::of(pipes).ok()?;
        self.believed().find(|daemon| {
            let named = listener.pid.is_some() || daemon.is.pipes() == Some(pipes);
            named && daemon.is.pipes().is_some() && listener.is(daemon.pid, Some(daemon.uid))
        })
    }

    /// Daemons that may be believed what they name.
    pub(super) fn believed(&self) -> impl Iterator<Item = &Found<Daemon>> {
        self.daemons.iter().filter(|daemon| is_believed(daemon.uid))
    }

    /// Servers of this pipe directory: those that may be believed, and others where the driver lists them, or does not tell. A
    /// daemon gives each server its clients' user, and anybody can give a process the name.
    pub(super) fn servers(&self, pipes: &Path, gpus: &[Gpu]) -> Vec<u32> {
        let listed = |pid: u32| {
            gpus.iter().any(|gpu| gpu.holders.as_ref().is_none_or(|holders| holders.contains(&pid)))
        };
        let named = self.servers.iter().filter(|server| {
            server.is.as_ref().is_some_and(|directories| directories.pipes == pipes)
                && (is_believed(server.uid) || listed(server.pid))
        });
        named.map(|server| server.pid).collect()
    }
}

/// Whether what a process names steers us: it does where it is root's, or our own.
fn is_believed(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Where a process says that its sockets are.
pub(super) trait Pipes {
    fn pipes(&self) -> Option<&Path>;
}

impl Pipes for Daemon {
    fn pipes(&self) -> Option<&Path> {
        Some(&self.directories.as_ref()?.pipes)
    }
}

fn part(directory: &Path) -> Option<(u32, Part)> {
    let exe = fs::read_link(directory.join("exe")).ok();
    let exe = exe.as_deref().map(Path::to_string_lossy);
    // One that has ended and waits for its parent has no command line, and is no part any more.
    let cmdline = fs::read(directory.join("cmdline")).ok().filter(|text| !text.is_empty())?;
    let seen = Seen { exe: exe.as_deref(), cmdline: &cmdline, environ: None };
    seen.part()?;
    let environ = fs::read(directory.join("environ")).ok();
    let part = Seen { environ: environ.as_deref(), ..seen }.part()?;
    Some((fs::metadata(directory).ok()?.uid(), part))
}

/// Owner and name of a process; nothing where it has gone.
pub(super) fn who(procfs: &Path, pid: u32) -> (Option<u32>, Option<String>) {
    let directory = procfs.join(pid.to_string());
    let comm = fs::read_to_string(directory.join("comm")).ok().map(|comm| comm.trim_end().to_owned());
    (fs::metadata(&directory).ok().map(|about| about.uid()), comm)
}

/// The PID namespace that we see.
pub(super) fn namespace(procfs: &Path) -> Option<u64> {
    let link = fs::read_link(procfs.join("self/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// A user's name, or number.
pub(super) fn user(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Whether somebody has left a socket in a pipe directory.
pub(super) fn has_socket(pipes: &Path) -> bool {
    fs::symlink_metadata(pipes.join("control")).is_ok()
}

/// Whether a daemon's log can be read: `readable`, `unreadable`, `missing`, or `no_file`, as a FIFO is, which is not opened.
pub(super) fn logs(directory: &Path) -> &'static str {
    let log: PathBuf = directory.join("control.log");
    match fs::symlink_metadata(&log) {
        Ok(about) if !about.is_file() => "no_file",
        Ok(_) if access(&log, Access::READ_OK).is_ok() => "readable",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "missing",
        _ => "unreadable",
    }
}
