//! The rows of the report: their claims, workers and checks.

use crate::driver::Answer;
use crate::published::Published;
use crate::report::Tried;
use crate::run::{Observation, Run, Subject};
use crate::worker::{ALLOCATION, Work};

/// Memory that exceeds what rounding to whole pages can cause.
const ROUNDING: u64 = 64 << 20;

/// A row.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) plan: Plan,
}

/// How a row is tested.
pub(crate) enum Plan {
    /// Workers that run together for a period, shared by rows with the same workers. The checks apply to some of
    /// the workers.
    Observe(&'static str, &'static [Work], &'static [Work], &'static [Check]),
    Part(fn(&mut Run) -> Tried),
}

/// A condition on each process of a row.
pub(crate) struct Check {
    pub(crate) about: About,
    /// Message if the condition is not met.
    pub(crate) failure: &'static str,
    holds: fn(&Facts<'_>) -> bool,
}

/// The data to which a check applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// What the driver reports about a GPU without other processes.
    EmptyGpu,
    Driver,
    Published,
    /// What the exporter published for a GPU in MIG mode.
    Mig,
}

struct Facts<'a> {
    answer: &'a Answer,
    published: Published,
    pid: u32,
    listed: u32,
    memory: Option<u64>,
    /// Memory of a process that only has a context.
    context: Option<u64>,
}

impl Check {
    pub(crate) fn holds(&self, seen: &Observation, subject: &Subject) -> bool {
        let (answer, pid, listed) = (&seen.answer, subject.pid, subject.listed);
        let (published, memory) = (Published::of(pid, &seen.snapshots), answer.memory(listed));
        (self.holds)(&Facts { answer, published, pid, listed, memory, context: seen.context })
    }
}

macro_rules! checks {
    ($($name:ident $about:ident $failure:literal |$it:ident| $holds:expr;)*) => {
        $(const $name: Check = Check { about: About::$about, failure: $failure, holds: |$it| $holds };)*
    };
}

checks! {
    GPU_SAMPLED EmptyGpu "it has none" |it| !it.answer.device.is_empty();
    NOT_FOUND EmptyGpu "it does not" |it| it.answer.refused.as_deref() == Some("NOT_FOUND");
    CALM EmptyGpu "the GPU is not calm" |it| it.answer.maximum().is_some_and(|percent| percent <= 1);
    SAME_PID Driver "it is listed by another pid" |it| it.listed == it.pid;
    SAMPLED Driver "a process that computes has no samples above 1 %" |it| it.answer.busiest(it.listed).is_some_and(|most| most > 1);
    NO_USE Driver "an idle process has a sample above 0 %" |it| it.answer.busiest(it.listed).is_none_or(|most| most == 0);
    HELD Driver "it is not listed with its memory" |it| it.memory.is_some_and(|bytes| bytes >= ALLOCATION);
    GROWN Driver "its memory does not grow by that" |it| it.memory.zip(it.context).is_some_and(|(more, less)| {
        (ALLOCATION..=ALLOCATION + ROUNDING).contains(&more.saturating_sub(less))
    });
    SAME_MEMORY Published "another figure was published" |it| it.memory == it.published.memory;
    IDLE Published "an idle process was not published as 0" |it| it.published.is_idle();
    BUSY Published "its utilization was not published" |it| it.published.is_busy();
    NEVER_IDLE Published "a process that computes was published as idle" |it| it.published.is_never_idle();
    ZOMBIE_LEADER Published "another state was published" |it| it.published.state == "zombie_leader";
    MIG Mig "utilization was published, or another reason" |it| it.published.is_unknown("mig");
}

macro_rules! rows {
    (@plan part $part:ident) => { Plan::Part(Run::$part) };
    (@plan $done:literal $running:tt of $about:tt $checks:tt) => { Plan::Observe($done, &$running, &$about, &$checks) };
    ($($id:literal $claim:literal { $($plan:tt)* })*) => {
        /// All rows, in the order of execution. `row-N` is row N in `crates/snapshot/src/utilization.md`.
        pub(crate) const ROWS: &[Row] = &[$(Row { id: $id, claim: $claim, plan: rows!(@plan $($plan)*) }),*];
    };
}

rows! {
    "samples-idle" "`nvmlDeviceGetSamples` has new samples of a GPU that nothing runs on"
        { "nothing ran" [] of [] [GPU_SAMPLED] }
    "not-found" "`nvmlDeviceGetProcessUtilization` answers NOT_FOUND where nothing ran"
        { "nothing ran" [] of [] [NOT_FOUND] }
    "two-lists" "a process in the compute and the graphics list holds the same memory, not two memories" { part two_lists }
    "row-1" "MIG is on: without `--gpm`, utilization is unknown (`mig`)"
        { "a process has a context on an instance" ["idle"] of ["idle"] [MIG] }
    "mig-activity" "on a MIG instance, the only process is published as 0 or with the activity of the instance, and two that compute as unknown (`--gpm`, `--mig-idle`)" { part mig_activity }
    "row-2" "no answer one snapshot before: utilization is unknown (`first_sample`)" { part first_snapshot }
    "health" "recovery action, remapped rows, ECC errors and clock events are published as the driver reports them" { part health }
    "own-cgroup" "the exporter's cgroup has no GPU memory limit, and the driver's total is published" { part own_cgroup }
    "xid" "a write outside of memory is received as Xid 13 or 31, of class application, and if the kernel log can be read, it attributes it to the process (`--kernel-log`)" { part xid }
    "pid" "the driver lists a process by the pid that it has here"
        { "a process has a context" ["idle", "memory"] of ["idle"] [SAME_PID] }
    "row-6" "no process is sampled, or only at 0 %, and the GPU is at most at 1 %: the processes on it are published as 0"
        { "a process has a context, another also 512 MiB; neither computes"
          ["idle", "memory"] of ["idle", "memory"] [NO_USE, CALM, IDLE] }
    "memory" "the driver's figure grows by what a process allocates, and is published as it is"
        { "a process allocated 512 MiB" ["idle", "memory"] of ["memory"] [GROWN, SAME_MEMORY] }
    "release" "memory comes back within 10 s of the end of a process, and is no longer listed" { part release }
    "leaderless" "a process whose thread-group leader exited is still listed with its memory, as zombie_leader"
        { "a process allocated 512 MiB; its first thread exited, another lives"
          ["idle", "leaderless"] of ["leaderless"] [HELD, ZOMBIE_LEADER] }
    "row-3" "a process that computes has samples above 1 %, and is published with them"
        { "a process launches one kernel after the other" ["idle", "busy"] of ["busy"] [SAMPLED, BUSY] }
    "row-5" "an idle process beside a busy one has no sample above 0 %, and is published as 0"
        { "beside it, a process has a context" ["idle", "busy"] of ["idle"] [NO_USE, IDLE] }
    "row-3-streams" "row 3 where the process computes in many streams"
        { "a process launches kernels in 16 streams" ["idle", "busy", "streams"] of ["streams"] [SAMPLED, BUSY] }
    "row-3-shared" "row 3 where two processes share a GPU"
        { "both processes compute at once" ["idle", "busy", "streams"] of ["busy", "streams"] [SAMPLED, BUSY] }
    "energy" "the driver's counter grows, and the energy of users, idle and unattributed add up to its increase" { part energy }
    "energy-idle" "while no process computes, no user gets energy, and the increase is idle, or unattributed" { part energy_idle }
    "energy-users" "of two users whose processes compute, both get energy, and the parts add up to the increase" { part energy_users }
    "gpm" "an idle GPU has nearly no graphics and DRAM activity, a busy one has, and both are published (`--gpm`)" { part gpm }
    "gpm-shared" "a GPU on which two processes compute has graphics activity above 50 % (`--gpm`)" { part gpm_shared }
    "gpm-copies" "a process that only copies, from the host or on the GPU, causes DRAM activity above 0.01 %, the limit of a calm MIG instance (`--gpm`)" { part gpm_copies }
    "gpm-video" "a process that decodes a video causes activity of the video decoder above 1 % (`--gpm`; needs ffmpeg with h264_cuvid)" { part gpm_video }
    "gpm-user" "an ordinary user may read the activity of engines (`--gpm`)" { part gpm_user }
    "kill-busy" "SIGKILL of a process that computes causes no Xid other than 45, of class cleanup, and its memory comes back within 10 s" { part kill_busy }
    "accounting" "accounting samples processes, and its sums grow with work and not without (drivers from 610)" { part accounting }
    "row-7" "the GPU was busy and no process was sampled: utilization is unknown (`unattributed`), never 0"
        { "a process computes 20 ms and rests 180 ms" ["idle", "bursts"] of ["bursts"] [NEVER_IDLE] }
    "row-8" "the driver's timestamps never step back, and its buffer is longer than 5 s; otherwise utilization is unknown"
        { part stamps }
    "row-4" "a client of MPS without a sample is published as 0 only where the GPU is calm"
        { "a client has a context, another computes"
          ["idle", "mps-idle", "mps-busy", "mps-server"] of ["mps-idle", "mps-busy"] [NEVER_IDLE] }
    "row-4-server" "a server of MPS is not published as idle while its clients compute"
        { "the server of these clients" ["idle", "mps-idle", "mps-busy", "mps-server"] of ["mps-server"] [NEVER_IDLE] }
    "mps-terminate" "`terminate_client` reports success as GPU Bailiff expects, and the process keeps running" { part terminate_client }
    "forked" "a forked child that inherited the device files keeps the memory of its ended parent" { part forked }
    "quota" "the quota library refuses an allocation above its limit, and grants one below" { part quota }
    "dry-run-idle" "the enforcer flags an idle process, and would terminate it after 30 samples" { part dry_run_idle }
    "dry-run-busy" "it neither flags nor would terminate a process that computes" { part dry_run_busy }
    "dry-run-signals" "a dry run sends no signal" { part dry_run_signals }
    "terminate" "the enforcer ends an idle process by SIGTERM, sees its memory return, and signals no other" { part terminate }
}
