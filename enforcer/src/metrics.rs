//! The table of the enforcer's metrics, and the only file that spells their names. `docs/enforcer-metrics.md` is made
//! from it.

use bailiff_exposition::families;
pub use bailiff_exposition::own::FAMILIES as OWN_PROCESS;

families! {
FAMILIES {
RULE_INFO Info One "bailiff_rule_info" ["rule mode target"]
    "A rule of the policy: whether it may act (dry-run, enforce) and what it is about (process, workload, gpu, lease, mps_server). mode is what holds in the end, also where --dry-run caps it.";
RULE_MATCHES Gauge One "bailiff_rule_matches" ["rule"]
    "Targets of which the rule's condition has been true for as long as it asks; absent before a snapshot was judged by the rule.";
RULE_PENDING Gauge One "bailiff_rule_pending" ["rule"]
    "Targets of which the rule's condition is true, but not for long enough yet; absent before a snapshot was judged by the rule.";
RULE_UNKNOWN Gauge One "bailiff_rule_unknown" ["rule"]
    "Targets of which the last snapshot does not tell whether the rule's condition holds: they are neither idle nor busy, and nothing is done to them. Absent before a snapshot was judged by the rule.";
STEPS Counter One "bailiff_steps_total" ["rule step mode result"]
    "Steps that came to an end, by step (flag, notify, signal, terminate, release_lease, shutdown_mps, exec) and result; watched: all but the action was done. What may come of a rule's steps is counted from 0 on.";
KILLS Counter One "bailiff_kills_total" ["rule result"]
    "Targets that were to be ended by terminate, by result: released (ended, and its memory is back), gone_not_released, unkillable, undetermined; failed and cancelled, where some may have been signalled; and those that never came to a signal: identity_changed, refused, gone. Of a rule that may act, from 0 on; of others absent.";
MEMORY_RELEASED Counter Bytes "bailiff_memory_released_bytes_total" [""]
    "GPU memory in bytes that was seen to come back after an action; what could not be told adds nothing.";
ACTION_IN_FLIGHT Gauge One "bailiff_action_in_flight" [""]
    "1 while an action is under way or its effect is awaited, else 0: there is one at a time.";
HOLD_ACTIVE Gauge One "bailiff_hold_active" ["hold"]
    "1 while destructive steps of the whole node are withheld for this reason, else 0. Flags and notices go on.";
BREAKER_OPEN Gauge One "bailiff_breaker_open" ["breaker"]
    "1 while the breaker withholds destructive steps, else 0: mass (nearly all workloads matched at once), failures (three actions in a row against one user failed: for that user, from two users on for the node), unknown (too much is unknown). failures and unknown close after limits.breaker_reset; mass by bailiff-enforcer resume.";
BUDGET_USED Gauge One "bailiff_budget_used" ["budget"]
    "Destructive actions of the last hour that count against the budget of the node.";
BUDGET_LIMIT Gauge One "bailiff_budget_limit" ["budget"]
    "Destructive actions that the budget allows within an hour.";
FLAG Gauge One "bailiff_flag" ["rule severity target gpu_uuid pid user"]
    "1 for each flag that is up: a rule found something about a target. gpu_uuid and pid are there where it is about one of them. At most 256 flags have a series, the worst and oldest first.";
FLAGS_DROPPED Gauge One "bailiff_flags_dropped" [""]
    "Flags that are up and have no series of their own, as there are more than 256.";
NOTIFICATIONS Counter One "bailiff_notifications_total" ["channel result"]
    "Notices by channel and result, from 0 on.";
AUDIT_FAILURES Counter One "bailiff_audit_write_failures_total" [""]
    "Entries that could not be written to the audit log. While it cannot be written, nothing destructive is done.";
LEASE_AGENT_UP Gauge One "bailiff_lease_agent_up" [""]
    "1 while the pool that the policy names (leases) answers this node's agent, else 0; absent where it names none.";
LEASE_AGENT_ACTIONS Counter One "bailiff_lease_agent_actions_total" ["act result"]
    "What this node's agent did with leases: reap_dead (a lease whose holder is dead), reap_late (one of a host without an agent that was not renewed), clear_withheld (a GPU that is quiet again), free_orphaned (one that a client of GPU.py left behind), put_back_lost (one that was in no place); by result: freed, withheld (somebody is on a GPU of it), changed (it was not as judged any more, and nothing was done), failed. Absent until the first.";
LEASE_AGENT_GPUS Gauge One "bailiff_lease_agent_gpus" ["judgement"]
    "GPUs that clients of GPU.py have, or that are in no place, by what is concluded of them: keep, suspect (it looks abandoned, not for long enough), orphaned, lost. Absent while the pool does not answer.";
POLICY_INFO Info One "bailiff_policy_info" ["sha256"]
    "The policy that is in force, by the SHA-256 of its file.";
POLICY_LOADED Gauge One "bailiff_policy_last_reload_successful" [""]
    "1 where the file was good when it was last read, else 0: then the policy before is in force and nothing destructive is done. Absent before it was first read.";
POLICY_LOADED_AT Gauge Seconds "bailiff_policy_last_reload_success_timestamp_seconds" [""]
    "When the file was last read and found good, in seconds since the Unix epoch.";
POLICY_RELOADS Counter One "bailiff_policy_reloads_total" ["result"]
    "Reloads by result: applied, unchanged, refused.";
STREAM_CONNECTED Gauge One "bailiff_stream_connected" [""]
    "1 while the exporter's stream is being read, else 0.";
STREAM_REFUSED Counter One "bailiff_stream_refused_total" ["reason"]
    "Connections to the stream that were given up, by reason. Absent until the first.";
SNAPSHOT_AGE Gauge Seconds "bailiff_enforcer_snapshot_age_seconds" [""]
    "Time since the look that was judged last, in seconds, at the moment of the request; absent before the first.";
SNAPSHOTS Counter One "bailiff_enforcer_snapshots_total" [""]
    "Snapshots that were judged.";
SNAPSHOTS_SKIPPED Counter One "bailiff_enforcer_snapshots_skipped_total" ["reason"]
    "Snapshots that were not judged: stale (too old), duplicate (its number was seen before), future (from a time to come), other_boot, malformed.";
TICK_DURATION Gauge Seconds "bailiff_enforcer_tick_duration_seconds" [""]
    "How long it took to judge the last snapshot by all rules, in seconds; absent before the first.";
BUILD_INFO Info One "bailiff_enforcer_build_info" ["version"]
    "The version of this enforcer.";
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
