//! The enforcer in the demo, and the output about it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use end_to_end::redis::Redis;
use end_to_end::wait::until;
use end_to_end::{http, programs};

/// The enforcer, with one rule.
pub(crate) struct Enforcer {
    child: Child,
    directory: PathBuf,
}

impl Enforcer {
    pub(crate) fn start(directory: &Path, redis: &Redis) -> Self {
        let exe = std::env::current_exe().expect("a running program has a file");
        let notices = directory.join("notices");
        let rules = format!(
            "version: 1
notify:
  owner: {{exec: ['{}', notice, '{}']}}
leases: {{redis: '{}'}}
rules:
{RULE}",
            exe.display(),
            notices.display(),
            redis.address(),
        );
        std::fs::write(directory.join("rules.yaml"), rules).expect("rules can be written");
        println!("bailiff-enforcer applies this rule (usually with 30 minutes in place of 5 samples):\n");
        println!("{}", RULE.replace("    startup_grace: 0s\n", ""));
        let at = |flag: &str, name: &str| format!("{flag}={}", directory.join(name).display());
        let mut command = Command::new(programs::enforcer());
        command.arg("run").arg(directory.join("rules.yaml"));
        command.args([at("--stream", "stream.sock"), at("--control", "control.sock")]);
        command.args([at("--audit", "audit.jsonl"), at("--state", ""), at("--devices", "nvidia")]);
        command.args(["--trust-pid-namespace", "--web.listen-address=127.0.0.1:0"]);
        let log = std::fs::File::create(directory.join("enforcer.log")).expect("a log");
        let child = command.stderr(log).spawn().expect("the enforcer starts");
        let enforcer = Self { child, directory: directory.to_owned() };
        until("the enforcer's socket", || directory.join("control.sock").exists().then_some(()));
        enforcer
    }

    /// Returns the text of a notification.
    pub(crate) fn notice(&self, number: usize) -> String {
        until("the notice", || {
            let all = std::fs::read_to_string(self.directory.join("notices")).ok()?;
            let notice: serde_json::Value = serde_json::from_str(all.lines().nth(number)?).ok()?;
            Some(notice["text"].as_str()?.to_owned())
        })
    }

    /// Prints `bailiff-enforcer explain`.
    pub(crate) fn explain(&self, pid: u32) {
        println!("$ bailiff-enforcer explain --pid {pid}");
        let control = self.directory.join("control.sock");
        let mut command = Command::new(programs::enforcer());
        command.args(["explain", "--pid", &pid.to_string(), "--control"]).arg(control);
        let output = command.output().expect("explain runs");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            println!("  {line}");
        }
    }

    pub(crate) fn print_audit(&self) {
        let lines = until("the result", || {
            let log = std::fs::read_to_string(self.directory.join("audit.jsonl")).ok()?;
            log.contains("\"released\"").then_some(log)
        });
        for line in lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
            let of = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            println!("  {} {:<10} {:<10} {}", of("time"), of("step"), of("result"), of("detail"));
        }
    }

    /// Prints the audit line of one of the agent's own actions.
    pub(crate) fn print_audit_of(&self, step: &str) {
        let line = until("the agent's action", || {
            let log = std::fs::read_to_string(self.directory.join("audit.jsonl")).ok()?;
            let mut lines =
                log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            lines.find(|line| line["step"] == step)
        });
        let of = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        println!("  {} {:<10} {:<10} {}", of("time"), of("step"), of("result"), of("detail"));
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let log = std::fs::read_to_string(self.directory.join("enforcer.log")).unwrap_or_default();
        let address =
            log.lines().find_map(|line| line.split("address=").nth(1)?.split(' ').next()?.parse().ok());
        address.expect("the enforcer prints its address")
    }

    pub(crate) fn print_numbers(&self) {
        let page = http::get(self.address(), "/metrics", &[]).expect("the enforcer responds");
        for line in page.text().lines().filter(|line| {
            let shown = ["bailiff_kills_total", "bailiff_memory_released_bytes_total"];
            shown.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0")
        }) {
            println!("  {line}");
        }
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The only rule of the demo.
const RULE: &str = "  - name: idle
    mode: enforce
    target: workload
    when: {gpu_util: {max: 1%}, cpu_util: {max: 5%}}
    for: {samples: 5}
    startup_grace: 0s
    then: [{flag: warning}, {notify: [owner]}, {after: {samples: 5}, terminate: {grace: 3s}}]
";
