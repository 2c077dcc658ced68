//! Table of all metrics, and the only file with their names. `docs/metrics.md` is generated from it.

use bailiff_exposition::families;
pub use bailiff_exposition::own::FAMILIES as OWN_PROCESS;

families! {
FAMILIES {
GPU_INFO Info One "bailiff_gpu_info" ["gpu gpu_uuid name pci_bus_id minor compute_capability parent_uuid gpu_instance compute_instance"]
    "A GPU or MIG instance, even if the driver does not respond for it."
    "parent_uuid, gpu_instance and compute_instance are set for a MIG instance.";
GPU_UP Gauge One "bailiff_gpu_up" ["gpu gpu_uuid"]
    "1 if the driver returned data for the GPU in the last snapshot, else 0."
    "While it is 0, bailiff_gpu_fault_info contains the reason, and only Xid errors are published for the GPU.";
GPU_FAULT_INFO Info One "bailiff_gpu_fault_info" ["gpu gpu_uuid reason"]
    "Reason why the driver returned no data for a GPU."
    "Absent for a GPU with bailiff_gpu_up 1.";
GPU_MEMORY_TOTAL Gauge Bytes "bailiff_gpu_memory_total_bytes" ["gpu gpu_uuid"]
    "Total memory of the GPU in bytes."
    "Absent if the driver did not report it.";
GPU_MEMORY_USED Gauge Bytes "bailiff_gpu_memory_used_bytes" ["gpu gpu_uuid"]
    "Used memory of the GPU in bytes, as reported by the driver."
    "Drivers before 510 include the reserved memory.";
GPU_MEMORY_FREE Gauge Bytes "bailiff_gpu_memory_free_bytes" ["gpu gpu_uuid"]
    "Free memory of the GPU in bytes."
    "Absent if the driver did not report it.";
GPU_MEMORY_RESERVED Gauge Bytes "bailiff_gpu_memory_reserved_bytes" ["gpu gpu_uuid"]
    "Memory reserved by the driver and the firmware, in bytes."
    "Absent if the driver does not report it separately.";
GPU_MEMORY_UNACCOUNTED Gauge Bytes "bailiff_gpu_memory_unaccounted_bytes" ["gpu gpu_uuid"]
    "Memory that is neither free nor reserved nor held by a listed process, in bytes."
    "Can be slightly negative, because the driver's values are read at different moments. Absent if one of the values is unknown.";
GPU_MEMORY_UNKNOWN Info One "bailiff_gpu_memory_unknown_info" ["gpu gpu_uuid reason"]
    "Reason why the driver's memory values of the GPU are not published."
    "own_cgroup_limited: the exporter's cgroup, or one above it, has a GPU memory limit, and the driver reports the limit as the GPU's memory; own_cgroup_unknown: the driver (615 or newer) supports such limits, and the limit of the exporter's cgroup cannot be read. The memory of processes is still published. bailiff doctor prints the fix. Absent otherwise.";
GPU_MEMORY_UNRELEASED Gauge Bytes "bailiff_gpu_memory_unreleased_bytes" ["gpu gpu_uuid"]
    "Memory that was not released after its holders exited, in bytes."
    "The increase in unaccounted memory since a holder exited, limited to the memory of that holder, and reported until the memory is released. 0 if less than 16 MiB is missing, or if this exporter did not observe the holder's exit. Absent if it cannot be determined: bailiff_gpu_memory_unreleased_unknown_info contains the reason.";
GPU_MEMORY_UNRELEASED_UNKNOWN Info One "bailiff_gpu_memory_unreleased_unknown_info" ["gpu gpu_uuid reason"]
    "Reason why the unreleased memory of the GPU is unknown."
    "first_sample: there is no earlier sample with enough data; memory_unknown: one of the memory values is unknown; pid_namespace: the driver's pids belong to another PID namespace; settling: a holder has just exited and the driver may still be freeing its memory; others_changed: other processes started, exited or allocated memory since the previous sample; given_up: the cause could not be determined within a minute, or a holder exited between samples; this reason is kept until unaccounted memory is back at its earlier value. Absent if the unreleased memory is known.";
GPU_MEMORY_PARTS Gauge Bytes "bailiff_gpu_memory_parts_bytes" ["gpu gpu_uuid part"]
    "Memory of the GPU in bytes, by part. The sum of the parts is the total memory."
    "Parts: free, reserved, holders, dead_pids (held by pids that the driver lists but that are not in /proc), other_namespaces (held by processes in other PID namespaces), unaccounted. Absent if any part is unknown, such as with a reused pid.";
GPU_UTILIZATION Gauge Ratio "bailiff_gpu_utilization_ratio" ["gpu gpu_uuid"]
    "Fraction of the driver's last sampling period in which a kernel ran, 0 to 1."
    "Absent if the driver did not report it.";
GPU_MEMORY_BANDWIDTH Gauge Ratio "bailiff_gpu_memory_bandwidth_utilization_ratio" ["gpu gpu_uuid"]
    "Fraction of the driver's last sampling period in which memory was read or written, 0 to 1."
    "Absent if the driver did not report it.";
GPU_ACTIVITY Gauge Ratio "bailiff_gpu_activity_ratio" ["gpu gpu_uuid engine"]
    "Activity of the GPU's engines, averaged over the last sampling interval, 0 to 1. Only with --gpm."
    "Engines: graphics (time in which a context had work), sm (time in which a multiprocessor had work, averaged over all), sm_occupancy (resident warps), tensor, dram (use of the memory bandwidth), and nvdec, jpeg, ofa (the busiest unit of each). With MIG also for each instance: the values of a compute instance are those of its GPU instance. Measured by the GPU (GPM: Hopper and newer). Absent for engines that the GPU or the instance does not report. bailiff_gpu_activity_unknown_info has the reason if all are absent.";
GPU_ACTIVITY_UNKNOWN Info One "bailiff_gpu_activity_unknown_info" ["gpu gpu_uuid reason"]
    "Reason why the activity of the GPU is unknown. Only with --gpm."
    "first_sample: there is no earlier sample; not_supported: the GPU (before Hopper) or the driver does not measure it, or does not permit reading it; failed: a call of the driver failed; interval: less than 100 ms or more than a minute has passed since the previous sample; instances_changed: the MIG instances are not those of the previous sample.";
GPU_POWER Gauge Watts "bailiff_gpu_power_watts" ["gpu gpu_uuid"]
    "Power draw of the GPU in watts."
    "Absent if the driver did not report it.";
GPU_ENERGY Counter Joules "bailiff_gpu_energy_joules_total" ["gpu gpu_uuid"]
    "Energy used since the driver was loaded, in joules."
    "Absent if the driver did not report it.";
ENERGY Counter Joules "bailiff_energy_joules_total" ["gpu gpu_uuid part user"]
    "Energy of the GPU since the exporter started by part, in joules: user, idle or unattributed."
    "The sum of the parts is the observed increase of bailiff_gpu_energy_joules_total. Parts: user (energy attributed to the user in the label user), idle (no process used the GPU), unattributed (the energy cannot be attributed to a user). At most 256 users of each GPU have a part. Absent until an increase was observed, and if the driver does not report the energy. Energy of MIG instances counts for their GPU, and is unattributed.";
GPU_TEMPERATURE Gauge Celsius "bailiff_gpu_temperature_celsius" ["gpu gpu_uuid"]
    "Temperature in degrees Celsius."
    "Absent if the driver did not report it.";
GPU_CLOCK Gauge Hertz "bailiff_gpu_clock_hertz" ["gpu gpu_uuid clock"]
    "Clock frequency in hertz."
    "Clocks: sm, memory, graphics, video. Absent if the driver did not report it.";
GPU_COMPUTE_MODE Gauge One "bailiff_gpu_compute_mode" ["gpu gpu_uuid mode"]
    "1 for the current compute mode."
    "Modes: default, exclusive_thread, prohibited, exclusive_process. Absent if the driver did not report it.";
GPU_MIG_ENABLED Gauge One "bailiff_gpu_mig_enabled" ["gpu gpu_uuid"]
    "1 if MIG mode is enabled, else 0."
    "Absent if the GPU does not support MIG.";
GPU_MIG_INSTANCES Gauge One "bailiff_gpu_mig_instances" ["gpu gpu_uuid"]
    "Number of MIG instances of the GPU."
    "Absent if MIG is disabled, or if the driver did not list all instances. In the second case, the processes on the GPU are unknown.";
GPU_PROCESSES Gauge One "bailiff_gpu_processes" ["gpu gpu_uuid"]
    "Number of processes that the driver lists on the GPU."
    "Absent if the driver did not return a process list.";
GPU_RECOVERY_ACTION Gauge One "bailiff_gpu_recovery_action" ["gpu gpu_uuid action"]
    "1 for the action that the GPU needs to work again."
    "Actions: none, gpu_reset, node_reboot, drain_p2p (stop work between GPUs), drain_and_reset, recover_imex_domain, bus_reset, system_reboot, other (from a newer driver). Absent if the driver does not report it (before 565).";
GPU_REMAPPED_ROWS Gauge One "bailiff_gpu_remapped_rows" ["gpu gpu_uuid kind"]
    "Memory rows that were replaced, by kind of error: corrected, uncorrected."
    "Read once a minute. Absent before Ampere, and if MIG has instances.";
GPU_ROW_REMAP_PENDING Gauge One "bailiff_gpu_row_remap_pending" ["gpu gpu_uuid"]
    "1 if a memory row will be replaced at the next reset of the GPU, else 0."
    "Read once a minute. Absent if the driver did not report it.";
GPU_ROW_REMAP_FAILED Gauge One "bailiff_gpu_row_remap_failed" ["gpu gpu_uuid"]
    "1 if a memory row could not be replaced, else 0."
    "Read once a minute. Absent if the driver did not report it.";
GPU_ECC_ERRORS Counter One "bailiff_gpu_ecc_errors_total" ["gpu gpu_uuid kind"]
    "ECC errors since the driver was loaded, by kind: corrected, uncorrected."
    "Absent if ECC is disabled or not supported.";
GPU_RETIRED_PAGES Gauge One "bailiff_gpu_retired_pages" ["gpu gpu_uuid kind"]
    "Memory pages that were retired, by kind of error: corrected, uncorrected."
    "Read once a minute. Only for GPUs before Ampere, which do not remap rows.";
GPU_CLOCK_EVENT Gauge One "bailiff_gpu_clock_event" ["gpu gpu_uuid reason"]
    "1 for each reason why the clocks of the GPU are reduced; none if there is no reason."
    "Reasons: sw_power_cap (power limit), hw_slowdown, sw_thermal and hw_thermal (temperature), power_brake, reliability, other. Settings and an idle GPU are no reasons. Absent if the driver did not report it.";
GPU_XID_INFO Info One "bailiff_gpu_xid_info" ["gpu gpu_uuid xid class"]
    "What each Xid error since the exporter started requires, by NVIDIA's catalogue."
    "Classes: application (caused by an application, or limited to one), reset, reboot, fabric (check NVLink), hardware, no_action, cleanup (a process was ended), informational, unclear.";
GPU_XID_ERRORS Counter One "bailiff_gpu_xid_errors_total" ["gpu gpu_uuid xid"]
    "Xid errors since the exporter started, by number."
    "Absent for numbers that did not occur.";
CGROUP_LIMIT Gauge Bytes "bailiff_cgroup_gpu_memory_limit_bytes" ["gpu gpu_uuid cgroup backend bound"]
    "GPU memory limit of a cgroup in bytes, as set for this cgroup."
    "Only for the cgroups of listed processes and those that contain them, and only with cgroup v2 and a driver (615 or newer) that supports such limits. Bounds: hard (allocations above it fail), soft (memory that is guaranteed to the cgroup). Backends: dmem (files of the cgroup, from Linux 6.14; the limits of all ancestors apply, too), misc (a table in the driver; only the limit of the nearest ancestor applies). Absent if there is no limit or it is unknown.";
CGROUP_EFFECTIVE_LIMIT Gauge Bytes "bailiff_cgroup_gpu_memory_effective_limit_bytes" ["gpu gpu_uuid cgroup backend"]
    "Hard limit that applies to the cgroup in bytes: its own, or that of a cgroup that contains it."
    "Absent if there is no limit, or if one of these cgroups could not be read.";
CGROUP_USED Gauge Bytes "bailiff_cgroup_gpu_memory_used_bytes" ["gpu gpu_uuid cgroup backend"]
    "GPU memory charged to the cgroup and the cgroups in it, in bytes."
    "Memory is charged to the cgroup in which it was allocated, even if the process moves. Managed memory is not counted. With backend misc, only for a cgroup with a limit of its own. Do not add the values of a cgroup and of the cgroups in it.";
CGROUP_PEAK Gauge Bytes "bailiff_cgroup_gpu_memory_peak_bytes" ["gpu gpu_uuid cgroup backend"]
    "Largest amount of GPU memory that was charged to the cgroup, in bytes."
    "Only with backend dmem, and only if the kernel records it.";
CGROUP_STALE_RESERVATION Gauge Bytes "bailiff_cgroup_gpu_memory_stale_reservation_bytes" ["gpu gpu_uuid cgroup backend"]
    "Guaranteed GPU memory of a cgroup with cgroups in it that none of these guarantees, in bytes."
    "It can remain after a cgroup with a soft limit was removed, or an administrator can have reserved it. Only with backend dmem. Absent if the cgroup has no guaranteed memory, or if a cgroup in it could not be read.";
GPU_STUCK Gauge One "bailiff_gpu_stuck_processes" ["gpu gpu_uuid kind"]
    "Processes on the GPU that make no progress, by kind."
    "A process is counted after three consecutive samples in this state. Kinds: zombie_leader (the thread-group leader exited, other threads are running), zombie (exited, not reaped), disk_sleep (uninterruptible sleep; in all threads if the leader exited), left_behind (orphaned, and its whole workload used neither GPU nor CPU for three sampling windows), gone (listed by the driver, absent from /proc). 0 if no process is stuck. Absent if no stuck process is known, but one may exist: the driver did not return a process list, a process could not be read in /proc, or a process has been in such a state for fewer than three samples. The status page shows how to free the memory of each process.";
GPU_UNLISTED_DEVICE_PROCESSES Gauge One "bailiff_gpu_unlisted_processes" ["gpu gpu_uuid"]
    "Processes that have the GPU's device file open and are not listed by the driver."
    "Excludes driver and monitoring services (nvidia-persistenced, DCGM and similar, with a uid below 1000). The scan runs once a minute while 256 MiB or more are unaccounted for, or while all listed processes have exited; a process that exits is removed at the next sample. Absent without a scan, or if the driver's pids cannot be compared with those in /proc.";
DEVICE_PROCESSES_UNREADABLE Gauge One "bailiff_unlisted_processes_unreadable" [""]
    "Processes whose open files could not be read in the last scan."
    "bailiff_gpu_unlisted_processes is complete only if this is 0. Absent without a scan.";
PROCESS_INFO Info One "bailiff_process_info" ["pid uid user comm command container runtime pod pod_uid namespace slurm_job unit"]
    "A process that holds GPU memory, with its user, command, container, pod, job or unit."
    "Unknown labels are omitted. If the user has no name, user is the uid. command requires --process.command and is truncated to 128 bytes.";
PROCESS_STATE Gauge One "bailiff_process_state" ["pid state"]
    "1 for the current state of the process."
    "gone: listed by the driver, absent from /proc; hidden: /proc does not show it to the exporter; zombie_leader: the thread-group leader exited and other threads hold the memory.";
PROCESS_PARENT Info One "bailiff_process_parent_info" ["pid parent"]
    "Parent that must reap a zombie process."
    "Absent for all other processes.";
PROCESS_START_TIME Gauge Seconds "bailiff_process_start_time_seconds" ["pid"]
    "Start time of the process since the Unix epoch in seconds."
    "Absent if /proc does not show it.";
PROCESS_CPU Counter Seconds "bailiff_process_cpu_seconds_total" ["pid"]
    "CPU time used by all threads of the process in seconds."
    "Absent if /proc does not show it.";
PROCESS_IO Counter Bytes "bailiff_process_io_bytes_total" ["pid direction"]
    "Bytes that the process read from and wrote to storage."
    "Absent without the permission to read /proc/PID/io.";
PROCESS_ORPHANED Gauge One "bailiff_process_orphaned" ["pid"]
    "1 if the login session, job or container of the process has ended, else 0."
    "1: the cgroup contains no other process. 0: the parent or session leader of the process is running, or the process belongs to a service. Absent if this cannot be determined, for example for a daemon that forked twice while its login session or container is running.";
CONTEXT_INFO Info One "bailiff_process_gpu_context_info" ["gpu gpu_uuid pid context"]
    "Types of the GPU contexts of the process, as nvidia-smi shows them."
    "C: compute, G: graphics, C+G: both, M+C: client of MPS.";
PROCESS_MEMORY Gauge Bytes "bailiff_process_gpu_memory_bytes" ["gpu gpu_uuid pid"]
    "GPU memory held by the process in bytes."
    "Absent if the driver did not report it.";
PROCESS_MEMORY_PEAK Gauge Bytes "bailiff_process_gpu_memory_peak_bytes" ["gpu gpu_uuid pid"]
    "Peak GPU memory of the process in bytes."
    "Absent if accounting mode is disabled.";
PROCESS_UTILIZATION Gauge Ratio "bailiff_process_gpu_utilization_ratio" ["gpu gpu_uuid pid engine"]
    "Fraction of an engine that the process used since the previous snapshot, 0 to 1."
    "Engines: sm, memory, encoder, decoder, jpeg, ofa. jpeg and ofa are published only if above 0, because older drivers do not report them. 0 means observed idle. Absent if not observed: bailiff_process_gpu_utilization_unknown_info contains the reason.";
PROCESS_UTILIZATION_UNKNOWN Info One "bailiff_process_gpu_utilization_unknown_info" ["gpu gpu_uuid pid reason"]
    "Reason why the utilization of the process is unknown."
    "The process counts as neither idle nor busy. Absent if its utilization was observed.";
PROCESS_IDLE Gauge Seconds "bailiff_process_gpu_idle_seconds" ["gpu gpu_uuid pid"]
    "Observed idle time since the process was last observed busy, in seconds."
    "Time that was not observed is not counted. Absent if the last utilization was not observed.";
PROCESS_BUSY Counter Seconds "bailiff_process_gpu_busy_seconds_total" ["gpu gpu_uuid pid"]
    "Observed busy time of the process, in seconds of a fully used GPU."
    "Absent if the process was never observed.";
PROCESS_BYTE_SECONDS Counter ByteSeconds "bailiff_process_gpu_memory_byte_seconds_total" ["gpu gpu_uuid pid"]
    "GPU memory of the process integrated over time, in byte-seconds."
    "Absent if the driver never reported its memory.";
PROCESS_XID_ERRORS Counter One "bailiff_process_gpu_xid_errors_total" ["gpu gpu_uuid pid xid"]
    "Lines of the kernel log about Xid errors that the process caused on the GPU, by number. Only with --kernel-log."
    "Counted since the exporter started, and only if the line certainly belongs to the process (see Xid errors of processes). At most as many lines count as the driver reported errors of this number on the GPU. Absent for numbers without such a line.";
OTHER_PROCESSES Gauge One "bailiff_gpu_other_processes" ["gpu gpu_uuid"]
    "Processes on the GPU that have no series of their own because of --max-processes.";
OTHER_PROCESSES_MEMORY Gauge Bytes "bailiff_gpu_other_processes_memory_bytes" ["gpu gpu_uuid"]
    "GPU memory of the processes that have no series of their own (--max-processes), in bytes."
    "Absent if the memory of one of them is unknown.";
PROCESSES_DROPPED Counter One "bailiff_processes_dropped_total" [""]
    "Processes without series because of --max-processes, summed over all snapshots.";
IDLE_MEMORY Gauge Bytes "bailiff_idle_memory_bytes" ["gpu gpu_uuid user"]
    "GPU memory held by processes of the user while observed idle, in bytes."
    "Excludes MPS servers, which wait for their clients. Absent if any process of the user on the GPU was not observed.";
HELD_GPU_SECONDS Counter Seconds "bailiff_held_gpu_seconds_total" ["user"]
    "GPU-seconds in which the user had a process on a GPU."
    "Measured between consecutive samples. A process that started between two samples is counted from its start time. At most 4,096 users have series.";
IDLE_GPU_SECONDS Counter Seconds "bailiff_idle_gpu_seconds_total" ["user"]
    "Part of bailiff_held_gpu_seconds_total with all of the user's processes observed idle.";
UNKNOWN_GPU_SECONDS Counter Seconds "bailiff_unknown_gpu_seconds_total" ["user"]
    "Part of bailiff_held_gpu_seconds_total with no process observed busy and at least one not observed."
    "The rest of bailiff_held_gpu_seconds_total, without the idle and the unknown part, is time in which a process of the user was observed busy.";
USER_MEMORY Gauge Bytes "bailiff_user_gpu_memory_bytes" ["gpu gpu_uuid user"]
    "GPU memory held by the processes of the user in bytes."
    "Absent if the memory of one of them is unknown.";
USER_PROCESSES Gauge One "bailiff_user_gpu_processes" ["gpu gpu_uuid user"]
    "Number of processes of the user on the GPU.";
CONTAINER_MEMORY Gauge Bytes "bailiff_container_gpu_memory_bytes" ["gpu gpu_uuid container pod namespace"]
    "GPU memory held by the processes of the container in bytes."
    "Absent if the memory of one of them is unknown.";
LEASE_GPUS Gauge One "bailiff_lease_gpus" ["state"]
    "GPUs of the lease pool by state."
    "States: idle; leased (by bailiff); legacy (taken by a client of GPU.py); gathering (reserved for a waiting request for several GPUs); quarantined (not leased, because a process still uses it or a record of GPU.py prevents a grant); barrier (not leased yet after a restart of Redis); unknown (recorded neither as idle nor as taken; a client of GPU.py may be taking it). This and all other bailiff_lease_ metrics are absent without --lease.redis and while Redis does not respond.";
LEASE_HELD Gauge One "bailiff_lease_held" ["gpu gpu_uuid user mode"]
    "1 for each GPU of the pool that is leased, by holder and mode."
    "user is the name that the holder recorded. Modes: run, acquire, timed (acquire --duration), compat (bailiff gpuget, also under the name GPU.py), legacy (taken by a client of GPU.py, which records no user).";
LEASE_AGE Gauge Seconds "bailiff_lease_age_seconds" ["gpu gpu_uuid"]
    "Time since the lease on the GPU was granted, by Redis' clock, in seconds."
    "Absent if the GPU is not leased by bailiff, or if Redis was rolled back and lost the time of the grant.";
LEASE_IDLE Gauge Seconds "bailiff_lease_idle_seconds" ["gpu gpu_uuid"]
    "Observed idle time of the leased GPU under its current lease, in seconds."
    "The GPU is idle according to the driver's samples of the device or, if there are none, according to the samples of all listed processes. Use resets the value to 0. Time that was not observed and time before the exporter started are not counted. Absent if the last window was not observed, or the GPU is not leased.";
LEASE_QUEUE_LENGTH Gauge One "bailiff_lease_queue_length" [""]
    "Requests that are waiting for GPUs."
    "Does not include waiting clients of GPU.py, which the pool does not record.";
LEASE_QUEUE_OLDEST Gauge Seconds "bailiff_lease_queue_oldest_seconds" [""]
    "Age of the oldest waiting request in seconds."
    "Absent if no request is waiting.";
LEASE_WAIT Histogram Seconds "bailiff_lease_wait_seconds" [""]
    "Waiting time from request to grant in seconds; 0 for a request granted at once."
    "Redis updates it together with each grant, so it survives restarts of the exporter, and decreases if Redis loses its data. Absent before the first grant.";
LEASE_EVENTS Counter One "bailiff_lease_events_total" ["event"]
    "Events of the lease pool, by name."
    "Events: grant, released, reaped, cancelled, conflict, duplicate, reassert, reclaim, barrier and others. Redis counts them, as for bailiff_lease_wait_seconds. Absent for events that did not occur.";
LEASE_UNRESERVED Gauge One "bailiff_lease_unreserved_use" ["gpu gpu_uuid"]
    "1 if processes compute on a GPU of the pool without a lease in two samples in a row, else 0."
    "0 if no process computes on the GPU, or one of the computing processes has the lease. Absent if this is uncertain: the environment or an ancestor of a process could not be read; the GPU is leased to the user of a computing process, or a computing process is in a container and may belong to the holder; a client of GPU.py holds the GPU; or the lease is changing.";
LEASE_LEGACY_SUSPECT Gauge One "bailiff_lease_legacy_suspect" [""]
    "GPUs of the pool that clients of GPU.py may have abandoned."
    "The driver lists no process on such a GPU, and either the recorded process does not exist, or the GPU has been recorded neither as idle nor as taken for 30 seconds.";
LEASE_AOF Gauge One "bailiff_lease_redis_aof_enabled" [""]
    "1 if Redis persists to an append-only file (appendonly), else 0."
    "Without it, a crash of Redis loses leases.";
QUOTA_VALID Gauge One "bailiff_quota_region_valid" ["quota"]
    "1 if the shared quota file could be read, else 0."
    "quota is the path below --quota.dir. While it is 0, bailiff_quota_region_fault_info contains the reason, and no other metrics are published for the quota. Users with write access to the file can change the reported values. Absent for an empty file, because the quota has not been used yet. This and all other bailiff_quota_ metrics are absent without a quota directory.";
QUOTA_FAULT Info One "bailiff_quota_region_fault_info" ["quota reason"]
    "Reason why the quota file could not be read."
    "Reasons: unreadable, no_file (not a regular file, such as a FIFO or a link), short (truncated), no_quota (not a quota file), version (unsupported version). Absent if the file could be read.";
QUOTA_INFO Info One "bailiff_quota_info" ["quota container pod pod_uid namespace slurm_job user"]
    "User, container, pod and job of the processes that use the quota and hold GPU memory."
    "One series for each combination.";
QUOTA_LIMIT Gauge Bytes "bailiff_quota_limit_bytes" ["quota gpu gpu_uuid"]
    "GPU memory that all processes under the quota together can allocate, in bytes."
    "Absent if there is no limit. Only GPUs of this node are reported.";
QUOTA_USED Gauge Bytes "bailiff_quota_used_bytes" ["quota gpu gpu_uuid"]
    "GPU memory allocated under the quota and not freed, in bytes."
    "The share of an exited process is kept until another process needs it.";
QUOTA_PEAK Gauge Bytes "bailiff_quota_peak_bytes" ["quota gpu gpu_uuid"]
    "Peak of the GPU memory allocated under the quota, in bytes.";
QUOTA_DENIED Counter One "bailiff_quota_denied_total" ["quota gpu gpu_uuid"]
    "Allocations denied because of the quota.";
QUOTA_DENIED_BYTES Counter Bytes "bailiff_quota_denied_bytes_total" ["quota gpu gpu_uuid"]
    "Bytes of the allocations denied because of the quota.";
QUOTA_UNACCOUNTED Gauge Bytes "bailiff_quota_unaccounted_bytes" ["quota gpu gpu_uuid"]
    "GPU memory of processes under the quota that is not counted against it, in bytes."
    "The memory that the driver reports for these processes and for other processes in their container, minus the memory recorded in the file. The difference consists of contexts, reserves of memory pools, and allocations that bypassed the library. Negative if managed memory is counted that is not on the GPU. Absent if one of the processes is not in the driver's list, or the driver does not report its memory.";
QUOTA_PROCESS_USED Gauge Bytes "bailiff_quota_process_used_bytes" ["quota gpu gpu_uuid pid"]
    "GPU memory allocated by a process under the quota, as recorded in the quota file, in bytes."
    "Only for processes that had the file mapped in this sample. Absent for processes without series of their own (--max-processes).";
QUOTA_PROCESSES Gauge One "bailiff_quota_processes" ["quota"]
    "Processes under the quota that are not known to have exited.";
QUOTA_DEAD Gauge One "bailiff_quota_dead_slots" ["quota"]
    "Slots in the quota file whose processes are known to have exited."
    "The memory counted in these slots is available to other processes.";
QUOTA_FAULTS Counter One "bailiff_quota_faults_total" ["quota"]
    "Failures of the library to share the quota or to record an allocation.";
QUOTA_UNCOUNTED Counter One "bailiff_quota_uncounted_calls_total" ["quota"]
    "Calls that were passed through without counting their bytes."
    "Such calls allocate memory for CUDA graphs or import memory from other processes.";
QUOTA_HOOKS_MISSING Gauge One "bailiff_quota_hooks_missing" ["quota"]
    "Driver functions that the library should intercept but cannot.";
SLURM_ALLOCATION Info One "bailiff_slurm_gpu_allocation_info" ["slurm_job uid user account gpu gpu_uuid state"]
    "A GPU that Slurm has allocated to a job, and whether the job uses it."
    "States: in_use (a process of the job was observed above 1 % utilization in the last window), idle (the job has used the GPU, and now it has no process there, or all of them were observed idle), never_used (no process of the job was on the GPU in any sample since the prolog), unknown (none of these was observed, for example with MIG, or after a missed sample or a restart of the exporter). Absent without the prolog of bailiff slurm.";
SLURM_UNUSED Gauge Seconds "bailiff_slurm_gpu_unused_seconds" ["slurm_job gpu gpu_uuid"]
    "Time for which the job has not used the GPU, in seconds."
    "Since the prolog in state never_used; since the first sample in state idle without interruption. Absent in other states.";
SLURM_UNALLOCATED Gauge Bytes "bailiff_slurm_gpu_unallocated_bytes" ["slurm_job gpu gpu_uuid"]
    "Memory that a job holds on a GPU that Slurm did not allocate to it, or processes outside Slurm on its GPUs, in bytes."
    "Without slurm_job: processes outside cgroups of jobs, on a GPU in gres.conf; display servers and MPS of the system do not count. Absent if none is held there, the driver does not report the memory of one of the processes, or one of the processes outside cgroups of jobs may belong to a job that has the GPU, or cannot be read.";
SLURM_HOOK_RUNS Counter One "bailiff_slurm_hook_runs_total" ["hook result"]
    "Runs of the hooks of bailiff slurm since boot, by result."
    "Results: clean, not_clean, unknown, no_gpus (the job has none), invalid_config (slurm.yaml is invalid, and nothing was checked). Absent for results that did not occur.";
POD_ALLOCATION Info One "bailiff_gpu_allocation_info" ["gpu gpu_uuid namespace pod container resource shared"]
    "A GPU or MIG instance that the kubelet has allocated to a container. Only with --pod-resources."
    "shared is true for a replica (time-slicing, MPS). As of the kubelet's last answer, which is at most --pod-resources.interval old, and without pods that have no processes. Devices that cannot be attributed to a GPU are counted in bailiff_gpu_allocations_unattributed.";
POD_SECONDS Counter Seconds "bailiff_allocated_gpu_seconds_total" ["gpu gpu_uuid namespace pod container resource state"]
    "Time for which the GPU was allocated to the container, weighted by the allocated part, by state, in seconds."
    "States: busy (a process of the container was observed above 1 % utilization in the last window), idle (the container has processes on the GPU, and all of them were observed idle), no_process (it has none, and the driver's list is complete), unknown (none of these was observed, for example because the container of a process is not known). The part is 1 for a whole GPU or MIG instance, and for a replica 1 divided by the number of replicas. Absent if the number of replicas is unknown, and while the kubelet does not answer.";
POD_UNATTRIBUTED Gauge One "bailiff_gpu_allocations_unattributed" ["reason"]
    "Device ids of NVIDIA's resources in the kubelet's list whose use of a GPU is not known, by reason."
    "Reasons: invalid_name (of the pod, container or resource), unknown_id (the form of the id), not_listed (the driver does not list the device), not_running (the pod has no processes: it has finished or not started), conflict (allocated twice and not shared; the allocation is published, with state unknown). Absent for reasons that do not occur.";
POD_UNALLOCATED Gauge One "bailiff_gpu_unallocated_processes" ["gpu gpu_uuid"]
    "Processes on the GPU that are in no container to which it is allocated."
    "Only for GPUs that the kubelet can allocate. Display servers and MPS of the system do not count. Absent if one of the processes may have an allocation: its pod is not known, it started after the kubelet's last answer, or its pod has a device that is not attributed.";
DRA_ALLOCATION Info One "bailiff_dra_allocation_info" ["namespace pod container driver pool device"]
    "A device of NVIDIA that was allocated to a container dynamically (DRA)."
    "Which GPU it is, is in a ResourceSlice of the API server, which is not read. Such GPUs are not in bailiff_gpu_allocation_info.";
MPS_CONTROL_INFO Info One "bailiff_mps_control_info" ["pipe_directory log_directory pid uid"]
    "A running MPS control daemon."
    "A directory label is omitted if the exporter lacks the permission to read the daemon's environment (CAP_SYS_PTRACE). This and all other bailiff_mps_ metrics are absent if neither an MPS daemon nor an MPS server is running.";
MPS_UP Gauge One "bailiff_mps_control_up" ["pipe_directory"]
    "1 if an MPS control daemon is running, 0 if it exited but one of its servers is running."
    "1 does not mean that the daemon responds: see bailiff_mps_control_responsive. While it is 0, new programs run without MPS. Absent if neither the daemon nor a server is running. The daemon of a user other than root is reported, here and in all metrics below except bailiff_mps_control_fault_info and those of servers, if this user owns the pipe directory or the daemon was observed to listen there, because any process can name any directory.";
MPS_FAULT Info One "bailiff_mps_control_fault_info" ["pipe_directory reason"]
    "Reason why the MPS control daemon did not respond."
    "Reasons: timeout, stopped (SIGSTOP), unreachable (no process listens in its pipe directory, as seen from the exporter's mount namespace), no_program (NVIDIA's control program is not installed), not_permitted, no_directory (the daemon's environment cannot be read), foreign (another process listens in its pipe directory, as seen from the exporter's mount namespace), error. Absent if the daemon responded, and before the first query.";
MPS_START_TIME Gauge Seconds "bailiff_mps_control_start_time_seconds" ["pipe_directory"]
    "Start time of the MPS control daemon since the Unix epoch in seconds.";
MPS_RESPONSIVE Gauge One "bailiff_mps_control_responsive" ["pipe_directory"]
    "1 if the MPS control daemon responded to the last query, 0 if it hangs or is stopped."
    "The daemon is queried every --mps.interval; whether it is stopped is checked at every sampling interval. While the value is 0, every new CUDA program hangs. Absent if the daemon could not be queried: bailiff_mps_control_fault_info contains the reason.";
MPS_QUERY Gauge Seconds "bailiff_mps_query_seconds" ["pipe_directory"]
    "Duration of the last query to which the MPS control daemon responded, in seconds."
    "Absent if the daemon did not respond.";
MPS_THREADS Gauge Ratio "bailiff_mps_default_active_thread_ratio" ["pipe_directory"]
    "Default fraction of a GPU's threads for clients of a new MPS server, 0 to 1."
    "The value comes from every tenth query.";
MPS_ASKED Gauge Seconds "bailiff_mps_query_timestamp_seconds" ["pipe_directory"]
    "Time of the last query to the MPS control daemon since the Unix epoch, in seconds."
    "All values reported by the daemon date from this time.";
MPS_PINNED_LIMIT Gauge Bytes "bailiff_mps_default_pinned_memory_limit_bytes" ["pipe_directory device"]
    "Default device memory limit for each client of a new MPS server, in bytes."
    "device is the daemon's device number. The value comes from every tenth query. Absent if there is no limit.";
MPS_SERVER_INFO Info One "bailiff_mps_server_info" ["pipe_directory server uid"]
    "A running MPS server."
    "server is the pid of the server; uid is the user whose clients it serves.";
MPS_SERVER_STATUS Gauge One "bailiff_mps_server_status" ["pipe_directory server status"]
    "1 for the status of the MPS server in the daemon's last response."
    "Statuses: initializing, active, fault (a client had a fatal fault; new clients are refused until all affected clients have exited). Absent if the daemon does not support this query (drivers up to 535).";
MPS_CLIENTS Gauge One "bailiff_mps_clients" ["pipe_directory server"]
    "Clients of the MPS server in the daemon's last response."
    "Absent if the daemon did not respond. The driver lists MPS clients separately: bailiff_process_gpu_context_info with context M+C.";
MPS_SERVER_THREADS Gauge Ratio "bailiff_mps_server_active_thread_ratio" ["pipe_directory server"]
    "Fraction of a GPU's threads that clients of the MPS server can use, 0 to 1."
    "The value comes from every tenth query.";
MPS_ORPHANS Gauge One "bailiff_mps_orphan_servers" [""]
    "MPS servers whose control daemon exited."
    "Absent if not all processes could be examined.";
MPS_CLIENT_INFO Info One "bailiff_mps_client_info" ["pipe_directory server pid"]
    "An MPS client that holds GPU memory, with its server, from the daemon's last response."
    "Join on pid with bailiff_process_gpu_memory_bytes and bailiff_process_info. Absent if the daemon's pids belong to another PID namespace.";
MPS_LOG Gauge One "bailiff_mps_log_state" ["pipe_directory log state"]
    "1 for the current state of a log file of the MPS daemon."
    "Logs: control, server. States: read, absent, unreadable (no permission), no_file (a link or a FIFO), foreign (not owned by the daemon's user). All metrics from MPS logs (server starts, server exits, client faults, rejected and pending clients, unparsed lines, skipped bytes) are absent if neither log is read. They cover the whole log directory. Counters do not include lines written before the first read.";
MPS_STARTS Counter One "bailiff_mps_server_starts_total" ["pipe_directory"]
    "MPS servers started, according to the daemon's log.";
MPS_CLIENT_FAULTS Counter One "bailiff_mps_client_faults_total" ["pipe_directory"]
    "Fatal GPU faults of MPS clients, according to the server's log."
    "Each fault affects all clients on that GPU.";
MPS_UNPARSED Counter One "bailiff_mps_log_unparsed_lines_total" ["pipe_directory"]
    "Lines of MPS logs that could not be parsed.";
MPS_SKIPPED Counter Bytes "bailiff_mps_log_skipped_bytes_total" ["pipe_directory"]
    "Bytes of MPS logs that were skipped."
    "Bytes are skipped if more than 1 MiB is written between two reads.";
MPS_EXITS Counter One "bailiff_mps_server_exits_total" ["pipe_directory status"]
    "MPS servers that exited, by exit status, from the daemon's log."
    "Absent for statuses that did not occur.";
MPS_REJECTED Counter One "bailiff_mps_clients_rejected_total" ["pipe_directory reason"]
    "Clients rejected by an MPS server, by reason."
    "Reasons: clients (limit of clients reached), device_connections, teardown, other. Absent for reasons that did not occur.";
MPS_PENDING Gauge One "bailiff_mps_pending_clients" ["pipe_directory uid"]
    "Clients of the user that are waiting for an MPS server, according to the daemon's log."
    "A client waits until the server is ready and the server of another user has no more clients. A client in another PID namespace cannot be checked and is reported for 5 minutes. Absent if no client is waiting.";
SOURCE_UP Gauge One "bailiff_source_up" ["source"]
    "1 if the source returned data in the last snapshot, else 0."
    "Sources: nvml, proc, redis, quota, mps, slurm, pod_resources. Also 0 if the last snapshot is older than two intervals plus the deadline; no samples are published in this case. mps is 1 if at least one control daemon responded to the last query. Absent if the source is not used: proc without a list of pids, redis without --lease.redis, quota without --quota.dir, mps without a control daemon, slurm before the first run of a hook, pod_resources without --pod-resources and before the first query of the kubelet is complete.";
SOURCE_FAULT_INFO Info One "bailiff_source_fault_info" ["source reason"]
    "Reason why a source returned no data."
    "Absent for a source with bailiff_source_up 1.";
SOURCE_DURATION Gauge Seconds "bailiff_source_duration_seconds" ["source"]
    "Time that the source took to return data, in seconds."
    "Absent if the source returned no data or was not used.";
SNAPSHOT_DURATION Gauge Seconds "bailiff_snapshot_duration_seconds" [""]
    "Time that the snapshot took, in seconds.";
SNAPSHOT_TIMESTAMP Gauge Seconds "bailiff_snapshot_timestamp_seconds" [""]
    "Time of the snapshot since the Unix epoch, in seconds.";
SNAPSHOTS Counter One "bailiff_snapshots_total" [""]
    "Snapshots taken so far, which is also the number of the last snapshot."
    "The same number as seq in the stream.";
PID_NAMESPACE_INFO Info One "bailiff_pid_namespace_info" ["pid_namespace"]
    "PID namespace of the driver's pids: host, other or unknown."
    "With other and unknown, processes cannot be identified in /proc.";
GAPS Counter One "bailiff_gaps_total" ["gap"]
    "Values that a source should have reported but did not, by kind."
    "Missing values are not interpolated.";
WORKERS_HUNG Gauge One "bailiff_sampling_workers_hung" [""]
    "Sampling workers that hang in the driver and cannot be killed.";
DRIVER_INFO Info One "bailiff_driver_info" ["version nvml cuda"]
    "Versions of the driver, of NVML, and of the newest CUDA that the driver supports."
    "Absent if the driver did not report them.";
BUILD_INFO Info One "bailiff_build_info" ["version"]
    "Version of the exporter.";
SNAPSHOT_AGE Gauge Seconds "bailiff_snapshot_age_seconds" [""]
    "Age of the snapshot on this page at the time of the request, in seconds.";
HTTP_REQUESTS Counter One "bailiff_http_requests_total" ["path code"]
    "HTTP requests served, by path and status code."
    "path is other if the path is unknown.";
HTTP_REFUSED Counter One "bailiff_http_connections_refused_total" [""]
    "HTTP connections refused because of --web.max-connections.";
STREAM_CLIENTS Gauge One "bailiff_stream_clients" [""]
    "Clients connected to the snapshot stream."
    "Absent without --stream.";
RECORD_FAILURES Counter One "bailiff_record_write_failures_total" [""]
    "Snapshots that could not be written to the file given by --record."
    "Absent without --record.";
}
}
