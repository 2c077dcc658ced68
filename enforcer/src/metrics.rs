//! Table of the enforcer's metrics and their names, from which `docs/enforcer-metrics.md` is generated.

use bailiff_exposition::families;
pub use bailiff_exposition::own::FAMILIES as OWN_PROCESS;

families! {
FAMILIES {
RULE_INFO Info One "bailiff_rule_info" ["rule mode target"]
    "A rule of the policy with its mode and its kind of target."
    "Modes: dry-run, enforce; the effective one, also if --dry-run or a missing permission limits it. Targets: process, workload, gpu, lease, mps_server.";
RULE_MATCHES Gauge One "bailiff_rule_matches" ["rule"]
    "Targets that have met the rule's condition for its full duration."
    "Absent before the rule evaluated its first snapshot.";
RULE_PENDING Gauge One "bailiff_rule_pending" ["rule"]
    "Targets that meet the rule's condition, but not yet for its full duration."
    "Absent before the rule evaluated its first snapshot.";
RULE_UNKNOWN Gauge One "bailiff_rule_unknown" ["rule"]
    "Targets for which the rule's condition could not be evaluated in the last snapshot."
    "They count as neither idle nor busy, and no action is taken on them. Absent before the rule evaluated its first snapshot.";
STEPS Counter One "bailiff_steps_total" ["rule step mode result"]
    "Completed steps, by rule, step, mode and result."
    "Steps: flag, notify, signal, terminate, release_lease, shutdown_mps, exec. dry_run: everything but the action was done. All combinations that a rule can reach start at 0.";
KILLS Counter One "bailiff_kills_total" ["rule result"]
    "Completed terminate steps, by rule and result."
    "released (ended, and its memory was released), gone_not_released, unkillable, undetermined; failed and cancelled, where some processes may have been signalled; identity_changed, refused, gone: no signal was sent. Starts at 0 for rules that enforce; absent for others.";
MEMORY_RELEASED Counter Bytes "bailiff_memory_released_bytes_total" [""]
    "GPU memory that was observed to be released after an action, in bytes."
    "An action whose effect could not be determined adds nothing.";
ACTION_IN_FLIGHT Gauge One "bailiff_action_in_flight" [""]
    "1 while an action runs or its effect is awaited, else 0."
    "There is one action at a time.";
HOLD_ACTIVE Gauge One "bailiff_hold_active" ["hold"]
    "1 while the hold withholds all destructive steps on the node, else 0."
    "Flags and notifications go on.";
BREAKER_OPEN Gauge One "bailiff_breaker_open" ["breaker"]
    "1 while the breaker withholds destructive steps, else 0."
    "mass: nearly all workloads matched at once; failures: three actions in a row against one user failed (for that user; from two users on, for the node); unknown: too many targets are unknown. failures and unknown close after limits.breaker_reset, mass by bailiff-enforcer resume.";
BUDGET_USED Gauge One "bailiff_budget_used" ["budget"]
    "Destructive actions of the last hour that count against the node's budget.";
BUDGET_LIMIT Gauge One "bailiff_budget_limit" ["budget"]
    "Destructive actions that the budget allows per hour.";
FLAG Gauge One "bailiff_flag" ["rule severity target gpu_uuid pid user"]
    "1 for each raised flag: a rule matched a target."
    "gpu_uuid and pid are set if the target is a GPU or a process. At most 256 flags have a series, by severity, then age.";
FLAGS_DROPPED Gauge One "bailiff_flags_dropped" [""]
    "Raised flags without a series of their own, because there are more than 256.";
NOTIFICATIONS Counter One "bailiff_notifications_total" ["channel result"]
    "Notifications by channel and result."
    "All combinations of channel and result start at 0.";
AUDIT_FAILURES Counter One "bailiff_audit_write_failures_total" [""]
    "Entries that could not be written to the audit log."
    "While the audit log cannot be written, no destructive step is taken.";
LEASE_AGENT_UP Gauge One "bailiff_lease_agent_up" [""]
    "1 while the lease pool of the policy answers this node's agent, else 0."
    "Absent if the policy has no leases.";
LEASE_AGENT_ACTIONS Counter One "bailiff_lease_agent_actions_total" ["action result"]
    "Actions of this node's lease agent, by action and result."
    "Actions: reap_dead (a lease whose holder exited), reap_late (a lease of a host without an agent that was not renewed), clear_quarantine (a quarantined GPU that is unused again), free_orphaned (a GPU left by a client of GPU.py), put_back_lost (a GPU in no list). Results: freed, withheld (a process uses one of its GPUs), changed (the state changed in between; nothing was done), failed. Absent before the first.";
LEASE_AGENT_GPUS Gauge One "bailiff_lease_agent_gpus" ["judgement"]
    "GPUs held by clients of GPU.py or in no list, by the agent's judgement."
    "keep, suspect (appears abandoned, not for long enough), orphaned, lost. Absent while the pool does not answer.";
POLICY_INFO Info One "bailiff_policy_info" ["sha256"]
    "SHA-256 of the rules file in force.";
POLICY_LOADED Gauge One "bailiff_policy_last_reload_successful" [""]
    "1 if the rules file was valid when it was last read, else 0."
    "While it is 0, the previous rules stay in force and no destructive step is taken. Absent before the first read.";
POLICY_LOADED_AT Gauge Seconds "bailiff_policy_last_reload_success_timestamp_seconds" [""]
    "Time at which the rules file was last read and valid, since the Unix epoch, in seconds.";
POLICY_RELOADS Counter One "bailiff_policy_reloads_total" ["result"]
    "Reloads of the rules file, by result: applied, unchanged, refused.";
STREAM_CONNECTED Gauge One "bailiff_stream_connected" [""]
    "1 while the enforcer is connected to the exporter's stream, else 0.";
STREAM_REFUSED Counter One "bailiff_stream_refused_total" ["reason"]
    "Stream connections that were closed by the enforcer, by reason."
    "Absent before the first.";
SNAPSHOT_AGE Gauge Seconds "bailiff_enforcer_snapshot_age_seconds" [""]
    "Age of the last evaluated snapshot at the time of the request, in seconds."
    "Absent before the first.";
SNAPSHOTS Counter One "bailiff_enforcer_snapshots_total" [""]
    "Snapshots that all rules evaluated.";
SNAPSHOTS_SKIPPED Counter One "bailiff_enforcer_snapshots_skipped_total" ["reason"]
    "Snapshots that were not evaluated, by reason."
    "stale (too old), duplicate (number already seen), future (timestamp in the future), other_boot, malformed.";
TICK_DURATION Gauge Seconds "bailiff_enforcer_tick_duration_seconds" [""]
    "Time that all rules took to evaluate the last snapshot, in seconds."
    "Absent before the first.";
BUILD_INFO Info One "bailiff_enforcer_build_info" ["version"]
    "Version of the enforcer.";
}
}
