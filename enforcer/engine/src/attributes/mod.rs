//! Attributes that rules may compare, listed in [`ALL`]: one table entry and one function each. The function
//! reads one value of one target; it does not depend on time, names, limits or actions.

use bailiff_snapshot::{ClockEvent, MpsStatus, RecoveryAction, State, XidClass};

use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

mod gpu;
mod lease;
mod mps;
mod pod;
mod process;
mod slurm_job;

/// A value that can be observed of a target.
#[derive(Debug)]
pub struct Attribute {
    /// Key in a rules file.
    pub name: &'static str,
    /// Kinds of target that have it.
    pub of: &'static [Kind],
    /// Unit of its values.
    pub unit: Unit,
    /// Description for the schema and the docs.
    pub help: &'static str,
    /// Source of the value, for `explain`.
    pub source: &'static str,
    /// Reads the value; unknown if the data was not observed.
    pub read: fn(&Target, &View) -> Value,
}

impl Attribute {
    /// Returns the value of one target; unknown for a kind of target that does not have it.
    pub(crate) fn of_target(&self, target: &Target, view: &View) -> Value {
        if self.of.contains(&target.kind) {
            (self.read)(target, view)
        } else {
            Value::Unknown("not available for this kind of target")
        }
    }
}

impl PartialEq for Attribute {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Declares the list of attributes. An entry is
/// `"key" [kinds of target] unit, "source", reader, "description"`.
macro_rules! attributes {
    ($($name:literal [$($kind:ident)+] $unit:expr, $source:literal, $read:expr, $help:literal;)+) => {
        /// Every attribute, in the order of the docs.
        pub static ALL: &[Attribute] = &[$(Attribute {
            name: $name,
            of: &[$(Kind::$kind),+],
            unit: $unit,
            help: $help,
            source: $source,
            read: $read,
        }),+];
    };
}

attributes! {
"gpu_util" [Process Workload Gpu MpsServer SlurmJob Pod] Unit::Percent, "nvml", process::gpu_util,
    "GPU utilization by the target: the busiest engine on its busiest GPU. For `target: gpu`, the utilization of the GPU. For `target: slurm_job`, 0 if the job has no process on any GPU; unknown if no GPU is allocated to it, or if the state of one is unknown. Unknown if one of its GPUs was not observed or is lost, unless another GPU is busy enough to decide the comparison.";
"vram" [Process Workload Pod] Unit::Bytes, "nvml", process::vram,
    "GPU memory that the target holds, summed over its GPUs. Unknown if the driver does not report it for one GPU, unless the memory on the others decides the comparison.";
"vram_share" [Process Workload Pod] Unit::Percent, "nvml", process::vram_share,
    "Share of a GPU's memory that the target holds, on the GPU where this share is largest.";
"cpu_util" [Process Workload Pod] Unit::Percent, "proc", |target, _| target.cpu,
    "CPU utilization of the process and its descendants without GPU memory; for a workload, of all its processes. 100% is one core. For a pod, of the processes in all its containers; unknown if it holds no GPU memory. Unknown in the first sample of a process.";
"io_rate" [Process Workload Pod] Unit::BytesPerSecond, "proc", |target, _| target.io,
    "Bytes per second read from and written to storage. Unknown without the permission to read it (CAP_SYS_PTRACE).";
"age" [Process Workload Lease MpsServer SlurmJob Pod] Unit::Duration, "proc", process::age,
    "Time since the process started; for a workload, since its oldest process started; for a lease, since it was granted; for a Slurm job, since its prolog ran; for a pod, since its oldest process with GPU memory started, or at least the time for which it has not used its GPUs.";
"state" [Process Workload Pod] Unit::Words(State::NAMES), "proc", process::state,
    "State of the process; for a workload, of any of its processes. disk_sleep (synonym: D): uninterruptible sleep, in which signals have no effect; stopped: by a signal; frozen: the cgroup is frozen (docker pause); zombie_leader: the thread-group leader exited, other threads are running and hold memory.";
"orphaned" [Process Workload] Unit::Flag, "proc", process::orphaned,
    "The login session, job or container of the process has ended: its cgroup contains no other process. For a workload, this must be true of all its processes with GPU memory. Unknown for a daemon that forked twice while its login session or container is running.";
"restored" [Process Workload Pod] Unit::Flag, "proc", process::restored,
    "CRIU restored a process of the target: CRIU was its ancestor in a snapshot. Never false, because a process can have been restored unnoticed. Such a target is exempt from every step, because ending a restored process can hang the driver.";
"listed_but_gone" [Process Workload] Unit::Flag, "nvml, proc", process::listed_but_gone,
    "The driver lists the pid as a holder of memory, but there is no such process. The target can be flagged, but not signalled.";
"gpu_count" [Process Workload] Unit::Count, "nvml", process::gpu_count,
    "Number of GPUs and MIG instances on which the target holds memory.";
"context" [Process Workload Pod] Unit::Words(process::CONTEXTS), "nvml", process::context,
    "Type of its GPU contexts; matches if the target has such a context on any GPU.";
"xid" [Process Workload Pod] Unit::Words(process::XIDS), "kernel log", process::xid,
    "Xid error of the target on a GPU that it uses, according to the kernel log; matches if there was such an error since the exporter started. Only numbers of errors that an application can cause, and 45. Unknown if none was attributed: records can be lost, and most lines name no process. Needs an exporter with --kernel-log.";
"has_lease" [Process Workload] Unit::Flag, "leases", process::has_lease,
    "The target holds a lease on all GPUs that it uses. Unknown while the lease server does not respond.";
"vram_quota_ratio" [Process Workload] Unit::Percent, "quota", |target, view| view.quota_ratio(target),
    "GPU memory that the driver reports for all processes under the same shared quota, as a share of the limit. It includes contexts, so slightly more than 100% is normal. Unknown without a shared quota file.";
"quota_denied" [Process Workload] Unit::Count, "quota", |target, view| view.quota_denied(target),
    "Allocations of GPU memory that the quota denied since the previous snapshot. Unknown without a shared quota file.";
"gpu_memory_limited" [Process Workload] Unit::Flag, "nvml, proc", process::gpu_memory_limited,
    "A GPU memory limit of its cgroup, set with the driver (615 or newer) or the kernel, applies to the target on a GPU that it uses. Unknown if such limits are not supported, or if a cgroup could not be read.";
"gpu_memory_limit" [Process Workload] Unit::Bytes, "nvml, proc", process::gpu_memory_limit,
    "The GPU memory limit of its cgroup that applies to the target; the smallest one if it uses several GPUs. Unknown without a limit.";
"gpu_memory_limit_ratio" [Process Workload] Unit::Percent, "nvml, proc", process::gpu_memory_limit_ratio,
    "GPU memory charged to the cgroup whose limit applies to the target, as a share of this limit, on the GPU where the share is largest. It includes the memory of other processes in this cgroup. Unknown without a limit.";
"vram_free" [Gpu] Unit::Bytes, "nvml",
    |target, view| gpu::memory(target, view, |memory| Some(memory.free), "not reported by the driver"),
    "Free memory of the GPU.";
"vram_used" [Gpu] Unit::Bytes, "nvml",
    |target, view| gpu::memory(target, view, |memory| Some(memory.used), "not reported by the driver"),
    "Used memory of the GPU, over all processes.";
"vram_unaccounted" [Gpu] Unit::Bytes, "nvml",
    |target, view| gpu::memory(target, view, |memory| memory.unaccounted, "a value needed to calculate it is unknown"),
    "Used GPU memory that no listed process holds. Can be slightly negative, because the values are read at different moments. Unknown if the memory of any holder is unknown.";
"vram_unreleased" [Gpu] Unit::Bytes, "nvml, proc",
    |target, view| gpu::memory(target, view, |memory| memory.unreleased, "not decided yet, or a value needed to calculate it is unknown"),
    "GPU memory that was not released after its holders exited, for any reason. It is tracked until it is released. Unknown in the first samples after an exit, and if other processes started, exited or allocated memory meanwhile.";
"unlisted_processes" [Gpu] Unit::Count, "proc", gpu::unlisted_processes,
    "Processes that have the GPU's device file open but that the driver does not list, such as forked workers that inherited it. Excludes driver and monitoring services (nvidia-persistenced, DCGM and similar, with a uid below 1000). The scan runs once a minute, and only while 256MiB or more are unaccounted for, or all listed processes have exited. Unknown without a scan, and in MIG mode if the driver returned no process list for an instance.";
"process_count" [Gpu] Unit::Count, "nvml",
    |target, view| number(view.gpu_of(target).and_then(|gpu| gpu.listed), "the driver gave no list"),
    "Processes that the driver lists on the GPU.";
"mig" [Gpu] Unit::Flag, "nvml", gpu::mig,
    "MIG mode is enabled.";
"recovery_action" [Gpu] Unit::Words(RecoveryAction::NAMES), "nvml", gpu::recovery_action,
    "What the GPU needs to work again, according to the driver; none if it is healthy. Unknown with drivers before 565.";
"row_remap_pending" [Gpu] Unit::Flag, "nvml", |target, view| gpu::flag(target, view, |gpu| gpu.row_remap_pending),
    "A memory row will be replaced at the next reset. Unknown before Ampere, and if MIG has instances.";
"row_remap_failed" [Gpu] Unit::Flag, "nvml", |target, view| gpu::flag(target, view, |gpu| gpu.row_remap_failed),
    "A memory row could not be replaced. Unknown before Ampere, and if MIG has instances.";
"ecc_uncorrected" [Gpu] Unit::Count, "nvml",
    |target, view| number(view.gpu_of(target).and_then(|gpu| gpu.ecc_uncorrected), gpu::NOT_REPORTED),
    "Uncorrected ECC errors since the driver was loaded. Unknown if ECC is disabled.";
"clock_event" [Gpu] Unit::Words(ClockEvent::NAMES), "nvml", gpu::clock_event,
    "Why the clocks of the GPU are reduced, other than by settings or because it is idle; matches if one of the reasons applies.";
"xid_class" [Gpu] Unit::Words(XidClass::NAMES), "nvml", gpu::xid_class,
    "What an Xid error of the GPU since the exporter started requires, by NVIDIA's catalogue; matches if there was an error of this class. Unknown if none was received: whether the driver's events are received is not known.";
"holder_alive" [Lease] Unit::Flag, "leases", lease::holder_alive,
    "The process that took the lease is running, according to its own host.";
"heartbeat_age" [Lease] Unit::Duration, "leases", lease::heartbeat_age,
    "Time since the holder itself last renewed the lease.";
"attached_processes" [Lease] Unit::Count, "leases", lease::attached_processes,
    "Processes of the lease's holder that hold memory on the leased GPUs.";
"mps_clients" [MpsServer] Unit::Count, "nvml", mps::mps_clients,
    "The larger of two numbers: MPS clients of any user that the driver lists on the server's GPUs, and the server's clients in the control daemon's last response. Unknown if the driver returned no process list.";
"mps_status" [MpsServer] Unit::Words(MpsStatus::NAMES), "mps", mps::mps_status,
    "Status of the server in the control daemon's last response. In status fault, it accepts no new client until all clients affected by a fatal fault have exited. Unknown if the daemon does not report it (drivers up to 535).";
"allocated_gpus" [SlurmJob Pod] Unit::Count, "slurm, kubelet",
    |target, view| if target.kind == Kind::Pod { pod::allocated_gpus(target, view) } else { slurm_job::allocated_gpus(target, view) },
    "GPUs that Slurm or the kubelet has allocated to the target on this node. Unknown if the prolog could not determine those of a job; for a pod, without an exporter with --pod-resources, if it has a device that is not a known GPU, or if it has none.";
"allocation_unused_for" [Pod] Unit::Duration, "kubelet, nvml", pod::allocation_unused_for,
    "Time for which the pod has had no process on any of the GPUs that are allocated to it, since the exporter started; 0 if it has one on any GPU. Unknown if the kubelet did not answer, if no GPU is allocated to the pod, or if it is unknown whether it uses one. If a GPU may have been used in between, for example because a sample is missing, the time starts again.";
"never_used_gpus" [SlurmJob] Unit::Count, "slurm, nvml", slurm_job::never_used_gpus,
    "Allocated GPUs on which no process of the job was observed in any sample since its prolog. Unknown if it has none, or if the state of one is unknown.";
"used_gpus" [SlurmJob] Unit::Count, "slurm, nvml", slurm_job::used_gpus,
    "Allocated GPUs on which a process of the job was observed since its prolog. Unknown if it has none, or if the state of one is unknown.";
}

pub(crate) use process::runs;

/// Returns an observed number, or why it was not observed.
#[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
fn number(observed: Option<impl Into<i128>>, why: &'static str) -> Value {
    observed.map_or(Value::Unknown(why), |number| Value::Number(number.into() as f64))
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds are far below 2^53")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Field;

    #[test]
    fn names_are_unique_and_every_attribute_says_what_it_is() {
        let mut names: Vec<&str> = ALL.iter().map(|attribute| attribute.name).collect();
        names.extend(Field::ALL.map(Field::name));
        names.extend(["use", "all", "any", "not", "until", "reason"]);
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for attribute in ALL {
            assert!(!attribute.of.is_empty(), "{}", attribute.name);
            assert!(attribute.help.ends_with('.') && !attribute.source.is_empty(), "{}", attribute.name);
            if let Unit::Words(words) = attribute.unit {
                assert!((1..=64).contains(&words.len()), "{}: words are bits of a u64", attribute.name);
            }
        }
    }
}
