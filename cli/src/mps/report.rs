//! What `mps status` tells, as data; and what of it somebody should look at.

use std::collections::BTreeMap;

use serde::Serialize;

/// All of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// The driver's release; none where it cannot be asked.
    pub(super) driver: Option<String>,
    pub(super) daemons: Vec<Daemon>,
    /// Servers whose daemon has gone.
    pub(super) orphans: Vec<Orphan>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) warnings: Vec<String>,
}

/// A daemon, or what one has left behind.
#[derive(Debug, Serialize)]
pub(crate) struct Daemon {
    /// None where its environment is not ours to read.
    pub(super) pipe_dir: Option<String>,
    /// None where no process of this `/proc` is that daemon.
    pub(crate) pid: Option<u32>,
    pub(super) user: Option<String>,
    pub(crate) state: State,
    /// Why it does not answer.
    pub(crate) why: Option<String>,
    pub(super) log_dir: Option<String>,
    /// `readable`, `unreadable`, `missing` or `no_file`.
    pub(super) log: Option<&'static str>,
    /// The GPUs that it was told of; none where it has all.
    pub(super) visible: Option<String>,
    pub(super) protocol: Option<u8>,
    pub(super) static_partitioning: Option<bool>,
    pub(super) multiuser: Option<bool>,
    /// Percent of the multiprocessors, for clients of new servers.
    pub(super) default_thread_percentage: Option<f64>,
    /// Bytes that clients of new servers may pin, by the daemon's number of the GPU.
    pub(super) default_memory_limits: BTreeMap<String, u64>,
    pub(super) servers: Vec<Server>,
}

/// How a daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Answers,
    /// It is there and says nothing.
    Hung,
    /// Its socket is there, and nobody listens.
    Stale,
    /// It cannot be asked, or is not understood.
    Unknown,
}

/// A server.
#[derive(Debug, Serialize)]
pub(super) struct Server {
    pub(super) pid: u32,
    pub(super) user: Option<String>,
    pub(super) status: &'static str,
    pub(super) thread_percentage: Option<f64>,
    /// None where the daemon does not tell.
    pub(super) clients: Option<Vec<Client>>,
}

/// A client.
#[derive(Debug, Serialize)]
pub(super) struct Client {
    pub(super) pid: u32,
    pub(super) user: Option<String>,
    pub(super) command: Option<String>,
}

/// A server without a daemon.
#[derive(Debug, Serialize)]
pub(super) struct Orphan {
    pub(super) pid: u32,
    pub(super) user: String,
    pub(super) pipe_dir: Option<String>,
}

/// A GPU.
#[derive(Debug, Serialize)]
pub(super) struct Gpu {
    pub(super) index: String,
    pub(super) uuid: Option<String>,
    pub(super) compute_mode: Option<&'static str>,
}

impl Daemon {
    pub(super) fn answers(&self) -> bool {
        self.state == State::Answers
    }

    /// Its pid and pipe directory, as far as they are known.
    pub(crate) fn called(&self) -> String {
        let place = self.pipe_dir.as_deref().unwrap_or("an unknown pipe directory");
        self.pid.map_or_else(|| place.to_owned(), |pid| format!("daemon {pid} ({place})"))
    }

    /// What is wrong with it.
    pub(crate) fn warning(&self) -> Option<String> {
        let name = self.called();
        match self.state {
            State::Answers => None,
            State::Hung => {
                Some(format!("{name} does not answer: every CUDA program that starts under it hangs, too"))
            }
            State::Stale => Some(format!(
                "{name} is left behind by a daemon that has ended: programs that start now run without MPS; start \
                 one over it, once no server is left"
            )),
            State::Unknown => {
                Some(format!("{name}: {}", self.why.as_deref().unwrap_or("it cannot be asked")))
            }
        }
    }
}

impl Report {
    /// Finds what somebody should look at.
    pub(super) fn warn(&mut self) {
        let mut warnings: Vec<String> = self.daemons.iter().filter_map(Daemon::warning).collect();
        let exclusive: Vec<&str> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.compute_mode == Some("exclusive_process"))
            .map(|gpu| gpu.index.as_str())
            .collect();
        if !exclusive.is_empty() && !self.daemons.iter().any(|daemon| daemon.state != State::Stale) {
            warnings.push(format!(
                "GPU {} takes one process at a time (EXCLUSIVE_PROCESS), and no daemon runs; nvidia-smi -i GPU -c \
                 DEFAULT lets others in",
                exclusive.join(", ")
            ));
        }
        for orphan in &self.orphans {
            warnings.push(format!(
                "server {} of {} has no daemon: its clients go on, and no new one comes to it",
                orphan.pid, orphan.user
            ));
        }
        let faulty =
            self.daemons.iter().flat_map(|daemon| &daemon.servers).filter(|server| server.status == "fault");
        for server in faulty {
            warnings.push(format!(
                "server {} is in the state FAULT: it takes no new client until all that shared the GPU have ended",
                server.pid
            ));
        }
        if !self.daemons.is_empty() && self.driver.as_deref().and_then(major).is_some_and(|major| major < 550)
        {
            let release = self.driver.as_deref().unwrap_or_default();
            warnings
                .push(format!("driver {release}: any user may change the daemon's settings (550 refuses)"));
        }
        self.warnings = warnings;
    }
}

/// The first number of a driver's release.
fn major(release: &str) -> Option<u32> {
    release.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(mode: &'static str) -> Gpu {
        Gpu { index: "0".into(), uuid: None, compute_mode: Some(mode) }
    }

    fn daemon(state: State) -> Daemon {
        Daemon {
            pipe_dir: Some("/run/mps0".into()),
            pid: Some(7),
            user: None,
            state,
            why: None,
            log_dir: None,
            log: None,
            visible: None,
            protocol: None,
            static_partitioning: None,
            multiuser: None,
            default_thread_percentage: None,
            default_memory_limits: BTreeMap::new(),
            servers: Vec::new(),
        }
    }

    #[test]
    fn what_is_odd_is_warned_of() {
        type Case = (&'static str, Option<State>, &'static str, &'static str);
        let cases: [Case; 6] = [
            ("exclusive_process", None, "550.163", "no daemon runs"),
            ("exclusive_process", Some(State::Answers), "550.163", ""),
            ("default", None, "535.261", ""),
            ("default", Some(State::Answers), "535.261", "any user may change"),
            ("default", Some(State::Hung), "550.163", "does not answer"),
            ("default", Some(State::Stale), "550.163", "left behind"),
        ];
        for (mode, state, driver, expected) in cases {
            let daemons = state.into_iter().map(daemon).collect();
            let mut report =
                Report { driver: Some(driver.into()), daemons, gpus: vec![gpu(mode)], ..Report::default() };
            report.warn();
            let told = report.warnings.join("\n");
            assert_eq!((told.contains(expected), told.is_empty()), (true, expected.is_empty()), "{told}");
        }
    }
}
