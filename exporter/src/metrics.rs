//! The table of metrics, and the only file that spells a metric's name. `docs/metrics.md` is made from it.

use bailiff_exposition::families;
pub use bailiff_exposition::own::FAMILIES as OWN_PROCESS;

families! {
FAMILIES {
GPU_INFO Info One "bailiff_gpu_info" ["gpu gpu_uuid name pci_bus_id minor compute_capability parent_uuid gpu_instance compute_instance"]
    "A GPU or MIG instance, also one that does not answer. parent_uuid, gpu_instance and compute_instance are those of a MIG instance.";
GPU_UP Gauge One "bailiff_gpu_up" ["gpu gpu_uuid"]
    "1 where the GPU answered in the last snapshot, else 0: then bailiff_gpu_fault_info says why, and nothing but its Xid errors is told of it.";
GPU_FAULT_INFO Info One "bailiff_gpu_fault_info" ["gpu gpu_uuid reason"]
    "Why a GPU did not answer; absent where it did.";
GPU_MEMORY_TOTAL Gauge Bytes "bailiff_gpu_memory_total_bytes" ["gpu gpu_uuid"]
    "Memory of the GPU in bytes; absent where the driver did not say.";
GPU_MEMORY_USED Gauge Bytes "bailiff_gpu_memory_used_bytes" ["gpu gpu_uuid"]
    "Memory in use in bytes, as the driver says; drivers before 510 count the reserved part in it.";
GPU_MEMORY_FREE Gauge Bytes "bailiff_gpu_memory_free_bytes" ["gpu gpu_uuid"]
    "Memory free to allocate in bytes; absent where the driver did not say.";
GPU_MEMORY_RESERVED Gauge Bytes "bailiff_gpu_memory_reserved_bytes" ["gpu gpu_uuid"]
    "Memory that driver and firmware keep in bytes; absent where the driver does not tell it apart.";
GPU_MEMORY_UNACCOUNTED Gauge Bytes "bailiff_gpu_memory_unaccounted_bytes" ["gpu gpu_uuid"]
    "Memory in bytes that is neither free nor reserved nor held by any listed process; slightly negative where the driver's figures were read at different moments. Absent where a part of the sum is not known.";
GPU_MEMORY_UNRELEASED Gauge Bytes "bailiff_gpu_memory_unreleased_bytes" ["gpu gpu_uuid"]
    "Memory in bytes that holders held who ended, and that did not come back: so much memory of nobody has risen by since, at most what they held. 0 where nobody's is missing that this exporter has seen end, less than 16 MiB too; told until it is back. Absent where that cannot be told, and bailiff_gpu_memory_unreleased_unknown_info says why.";
GPU_MEMORY_UNRELEASED_UNKNOWN Info One "bailiff_gpu_memory_unreleased_unknown_info" ["gpu gpu_uuid reason"]
    "Why it is not known what did not come back: first_look, memory_unknown (a part of the sum is not known), pid_namespace, settling (somebody has just ended, and the driver may still be freeing), others_changed (others came, went or grew since the look before), given_up (nobody could find out within a minute, or somebody ended while nobody looked: until memory of nobody is back at what it was). Absent where it is known.";
GPU_MEMORY_PARTS Gauge Bytes "bailiff_gpu_memory_parts_bytes" ["gpu gpu_uuid part"]
    "Memory of the GPU in bytes by what it is: free, reserved, holders, dead_pids (listed by the driver, gone from /proc), other_namespaces, unaccounted. The parts sum up to the total exactly; absent where one is not known.";
GPU_UTILIZATION Gauge Ratio "bailiff_gpu_utilization_ratio" ["gpu gpu_uuid"]
    "Share of the driver's last sampling period in which a kernel ran, 0 to 1; absent where the driver does not say.";
GPU_MEMORY_BANDWIDTH Gauge Ratio "bailiff_gpu_memory_bandwidth_utilization_ratio" ["gpu gpu_uuid"]
    "Share of the driver's last sampling period in which memory was read or written, 0 to 1; absent where the driver does not say.";
GPU_POWER Gauge Watts "bailiff_gpu_power_watts" ["gpu gpu_uuid"]
    "Power drawn in watts; absent where the driver does not say.";
GPU_ENERGY Counter Joules "bailiff_gpu_energy_joules_total" ["gpu gpu_uuid"]
    "Energy used since the driver was loaded, in joules; absent where the driver does not say.";
GPU_TEMPERATURE Gauge Celsius "bailiff_gpu_temperature_celsius" ["gpu gpu_uuid"]
    "Temperature in degrees Celsius; absent where the driver does not say.";
GPU_CLOCK Gauge Hertz "bailiff_gpu_clock_hertz" ["gpu gpu_uuid clock"]
    "Frequency of a clock (sm, memory, graphics, video) in hertz; absent where the driver does not say.";
GPU_COMPUTE_MODE Gauge One "bailiff_gpu_compute_mode" ["gpu gpu_uuid mode"]
    "1 for the compute mode that is set: default, exclusive_thread, prohibited, exclusive_process; absent where the driver does not say.";
GPU_MIG_ENABLED Gauge One "bailiff_gpu_mig_enabled" ["gpu gpu_uuid"]
    "1 where MIG is on, 0 where it is off; absent where the GPU has no MIG.";
GPU_MIG_INSTANCES Gauge One "bailiff_gpu_mig_instances" ["gpu gpu_uuid"]
    "MIG instances that a GPU is divided into; absent where MIG is off, and where the driver did not give all of them: then nobody knows who is on the GPU.";
GPU_PROCESSES Gauge One "bailiff_gpu_processes" ["gpu gpu_uuid"]
    "Processes in the driver's lists of this GPU; absent where it gave no list.";
GPU_XID_ERRORS Counter One "bailiff_gpu_xid_errors_total" ["gpu gpu_uuid xid"]
    "Xid errors seen since the exporter started, by number; absent where none of that number was seen.";
GPU_STUCK Gauge One "bailiff_gpu_stuck_processes" ["gpu gpu_uuid kind"]
    "Processes on the GPU that can make no progress or were left behind, by kind, each seen so at three looks in a row: zombie_leader (its first thread has ended, others live on), zombie (it has ended), disk_sleep (in a wait that no signal ends, all of its threads where the first has ended), left_behind (orphaned, and its whole workload used neither GPU nor CPU for three windows), gone (listed by the driver, gone from /proc). 0 where none is; absent while none is known of and the driver gave no list, /proc did not show somebody, or somebody may become one at the next look. The status page says what frees each.";
GPU_UNLISTED_DEVICE_PROCESSES Gauge One "bailiff_gpu_unlisted_processes" ["gpu gpu_uuid"]
    "Processes that have the GPU's device file open and that the driver does not list, services of the driver and of monitoring (nvidia-persistenced, DCGM and the like, under a uid below 1000) left out. Looked for once a minute where 256 MiB or more are of nobody, or whoever is listed has ended; those who end are dropped at the next interval. Absent where nobody looked, or pids cannot be compared.";
DEVICE_PROCESSES_UNREADABLE Gauge One "bailiff_unlisted_processes_unreadable" [""]
    "Processes whose open files may not be read, or could not be in time: bailiff_gpu_unlisted_processes is complete only where this is 0. Absent where nobody looked.";
PROCESS_INFO Info One "bailiff_process_info" ["pid uid user comm command container runtime pod pod_uid namespace slurm_job unit"]
    "A process that holds GPU memory: who and where it is. Labels that are not known are left out, but a user without a name is his number; command only with --process.command, of which 128 bytes.";
PROCESS_STATE Gauge One "bailiff_process_state" ["pid state"]
    "1 for the state of the process; gone: the driver lists it and /proc does not; hidden: /proc does not show it to us; zombie_leader: its first thread has ended, others hold the memory.";
PROCESS_PARENT Info One "bailiff_process_parent_info" ["pid parent"]
    "The parent of a process that has ended (state zombie): its pid, which has to wait for it. Absent for all others.";
PROCESS_START_TIME Gauge Seconds "bailiff_process_start_time_seconds" ["pid"]
    "When the process started, in seconds since the Unix epoch; absent where /proc does not show it.";
PROCESS_CPU Counter Seconds "bailiff_process_cpu_seconds_total" ["pid"]
    "CPU time that the process used, all threads, in seconds; absent where /proc does not show it.";
PROCESS_IO Counter Bytes "bailiff_process_io_bytes_total" ["pid direction"]
    "Bytes that the process read from and wrote to storage; absent without the right to read /proc/PID/io.";
PROCESS_ORPHANED Gauge One "bailiff_process_orphaned" ["pid"]
    "1 where the login session, job or container whose cgroup the process is in has ended: nobody else is in it. 0 where its parent or the leader of its session lives, or it is of a service. Absent where that cannot be told, as of a daemon that forked twice while its login or container lives.";
CONTEXT_INFO Info One "bailiff_process_gpu_context_info" ["gpu gpu_uuid pid context"]
    "Kinds of context that the process has on the GPU, as nvidia-smi writes them: C compute, G graphics, C+G; M+C is a client of MPS.";
PROCESS_MEMORY Gauge Bytes "bailiff_process_gpu_memory_bytes" ["gpu gpu_uuid pid"]
    "GPU memory that the process holds in bytes; absent where the driver does not say.";
PROCESS_MEMORY_PEAK Gauge Bytes "bailiff_process_gpu_memory_peak_bytes" ["gpu gpu_uuid pid"]
    "The most GPU memory that the process ever held in bytes; absent where accounting mode is off.";
PROCESS_UTILIZATION Gauge Ratio "bailiff_process_gpu_utilization_ratio" ["gpu gpu_uuid pid engine"]
    "Share of an engine (sm, memory, encoder, decoder) that the process used since the snapshot before, 0 to 1. A 0 was observed; absent where it was not, and bailiff_process_gpu_utilization_unknown_info says why. jpeg and ofa are shown above 0 only, since older drivers do not tell them.";
PROCESS_UTILIZATION_UNKNOWN Info One "bailiff_process_gpu_utilization_unknown_info" ["gpu gpu_uuid pid reason"]
    "Why the utilization of the process was not observed since the snapshot before: it is neither idle nor busy then. Absent where it was.";
PROCESS_IDLE Gauge Seconds "bailiff_process_gpu_idle_seconds" ["gpu gpu_uuid pid"]
    "Seconds observed idle since last observed busy; time that was not observed adds nothing. Absent where the last utilization was not observed.";
PROCESS_BUSY Counter Seconds "bailiff_process_gpu_busy_seconds_total" ["gpu gpu_uuid pid"]
    "Seconds of a fully busy GPU that the process used while it was observed; absent where it never was.";
PROCESS_BYTE_SECONDS Counter ByteSeconds "bailiff_process_gpu_memory_byte_seconds_total" ["gpu gpu_uuid pid"]
    "GPU memory held, summed up over time, in bytes times seconds; absent where the driver never said how much.";
OTHER_PROCESSES Gauge One "bailiff_gpu_other_processes" ["gpu gpu_uuid"]
    "Processes on the GPU beyond --max-processes, which have no series of their own.";
OTHER_PROCESSES_MEMORY Gauge Bytes "bailiff_gpu_other_processes_memory_bytes" ["gpu gpu_uuid"]
    "GPU memory that the processes beyond --max-processes hold in bytes, exactly; absent where one's is not known.";
PROCESSES_DROPPED Counter One "bailiff_processes_dropped_total" [""]
    "Processes left without series of their own because of --max-processes, added up over all snapshots.";
IDLE_MEMORY Gauge Bytes "bailiff_idle_memory_bytes" ["gpu gpu_uuid user"]
    "GPU memory in bytes that processes of the user hold while observed idle, without servers of MPS, which wait for their clients; absent where one of the user's processes on the GPU was not observed.";
HELD_GPU_SECONDS Counter Seconds "bailiff_held_gpu_seconds_total" ["user"]
    "GPU-seconds with a process of the user on a GPU, from listing to listing; one started in between counts from its start.";
IDLE_GPU_SECONDS Counter Seconds "bailiff_idle_gpu_seconds_total" ["user"]
    "GPU-seconds of bailiff_held_gpu_seconds_total in which all processes of the user on the GPU were observed idle.";
USER_MEMORY Gauge Bytes "bailiff_user_gpu_memory_bytes" ["gpu gpu_uuid user"]
    "GPU memory that the processes of the user hold in bytes; absent where one's is not known.";
USER_PROCESSES Gauge One "bailiff_user_gpu_processes" ["gpu gpu_uuid user"]
    "Processes of the user on the GPU.";
CONTAINER_MEMORY Gauge Bytes "bailiff_container_gpu_memory_bytes" ["gpu gpu_uuid container pod namespace"]
    "GPU memory that the processes of the container hold in bytes; absent where one's is not known.";
LEASE_GPUS Gauge One "bailiff_lease_gpus" ["state"]
    "GPUs of the pool of leases by where they are: idle, leased (by a lease of ours), legacy (taken by a client of GPU.py, by its record), gathering (kept for a ticket that wants several), quarantined (a process is still on it, or a record of GPU.py is in the way), barrier (kept back after a restart of Redis), unknown (in no place: a client of GPU.py may have it in hand). This and all other bailiff_lease_ families are absent without --lease.redis, and while Redis does not answer.";
LEASE_HELD Gauge One "bailiff_lease_held" ["gpu gpu_uuid user mode"]
    "1 for each GPU of the pool that somebody holds: who, as he said himself, and in which mode: run, acquire, timed (acquire --duration), compat (the rules of GPU.py), legacy (a client of GPU.py, who does not say who he is).";
LEASE_AGE Gauge Seconds "bailiff_lease_age_seconds" ["gpu gpu_uuid"]
    "Seconds since the lease that holds the GPU was granted, by Redis' clock; absent where it is not held by a lease of ours, or Redis was rolled back and has forgotten when.";
LEASE_IDLE Gauge Seconds "bailiff_lease_idle_seconds" ["gpu gpu_uuid"]
    "Seconds in which the GPU was seen leased, at each look to the same lease, and idle: the driver's sampler said so of the device, or where it says nothing all who are listed on it were observed idle. Use ends it; time that was not observed adds nothing, nor does the time before the exporter began. Absent where the last window was not observed, or the GPU is not leased.";
LEASE_QUEUE_LENGTH Gauge One "bailiff_lease_queue_length" [""]
    "Tickets that wait for GPUs; clients of GPU.py wait unseen.";
LEASE_QUEUE_OLDEST Gauge Seconds "bailiff_lease_queue_oldest_seconds" [""]
    "Seconds since the oldest of the tickets that wait was asked for; absent where nobody waits.";
LEASE_WAIT Histogram Seconds "bailiff_lease_wait_seconds" [""]
    "How long those had waited who were granted GPUs, 0 where they did not have to, from the ticket to the grant. Redis counts, in the same step as it grants: it goes on over restarts of the exporter, and falls where Redis loses its data. Absent before the first grant.";
LEASE_EVENTS Counter One "bailiff_lease_events_total" ["event"]
    "What has happened in the pool: grant, released, reaped, cancelled, conflict, duplicate, reassert, reclaim, barrier and so on. Redis counts, as for bailiff_lease_wait_seconds; absent where none of that name has happened.";
LEASE_UNRESERVED Gauge One "bailiff_lease_unreserved_use" ["gpu gpu_uuid"]
    "1 where processes compute on a GPU of the pool and none of them has a lease for it, at this look and the one before; 0 where nobody does, or one has. Absent where that is not certain: an environment or an ancestor could not be read; the GPU is leased to the owner of such a process, or it is in a container, and so may be the holder's; a client of GPU.py holds the GPU; or it changes hands.";
LEASE_LEGACY_SUSPECT Gauge One "bailiff_lease_legacy_suspect" [""]
    "GPUs of the pool that may have been lost by clients of GPU.py, and on which nobody is listed: the process of the record does not exist, or the GPU has been in no place for 30 seconds.";
LEASE_AOF Gauge One "bailiff_lease_redis_aof_enabled" [""]
    "1 where Redis writes down what it does (appendonly), so that leases outlive its crash, else 0.";
QUOTA_VALID Gauge One "bailiff_quota_region_valid" ["quota"]
    "1 where the file of a shared quota (its path below --quota.dir) could be read and understood, else 0: then bailiff_quota_region_fault_info says why, and nothing else is told of it. What a file says is a claim of those who may write it. An empty file is not told: nobody has used it yet. This and all other bailiff_quota_ families are absent where there is no such directory.";
QUOTA_FAULT Info One "bailiff_quota_region_fault_info" ["quota reason"]
    "Why the file of a quota says nothing: unreadable, no_file (a FIFO, a link), short, no_quota, version; absent where it does.";
QUOTA_INFO Info One "bailiff_quota_info" ["quota container pod pod_uid namespace slurm_job user"]
    "Where those processes are that use the quota and hold GPU memory, a series for each place and user.";
QUOTA_LIMIT Gauge Bytes "bailiff_quota_limit_bytes" ["quota gpu gpu_uuid"]
    "GPU memory that the processes of the quota may have together in bytes; absent where there is no limit. Told of the node's GPUs only.";
QUOTA_USED Gauge Bytes "bailiff_quota_used_bytes" ["quota gpu gpu_uuid"]
    "GPU memory that they have asked for and not freed, in bytes; a process that has ended keeps its part until another needs it.";
QUOTA_PEAK Gauge Bytes "bailiff_quota_peak_bytes" ["quota gpu gpu_uuid"]
    "The most that they ever had in bytes.";
QUOTA_DENIED Counter One "bailiff_quota_denied_total" ["quota gpu gpu_uuid"]
    "Requests for memory that were refused because of the limit.";
QUOTA_DENIED_BYTES Counter Bytes "bailiff_quota_denied_bytes_total" ["quota gpu gpu_uuid"]
    "What those asked for in bytes.";
QUOTA_UNACCOUNTED Gauge Bytes "bailiff_quota_unaccounted_bytes" ["quota gpu gpu_uuid"]
    "GPU memory in bytes that the driver says the quota's processes hold, and whoever shares a container with them, less what they have by the file: contexts, what pools keep in reserve, and what went around the library. Negative where managed memory is counted that is not on the GPU. Absent where one of them cannot be found among the driver's, or the driver does not say how much he holds.";
QUOTA_PROCESS_USED Gauge Bytes "bailiff_quota_process_used_bytes" ["quota gpu gpu_uuid pid"]
    "What a process has of it in bytes, by the file. A process is named only if it has the file mapped at this look; absent for one without series of its own.";
QUOTA_PROCESSES Gauge One "bailiff_quota_processes" ["quota"]
    "Processes in the file that are not known to be dead.";
QUOTA_DEAD Gauge One "bailiff_quota_dead_slots" ["quota"]
    "Processes in the file that are known to be dead; what they had is free as soon as another needs it.";
QUOTA_FAULTS Counter One "bailiff_quota_faults_total" ["quota"]
    "Times that the library could not share the quota, or not write something down.";
QUOTA_UNCOUNTED Counter One "bailiff_quota_uncounted_calls_total" ["quota"]
    "Calls that were let through without being counted in bytes: memory of graphs and of other processes.";
QUOTA_HOOKS_MISSING Gauge One "bailiff_quota_hooks_missing" ["quota"]
    "Functions of the driver that the library should know and does not.";
MPS_CONTROL_INFO Info One "bailiff_mps_control_info" ["pipe_directory log_directory pid uid"]
    "A control daemon of MPS that lives. A directory is left out where its environment may not be read (CAP_SYS_PTRACE). This and all other bailiff_mps_ families are absent where nothing of MPS runs.";
MPS_UP Gauge One "bailiff_mps_control_up" ["pipe_directory"]
    "1 where a control daemon lives, whether it answers or not; 0 where it is gone and a server that it started lives: programs that begin then run without MPS. Absent where neither is there.";
MPS_FAULT Info One "bailiff_mps_control_fault_info" ["pipe_directory reason"]
    "Why the daemon did not answer: timeout, stopped (SIGSTOP), unreachable (nobody answers in its directory, as we see it), no_program (NVIDIA's client is not installed), not_permitted, no_directory (its environment may not be read), foreign (another process listens in its directory, as we see it), error; absent where it did, and where it was not asked yet.";
MPS_START_TIME Gauge Seconds "bailiff_mps_control_start_time_seconds" ["pipe_directory"]
    "When the daemon started, in seconds since the Unix epoch.";
MPS_RESPONSIVE Gauge One "bailiff_mps_control_responsive" ["pipe_directory"]
    "1 where the daemon answered when it was last asked (--mps.interval), 0 where it is silent or stands still: every CUDA program that begins then hangs. That it stands still is seen at each look. Absent where it could not be asked, which bailiff_mps_control_fault_info tells.";
MPS_QUERY Gauge Seconds "bailiff_mps_query_seconds" ["pipe_directory"]
    "How long the daemon's last answer took in seconds; absent where it gave none.";
MPS_THREADS Gauge Ratio "bailiff_mps_default_active_thread_ratio" ["pipe_directory"]
    "Share of a GPU's threads that clients of a new server may use, 0 to 1, as the daemon says; asked at every tenth query.";
MPS_ASKED Gauge Seconds "bailiff_mps_query_timestamp_seconds" ["pipe_directory"]
    "When the daemon was last asked, in seconds since the Unix epoch: what it says is as old as that.";
MPS_PINNED_LIMIT Gauge Bytes "bailiff_mps_default_pinned_memory_limit_bytes" ["pipe_directory device"]
    "GPU memory in bytes that each client of a new server may have of a device, by the daemon's number of it; asked at every tenth query. Absent where there is no limit.";
MPS_SERVER_INFO Info One "bailiff_mps_server_info" ["pipe_directory server uid"]
    "A server of MPS that lives: server is its pid, uid is whose clients it serves.";
MPS_SERVER_STATUS Gauge One "bailiff_mps_server_status" ["pipe_directory server status"]
    "1 for the status of the server as its daemon last said: initializing, active, fault (a client had a fatal fault: new ones are refused until all that it hit have ended); absent where the daemon has no such command, as up to 535.";
MPS_CLIENTS Gauge One "bailiff_mps_clients" ["pipe_directory server"]
    "Clients of the server, as its daemon last said; absent where it did not. The driver's own list of clients is bailiff_process_gpu_context_info with context M+C.";
MPS_SERVER_THREADS Gauge Ratio "bailiff_mps_server_active_thread_ratio" ["pipe_directory server"]
    "Share of a GPU's threads that the server's clients may use, 0 to 1, as the daemon says; asked at every tenth query.";
MPS_ORPHANS Gauge One "bailiff_mps_orphan_servers" [""]
    "Servers whose daemon is gone; absent where not all processes could be looked at.";
MPS_CLIENT_INFO Info One "bailiff_mps_client_info" ["pipe_directory server pid"]
    "A client of the server, as its daemon last said, that holds GPU memory: joined by pid with bailiff_process_gpu_memory_bytes and bailiff_process_info. Absent where the daemon's pids are not those of this node.";
MPS_LOG Gauge One "bailiff_mps_log_state" ["pipe_directory log state"]
    "1 for how a log of the daemon (control, server) is read: read, absent, unreadable (we may not), no_file (a link, a FIFO), foreign (it is not of the daemon's user). The families below are absent where neither is read; they are of the log directory, and count since its logs were first seen.";
MPS_STARTS Counter One "bailiff_mps_server_starts_total" ["pipe_directory"]
    "Servers that the daemon started, by its log.";
MPS_CLIENT_FAULTS Counter One "bailiff_mps_client_faults_total" ["pipe_directory"]
    "Fatal GPU faults of clients, by the log of their server: each hits all clients on that GPU.";
MPS_UNPARSED Counter One "bailiff_mps_log_unparsed_lines_total" ["pipe_directory"]
    "Lines of logs that were not understood.";
MPS_SKIPPED Counter Bytes "bailiff_mps_log_skipped_bytes_total" ["pipe_directory"]
    "Bytes of logs that were passed over, since more than a MiB came at once.";
MPS_EXITS Counter One "bailiff_mps_server_exits_total" ["pipe_directory status"]
    "Servers that ended, by exit status, by the daemon's log; absent where none of that status did.";
MPS_REJECTED Counter One "bailiff_mps_clients_rejected_total" ["pipe_directory reason"]
    "Clients that a server turned away: clients (it has as many as it may), device_connections, teardown, other; absent where none was.";
MPS_PENDING Gauge One "bailiff_mps_pending_clients" ["pipe_directory uid"]
    "Clients of the user that wait for a server, by the daemon's log: until it is ready, and until the server of another user has no client any more. Who is in another PID namespace, so that nobody can look for him, is told for 5 minutes. Absent where nobody waits.";
SOURCE_UP Gauge One "bailiff_source_up" ["source"]
    "1 where the source (nvml, proc, redis, quota, mps) answered in the last snapshot, 0 where it did not or that is older than two intervals and the deadline: then no samples are shown; absent where it was not asked, as /proc is not without a list of pids, nor redis without --lease.redis, nor quota where there is no --quota.dir. mps is up where one of its control daemons answered when it was last asked, and absent where there is none.";
SOURCE_FAULT_INFO Info One "bailiff_source_fault_info" ["source reason"]
    "Why a source did not answer; absent where it did.";
SOURCE_DURATION Gauge Seconds "bailiff_source_duration_seconds" ["source"]
    "How long the source took to answer, in seconds; absent where it did not, or was not asked.";
SNAPSHOT_DURATION Gauge Seconds "bailiff_snapshot_duration_seconds" [""]
    "How long it took to look at everything, in seconds.";
SNAPSHOT_TIMESTAMP Gauge Seconds "bailiff_snapshot_timestamp_seconds" [""]
    "When the snapshot was taken, in seconds since the Unix epoch.";
SNAPSHOTS Counter One "bailiff_snapshots_total" [""]
    "Snapshots so far: the number of the one that this page shows, the seq of the stream.";
PID_NAMESPACE_INFO Info One "bailiff_pid_namespace_info" ["pid_namespace"]
    "Whether the driver's pids are those of our /proc: host; other or unknown, and then no process is named.";
GAPS Counter One "bailiff_gaps_total" ["gap"]
    "What a source should have told and did not, by kind. A gap is never filled in.";
WORKERS_HUNG Gauge One "bailiff_sampling_workers_hung" [""]
    "Sampling workers that hang in the driver and cannot be ended.";
DRIVER_INFO Info One "bailiff_driver_info" ["version nvml cuda"]
    "Versions of the driver, of NVML, and the newest CUDA that the driver serves; absent where the driver did not say.";
BUILD_INFO Info One "bailiff_build_info" ["version"]
    "The version of this exporter.";
SNAPSHOT_AGE Gauge Seconds "bailiff_snapshot_age_seconds" [""]
    "Time since the look that this page shows was begun, in seconds, at the moment of the request.";
HTTP_REQUESTS Counter One "bailiff_http_requests_total" ["path code"]
    "Requests answered; path is other for all that there is no page for.";
HTTP_REFUSED Counter One "bailiff_http_connections_refused_total" [""]
    "Connections refused because of --web.max-connections.";
STREAM_CLIENTS Gauge One "bailiff_stream_clients" [""]
    "Clients that read the stream; absent without --stream.";
RECORD_FAILURES Counter One "bailiff_record_write_failures_total" [""]
    "Snapshots that could not be written to the file of --record; absent without it.";
}
}

#[cfg(test)]
mod tests {
    use bailiff_exposition::table;

    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert_eq!(table::faults(FAMILIES.iter().chain(OWN_PROCESS)), [""; 0]);
        assert!(FAMILIES.iter().all(|family| family.name.starts_with("bailiff_")));
    }
}
