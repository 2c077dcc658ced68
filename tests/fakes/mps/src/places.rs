//! Paths of a daemon's files, and how its logs are written.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

/// A daemon's directories.
#[derive(Debug, Clone)]
pub struct Places {
    /// Directory of the sockets.
    pub pipes: PathBuf,
    /// Directory of the logs.
    pub logs: PathBuf,
}

impl Places {
    /// Returns the directories from the environment.
    pub fn of_environment() -> Self {
        let directory = |name, usual: &str| env::var_os(name).map_or_else(|| usual.into(), PathBuf::from);
        Self {
            pipes: directory("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),
            logs: directory("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"),
        }
    }

    /// Returns the socket to which all clients connect.
    pub fn socket(&self) -> PathBuf {
        self.pipes.join("control")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.pipes.join("control_lock")
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.pipes.join("nvidia-cuda-mps-control.pid")
    }

    pub(crate) fn make(&self) -> io::Result<()> {
        fs::create_dir_all(&self.pipes)?;
        fs::create_dir_all(&self.logs)
    }

    /// Writes a line to `control.log` or to another log.
    pub(crate) fn log(&self, file: &str, writer: &str, text: &str) -> io::Result<()> {
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let now = now.replace('T', " ").replace('Z', "");
        let (role, pid) = writer.rsplit_once(' ').unwrap_or((writer, "0"));
        let line = format!("[{now} {role} {pid:>5}] {text}\n");
        OpenOptions::new().append(true).create(true).open(self.logs.join(file))?.write_all(line.as_bytes())
    }
}
