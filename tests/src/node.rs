//! A node: GPUs of the fake driver, tenants that hold them, an exporter, and a directory for an enforcer. Like a
//! real driver, the fake driver lists a tenant until it has exited.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::exporter::Exporter;
use crate::fake::Scenario;
use crate::home::Home;
use crate::tenant::{Tenant, start};

/// Ticks of 200 ms. A snapshot becomes too old after two ticks, and the delays on a busy machine are shorter.
/// A sample that takes longer than its deadline counts as a hang, which has effects for minutes.
pub const TICKS: [&str; 6] = ["--interval", "200ms", "--look-back", "400ms", "--deadline", "10s"];

/// The node.
pub struct Node {
    /// Exporter of the node.
    pub exporter: Exporter,
    /// The enforcer's directory.
    pub home: Home,
    ticks: Vec<String>,
    driver: Arc<Mutex<Driver>>,
}

/// The driver's scenario.
pub struct Driver {
    scenario: Scenario,
    /// Settings of the driver as a whole.
    pub head: String,
    /// The GPUs.
    pub gpus: Vec<NodeGpu>,
}

/// A GPU.
#[derive(Default)]
pub struct NodeGpu {
    /// Keys of the GPU other than its holders, such as `memory: {total: 40GiB}`.
    pub text: String,
    held: Vec<HeldMemory>,
}

struct HeldMemory {
    pid: u32,
    /// Start time of the process. A process without a start time is listed indefinitely.
    start: Option<u64>,
    text: String,
}

impl Node {
    /// Creates a node with one GPU without holders, and these rules.
    pub fn new(rules: &str) -> Self {
        Self::of(rules, &[""])
    }

    /// Creates a node with these rules. Each element of `gpus` contains the scenario keys of a GPU.
    pub fn of(rules: &str, gpus: &[&str]) -> Self {
        Self::with_ticks(rules, gpus, &TICKS)
    }

    /// Creates such a node with other ticks.
    pub fn with_ticks(rules: &str, gpus: &[&str], ticks: &[&str]) -> Self {
        let gpus = gpus.iter().map(|text| NodeGpu { text: (*text).to_owned(), held: Vec::new() });
        let mut driver = Driver { scenario: Scenario::new(""), head: String::new(), gpus: gpus.collect() };
        driver.write_scenario();
        let home = Home::with(rules);
        let ticks: Vec<String> = ticks.iter().map(|word| (*word).to_owned()).collect();
        let exporter = exporter(&driver.scenario, &home, &ticks);
        let driver = Arc::new(Mutex::new(driver));
        let weak = Arc::downgrade(&driver);
        std::thread::spawn(move || remove_exited_tenants(&weak));
        Self { exporter, home, ticks, driver }
    }

    /// Makes the tenant hold memory on a GPU, with keys such as `used: 1GiB, sm: 80`.
    pub fn hold(&self, tenant: &Tenant, gpu: usize, text: &str) {
        self.change(|driver| driver.list(gpu, HeldMemory::by(tenant, text)));
    }

    /// Makes tenants hold memory on the first GPU, all from the same moment on.
    pub fn hold_together(&self, tenants: &[(&Tenant, &str)]) {
        self.change(|driver| {
            for (tenant, text) in tenants {
                driver.list(0, HeldMemory::by(tenant, text));
            }
        });
    }

    /// Makes the driver list a pid indefinitely, whichever process has it.
    pub fn hold_pid(&self, pid: u32, text: &str) {
        self.change(|driver| driver.list(0, HeldMemory { pid, start: None, text: text.to_owned() }));
    }

    /// Makes the process with this pid hold memory on the first GPU until it exits.
    pub fn hold_process(&self, pid: u32, text: &str) {
        self.change(|driver| driver.list(0, HeldMemory { pid, start: start(pid), text: text.to_owned() }));
    }

    /// Changes the scenario.
    ///
    /// # Panics
    /// If the scenario cannot be written.
    pub fn change(&self, change: impl FnOnce(&mut Driver)) {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut driver);
        driver.write_scenario();
    }

    /// Returns the number of the exporter's newest snapshot.
    pub fn tick(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let tick = self.exporter.tick() as u64;
        tick
    }

    /// Starts the exporter again after it has exited.
    pub fn restart_exporter(&mut self) {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        self.exporter = exporter(&driver.scenario, &self.home, &self.ticks);
    }
}

fn exporter(scenario: &Scenario, home: &Home, ticks: &[String]) -> Exporter {
    let stream = home.stream().display().to_string();
    let mut arguments = vec!["--stream", stream.as_str()];
    arguments.extend(ticks.iter().map(String::as_str));
    Exporter::start(scenario, &arguments)
}

impl HeldMemory {
    fn by(tenant: &Tenant, text: &str) -> Self {
        Self { pid: tenant.pid(), start: start(tenant.pid()), text: text.to_owned() }
    }
}

impl Driver {
    fn list(&mut self, gpu: usize, new: HeldMemory) {
        let held = &mut self.gpus[gpu].held;
        held.retain(|held| held.pid != new.pid);
        held.push(new);
    }

    /// Removes this pid from the lists.
    pub fn unlist(&mut self, pid: u32) {
        self.gpus.iter_mut().for_each(|gpu| gpu.held.retain(|held| held.pid != pid));
    }

    fn write_scenario(&mut self) {
        let mut text = format!("sampling_period: 20ms\n{}\ngpus:\n", self.head);
        for gpu in &self.gpus {
            let held: Vec<String> =
                gpu.held.iter().map(|held| format!("{{pid: {}, {}}}", held.pid, held.text)).collect();
            let _ = write!(text, "  - processes: [{}]\n    {}\n", held.join(", "), gpu.text);
        }
        self.scenario.set(&text);
    }

    /// Removes exited processes from the lists.
    fn remove_exited(&mut self) {
        let over = |held: &HeldMemory| held.start.is_some() && start(held.pid) != held.start;
        if self.gpus.iter().flat_map(|gpu| &gpu.held).any(over) {
            self.gpus.iter_mut().for_each(|gpu| gpu.held.retain(|held| !over(held)));
            self.write_scenario();
        }
    }
}

/// Removes exited processes until the node is dropped.
fn remove_exited_tenants(driver: &Weak<Mutex<Driver>>) {
    while let Some(driver) = driver.upgrade() {
        driver.lock().unwrap_or_else(PoisonError::into_inner).remove_exited();
        drop(driver);
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
