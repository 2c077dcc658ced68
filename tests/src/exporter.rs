//! The real exporter, started over the fake driver.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::fake::Scenario;
use crate::page::Page;
use crate::wait::until;
use crate::{http, programs};

/// Short beats, so that a test counts beats instead of waiting.
pub const BEATS: [&str; 7] =
    ["--interval", "100ms", "--deadline", "500ms", "--look-back", "200ms", "--trust-pid-namespace"];

/// A running exporter, ended with its test.
pub struct Exporter {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Exporter {
    /// Starts one over a scenario, with short beats and these arguments besides.
    ///
    /// # Panics
    /// Where it does not listen.
    #[must_use]
    pub fn start(scenario: &Scenario, arguments: &[&str]) -> Self {
        let mut command = command(scenario);
        command.args(BEATS).args(arguments);
        Self::spawn(command)
    }

    /// Starts any command line of it.
    ///
    /// # Panics
    /// Where it does not listen.
    #[must_use]
    pub fn spawn(command: Command) -> Self {
        Self::spawn_at(command, "127.0.0.1:0".parse().expect("an address"))
    }

    /// Starts any command line of it, to listen there.
    ///
    /// # Panics
    /// Where it does not listen.
    #[must_use]
    pub fn spawn_at(mut command: Command, address: SocketAddr) -> Self {
        command.args(["--web.listen-address", &address.to_string()]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the exporter starts");
        let stderr = child.stderr.take().expect("it has an error output");
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let address = until("the exporter says where it listens", || {
            let lines = log.lock().unwrap_or_else(PoisonError::into_inner);
            lines.iter().find_map(|line| listening(line))
        });
        Self { child, address, log }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    /// The page now.
    ///
    /// # Panics
    /// Where it does not answer with one.
    #[must_use]
    pub fn page(&self) -> Page {
        let answer = http::get(self.address, "/metrics", &[]).expect("the exporter answers");
        assert_eq!(answer.status, 200, "{}", answer.text());
        Page::read(&answer.text())
    }

    /// Reads pages until one has the answer.
    pub fn until<T>(&self, what: &str, mut ask: impl FnMut(&Page) -> Option<T>) -> T {
        until(what, || ask(&self.page()))
    }

    /// The number of the newest snapshot.
    #[must_use]
    pub fn beat(&self) -> f64 {
        self.page().value("bailiff_snapshots_total", &[]).unwrap_or_default()
    }

    /// A page of a snapshot that was begun after this call.
    pub fn next(&self) -> Page {
        let now = self.beat();
        self.until("two more beats", |page| {
            (page.value("bailiff_snapshots_total", &[])? >= now + 2.0).then_some(())
        });
        self.page()
    }

    /// Processes below it, by their first argument.
    ///
    /// # Panics
    /// Where `/proc` cannot be read.
    #[must_use]
    pub fn children(&self, role: &str) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").expect("there is a /proc");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| has_role(*pid, role) && self.is_above(*pid)).collect()
    }

    fn is_above(&self, pid: u32) -> bool {
        let mut pid = pid;
        while pid > 1 && pid != self.pid() {
            let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return false };
            let Some(stat) = bailiff_snapshot::stat::parse(&stat) else { return false };
            pid = stat.ppid;
        }
        pid == self.pid()
    }

    /// Asks it to end, and gives its exit code.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn stop(&mut self) -> Option<i32> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("our own child can be signalled");
        self.ended()
    }

    /// Waits for it to end, and gives its exit code.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn ended(&mut self) -> Option<i32> {
        until("the exporter ends", || self.child.try_wait().expect("our own child can be waited for")).code()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the exporter's log:\n{}", self.log());
        }
    }
}

/// The exporter over the fake driver, not started yet.
#[must_use]
pub fn command(scenario: &Scenario) -> Command {
    let mut command = Command::new(programs::exporter());
    command.arg("--nvml-library").arg(programs::fake_nvml()).env("FAKE_NVML_SCENARIO", scenario.path());
    command
}

/// Runs a command line of it to its end.
///
/// # Panics
/// Where it cannot be started.
#[must_use]
pub fn run(arguments: &[&str]) -> Output {
    Command::new(programs::exporter()).args(arguments).output().expect("the exporter starts")
}

fn has_role(pid: u32, role: &str) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes())
}

fn listening(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("address=")?;
    address.split_whitespace().next()?.trim_matches('"').parse().ok()
}
