//! The real exporter, started with the fake driver.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Output};

use crate::daemon::Daemon;
use crate::fake::Scenario;
use crate::page::Page;
use crate::programs;

/// Short ticks, so that tests can count ticks instead of waiting.
pub const TICKS: [&str; 7] =
    ["--interval", "100ms", "--deadline", "500ms", "--look-back", "200ms", "--trust-pid-namespace"];

/// A running exporter, terminated with its test.
pub struct Exporter(Daemon);

impl Deref for Exporter {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

impl DerefMut for Exporter {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.0
    }
}

impl Exporter {
    /// Starts an exporter with a scenario, short ticks and these additional arguments.
    ///
    /// # Panics
    /// If the exporter does not listen.
    pub fn start(scenario: &Scenario, arguments: &[&str]) -> Self {
        let mut command = command(scenario);
        command.args(TICKS).args(arguments);
        Self::spawn(command)
    }

    /// Starts any command line of the exporter.
    ///
    /// # Panics
    /// If the exporter does not listen.
    pub fn spawn(command: Command) -> Self {
        Self::spawn_at(command, "127.0.0.1:0".parse().expect("an address"))
    }

    /// Starts any command line of the exporter, listening on this address.
    ///
    /// # Panics
    /// If the exporter does not listen.
    pub fn spawn_at(mut command: Command, address: SocketAddr) -> Self {
        command.args(["--web.listen-address", &address.to_string()]);
        Self(Daemon::spawn("exporter", command))
    }

    /// Returns the number of the newest snapshot.
    pub fn tick(&self) -> f64 {
        self.page().value("bailiff_snapshots_total", &[]).unwrap_or_default()
    }

    /// Returns the page of a snapshot that began after this call.
    pub fn next(&self) -> Page {
        let now = self.tick();
        self.until("two more ticks", |page| {
            (page.value("bailiff_snapshots_total", &[])? >= now + 2.0).then_some(())
        });
        self.page()
    }

    /// Returns the exporter's descendants with this first argument.
    ///
    /// # Panics
    /// If `/proc` cannot be read.
    pub fn children(&self, role: &str) -> Vec<u32> {
        self.processes().into_iter().filter(|pid| has_role(*pid, role)).collect()
    }
}

/// Returns the exporter's command with the fake driver, not started.
pub fn command(scenario: &Scenario) -> Command {
    let mut command = Command::new(programs::exporter());
    command.arg("--nvml-library").arg(programs::fake_nvml()).env("FAKE_NVML_SCENARIO", scenario.path());
    command
}

/// Runs a command line of the exporter until it exits.
///
/// # Panics
/// If the command cannot be started.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(programs::exporter()).args(arguments).output().expect("the exporter starts")
}

fn has_role(pid: u32, role: &str) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes())
}
