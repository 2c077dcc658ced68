//! Table of the enforcer's metrics and their names, from which `docs/enforcer-metrics.md` is generated.

use bailiff_exposition::families;
pub use bailiff_exposition::own::FAMILIES as OWN_PROCESS;

families! {
FAMILIES {
RULE_INFO Info One "bailiff_rule_info" ["rule mode target"]
    "A rule of the policy, with its mode and kind of target."
    "Modes: dry-run, enforce. mode is the effective mode: dry-run also if --dry-run is set or a permission is missing. Targets: process, workload, gpu, lease, mps_server.";
RULE_MATCHES Gauge One "bailiff_rule_matches" ["rule"]
    "Targets that have met the rule's condition for its full duration."
    "Absent until the rule has been evaluated for the first time.";
RULE_PENDING Gauge One "bailiff_rule_pending" ["rule"]
    "Targets that meet the rule's condition, but not yet for its full duration."
    "Absent until the rule has been evaluated for the first time.";
RULE_UNKNOWN Gauge One "bailiff_rule_unknown" ["rule"]
    "Targets for which the rule's condition could not be evaluated in the last snapshot."
    "The rule neither matches nor acts on these targets. Absent until the rule has been evaluated for the first time.";
STEPS Counter One "bailiff_steps_total" ["rule step mode result"]
    "Completed steps, by rule, step, mode and result."
    "Steps: flag, notify, signal, terminate, cancel_job, evict_pod, stop_owner, release_lease, shutdown_mps, exec. Result dry_run: everything except the action was done. All combinations that are possible for a rule start at 0.";
KILLS Counter One "bailiff_kills_total" ["rule result"]
    "Completed terminate, cancel_job, evict_pod and stop_owner steps, by rule and result."
    "Results after signals or a request to Slurm or Kubernetes: released (the target exited and its memory was released), gone_not_released, undetermined, unkillable (only terminate), completing, not_permitted (only cancel_job), not_terminated, terminating (only evict_pod and stop_owner), unknown (not of terminate). Results failed and cancelled: some processes may have been signalled. Results without any effect: identity_changed, refused, gone, no_answer (not of terminate), spans_nodes, not_visible (only cancel_job), not_evictable, kept, forbidden, invalid, api_error (only evict_pod and stop_owner), blocked_by_pdb (only evict_pod), not_stoppable, other_pods, undone (only stop_owner). Starts at 0 for rules in enforce mode; absent for other rules.";
MEMORY_RELEASED Counter Bytes "bailiff_memory_released_bytes_total" [""]
    "GPU memory that was observed to be released after an action, in bytes."
    "Actions whose effect could not be determined are not included.";
USER_NOTICES Counter One "bailiff_user_notices_total" ["user"]
    "Completed notify steps about processes of the user."
    "This and all other bailiff_user_ metrics of the enforcer are absent for users without steps. At most 256 users have series.";
USER_KILLS Counter One "bailiff_user_kills_total" ["user result"]
    "Completed terminate, cancel_job, evict_pod and stop_owner steps about processes of the user, by result."
    "The same results as bailiff_kills_total. Absent for results that did not occur.";
USER_MEMORY_RELEASED Counter Bytes "bailiff_user_memory_released_bytes_total" ["user"]
    "GPU memory of the user that was observed to be released after an action, in bytes."
    "Actions whose effect could not be determined are not included.";
ACTION_IN_FLIGHT Gauge One "bailiff_action_in_flight" [""]
    "1 while an action is running or its effect is being verified, else 0."
    "Only one action runs at a time.";
HOLD_ACTIVE Gauge One "bailiff_hold_active" ["hold"]
    "1 while the hold withholds all destructive steps on the node, else 0."
    "Flags and notifications continue.";
OWNER_HOLDS Gauge One "bailiff_owner_holds" ["rule"]
    "Targets whose owners hold them, so that the rule's destructive steps wait."
    "Absent for rules without hold.";
BREAKER_OPEN Gauge One "bailiff_breaker_open" ["breaker"]
    "1 while the breaker withholds destructive steps, else 0."
    "mass: nearly all workloads matched at once; failures: three consecutive actions against one user failed (the breaker applies to that user, or to the node if two or more users are affected); unknown: too many targets are unknown; driver_hang: the driver stopped responding after an action. failures and unknown close after limits.breaker_reset; mass and driver_hang are closed by bailiff-enforcer resume.";
BUDGET_USED Gauge One "bailiff_budget_used" ["budget"]
    "Destructive actions in the last hour that count against the node's budget.";
BUDGET_LIMIT Gauge One "bailiff_budget_limit" ["budget"]
    "Destructive actions that the budget allows per hour.";
FLAG Gauge One "bailiff_flag" ["rule severity target gpu_uuid pid user"]
    "1 for each raised flag, which marks a target that a rule matched."
    "gpu_uuid and pid are set if the target is a GPU or a process. At most 256 flags have a series; they are selected by severity, then by age.";
FLAGS_DROPPED Gauge One "bailiff_flags_dropped" [""]
    "Raised flags without a series of their own, because there are more than 256.";
NOTIFICATIONS Counter One "bailiff_notifications_total" ["channel result"]
    "Notifications by channel and result."
    "All combinations of channel and result start at 0.";
KUBERNETES_REQUESTS Counter One "bailiff_kubernetes_requests_total" ["verb code"]
    "Requests to the API server of Kubernetes, by verb and HTTP status."
    "Verbs: get, get_owner, evict, evict_dry_run, stop, stop_dry_run, event. get_owner can consist of several requests. Code none: no answer that could be understood. Absent before the first request, and without kubernetes in the rules.";
AUDIT_FAILURES Counter One "bailiff_audit_write_failures_total" [""]
    "Entries that could not be written to the audit log, or were dropped because too many waited."
    "While the audit log cannot be written, all destructive steps are withheld.";
LEASE_AGENT_UP Gauge One "bailiff_lease_agent_up" [""]
    "1 while the policy's lease pool responds to this node's agent, else 0."
    "Absent if the policy has no leases section.";
LEASE_AGENT_ACTIONS Counter One "bailiff_lease_agent_actions_total" ["action result"]
    "Actions of this node's lease agent, by action and result."
    "Actions: reap_dead (release a lease whose holder exited), reap_late (release a lease that was not renewed and whose host has no agent), clear_quarantine (clear the quarantine of a GPU that is not used any more), free_orphaned (free a GPU abandoned by a client of GPU.py), put_back_lost (return a GPU that is recorded neither as idle nor as taken). Results: freed, withheld (a process uses one of the GPUs), changed (the state changed meanwhile, so nothing was done), failed. Absent before the first action.";
LEASE_AGENT_GPUS Gauge One "bailiff_lease_agent_gpus" ["judgement"]
    "GPUs held by clients of GPU.py, or recorded neither as idle nor as taken. The label is the agent's judgement."
    "Judgements: keep, suspect (appears abandoned, but not for long enough), orphaned, lost. Absent while the pool does not respond.";
POLICY_INFO Info One "bailiff_policy_info" ["sha256"]
    "SHA-256 of the rules file in force.";
POLICY_LOADED Gauge One "bailiff_policy_last_reload_successful" [""]
    "1 if the rules file was valid when it was last read, else 0."
    "While it is 0, the previous rules stay in force and all destructive steps are withheld. Absent before the first read.";
POLICY_LOADED_AT Gauge Seconds "bailiff_policy_last_reload_success_timestamp_seconds" [""]
    "Time of the last read that found a valid rules file, since the Unix epoch, in seconds.";
POLICY_RELOADS Counter One "bailiff_policy_reloads_total" ["result"]
    "Reloads of the rules file, by result: applied, unchanged, refused.";
STREAM_CONNECTED Gauge One "bailiff_stream_connected" [""]
    "1 while the enforcer is connected to the exporter's stream, else 0.";
STREAM_REFUSED Counter One "bailiff_stream_refused_total" ["reason"]
    "Stream connections that the enforcer closed, by reason."
    "Absent before the first such connection.";
SNAPSHOT_AGE Gauge Seconds "bailiff_enforcer_snapshot_age_seconds" [""]
    "Age of the last evaluated snapshot at the time of the request, in seconds."
    "Absent before the first snapshot.";
SNAPSHOTS Counter One "bailiff_enforcer_snapshots_total" [""]
    "Snapshots that were evaluated.";
SNAPSHOTS_SKIPPED Counter One "bailiff_enforcer_snapshots_skipped_total" ["reason"]
    "Snapshots that were not evaluated, by reason."
    "Reasons: stale (too old), duplicate (sequence number already seen), future (timestamp in the future), other_boot (recorded before a reboot), malformed.";
TICK_DURATION Gauge Seconds "bailiff_enforcer_tick_duration_seconds" [""]
    "Time that the evaluation of the last snapshot by all rules took, in seconds."
    "Absent before the first snapshot.";
BUILD_INFO Info One "bailiff_enforcer_build_info" ["version"]
    "Version of the enforcer.";
}
}
