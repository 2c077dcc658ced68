//! A Slurm cluster on loopback, with the hooks of `bailiff slurm` and the fake driver.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::fake::Scenario;
use crate::programs;
use crate::wait::until;

/// A driver with two GPUs, as many as each node has.
pub const IDLE: &str = "gpus: [{count: 2}]";
/// User of the jobs.
pub const USER: &str = "nobody";

/// How the cluster follows the processes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracking {
    /// By cgroups, whose processes Slurm ends itself.
    Cgroup,
    /// By parents (`proctrack/linuxproc`), so that processes can stay behind.
    Parents,
}

/// A running cluster, stopped with its test.
pub struct Cluster {
    home: TempDir,
    node: String,
    /// What the driver reports.
    pub scenario: Scenario,
}

impl Cluster {
    /// Starts a cluster of one node with these settings of `slurm.yaml` and lines of `slurm.conf`, in which `HOME` is the
    /// directory of the hooks.
    ///
    /// # Panics
    /// If the cluster does not start.
    pub fn start(tracking: Tracking, settings: &str, extra: &str) -> Self {
        Self::of_nodes(1, (tracking, settings, extra))
    }

    /// Starts a cluster of several nodes on this host.
    ///
    /// # Panics
    /// If the cluster does not start.
    pub fn of_nodes(count: u32, (tracking, settings, extra): (Tracking, &str, &str)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let home = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).expect("the directory is writable");
        let node = format!("t{}n{}x", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let cluster = Self { home, node, scenario: Scenario::new(IDLE) };
        cluster.write("slurm.yaml", &format!("version: 1\n{settings}"));
        for hook in ["prolog", "epilog", "health", "check"] {
            cluster.write_hook(hook);
        }
        let hooks = format!(
            "Prolog={0}/prolog\nEpilog={0}/epilog\nPrologFlags=Alloc\n",
            cluster.home.path().display()
        );
        let home = cluster.home.path().display().to_string();
        cluster.write("extra.conf", &(hooks + &extra.replace("HOME", &home)));
        let cgroup = if tracking == Tracking::Parents { "none" } else { "v1" };
        let mut up = cluster.script("up");
        let mut run = || {
            up.env("CGROUP_VERSION", cgroup)
                .env("NODES", count.to_string())
                .output()
                .expect("cluster.sh can be run")
        };
        // The script looks for free ports, so clusters start one after the other.
        let lock = File::create(std::env::temp_dir().join("bailiff-test-slurm.lock")).expect("a lock file");
        lock.lock().expect("a lock");
        let output = run();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Jobs of all users write their output here.
        fs::set_permissions(cluster.path().join("log"), Permissions::from_mode(0o1777)).expect("a directory");
        cluster
    }

    fn script(&self, action: &str) -> Command {
        let mut command = Command::new(programs::root().join("tests/fixtures/slurm/cluster.sh"));
        command
            .arg(action)
            .arg(self.path())
            .env("NODE", &self.node)
            .env("EXTRA_CONF", self.home.path().join("extra.conf"));
        command
    }

    /// Returns the directory of the cluster.
    pub fn path(&self) -> PathBuf {
        self.home.path().join("cluster")
    }

    /// Returns the name of the node.
    pub fn node(&self) -> String {
        format!("{}0", self.node)
    }

    /// Writes a file beside the cluster, such as `slurm.yaml`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.home.path().join(name), text).expect("a file can be written");
    }

    fn write_hook(&self, hook: &str) {
        let home = self.home.path().display();
        let text = format!(
            "#!/bin/sh\nexport FAKE_NVML_SCENARIO={}\nexec {} slurm {hook} --nvml-library {} --config {home}/slurm.yaml \
             --state-dir {home}/state \"$@\"\n",
            self.scenario.path().display(),
            programs::bailiff().display(),
            programs::fake_nvml().display(),
        );
        self.write(hook, &text);
        fs::set_permissions(self.home.path().join(hook), Permissions::from_mode(0o755)).expect("a script");
    }

    /// Runs a program of Slurm, or a hook, with these variables.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn run(&self, program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let hook = self.home.path().join(program);
        let mut command = if hook.exists() { Command::new(hook) } else { Command::new(program) };
        command.args(arguments).env("SLURM_CONF", self.path().join("etc/slurm.conf"));
        command.env("SLURMD_NODENAME", self.node()).envs(variables.iter().copied());
        command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// Runs a program of Slurm that must succeed, and returns its output.
    pub fn must(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments, &[]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Submits a shell script as a job of [`USER`] with one GPU, and returns its id.
    pub fn submit(&self, script: &str) -> String {
        self.submit_with(&[], script)
    }

    /// Like [`Self::submit`], with more options of `sbatch`.
    pub fn submit_with(&self, options: &[&str], script: &str) -> String {
        let log = self.path().join("log");
        let output = format!("--output={}/%j.out", log.display());
        let usual = ["-u", USER, "--", "sbatch", "--parsable", "--gres=gpu:1", "--chdir=/", &output];
        let text = self.must("runuser", &[&usual, options, &["--wrap", script]].concat());
        text.trim().to_owned()
    }

    /// Allocates a GPU to a job of [`USER`] without steps, and returns its id.
    ///
    /// # Panics
    /// If Slurm does not allocate one.
    pub fn allocate(&self) -> String {
        let command = ["-u", USER, "--", "salloc", "--no-shell", "--immediate=30", "--gres=gpu:1"];
        let output = self.run("runuser", &command, &[]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let id = text.lines().find_map(|line| line.strip_prefix("salloc: Granted job allocation "));
        id.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    }

    /// Returns what a job has printed.
    pub fn output_of(&self, job: &str) -> String {
        fs::read_to_string(self.path().join(format!("log/{job}.out"))).unwrap_or_default()
    }

    /// Waits for a pid that a job prints in its first line.
    pub fn pid_of(&self, job: &str) -> u32 {
        until("the pid of a job", || {
            let output = self.output_of(job);
            output.split_once('\n')?.0.trim().parse().ok()
        })
    }

    /// Waits until a job has this state, as `scontrol` names it.
    pub fn until_state(&self, job: &str, state: &str) {
        until(&format!("job {job} {state}"), || {
            let text = self.must("scontrol", &["show", "job", job]);
            text.contains(&format!("JobState={state}")).then_some(())
        });
    }

    /// Returns what `squeue` prints about a job in this format.
    pub fn shown(&self, job: &str, format: &str) -> String {
        let (job, format) = (format!("--jobs={job}"), format!("--Format={format}"));
        self.must("squeue", &["--noheader", "--states=all", &job, &format]).trim().to_owned()
    }

    /// Moves a process into the cgroup of a user's job, which is created if it does not exist. Cgroups of version 1.
    ///
    /// # Panics
    /// If the process cannot be moved.
    pub fn adopt(&self, job: (u32, &str), pid: u32) {
        self.adopt_on(&self.node(), job, pid);
    }

    /// Like [`Self::adopt`], on a node whose name must begin with that of this node.
    ///
    /// # Panics
    /// If the process cannot be moved.
    pub fn adopt_on(&self, node: &str, (uid, job): (u32, &str), pid: u32) {
        let job = format!("/sys/fs/cgroup/freezer/slurm_{node}/uid_{uid}/job_{job}");
        let step = Path::new(&job).join("step_0");
        fs::create_dir_all(&step).expect("a cgroup can be created");
        fs::write(step.join("cgroup.procs"), pid.to_string()).expect("a process can be moved");
    }

    /// Returns the file with the pid of a daemon: slurmctld, slurmd or munged.
    pub fn pid_file(&self, daemon: &str) -> PathBuf {
        match daemon {
            "munged" => self.path().join("munge/munged.pid"),
            "slurmd" => self.path().join(format!("run/{}.pid", self.node())),
            other => self.path().join(format!("run/{other}.pid")),
        }
    }

    /// Sends a daemon of this cluster a signal.
    ///
    /// # Panics
    /// If the daemon does not run.
    pub fn signal(&self, daemon: &str, signal: Signal) {
        let pid = fs::read_to_string(self.pid_file(daemon)).expect("the pid of a daemon");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("the daemon runs");
    }

    /// Returns the state of the node and its reason, such as `drained|Epilog error`.
    pub fn node_state(&self) -> String {
        let text = self.must("sinfo", &["--noheader", "--nodes", &self.node(), "--format=%T|%E"]);
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Waits for a state of the node and its reason.
    pub fn until_node(&self, expected: &str) {
        until(&format!("node {expected}"), || self.node_state().contains(expected).then_some(()));
    }

    /// Lets a process hold memory on the first GPU, according to the driver.
    pub fn hold(&self, pid: u32) {
        self.scenario.set(&format!("gpus: [{{processes: [{{pid: {pid}, used: 1GiB}}]}}, {{}}]"));
    }

    /// Frees the memory of all GPUs.
    pub fn free(&self) {
        self.scenario.set(IDLE);
    }

    /// Returns the record of a job.
    pub fn record(&self, job: &str) -> Option<Value> {
        let path = self.state().join(format!("jobs/{job}.json"));
        fs::read(path).ok().map(|text| serde_json::from_slice(&text).expect("a record is JSON"))
    }

    /// Returns how often a hook had a result.
    pub fn runs(&self, hook: &str, result: &str) -> u64 {
        fs::metadata(self.state().join(format!("runs/{hook}.{result}"))).map_or(0, |file| file.len())
    }

    /// Returns the directory of the hooks.
    pub fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// Returns the log of slurmd.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join(format!("log/{}.log", self.node()))).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of slurmd:\n{}", self.log());
        }
        let stopped = self.script("down").env("LIMIT", "20").output();
        if let Ok(output) = stopped.as_ref()
            && !output.status.success()
        {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Runs a hook without a cluster, with these variables, and returns its exit code and JSON.
///
/// # Panics
/// If the hook cannot be started, or does not print JSON.
pub fn hook(
    state: &Path,
    scenario: &Scenario,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (i32, Value) {
    let mut command = Command::new(programs::bailiff());
    command.arg("slurm").args(arguments).args(["--json", "--nvml-library"]).arg(programs::fake_nvml());
    command
        .arg("--state-dir")
        .arg(state)
        .env("FAKE_NVML_SCENARIO", scenario.path())
        .envs(variables.iter().copied());
    let output = command.output().expect("bailiff can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    (output.status.code().expect("an exit code"), json)
}
