//! The measured programs: our exporter, and comparable exporters.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::bench::load::Load;
use crate::bench::usage::Usage;
use crate::page::Page;
use crate::wait::until;
use crate::{exporter, http, programs};

/// A running program that serves metrics.
pub struct Program {
    name: &'static str,
    child: Child,
    address: SocketAddr,
    _library: TempDir,
}

/// Starts our exporter with these additional arguments.
pub fn bailiff(load: &Load, arguments: &[&str]) -> Program {
    let mut command = exporter::command(load.scenario());
    let address = free_address();
    command.args(["--trust-pid-namespace", "--web.listen-address", &address.to_string()]).args(arguments);
    Program::start("bailiff", command, address)
}

/// Starts the installed peers (`tests/setup peers` installs them).
pub fn others(load: &Load) -> Vec<Program> {
    starters(load).into_iter().map(|start| start()).collect()
}

/// Returns functions that start the installed peers.
pub fn starters(load: &Load) -> Vec<Box<dyn Fn() -> Program + '_>> {
    let nvitop = programs::root().join("target/venv/bin/nvitop-exporter");
    let all_smi = programs::root().join("target/tools/bin/all-smi");
    let mut peers: Vec<Box<dyn Fn() -> Program + '_>> = Vec::new();
    if nvitop.exists() {
        peers.push(Box::new(move || {
            let address = free_address();
            let mut command = Command::new(&nvitop);
            command.args(["--hostname", "127.0.0.1", "--port", &address.port().to_string()]);
            Program::start("nvitop-exporter", over(command, load), address)
        }));
    }
    if all_smi.exists() {
        peers.push(Box::new(move || {
            let address = free_address();
            let mut command = Command::new(&all_smi);
            command.env("PATH", path_with_lspci(load));
            command.args(["api", "--processes", "--interval", "5", "--port", &address.port().to_string()]);
            Program::start("all-smi", over(command, load), address)
        }));
    }
    peers
}

/// Returns a `PATH` with a stand-in for `lspci`, because all-smi looks for an NVIDIA GPU with it.
fn path_with_lspci(load: &Load) -> String {
    let program = load.scenario().directory().join("lspci");
    let text = "#!/bin/sh\n[ \"$1\" = -n ] && echo '17:00.0 0302: 10de:2335 (rev a1)' && exit\n\
                echo '17:00.0 3D controller: NVIDIA Corporation GH100 [H200] (rev a1)'\n";
    fs::write(&program, text).expect("a program can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .expect("the program can be made executable");
    format!("{}:{}", load.scenario().directory().display(), std::env::var("PATH").unwrap_or_default())
}

fn over(mut command: Command, load: &Load) -> Command {
    command.env("FAKE_NVML_SCENARIO", load.scenario().path());
    command
}

fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.expect("loopback has a free port")
}

impl Program {
    fn start(name: &'static str, mut command: Command, address: SocketAddr) -> Self {
        let library = tempfile::tempdir().expect("a temporary directory");
        for link in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
            std::os::unix::fs::symlink(programs::fake_nvml(), library.path().join(link)).expect("a link");
        }
        command.env("LD_LIBRARY_PATH", library.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { name, child, address, _library: library }
    }

    /// Returns the program's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Waits for the first page.
    pub fn until_page(&self) -> String {
        until(self.name, || {
            let answer = http::get(self.address, "/metrics", &[]).ok()?;
            (answer.status == 200 && !answer.body.is_empty()).then(|| answer.text())
        })
    }

    /// Waits for the first page with a process.
    pub fn until_processes(&self) {
        until("figures of processes", || {
            let text = http::get(self.address, "/metrics", &[]).ok()?.text();
            text.contains("pid=\"").then_some(())
        });
    }

    /// Waits until the program reports processes, scrapes it some more times, and returns the size of a page.
    pub fn warm_up(&self) -> usize {
        self.until_processes();
        let scraped: Duration = (0..20).map(|_| self.scrape()).sum();
        assert!(!scraped.is_zero());
        self.until_page().len()
    }

    /// Scrapes once, as Prometheus does, but without gzip. Returns the duration.
    ///
    /// # Panics
    /// If the program does not respond.
    pub fn scrape(&self) -> Duration {
        let began = Instant::now();
        let answer = http::get(self.address, "/metrics", &[]).expect("the server responds");
        assert_eq!(answer.status, 200, "{}", self.name);
        began.elapsed()
    }

    /// Returns the resource use of the program and its descendants.
    pub fn usage(&self) -> Usage {
        Usage::of(&family(self.child.id()))
    }

    /// Returns the CPU time used in a period without scrapes.
    pub fn idle_cpu(&self, span: Duration) -> Duration {
        let before = self.usage().cpu;
        std::thread::park_timeout(span);
        self.usage().cpu.saturating_sub(before)
    }

    /// Returns the number of our exporter's newest snapshot.
    pub fn tick(&self) -> f64 {
        Page::read(&self.until_page()).value("bailiff_snapshots_total", &[]).unwrap_or_default()
    }

    /// Waits, with few scrapes, for a later snapshot.
    pub fn wait_for_tick(&self, number: f64) {
        while self.tick() < number {
            std::thread::park_timeout(Duration::from_millis(500));
        }
    }
}

/// Returns a process and its descendants.
fn family(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut at = 0;
    while let Some(pid) = family.get(at) {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children: Vec<u32> = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .collect();
        family.extend(children);
        at += 1;
    }
    family
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
