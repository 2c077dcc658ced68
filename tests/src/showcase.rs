//! A made-up node for screenshots: a host name, users, pods, jobs and services on GPUs of the fake driver. Setting the
//! host name and the user list needs root.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::exporter::{self, Exporter};
use crate::fake::Scenario;
use crate::procfs::{Process, Procfs};

/// Name of the node.
pub const NAME: &str = "gpu-7";
/// Longer ticks and a longer deadline than in tests, so that snapshots do not count as outdated on a busy machine.
const TICKS: [&str; 7] =
    ["--interval", "1s", "--look-back", "2s", "--deadline", "10s", "--trust-pid-namespace"];
const POD: &str = "9c5b4a5e-7d1f-4f0e-9a3b-0a1b2c3d4e5f";
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Users on the node, with uids starting at `FIRST_USER`.
const USERS: [&str; 5] = ["alice", "bob", "carol", "dan", "erin"];
const FIRST_USER: u32 = 42_000;

/// A made-up node.
pub struct Showcase {
    /// Exporter of the node.
    pub exporter: Exporter,
    /// Scenario of the driver.
    pub scenario: Scenario,
    /// Processes on the node.
    pub procfs: Procfs,
    _directory: TempDir,
}

impl Showcase {
    /// Creates a node with this scenario, and this many processes with pids starting at 4100.
    pub fn new(scenario: &str, processes: u32) -> Self {
        Self::with(scenario, processes, &[])
    }

    /// Like [`Self::new`], with additional flags for the exporter.
    ///
    /// # Panics
    /// If the node cannot be set up.
    pub fn with(scenario: &str, processes: u32, flags: &[&str]) -> Self {
        let (scenario, procfs, directory) =
            (Scenario::new(scenario), Procfs::new(), tempfile::tempdir().expect("a directory"));
        (0..processes).for_each(|nth| procfs.add(&process(nth)));
        let pods = procfs.path().join("pods");
        fs::create_dir_all(pods.join(format!("ml_serve-0_{POD}"))).expect("a directory");
        let users = directory.path().join("passwd");
        fs::write(&users, passwd()).expect("a list of users");
        let mut command = Command::new("unshare");
        let apart = "mount --bind \"$0\" /etc/passwd && exec \"$@\"";
        command.args(["--mount", "sh", "-c", apart]).arg(users).env("BAILIFF_NODE_NAME", NAME);
        let bare = exporter::command(&scenario);
        command.arg(bare.get_program()).args(bare.get_args());
        command.envs(bare.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(TICKS).arg("--procfs").arg(procfs.path()).arg("--pods").arg(pods).args(flags);
        Self { exporter: Exporter::spawn(command), scenario, procfs, _directory: directory }
    }

    /// Returns the address of the status page.
    pub fn url(&self) -> String {
        format!("http://{}/", self.exporter.address())
    }
}

fn passwd() -> String {
    let users = USERS.iter().zip(FIRST_USER..);
    let line = |(name, uid): (&&str, u32)| format!("{name}:x:{uid}:{uid}::/home/{name}:/bin/sh\n");
    format!("root:x:0:0:root:/root:/bin/sh\n{}", users.map(line).collect::<String>())
}

/// Returns the process with this number. The processes belong to a job, a pod, a service and a container, in turn.
pub fn process(nth: u32) -> Process {
    let pod = POD.replace('-', "_");
    let (comm, cgroup) = match nth % 4 {
        0 => (
            "python3",
            format!("0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n", 4711 + nth / 4),
        ),
        1 => {
            ("vllm", format!("0::/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{CONTAINER}.scope\n"))
        }
        2 => ("jupyter", "0::/system.slice/jupyter.service\n".to_owned()),
        _ => ("train", format!("0::/system.slice/docker-{CONTAINER}.scope\n")),
    };
    let owner = FIRST_USER + nth % 5;
    Process { comm: comm.to_owned(), cgroup, owner, ..Process::new(4100 + nth) }
}
