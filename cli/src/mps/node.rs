//! Finds the MPS processes of this machine in `/proc`.

use std::fs;
use std::path::{Path, PathBuf};

use bailiff_mps::Listener;
use bailiff_mps::place::{Daemon, Directories, Part, ProcessView};
use bailiff_proc::{Proc, Process, namespace_inode};
use rustix::fs::{Access, access};

use super::compute_mode::MpsGpu;

/// MPS daemons and servers found in `/proc`.
#[derive(Debug, Default)]
pub(super) struct MpsProcesses {
    pub(super) daemons: Vec<MpsProcess<Daemon>>,
    pub(super) servers: Vec<MpsProcess<Option<Directories>>>,
}

/// An MPS daemon or server process.
#[derive(Debug)]
pub(super) struct MpsProcess<T> {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) details: T,
}

impl MpsProcesses {
    /// Finds the MPS processes in a `/proc` directory.
    pub(super) fn read(procfs: &Path) -> Self {
        let mut node = Self::default();
        let Ok(proc) = Proc::open(procfs) else { return node };
        let mut pids = proc.pids().unwrap_or_default();
        pids.sort_unstable();
        for pid in pids {
            let read = |process: &Process| Ok(part(process));
            match proc.process(pid).and_then(|process| process.patiently(read)).ok().flatten() {
                Some((uid, Part::Daemon(details))) => node.daemons.push(MpsProcess { pid, uid, details }),
                Some((uid, Part::Server(details))) => node.servers.push(MpsProcess { pid, uid, details }),
                _ => {}
            }
        }
        node
    }

    /// Returns a daemon whose environment names this pipe directory, preferably a trusted one.
    pub(super) fn daemon(&self, pipes: &Path) -> Option<&MpsProcess<Daemon>> {
        let named = || self.daemons.iter().filter(|daemon| daemon.details.pipes() == Some(pipes));
        named().find(|daemon| is_trusted(daemon.uid)).or_else(|| named().next())
    }

    /// Returns the daemon that listens in this pipe directory according to the kernel, if its environment is
    /// readable and trusted. Any process may name the directory in its environment.
    pub(super) fn listening(&self, pipes: &Path) -> Option<&MpsProcess<Daemon>> {
        let listener = Listener::of(pipes).ok()?;
        self.trusted_daemons().find(|daemon| {
            let named = listener.pid.is_some() || daemon.details.pipes() == Some(pipes);
            named && daemon.details.pipes().is_some() && listener.is(daemon.pid, Some(daemon.uid))
        })
    }

    /// Returns the daemons that run as root or the current user, so that their environment is trusted.
    pub(super) fn trusted_daemons(&self) -> impl Iterator<Item = &MpsProcess<Daemon>> {
        self.daemons.iter().filter(|daemon| is_trusted(daemon.uid))
    }

    /// Returns the pids of the servers that use this pipe directory. Any user can start a process with a server's
    /// name, so a server of an untrusted user counts only if the driver lists it on a GPU, or if the driver does
    /// not report the processes on some GPU.
    pub(super) fn servers(&self, pipes: &Path, gpus: &[MpsGpu]) -> Vec<u32> {
        let listed = |pid: u32| {
            gpus.iter().any(|gpu| gpu.holders.as_ref().is_none_or(|holders| holders.contains(&pid)))
        };
        let named = self.servers.iter().filter(|server| {
            server.details.as_ref().is_some_and(|directories| directories.pipes == pipes)
                && (is_trusted(server.uid) || listed(server.pid))
        });
        named.map(|server| server.pid).collect()
    }
}

/// Returns whether the environment of a process is trusted: it runs as root or as the current user.
pub(super) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Access to the pipe directory named in a process's environment.
pub(super) trait Pipes {
    fn pipes(&self) -> Option<&Path>;
}

impl Pipes for Daemon {
    fn pipes(&self) -> Option<&Path> {
        Some(&self.directories.as_ref()?.pipes)
    }
}

fn part(process: &Process) -> Option<(u32, Part)> {
    let exe = process.exe().ok();
    // A zombie has an empty command line and is skipped.
    let cmdline = process.cmdline().ok().filter(|text| !text.is_empty())?;
    let seen = ProcessView { exe: exe.as_deref(), cmdline: &cmdline, environ: None };
    seen.part()?;
    let environ = process.bytes("environ").ok();
    let part = ProcessView { environ: environ.as_deref(), ..seen }.part()?;
    Some((process.owner().ok()?, part))
}

/// Returns the owner and command name of a process; `None` for each that cannot be read.
pub(super) fn uid_and_comm(procfs: &Path, pid: u32) -> (Option<u32>, Option<String>) {
    let process = Proc::open(procfs).and_then(|proc| proc.process(pid)).ok();
    let comm = process.as_ref().and_then(|process| process.text("comm").ok());
    (process.and_then(|process| process.owner().ok()), comm.map(|comm| comm.trim_end().to_owned()))
}

/// Returns the inode of the PID namespace of this process.
pub(super) fn namespace(procfs: &Path) -> Option<u64> {
    namespace_inode(&Proc::open(procfs).ok()?.own_pid_namespace().ok()?)
}

/// Returns whether a pipe directory contains a control socket.
pub(super) fn has_socket(pipes: &Path) -> bool {
    fs::symlink_metadata(pipes.join("control")).is_ok()
}

/// Returns whether the log in this directory can be read: `readable`, `unreadable`, `missing`, or `no_file`
/// if it is not a regular file. The log is not opened.
pub(super) fn logs(directory: &Path) -> &'static str {
    let log: PathBuf = directory.join("control.log");
    match fs::symlink_metadata(&log) {
        Ok(metadata) if !metadata.is_file() => "no_file",
        Ok(_) if access(&log, Access::READ_OK).is_ok() => "readable",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "missing",
        _ => "unreadable",
    }
}
