//! Data of `bailiff mps status`, and its warnings.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::output::joined;

/// Report of `bailiff mps status`; the fields are those of its JSON output.
#[derive(Debug, Default, Serialize)]
pub(super) struct MpsReport {
    /// Driver version; `None` if the driver does not respond.
    pub(super) driver: Option<String>,
    pub(super) daemons: Vec<Daemon>,
    /// Servers whose daemon has exited.
    pub(super) orphans: Vec<Orphan>,
    pub(super) gpus: Vec<ReportedGpu>,
    pub(super) warnings: Vec<String>,
}

/// A daemon, or the stale socket of a daemon that has exited.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Daemon {
    /// Pipe directory; `None` if the daemon's environment cannot be read.
    pub(super) pipe_dir: Option<String>,
    /// Pid; `None` if the process is not visible in this `/proc`.
    pub(crate) pid: Option<u32>,
    pub(super) user: Option<String>,
    pub(crate) state: State,
    /// Reason why the daemon does not respond.
    pub(crate) why: Option<String>,
    pub(super) log_dir: Option<String>,
    /// Whether the log can be read: `readable`, `unreadable`, `missing` or `no_file`.
    pub(super) log: Option<&'static str>,
    /// `CUDA_VISIBLE_DEVICES` of the daemon; `None` if it is not set and the daemon manages all GPUs.
    pub(super) visible: Option<String>,
    pub(super) protocol: Option<u8>,
    pub(super) static_partitioning: Option<bool>,
    pub(super) multiuser: Option<bool>,
    /// Share of the GPU's multiprocessors, in percent, that a client of a new server may use.
    pub(super) default_thread_percentage: Option<f64>,
    /// Memory limit in bytes for each client of a new server, by the daemon's own GPU index.
    pub(super) default_memory_limits: BTreeMap<String, u64>,
    pub(super) servers: Vec<Server>,
}

/// State of a daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Answers,
    /// The daemon is running but does not respond.
    Hung,
    /// The control socket exists, but no process listens on it.
    Stale,
    /// The daemon cannot be queried, or its reply is invalid.
    #[default]
    Unknown,
}

/// An MPS server.
#[derive(Debug, Serialize)]
pub(super) struct Server {
    pub(super) pid: u32,
    pub(super) user: Option<String>,
    pub(super) status: &'static str,
    pub(super) thread_percentage: Option<f64>,
    /// Clients of the server; `None` if the daemon does not report them.
    pub(super) clients: Option<Vec<Client>>,
}

/// An MPS client.
#[derive(Debug, Serialize)]
pub(super) struct Client {
    pub(super) pid: u32,
    pub(super) user: Option<String>,
    pub(super) command: Option<String>,
}

/// An MPS server whose daemon has exited.
#[derive(Debug, Serialize)]
pub(super) struct Orphan {
    pub(super) pid: u32,
    pub(super) user: String,
    pub(super) pipe_dir: Option<String>,
}

/// A GPU and its compute mode.
#[derive(Debug, Serialize)]
pub(super) struct ReportedGpu {
    pub(super) index: String,
    pub(super) uuid: Option<String>,
    pub(super) compute_mode: Option<&'static str>,
}

impl Daemon {
    pub(super) fn answers(&self) -> bool {
        self.state == State::Answers
    }

    /// Returns the daemon's name in messages: pid and pipe directory, as far as they are known.
    pub(crate) fn label(&self) -> String {
        let pipes = self.pipe_dir.as_deref().unwrap_or("unknown pipe directory");
        self.pid.map_or_else(|| pipes.to_owned(), |pid| format!("daemon {pid} ({pipes})"))
    }

    /// Returns a warning if the daemon does not respond.
    pub(crate) fn warning(&self) -> Option<String> {
        let name = self.label();
        match self.state {
            State::Answers => None,
            State::Hung => {
                Some(format!("{name} does not respond, so CUDA programs that start under it hang as well"))
            }
            State::Stale => Some(format!(
                "{name} is stale: its daemon has exited, and new programs run without MPS; start a new daemon after all \
                servers have exited"
            )),
            State::Unknown => {
                Some(format!("{name}: {}", self.why.as_deref().unwrap_or("the daemon cannot be queried")))
            }
        }
    }
}

impl MpsReport {
    /// Adds the warnings about daemons, servers and GPUs.
    pub(super) fn add_warnings(&mut self) {
        let mut warnings: Vec<String> = self.daemons.iter().filter_map(Daemon::warning).collect();
        let exclusive = self.gpus.iter().filter(|gpu| gpu.compute_mode == Some("exclusive_process"));
        let exclusive = joined(exclusive.map(|gpu| &gpu.index), ", ");
        if !exclusive.is_empty() && !self.daemons.iter().any(|daemon| daemon.state != State::Stale) {
            warnings.push(format!(
                "GPU {exclusive} allows only one process at a time (EXCLUSIVE_PROCESS), but no daemon is running; to allow \
                several, run nvidia-smi -i GPU -c DEFAULT"
            ));
        }
        for orphan in &self.orphans {
            warnings.push(format!(
                "server {} of {} has no daemon; its clients keep running, but it accepts no new clients",
                orphan.pid, orphan.user
            ));
        }
        let faulty =
            self.daemons.iter().flat_map(|daemon| &daemon.servers).filter(|server| server.status == "fault");
        for server in faulty {
            warnings.push(format!(
                "server {} is in state FAULT and accepts no new clients until all clients on the GPU have exited",
                server.pid
            ));
        }
        if !self.daemons.is_empty() && self.driver.as_deref().and_then(major).is_some_and(|major| major < 550)
        {
            let release = self.driver.as_deref().unwrap_or_default();
            warnings.push(format!(
                "driver {release}: any user can change the daemon's settings (fixed in driver 550)"
            ));
        }
        self.warnings = warnings;
    }
}

/// Returns the major version of a driver release such as `550.163`.
fn major(release: &str) -> Option<u32> {
    release.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(mode: &'static str) -> ReportedGpu {
        ReportedGpu { index: "0".into(), uuid: None, compute_mode: Some(mode) }
    }

    fn daemon(state: State) -> Daemon {
        Daemon { pipe_dir: Some("/run/mps0".into()), pid: Some(7), state, ..Daemon::default() }
    }

    #[test]
    fn problems_are_reported_as_warnings() {
        type Case = (&'static str, Option<State>, &'static str, &'static str);
        let cases: [Case; 6] = [
            ("exclusive_process", None, "550.163", "no daemon is running"),
            ("exclusive_process", Some(State::Answers), "550.163", ""),
            ("default", None, "535.261", ""),
            ("default", Some(State::Answers), "535.261", "any user can change"),
            ("default", Some(State::Hung), "550.163", "does not respond"),
            ("default", Some(State::Stale), "550.163", "is stale"),
        ];
        for (mode, state, driver, expected) in cases {
            let daemons = state.into_iter().map(daemon).collect();
            let mut report = MpsReport {
                driver: Some(driver.into()),
                daemons,
                gpus: vec![gpu(mode)],
                ..MpsReport::default()
            };
            report.add_warnings();
            let text = report.warnings.join("\n");
            assert_eq!((text.contains(expected), text.is_empty()), (true, expected.is_empty()), "{text}");
        }
    }
}
