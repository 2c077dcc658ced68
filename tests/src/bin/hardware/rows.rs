//! The rows of the report: what each claims, which workers run for it, and what must hold then.

use crate::published::Published;
use crate::report::Tried;
use crate::run::{Run, Seen, Subject};
use crate::worker::{ALLOCATION, Work};

/// More than rounding to whole pages.
const ROUNDING: u64 = 64 << 20;

/// A row.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) plan: Plan,
}

/// How a row is tried.
pub(crate) enum Plan {
    /// Workers run together for a period, which rows with the same workers share; the checks are about some of them.
    Observe(&'static str, &'static [Work], &'static [Work], &'static [Check]),
    Part(fn(&mut Run) -> Tried),
}

/// What must hold of each process that a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    GpuSampled,
    NotFound,
    Calm,
    SamePid,
    Sampled,
    NoSample,
    Held,
    Grown,
    SameMemory,
    PublishedIdle,
    PublishedBusy,
    NeverIdle,
    Unknown(&'static str),
    State(&'static str),
}

use Check::*;

impl Check {
    /// Whether it is about the driver alone.
    pub(crate) fn is_of_driver(self) -> bool {
        self.needs_empty() || matches!(self, SamePid | Sampled | NoSample | Held | Grown)
    }

    /// Whether processes of others make it meaningless.
    pub(crate) fn needs_empty(self) -> bool {
        matches!(self, GpuSampled | NotFound | Calm)
    }

    /// What is wrong where it does not hold.
    pub(crate) fn failure(self) -> &'static str {
        match self {
            GpuSampled => "it has none",
            NotFound => "it does not",
            SamePid => "it is listed by another pid",
            Sampled => "a process that computes has no samples above 1 %",
            NoSample => "an idle process has samples",
            Calm => "the GPU is not calm",
            Held => "it is not listed with its memory",
            Grown => "its memory does not grow by that",
            SameMemory => "another figure was published",
            PublishedIdle => "an idle process was not published as 0",
            PublishedBusy => "its utilization was not published",
            NeverIdle => "a process that computes was published as idle",
            Unknown(_) => "utilization was published, or another reason",
            State(_) => "another state was published",
        }
    }

    pub(crate) fn holds(self, seen: &Seen, subject: &Subject) -> bool {
        let (answer, published) = (&seen.answer, Published::of(subject.pid, &seen.snapshots));
        let memory = answer.memory(subject.listed);
        match self {
            GpuSampled => !answer.device.is_empty(),
            NotFound => answer.refused.as_deref() == Some("NOT_FOUND"),
            SamePid => subject.listed == subject.pid,
            Sampled => answer.busiest(subject.listed).is_some_and(|most| most > 1),
            NoSample => answer.busiest(subject.listed).is_none(),
            Calm => answer.maximum().is_some_and(|percent| percent <= 1),
            Held => memory.is_some_and(|bytes| bytes >= ALLOCATION),
            Grown => memory.zip(seen.context).is_some_and(|(more, less)| {
                (ALLOCATION..=ALLOCATION + ROUNDING).contains(&more.saturating_sub(less))
            }),
            SameMemory => memory == published.memory,
            PublishedIdle => published.is_idle(),
            PublishedBusy => published.is_busy(),
            NeverIdle => published.is_never_idle(),
            Unknown(reason) => published.is_unknown(reason),
            State(state) => published.state == state,
        }
    }
}

macro_rules! rows {
    (@plan part $part:ident) => { Plan::Part(Run::$part) };
    (@plan $done:literal $running:tt of $about:tt $checks:tt) => { Plan::Observe($done, &$running, &$about, &$checks) };
    ($($id:literal $claim:literal { $($plan:tt)* })*) => {
        /// All rows, in the order in which they are tried. `row-N` is that row of `snapshot/src/utilization.md`.
        pub(crate) const ROWS: &[Row] = &[$(Row { id: $id, claim: $claim, plan: rows!(@plan $($plan)*) }),*];
    };
}

rows! {
    "samples-idle" "`nvmlDeviceGetSamples` has new samples of a GPU that nothing runs on"
        { "nothing ran" [] of [] [GpuSampled] }
    "not-found" "`nvmlDeviceGetProcessUtilization` answers NOT_FOUND where nothing ran"
        { "nothing ran" [] of [] [NotFound] }
    "two-lists" "a process in the compute and the graphics list holds the same memory, not two memories" { part two_lists }
    "row-1" "MIG is on: utilization is unknown (`mig`)"
        { "a process has a context on an instance" ["idle"] of ["idle"] [Unknown("mig")] }
    "row-2" "no answer one snapshot before: utilization is unknown (`first_look`)" { part first_snapshot }
    "pid" "the driver lists a process by the pid that it has here"
        { "a process has a context" ["idle", "memory"] of ["idle"] [SamePid] }
    "row-6" "no process is sampled and the GPU is at most at 1 %: the processes on it are published as 0"
        { "a process has a context, another also 512 MiB; neither computes"
          ["idle", "memory"] of ["idle", "memory"] [NoSample, Calm, PublishedIdle] }
    "memory" "the driver's figure grows by what a process allocates, and is published as it is"
        { "a process allocated 512 MiB" ["idle", "memory"] of ["memory"] [Grown, SameMemory] }
    "release" "memory comes back within 10 s of the end of a process, and is no longer listed" { part release }
    "leaderless" "a process whose thread-group leader exited is still listed with its memory, as zombie_leader"
        { "a process allocated 512 MiB; its first thread exited, another lives"
          ["idle", "leaderless"] of ["leaderless"] [Held, State("zombie_leader")] }
    "row-3" "a process that computes has samples above 1 %, and is published with them"
        { "a process launches one kernel after the other" ["idle", "busy"] of ["busy"] [Sampled, PublishedBusy] }
    "row-5" "an idle process beside a busy one has no sample, and is published as 0"
        { "beside it, a process has a context" ["idle", "busy"] of ["idle"] [NoSample, PublishedIdle] }
    "row-3-streams" "row 3 where the process computes in many streams"
        { "a process launches kernels in 16 streams" ["idle", "busy", "streams"] of ["streams"] [Sampled, PublishedBusy] }
    "row-3-shared" "row 3 where two processes share a GPU"
        { "both processes compute at once" ["idle", "busy", "streams"] of ["busy", "streams"] [Sampled, PublishedBusy] }
    "row-7" "the GPU was busy and no process was sampled: utilization is unknown (`unattributed`), never 0"
        { "a process computes 20 ms and rests 180 ms" ["idle", "bursts"] of ["bursts"] [NeverIdle] }
    "row-8" "the stamps of the driver never step back, and its buffer is longer than 5 s; else unknown" { part stamps }
    "row-4" "a client of MPS without a sample is published as 0 only where the GPU is calm"
        { "a client has a context, another computes"
          ["idle", "mps-idle", "mps-busy", "mps-server"] of ["mps-idle", "mps-busy"] [NeverIdle] }
    "row-4-server" "a server of MPS is not published as idle while its clients compute"
        { "the server of these clients" ["idle", "mps-idle", "mps-busy", "mps-server"] of ["mps-server"] [NeverIdle] }
    "mps-terminate" "`terminate_client` reports success as GPU Bailiff expects, and the process lives on" { part terminate_client }
    "forked" "a forked child that inherited the device files keeps the memory of its ended parent" { part forked }
    "quota" "the quota library refuses an allocation above its limit, and grants one below" { part quota }
    "dry-run-idle" "the enforcer flags an idle process, and would terminate it after 30 samples" { part dry_run_idle }
    "dry-run-busy" "it neither flags nor would terminate a process that computes" { part dry_run_busy }
    "dry-run-signals" "a dry run sends no signal" { part dry_run_signals }
    "terminate" "the enforcer ends an idle process by SIGTERM, sees its memory return, and signals no other" { part terminate }
}
