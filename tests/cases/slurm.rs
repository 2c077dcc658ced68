//! `bailiff slurm` with a real Slurm cluster, real jobs and the fake driver.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "reads files of hooks, starts a process of another user, and fails loudly"
)]

use std::fs;

use end_to_end::exporter::Exporter;
use end_to_end::holder::Holder;
use end_to_end::slurm::{Cluster, Tracking, USER};
use end_to_end::tenant::NOBODY_UID;
use end_to_end::wait::until;
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};

/// Short limits of both hooks.
const SHORT: &str = "prolog: {wait: 1s}\nepilog: {wait: 2s, grace: 1s}\n";

/// Returns whether a process runs. A zombie does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let exists =
        i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| test_kill_process(pid).is_ok());
    exists && !stat.contains(") Z ")
}

#[test]
fn hooks_of_a_clean_job_record_its_gpus_until_it_ends() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let job = cluster.submit("sleep 1000");
    let record = until("the prolog's record", || cluster.record(&job));
    assert_eq!(
        (&record["job"], &record["uid"], &record["node"]),
        (&json!(job), &json!(NOBODY_UID), &json!(cluster.node()))
    );
    assert_eq!((&record["gpus"][0]["position"], &record["gpus"][0]["minor"]), (&json!(0), &json!(0)));
    assert!(record["gpus"][0]["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")), "{record}");
    assert_eq!(cluster.runs("prolog", "clean"), 1);
    cluster.must("scancel", &[&job]);
    until("the record's removal", || cluster.record(&job).is_none().then_some(()));
    until("the epilog's count", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    cluster.until_node("idle");
}

#[test]
fn exporter_shows_the_gpus_of_jobs_and_whether_they_are_used() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let directory = cluster.state();
    let exporter = Exporter::start(&cluster.scenario, &["--slurm.dir", directory.to_str().unwrap()]);
    let id = cluster.submit("echo $$; exec sleep 1000");
    let state = |state: &str| {
        let labels = [("slurm_job", id.as_str()), ("user", USER), ("gpu", "0"), ("state", state)];
        exporter.until(state, |page| page.value("bailiff_slurm_gpu_allocation_info", &labels));
        exporter.page().value("bailiff_slurm_gpu_unused_seconds", &labels[..1])
    };
    assert!(state("never_used").is_some());
    let pid = cluster.pid_of(&id);
    cluster.scenario.set(&format!("gpus: [{{processes: [{{pid: {pid}, used: 1GiB, sm: 60}}]}}, {{}}]"));
    state("in_use");
    let other = Holder::sleeping();
    cluster.scenario.set(&format!("gpus: [{{}}, {{processes: [{{pid: {}, used: 2GiB}}]}}]", other.pid()));
    assert!(state("idle").is_some());
    let outside = [("gpu", "1")];
    exporter.until("memory of a process outside Slurm", |page| {
        page.value("bailiff_slurm_gpu_unallocated_bytes", &outside)
    });
    let page = exporter.page();
    assert_eq!(page.value("bailiff_slurm_gpu_unallocated_bytes", &outside), Some(2_147_483_648.0));
    let runs = [("hook", "prolog"), ("result", "clean")];
    assert_eq!(exporter.page().value("bailiff_slurm_hook_runs_total", &runs), Some(1.0));
    cluster.must("scancel", &[&id]);
    exporter.until("no allocation", |page| {
        page.value("bailiff_slurm_gpu_allocation_info", &[]).is_none().then_some(())
    });
}

#[test]
fn hooks_run_for_an_allocation_without_steps() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let job = cluster.allocate();
    until("a record", || cluster.record(&job));
    assert_eq!(cluster.runs("prolog", "clean"), 1);
    cluster.must("scancel", &[&job]);
    until("the epilog's count", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    assert!(cluster.record(&job).is_none());
}

#[test]
fn job_without_gpus_passes() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    cluster.must("runuser", &["-u", USER, "--", "srun", "--chdir=/", "true"]);
    until("the epilog's count", || (cluster.runs("epilog", "no_gpus") == 1).then_some(()));
    assert_eq!(cluster.runs("prolog", "no_gpus"), 1);
    cluster.must(
        "runuser",
        &["-u", USER, "--", "sbatch", "--chdir=/", "--output=/dev/null", "--wrap", "sleep 1000"],
    );
    until("the prolog's count", || (cluster.runs("prolog", "no_gpus") == 2).then_some(()));
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    assert_eq!(cluster.run("health", &[], &[]).status.code(), Some(1), "the job without GPUs hides nothing");
}

#[test]
fn leftover_of_a_job_is_ended_before_the_next_job_starts() {
    let cluster = Cluster::start(Tracking::Parents, "epilog: {wait: 50s, grace: 1s}\n", "");
    // With linuxproc, Slurm ends the job's process tree; a process of another session and parent stays.
    let job = cluster
        .submit("setsid --fork sh -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done'; exec sleep 1000");
    let pid = cluster.pid_of(&job);
    cluster.hold(pid);
    cluster.must("scancel", &[&job]);
    let next = cluster.submit("sleep 1000");
    until("the end of the leftover", || (!runs(pid)).then_some(()));
    assert!(cluster.record(&next).is_none(), "the next job does not start on a GPU that is in use");
    cluster.free();
    until("the epilog's count", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    cluster.until_state(&next, "RUNNING");
}

#[test]
fn process_that_is_not_provably_the_jobs_is_named_and_drains_the_node() {
    let cluster = Cluster::start(
        Tracking::Parents,
        "prolog: {wait: 1s}\nepilog: {wait: 1s, grace: 1s}\nhealth: {resume: true}\n",
        "",
    );
    let job = cluster.submit("env -i setsid --fork sh -c 'echo $$; exec sleep 1000'; exec sleep 1000");
    let pid = cluster.pid_of(&job);
    cluster.hold(pid);
    cluster.must("scancel", &[&job]);
    cluster.until_node("Epilog error");
    assert!(runs(pid), "its environment does not name the job");
    let log = cluster.log();
    assert!(log.contains(&format!("did not end pid {pid}: its environment does not name the job")), "{log}");
    let health = || cluster.run("health", &[], &[]);
    assert_eq!(health().status.code(), Some(1));
    let node = cluster.node_state();
    assert!(node.contains(&format!("bailiff: gpu 0: 1.0 GiB held by pid {pid} (")), "{node}");

    cluster.free();
    rustix::process::kill_process(
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    for _ in 0..2 {
        assert_eq!(health().status.code(), Some(0));
        assert!(cluster.node_state().starts_with("drained|bailiff: "), "{}", cluster.node_state());
    }
    health();
    cluster.until_node("|none");
}

#[test]
fn forged_environment_of_another_user_ends_nothing() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    let job = cluster.submit("sleep 1000");
    until("the prolog's record", || cluster.record(&job));
    let mut other = std::process::Command::new("sleep");
    std::os::unix::process::CommandExt::uid(&mut other, 4002);
    let mut other = other.arg("1000").env("SLURM_JOB_ID", &job).spawn().unwrap();
    cluster.hold(other.id());
    cluster.must("scancel", &[&job]);
    cluster.until_node("Epilog error");
    assert!(other.try_wait().unwrap().is_none(), "a process of another user is not signalled");
    assert!(cluster.log().contains("it belongs to another user than the job"), "{}", cluster.log());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn prolog_of_a_gpu_in_use_drains_the_node_and_names_the_holder() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    let job = cluster.submit("sleep 1000");
    cluster.until_node("Prolog error");
    assert!(cluster.record(&job).is_none(), "a failed prolog leaves no record");
    let expected = format!("not clean: gpu 0: 1.0 GiB held by pid {} (uid 0, sleep)", holder.pid());
    assert!(cluster.log().contains(&expected) || cluster.log().contains("root, sleep"), "{}", cluster.log());
}

/// slurmd passes only `SLURMD_NODENAME` to the health check, and its slurm.conf is not in /etc.
#[test]
fn health_check_by_slurmd_drains_the_node_and_names_the_holder() {
    let extra = "HealthCheckProgram=HOME/health\nHealthCheckInterval=1\n";
    let cluster = Cluster::start(Tracking::Parents, SHORT, extra);
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    let expected = format!("bailiff: gpu 0: 1.0 GiB held by pid {} (", holder.pid());
    until("the reason", || cluster.node_state().contains(&expected).then_some(()));
}

#[test]
fn job_without_steps_has_a_record_until_its_epilog_with_contain() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "PrologFlags=Alloc,Contain\n");
    let job = cluster.allocate();
    until("the record", || cluster.record(&job));
    let health = cluster.run("health", &["--json"], &[]);
    assert_eq!(health.status.code(), Some(0), "{}", String::from_utf8_lossy(&health.stdout));
    assert!(cluster.record(&job).is_some());
    cluster.must("scancel", &[&job]);
    until("the epilog", || {
        (cluster.runs("epilog", "clean") == 1 && cluster.record(&job).is_none()).then_some(())
    });
}

#[test]
fn health_counts_processes_of_jobs_on_gpus_that_no_job_has() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let job = cluster.submit_with(&["--account=phys"], "echo $$; exec sleep 1000");
    let pid = cluster.pid_of(&job);
    assert_eq!(cluster.record(&job).unwrap()["account"], "phys");
    cluster.scenario.set(&format!("gpus: [{{}}, {{processes: [{{pid: {pid}, used: 1GiB}}]}}]"));
    assert_eq!(cluster.run("health", &[], &[]).status.code(), Some(1));
    let node = cluster.node_state();
    assert!(node.contains(&format!("bailiff: gpu 1: 1.0 GiB held by pid {pid} (")), "{node}");
    assert!(node.contains(&format!("job {job})")), "{node}");
}

#[test]
fn reason_of_an_administrator_is_kept() {
    let cluster = Cluster::start(Tracking::Parents, "", "");
    let node = format!("nodename={}", cluster.node());
    cluster.must("scontrol", &["update", &node, "state=drain", "reason=broken fan"]);
    let holder = Holder::sleeping();
    cluster.hold(holder.pid());
    let output = cluster.run("health", &["--json"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["action"], json!(format!("{} keeps its reason: broken fan", cluster.node())));
    assert_eq!(cluster.node_state(), "drained|broken fan");
}

#[test]
fn health_ignores_processes_of_running_jobs_and_runs_once() {
    let cluster = Cluster::start(Tracking::Parents, SHORT, "");
    let job = cluster.submit("echo $$; exec sleep 1000");
    cluster.hold(cluster.pid_of(&job));
    let left = cluster.state().join("jobs/424242.json");
    let mut record = cluster.record(&job).unwrap();
    record["job"] = json!("424242");
    fs::write(&left, record.to_string()).unwrap();
    assert_eq!(cluster.run("health", &[], &[]).status.code(), Some(0));
    assert_eq!(cluster.runs("health", "clean"), 1);
    assert!(
        !left.exists() && cluster.record(&job).is_some(),
        "only the record of the job that ended is deleted"
    );
    let lock = fs::File::create(cluster.state().join("health.lock")).unwrap();
    lock.lock().unwrap();
    let output = cluster.run("health", &[], &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("another run is in progress"), "{output:?}");
    assert_eq!(cluster.node_state(), "mixed|none");
    drop(lock);
    cluster.must("scontrol", &["suspend", &job]);
    assert_eq!(cluster.run("health", &[], &[]).status.code(), Some(0));
    assert!(cluster.record(&job).is_some(), "a suspended job has its GPU");
}

#[test]
fn check_shows_the_gpu_map_and_problems_of_slurm_conf() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "PrologEpilogTimeout=5\n");
    let output = cluster.run("check", &[], &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("0: /dev/nvidia0 (GPU-"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Slurm's time limit of 5 s is shorter"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

/// Variables of a job of this user with the first GPU.
fn variables<'a>(id: &'a str, uid: &'a str) -> [(&'a str, &'a str); 3] {
    [("SLURM_JOB_ID", id), ("SLURM_JOB_UID", uid), ("SLURM_JOB_GPUS", "0")]
}

#[test]
fn gpu_of_a_job_with_a_step_is_shared() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let first = cluster.submit("echo $$; exec sleep 1000");
    cluster.hold(cluster.pid_of(&first));
    let path = cluster.state().join(format!("jobs/{first}.json"));
    let mut record = cluster.record(&first).unwrap();
    record["boot_ms"] = json!(1);
    fs::write(&path, record.to_string()).unwrap();
    let output = cluster.run("prolog", &["--json", "--wait", "0s"], &variables("4242", "65534"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "clean", "the step shows that the job lives: {report}");
    cluster.must("scancel", &[&first]);
    until("the record's removal", || cluster.record(&first).is_none().then_some(()));
}

#[test]
fn gpu_of_two_jobs_with_shards_is_shared() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let shards = |script: &str| cluster.submit_with(&["--gres=shard:2", "--cpus-per-task=1"], script);
    let first = shards("echo $$; exec sleep 1000");
    let pid = cluster.pid_of(&first);
    cluster.hold(pid);
    let second = shards("echo $$");
    cluster.pid_of(&second);
    until("the second job's epilog", || (cluster.runs("epilog", "clean") == 1).then_some(()));
    assert_eq!(cluster.runs("prolog", "clean"), 2, "the memory belongs to the first job");
    assert_eq!(cluster.record(&first).unwrap()["gpus"][0]["minor"], 0);
    assert!(runs(pid) && cluster.record(&second).is_none());
    assert!(cluster.node_state().ends_with("|none"), "the node is not drained");
}

/// Waits in state D, until its child exits, as a user.
const VFORK: &str = "import ctypes, os, signal
os.setgid(65534)
os.setuid(65534)
print('ready')
libc = ctypes.CDLL(None)
if libc.vfork() == 0:
    libc.prctl(1, 9)
    signal.pause()";

/// A process, its node and job, and why the epilog of job 4242 does not end it.
type Leftover<'a> = (Holder, &'a str, &'a str, Option<&'a str>);

/// Runs the epilog of a user's job 4242 while these processes use its GPU.
fn epilog(cluster: &Cluster, uid: u32, cases: &[Leftover<'_>]) {
    let entry = |case: &Leftover<'_>| format!("{{pid: {}, used: 1GiB}}", case.0.pid());
    let entries: Vec<String> = cases.iter().map(entry).collect();
    cluster.scenario.set(&format!("gpus: [{{processes: [{}]}}, {{}}]", entries.join(", ")));
    for (holder, node, job, _) in cases {
        cluster.adopt_on(node, (uid, job), holder.pid());
    }
    let owner = uid.to_string();
    let output = cluster.run("epilog", &["--json", "--wait", "2s"], &variables("4242", &owner));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let leftovers = report["leftovers"].as_array().unwrap();
    for (holder, _, _, why) in cases {
        let leftover = leftovers.iter().find(|leftover| leftover["pid"] == holder.pid()).unwrap();
        assert_eq!(leftover["why"].as_str(), *why, "{report}");
        assert_eq!(runs(holder.pid()), why.is_some(), "{report}");
    }
}

#[test]
fn epilog_ends_only_processes_of_the_job() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let node = cluster.node();
    let other_node = format!("{node}other");
    let waiting = Holder::python(VFORK);
    until("state D", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", waiting.pid())).unwrap();
        stat.contains(") D ").then_some(())
    });
    let (user, other_user) = (|| Holder::sleeping_as(NOBODY_UID), Holder::sleeping_as(4002));
    let cases = [
        (user(), node.as_str(), "4242", None),
        (user(), &node, "4243", Some("it belongs to another job")),
        (user(), &other_node, "4242", Some("it belongs to another job")),
        (other_user, &node, "4242", Some("it belongs to another user than the job")),
        (waiting, &node, "4242", Some("it is in an uninterruptible sleep (state D)")),
    ];
    epilog(&cluster, NOBODY_UID, &cases);
}

#[test]
fn epilog_of_a_job_of_root_ends_no_part_of_slurm() {
    let cluster = Cluster::start(Tracking::Cgroup, SHORT, "");
    let (node, home) = (cluster.node(), tempfile::tempdir().unwrap());
    let named = |name| Holder::named(home.path(), name, 0);
    let cases = [
        (named("worker"), node.as_str(), "4242", None),
        (named("slurmstepd-wlm"), &node, "4242", Some("it belongs to Slurm")),
        (named("slurmd"), &node, "4242", Some("it belongs to Slurm")),
        (named("worker"), &node, "4243", Some("it belongs to another job")),
    ];
    epilog(&cluster, 0, &cases);
}
