//! The step `cancel_job` with a real Slurm cluster, real jobs and the fake driver.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::node::Node;
use end_to_end::slurm::{Cluster, Tracking};
use end_to_end::tenant::{NOBODY_UID, Tenant, start};
use end_to_end::wait::until;
use rustix::process::Signal;
use serde_json::Value;

/// Sampling interval, and look-back. An action must begin within one interval, and starts some programs of Slurm before
/// that.
const INTERVAL: [&str; 2] = ["1s", "2s"];
/// If samples of more than two intervals are missed, it is unknown whether a job has used its GPU.
const LONG: [&str; 2] = ["3s", "6s"];
/// Slurm's programs give up sooner if slurmctld does not respond. They wait for munged without a limit.
const PATIENCE: &str = "MessageTimeout=3\n";
const HELD: &str = "used: 1GiB, sm: 0";
const IDLE: &str = "name: idle-job
    target: workload
    select: {slurm_jobs: \"*\"}
    when: {gpu_util: {max: 1%}}";
const NEVER_USED: &str = "name: never-used-job
    target: slurm_job
    when: {never_used_gpus: {min: 1}, used_gpus: {max: 0}, gpu_util: {max: 1%}}";

/// A cluster, a node with a GPU, and an enforcer that cancels idle jobs.
struct Stage {
    enforcer: Option<Enforcer>,
    node: Node,
    cluster: Cluster,
}

impl Stage {
    fn new(cluster: Cluster) -> Self {
        Self::with_interval(cluster, INTERVAL)
    }

    fn with_interval(cluster: Cluster, [interval, look_back]: [&str; 2]) -> Self {
        let records = cluster.state();
        let ticks = ["--interval", interval, "--look-back", look_back, "--deadline", "10s"];
        let records = ["--slurm.dir", records.to_str().unwrap()];
        let node = Node::with_ticks("", &[""], &[ticks.as_slice(), &records].concat());
        fs::set_permissions(node.home.device(), Permissions::from_mode(0o666)).unwrap();
        fs::create_dir(node.home.path().join("bin")).unwrap();
        let stage = Self { enforcer: None, node, cluster };
        stage.rules("enforce", "{}", &stage.cluster.node());
        stage
    }

    /// Writes a rule that cancels idle jobs.
    fn rules(&self, mode: &str, step: &str, name: &str) {
        self.policy(mode, (IDLE, step), &format!("slurm: {{node: {name}, conf: CONF}}"));
    }

    /// Writes a rule that cancels jobs that never used their GPU.
    fn never_used(&self, mode: &str, more: &str) {
        let node = self.cluster.node();
        self.policy(mode, (NEVER_USED, "{}"), &format!("slurm: {{node: {node}, conf: CONF}}\n{more}"));
    }

    fn policy(&self, mode: &str, (rule, step): (&str, &str), more: &str) {
        let conf = self.cluster.path().join("etc/slurm.conf");
        self.node.home.write(&format!(
            "version: 1
mode: {mode}
defaults: {{startup_grace: 0s, clear_after: 1, cooldown: 0s}}
limits: {{per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100}}
{}
rules:
  - {rule}
    for: {{samples: 3}}
    then: [{{cancel_job: {step}}}]
",
            more.replace("CONF", conf.to_str().unwrap())
        ));
    }

    /// Replaces a program of Slurm for the enforcer. The script finds the real one as `$real`.
    fn wrap(&self, program: &str, script: &str) {
        let path = self.node.home.path().join("bin").join(program);
        let next = path.with_extension("new");
        fs::write(&next, format!("#!/bin/sh\nreal=/usr/bin/{program}\n{script}\n")).unwrap();
        fs::set_permissions(&next, Permissions::from_mode(0o755)).unwrap();
        fs::rename(next, path).unwrap();
    }

    /// Removes the replacement of a program.
    fn unwrap(&self, program: &str) {
        drop(fs::remove_file(self.node.home.path().join("bin").join(program)));
    }

    fn start(&mut self) {
        self.start_with_records(&self.cluster.state());
    }

    fn start_with_records(&mut self, directory: &Path) {
        let mut command = enforcer::command(&self.node.home);
        let bin = self.node.home.path().join("bin");
        command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/bin", bin.display()));
        // With it, scancel would only cancel pending jobs.
        command.env("SCANCEL_STATE", "PENDING");
        command.arg("--slurm.dir").arg(directory);
        self.enforcer = Some(Enforcer::spawn(&self.node.home, command));
    }

    fn enforcer(&self) -> &Enforcer {
        self.enforcer.as_ref().unwrap()
    }

    /// Submits a job that opens the device file. Returns its id, and the pid of its process.
    fn job(&self, options: &[&str]) -> (String, u32) {
        let device = self.node.home.device();
        // The shell reports signals, and the FIFO has no writer.
        let script = format!(
            "trap 'echo TERM; exit' TERM; exec 3<>{}; echo $$; while :; do read nothing <&3; done",
            device.display()
        );
        let job = self.cluster.submit_with(options, &script);
        let pid = self.cluster.pid_of(&job);
        (job, pid)
    }

    /// Submits a job that does not open the device file. Returns its id and the pid of its process, once the exporter shows
    /// that it has not used its GPU. On a busy machine, samples may have been missed; then it submits another one.
    fn unused_job(&self, options: &[&str]) -> (String, u32) {
        loop {
            let script = "trap 'echo TERM; exit' TERM; echo $$; while :; do sleep 0.2; done";
            let job = self.cluster.submit_with(options, script);
            let pid = self.cluster.pid_of(&job);
            if self.is_never_used(&job) {
                return (job, pid);
            }
            self.cluster.must("scancel", &[&job]);
            until("the job's end", || self.cluster.record(&job).is_none().then_some(()));
        }
    }

    /// Waits until the exporter shows a job, and returns whether it has not used its GPU in any sample.
    fn is_never_used(&self, job: &str) -> bool {
        self.node.exporter.until("the job's state", |page| {
            ["never_used", "unknown"].into_iter().find(|state| {
                let labels = [("slurm_job", job), ("state", state)];
                page.value("bailiff_slurm_gpu_allocation_info", &labels).is_some()
            })
        }) == "never_used"
    }

    fn hold(&self, pid: u32) {
        self.node.hold_process(pid, HELD);
    }

    /// Waits for the result of an action, and returns its audit line. No process was signalled.
    fn until_result(&self, result: &str) -> Value {
        let line = self.node.home.until_line("cancel_job", result);
        for line in self.node.home.lines() {
            assert!(line["sent"].as_array().is_none_or(Vec::is_empty), "{line}");
        }
        line
    }

    /// Waits until Slurm shows that a job was cancelled and its process has exited.
    fn until_cancelled(&self, job: &str, pid: u32) {
        until("the job's end", || (self.state(job) == "CANCELLED" && start(pid).is_none()).then_some(()));
    }

    /// Returns the state of a job, or the states of a heterogeneous job's components.
    fn state(&self, job: &str) -> String {
        let shown = self.cluster.shown(job, "State:20");
        let mut states: Vec<&str> = shown.lines().map(str::trim).collect();
        states.dedup();
        states.join(",")
    }

    /// Checks that an action was refused with this result and reason, and that the job still runs.
    fn refused(&self, (job, pid): (&str, u32), result: &str, why: &str) {
        self.refused_as(&["--pid", &pid.to_string()], (job, pid, "RUNNING"), (result, why));
    }

    /// The same for a job in this state, and for a target that `explain` finds with these arguments.
    fn refused_as(&self, target: &[&str], (job, pid, state): (&str, u32, &str), (result, why): (&str, &str)) {
        let line = self.until_result(result);
        let detail = line["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{line}");
        assert!(start(pid).is_some(), "{line}");
        assert_eq!(self.state(job), state);
        if ["identity_changed", "refused"].contains(&result) {
            // It is tried again, and the next attempt may have another result.
            return self.until_explained(target, &["cancel_job: "]);
        }
        self.until_explained(target, &[&format!("cancel_job: {result}: "), why]);
    }

    /// Waits until `explain` shows these texts about a target. The audit log has a result before the daemon does.
    fn until_explained(&self, target: &[&str], texts: &[&str]) {
        until("the explanation", || {
            let explained = self.enforcer().run(&[&["explain"], target].concat());
            let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
            texts.iter().all(|text| explained.contains(text)).then_some(())
        });
    }
}

/// Ends the enforcer before the job's processes, so that it does not wait for them.
impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.enforcer.take());
    }
}

/// Returns whether an audit line says that a job was cancelled and has released its memory.
fn says_ended(line: &Value, job: &str) -> bool {
    let states = ["COMPLETING", "CANCELLED"].map(|state| format!("job {job}: {state}"));
    line["result"] == "released" && states.iter().any(|state| line["detail"] == state.as_str())
}

fn cluster(extra: &str) -> Cluster {
    Cluster::start(Tracking::Cgroup, "", extra)
}

#[test]
fn idle_job_is_cancelled_with_a_comment_and_without_a_signal() {
    let mut stage = Stage::new(cluster(""));
    let (job, pid) = stage.job(&["--requeue"]);
    stage.cluster.must("scontrol", &["update", &format!("jobid={job}"), "admincomment=by an admin"]);
    stage.start();
    stage.hold(pid);
    let line = stage.until_result("released");
    assert!(says_ended(&line, &job), "{line}");
    stage.until_cancelled(&job, pid);
    let action = line["id"].as_u64().unwrap();
    let comment = format!("by an admin; bailiff {} action={action} rule=idle-job", stage.cluster.node());
    assert_eq!(stage.cluster.shown(&job, "admin_comment:200"), comment);
    let labels = [("step", "cancel_job"), ("result", "released")];
    let page = stage.enforcer().page();
    assert_eq!(page.value("bailiff_steps_total", &labels), Some(1.0));
}

#[test]
fn dry_run_names_the_job_and_cancels_nothing() {
    let mut stage = Stage::new(cluster(""));
    stage.rules("dry-run", "{}", &stage.cluster.node());
    let (job, pid) = stage.job(&[]);
    stage.start();
    stage.hold(pid);
    stage.refused((&job, pid), "dry_run", &format!("dry run: would cancel job {job} (RUNNING)"));
    assert_eq!(stage.cluster.shown(&job, "admin_comment:200"), "(null)");
}

#[test]
fn last_task_of_an_array_is_cancelled_alone() {
    let mut stage = Stage::new(cluster(""));
    // The tasks share the node's CPUs and two GPUs. The last one has the id of the array.
    let (array, pid) = stage.job(&["--array=1-2", "--cpus-per-task=1"]);
    assert_eq!(stage.cluster.must("squeue", &["-h", "-t", "R", "-o", "%A %i"]).lines().count(), 2);
    stage.start();
    stage.hold(pid);
    let line = stage.until_result("released");
    assert!(says_ended(&line, &format!("{array}_2")), "{line}");
    stage.until_cancelled(&format!("{array}_2"), pid);
    let states = stage.cluster.must("squeue", &["-h", "-t", "all", "-o", "%i %T"]);
    assert!(states.contains(&format!("{array}_2 CANCELLED")), "{states}");
    assert!(states.contains(&format!("{array}_1 RUNNING")), "{states}");
}

#[test]
fn job_that_started_after_its_processes_is_not_cancelled() {
    let mut stage = Stage::new(cluster(""));
    // The process is older than the job whose cgroup it is in, as after a requeue.
    let tenant = Tenant::ending_on_term(&stage.node.home);
    let born = std::time::SystemTime::now();
    until("the next second", || (born.elapsed().unwrap().as_millis() > 1500).then_some(()));
    let (job, _) = stage.job(&[]);
    stage.cluster.adopt((NOBODY_UID, &job), tenant.pid());
    stage.start();
    stage.hold(tenant.pid());
    stage.refused(
        (&job, tenant.pid()),
        "identity_changed",
        "changed: job 1 (RUNNING) started after it was seen on this node",
    );
    assert_eq!(tenant.terms_received(), 0);
}

#[test]
fn process_of_another_user_and_a_job_of_another_node_cancel_nothing() {
    let mut stage = Stage::new(cluster(""));
    let (job, pid) = stage.job(&[]);
    stage.start();
    // Each case has a process of its own, because the exporter reads the cgroup of a known process only sometimes.
    for (uid, of, result, why) in [
        (4002, "4242", "not_visible", "Slurm does not show job 4242"),
        (4002, job.as_str(), "identity_changed", "belongs to uid 65534, not 4002"),
        (NOBODY_UID, &job, "refused", "it has uid 65534, but the target has uid 4002"),
    ] {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", "while :; do sleep 0.2; done"]).uid(4002).gid(4002);
        let other = Tenant::spawn(&stage.node.home, command);
        stage.cluster.adopt((uid, of), other.pid());
        stage.hold(other.pid());
        stage.refused((&job, other.pid()), result, why);
    }
    stage.rules("enforce", "{nodes: any}", "another");
    stage.enforcer().run(&["reload"]);
    stage.hold(pid);
    let why = format!("query: changed: job {job} (RUNNING) runs on {}, not on another", stage.cluster.node());
    until("a refusal", || {
        let lines = stage.node.home.lines();
        lines.iter().any(|line| line["detail"].as_str().is_some_and(|detail| detail == why)).then_some(())
    });
    assert_eq!(stage.state(&job), "RUNNING");
    assert!(start(pid).is_some());
}

#[test]
fn job_on_several_nodes_is_cancelled_only_if_the_step_permits_it() {
    let mut stage = Stage::new(Cluster::of_nodes(2, (Tracking::Cgroup, "", "")));
    let (job, pid) = stage.job(&["--nodes=2"]);
    stage.start();
    stage.hold(pid);
    stage.refused((&job, pid), "spans_nodes", "and the step has `nodes: one`");
    stage.rules("enforce", "{nodes: any}", &stage.cluster.node());
    stage.enforcer().run(&["reload"]);
    stage.until_result("released");
    stage.until_cancelled(&job, pid);
}

#[test]
fn user_without_rights_over_jobs_cancels_nothing() {
    let mut stage = Stage::new(cluster(""));
    let (job, pid) = stage.job(&[]);
    for program in ["scontrol", "scancel"] {
        stage.wrap(program, "exec runuser -u daemon -- $real \"$@\"");
    }
    stage.start();
    stage.hold(pid);
    stage.refused((&job, pid), "not_permitted", "Access/permission denied");
    stage.until_explained(&["--pid", &pid.to_string()], &[&format!("job {job} (RUNNING): ")]);
    let line = stage.node.home.line("cancel_job", "not_permitted").unwrap();
    assert!(line["notes"][0].as_str().unwrap().starts_with("AdminComment was not set: "), "{line}");
}

/// Stops a daemon before each step of an action, and checks that the job runs until the daemon is continued, that there is
/// a reason, and that only this job is cancelled.
fn stopped(daemon: &str) {
    let mut stage = Stage::new(cluster(PATIENCE));
    let (bystander, _) = stage.job(&["--cpus-per-task=1"]);
    stage.start();
    for (program, command) in [("squeue", ""), ("scontrol", "update"), ("scancel", "")] {
        let (job, pid) = stage.job(&["--cpus-per-task=1"]);
        let mark = stage.node.home.path().join(format!("stopped-{program}"));
        let script = format!(
            "case \"$*\" in {command}*) kill -STOP $(cat {}); touch {};; esac; exec $real \"$@\"",
            stage.cluster.pid_file(daemon).display(),
            mark.display()
        );
        stage.wrap(program, &script);
        stage.hold(pid);
        until("a stopped daemon", || mark.exists().then_some(()));
        stage.unwrap(program);
        if program != "scancel" {
            stage.until_result("no_answer");
            stage.until_explained(
                &["--pid", &pid.to_string()],
                &["cancel_job: no_answer: ", "Slurm did not respond"],
            );
            assert_eq!(stage.cluster.output_of(&job).lines().count(), 1, "no signal arrived");
            assert!(start(pid).is_some());
        }
        stage.cluster.signal(daemon, Signal::CONT);
        until("the job's end", || {
            stage.node.home.lines().iter().any(|line| says_ended(line, &job)).then_some(())
        });
        stage.until_cancelled(&job, pid);
        assert_eq!(stage.state(&bystander), "RUNNING");
    }
}

#[test]
fn stopped_slurmctld_delays_the_cancellation() {
    stopped("slurmctld");
}

#[test]
fn stopped_munged_delays_the_cancellation() {
    stopped("munged");
}

/// Stops slurmd before a step of an action, and checks that the processes are reported and not signalled, and that the job
/// ends once slurmd is continued.
fn stopped_slurmd(program: &str, command: &str) {
    let mut stage = Stage::new(cluster("UnkillableStepTimeout=1\n"));
    let (job, pid) = stage.job(&[]);
    let pid_file = stage.cluster.pid_file("slurmd");
    let stop = format!("case \"$*\" in {command}*) kill -STOP $(cat {});; esac", pid_file.display());
    stage.wrap(program, &format!("{stop}; exec $real \"$@\""));
    stage.start();
    stage.hold(pid);
    let line = stage.until_result("completing");
    assert!(line["detail"].as_str().unwrap().contains(&format!("processes still run: {pid}")), "{line}");
    assert_eq!((stage.state(&job).as_str(), start(pid).is_some()), ("COMPLETING", true));
    stage.until_explained(&["--pid", &pid.to_string()], &["cancel_job: completing: "]);
    assert_eq!(stage.cluster.output_of(&job).lines().count(), 1, "no signal arrived");
    stage.cluster.signal("slurmd", Signal::CONT);
    stage.until_cancelled(&job, pid);
}

#[test]
fn processes_are_not_signalled_if_slurmd_is_stopped_before_the_query() {
    stopped_slurmd("squeue", "");
}

#[test]
fn processes_are_not_signalled_if_slurmd_is_stopped_before_the_comment() {
    stopped_slurmd("scontrol", "update");
}

#[test]
fn processes_are_not_signalled_if_slurmd_is_stopped_before_the_request() {
    stopped_slurmd("scancel", "");
}

/// Stops a daemon after the request, and checks that the result is unknown and no process is signalled.
fn stopped_afterwards(daemon: &str) {
    let mut stage = Stage::new(cluster(&format!("{PATIENCE}UnkillableStepTimeout=1\n")));
    let (job, pid) = stage.job(&[]);
    let pid_file = stage.cluster.pid_file(daemon);
    stage.wrap(
        "scancel",
        &format!("$real \"$@\"; code=$?; kill -STOP $(cat {}); exit $code", pid_file.display()),
    );
    stage.start();
    stage.hold(pid);
    let line = stage.until_result("unknown");
    assert!(
        line["detail"].as_str().unwrap().contains("its state is unknown: no answer from Slurm"),
        "{line}"
    );
    stage.cluster.signal(daemon, Signal::CONT);
    stage.until_cancelled(&job, pid);
}

#[test]
fn result_is_unknown_if_slurmctld_is_stopped_after_the_request() {
    stopped_afterwards("slurmctld");
}

#[test]
fn result_is_unknown_if_munged_is_stopped_after_the_request() {
    stopped_afterwards("munged");
}

#[test]
fn stopped_slurmctld_delays_the_cancellation_of_a_job_that_never_used_its_gpu() {
    let mut stage = Stage::with_interval(cluster(PATIENCE), LONG);
    stage.never_used("enforce", "");
    let (job, pid) = stage.unused_job(&[]);
    let pid_file = stage.cluster.pid_file("slurmctld");
    stage.wrap("squeue", &format!("kill -STOP $(cat {}); exec $real \"$@\"", pid_file.display()));
    stage.start();
    stage.until_result("no_answer");
    stage.unwrap("squeue");
    assert!(start(pid).is_some());
    stage.until_explained(&["--rule", "never-used-job"], &["cancel_job: no_answer: "]);
    stage.cluster.signal("slurmctld", Signal::CONT);
    stage.until_cancelled(&job, pid);
}

#[test]
fn job_that_never_used_its_gpu_is_cancelled_with_or_without_processes() {
    let mut stage = Stage::with_interval(cluster(""), LONG);
    stage.never_used("enforce", "");
    let (job, pid) = stage.unused_job(&[]);
    stage.start();
    let line = stage.until_result("released");
    assert!(says_ended(&line, &job), "{line}");
    assert_eq!(line["target"]["job"]["job"], job);
    assert_eq!(line["target"]["members"], serde_json::json!([]));
    stage.until_cancelled(&job, pid);
    let action = line["id"].as_u64().unwrap();
    let comment = format!("bailiff {} action={action} rule=never-used-job", stage.cluster.node());
    assert_eq!(stage.cluster.shown(&job, "admin_comment:200"), comment);
    // A job of salloc without steps has no process.
    until("the epilog", || stage.cluster.record(&job).is_none().then_some(()));
    let allocated = stage.cluster.allocate();
    until("a cancelled job", || {
        stage.node.home.lines().iter().any(|line| says_ended(line, &allocated)).then_some(())
    });
    until("the job's end", || (stage.state(&allocated) == "CANCELLED").then_some(()));
}

#[test]
fn dry_run_names_a_job_that_never_used_its_gpu() {
    let mut stage = Stage::with_interval(cluster(""), LONG);
    stage.never_used("dry-run", "");
    let (job, pid) = stage.unused_job(&[]);
    stage.start();
    let why = format!("dry run: would cancel job {job} (RUNNING)");
    stage.refused_as(&["--rule", "never-used-job"], (&job, pid, "RUNNING"), ("dry_run", &why));
}

#[test]
fn record_of_another_node_cancels_no_job() {
    let mut stage = Stage::with_interval(cluster(""), LONG);
    stage.policy("enforce", (NEVER_USED, "{}"), "slurm: {node: elsewhere, conf: CONF}");
    let (job, pid) = stage.unused_job(&[]);
    stage.start();
    let why = format!("changed: the record of the job names node {}, not elsewhere", stage.cluster.node());
    stage.refused_as(&["--rule", "never-used-job"], (&job, pid, "RUNNING"), ("identity_changed", &why));
}

#[test]
fn record_that_only_the_exporter_has_cancels_no_job() {
    let mut stage = Stage::with_interval(cluster(""), LONG);
    stage.never_used("enforce", "");
    let (job, pid) = stage.unused_job(&[]);
    let empty = tempfile::tempdir().unwrap();
    fs::create_dir(empty.path().join("jobs")).unwrap();
    stage.start_with_records(empty.path());
    let why = format!("check of the record: changed: the record of job {job} in ");
    stage.refused_as(&["--rule", "never-used-job"], (&job, pid, "RUNNING"), ("identity_changed", &why));
}

#[test]
fn record_that_changes_before_the_request_cancels_no_job() {
    let mut stage = Stage::with_interval(cluster(""), LONG);
    stage.never_used("enforce", "");
    let (job, pid) = stage.unused_job(&[]);
    let record = stage.cluster.state().join(format!("jobs/{job}.json"));
    let change = format!("sed -i 's/GPU-/GPU-x/' {}", record.display());
    stage.wrap("scontrol", &format!("[ $1 = show ] || {change}; exec $real \"$@\""));
    stage.start();
    let why =
        format!("job {job} (RUNNING): second check of the record: changed: the record of job {job} in ");
    stage.refused_as(&["--rule", "never-used-job"], (&job, pid, "RUNNING"), ("identity_changed", &why));
}

#[test]
fn missing_slurm_conf_holds_the_step() {
    let mut stage = Stage::new(cluster(""));
    stage.policy("enforce", (IDLE, "{}"), "slurm: {conf: /nonexistent/slurm.conf}");
    let (job, pid) = stage.job(&[]);
    stage.start();
    stage.hold(pid);
    let line = stage.until_result("no_answer");
    assert!(line["detail"].as_str().unwrap().starts_with("query: no answer from Slurm: "), "{line}");
    assert_eq!(stage.state(&job), "RUNNING");
}

/// Checks that the policy's `protect` exempts a job because of a process without GPU memory.
fn protected(tracking: Tracking, why: &str) {
    let mut stage = Stage::with_interval(Cluster::start(tracking, "", ""), LONG);
    stage.never_used("enforce", "protect: {comms: [sleep]}");
    let (job, pid) = stage.unused_job(&[]);
    stage.start();
    stage.refused_as(&["--rule", "never-used-job"], (&job, pid, "RUNNING"), ("refused", why));
}

#[test]
fn protected_process_of_a_job_without_gpu_memory_exempts_the_job() {
    protected(Tracking::Cgroup, "is exempt: the policy protects it (comms is sleep)");
}

#[test]
fn protected_process_that_may_belong_to_a_job_exempts_the_job() {
    protected(Tracking::Parents, "may belong to the job, and is exempt: the policy protects it");
}

/// Requeues a job after it was found, and checks that its next run is not cancelled.
fn requeued(interval: [&str; 2], submit: impl Fn(&Stage) -> String) {
    let mut stage = Stage::with_interval(cluster(""), interval);
    let job = submit(&stage);
    let (mark, sent) = (stage.node.home.path().join("requeued"), stage.node.home.path().join("sent"));
    let touch = |path: &std::path::Path| format!("touch {}", path.display());
    stage.wrap("scontrol", &format!("[ $1 = show ] || {{ $real requeue {job}; {}; }}", touch(&mark)));
    // The next query is answered when the next run has started. Slurm would wait for 2 minutes.
    let shown = |format: &str| format!("$($real --noheader --jobs={job} --format={format})");
    stage.wrap(
        "squeue",
        &format!(
            "if [ -e {} ]; then
until [ {} = BeginTime ]; do sleep 0.05; done
/usr/bin/scontrol update jobid={job} starttime=now
until [ {} = RUNNING ]; do sleep 0.05; done
fi
exec $real \"$@\"",
            mark.display(),
            shown("%r"),
            shown("%T")
        ),
    );
    stage.wrap("scancel", &touch(&sent));
    stage.start();
    let result = |name| stage.node.home.line("cancel_job", name);
    let line = until("a result", || result("identity_changed").or_else(|| result("no_answer")));
    drop(stage.enforcer.take());
    if line["result"] == "no_answer" {
        // On a busy machine, the next run may start later than a query may take.
        assert!(!sent.exists(), "no request was sent");
        return requeued(interval, submit);
    }
    let why = format!("changed: job {job} (RUNNING) started after it was seen on this node");
    assert!(line["detail"].as_str().unwrap().contains(&why), "{line}");
    assert!(!sent.exists(), "no request was sent");
    assert_eq!(stage.state(&job), "RUNNING");
}

#[test]
fn requeued_job_with_processes_is_not_cancelled() {
    requeued(INTERVAL, |stage| {
        let (job, pid) = stage.job(&["--requeue"]);
        stage.hold(pid);
        job
    });
}

#[test]
fn requeued_job_that_never_used_its_gpu_is_not_cancelled() {
    requeued(LONG, |stage| {
        stage.never_used("enforce", "");
        stage.unused_job(&["--requeue"]).0
    });
}

/// Changes a job's state with a command after the first query, and checks that the enforcer does not cancel it.
fn changed(state: &str, command: &str) -> (Stage, String) {
    let mut stage = Stage::new(cluster(""));
    let (job, pid) = stage.job(&[]);
    let pid_file = stage.cluster.pid_file("slurmd");
    let command = command.replace("JOB", &job).replace("SLURMD", pid_file.to_str().unwrap());
    stage.wrap("scontrol", &format!("[ $1 = show ] || {{ {command}; }}; exec $real \"$@\""));
    stage.start();
    stage.hold(pid);
    let why = format!("changed: job {job} ({state}) is not running");
    stage.refused_as(&["--pid", &pid.to_string()], (&job, pid, state), ("identity_changed", &why));
    (stage, job)
}

#[test]
fn job_that_is_suspended_meanwhile_is_not_cancelled() {
    let (stage, job) = changed("SUSPENDED", "$real suspend JOB");
    stage.cluster.must("scontrol", &["resume", &job]);
}

#[test]
fn job_that_is_completing_meanwhile_is_not_cancelled() {
    let (stage, job) = changed("COMPLETING", "kill -STOP $(cat SLURMD); /usr/bin/scancel JOB");
    stage.cluster.signal("slurmd", Signal::CONT);
    until("the job's end", || (stage.state(&job) == "CANCELLED").then_some(()));
}

#[test]
fn job_that_private_data_hides_is_not_cancelled() {
    let mut stage = Stage::new(cluster("PrivateData=jobs\n"));
    let (job, pid) = stage.job(&[]);
    stage.wrap("squeue", "exec runuser -u daemon -- $real \"$@\"");
    stage.start();
    stage.hold(pid);
    stage.refused((&job, pid), "not_visible", &format!("Slurm does not show job {job}"));
}

#[test]
fn heterogeneous_job_is_cancelled_only_if_the_step_permits_it() {
    // Slurm starts components only on different nodes.
    let mut stage = Stage::new(Cluster::of_nodes(2, (Tracking::Cgroup, "", "")));
    let part = ["--cpus-per-task=1", ":", "--cpus-per-task=1", "--gres=gpu:1"];
    let (job, pid) = stage.job(&part);
    stage.start();
    stage.hold(pid);
    let why = format!("job {job}+0 (RUNNING) is heterogeneous, and the step has `nodes: one`");
    stage.refused((&job, pid), "spans_nodes", &why);
    stage.rules("enforce", "{nodes: any}", &stage.cluster.node());
    stage.enforcer().run(&["reload"]);
    stage.until_result("released");
    until("the end of both components", || {
        let states = stage.cluster.must("squeue", &["-h", "-t", "all", "-o", "%i %T"]);
        let cancelled = states.lines().all(|line| line.ends_with("CANCELLED"));
        (cancelled && states.lines().count() == 2).then_some(())
    });
    assert!(start(pid).is_none());
}

#[test]
fn memory_that_the_driver_still_lists_is_reported() {
    let mut stage = Stage::new(cluster(""));
    let (job, pid) = stage.job(&[]);
    stage.start();
    stage.node.hold_pid(pid, HELD);
    let line = stage.until_result("gone_not_released");
    let why = format!(": memory_held: the driver still lists process {pid} on GPU 0");
    assert!(line["detail"].as_str().unwrap().contains(&why), "{line}");
    stage.until_cancelled(&job, pid);
}

#[test]
fn request_without_an_answer_is_unknown() {
    let mut stage = Stage::new(cluster(&format!("{PATIENCE}UnkillableStepTimeout=1\n")));
    let (job, pid) = stage.job(&[]);
    let pid_file = stage.cluster.pid_file("slurmctld");
    stage.wrap("scancel", &format!("kill -STOP $(cat {}); exec $real \"$@\"", pid_file.display()));
    stage.start();
    stage.hold(pid);
    let line = stage.until_result("unknown");
    assert!(
        line["detail"].as_str().unwrap().contains("its state is unknown: no answer from Slurm"),
        "{line}"
    );
    assert!(start(pid).is_some());
    stage.until_explained(&["--pid", &pid.to_string()], &["cancel_job: unknown: "]);
    stage.unwrap("scancel");
    stage.cluster.signal("slurmctld", Signal::CONT);
    stage.until_cancelled(&job, pid);
}
