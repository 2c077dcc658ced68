//! The metrics page, from the status.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use bailiff_exposition::own::{self, Own};
use bailiff_exposition::{Family, Format, Labels, PRESENT, Writer};
use bailiff_lease::legacy::Judgement;

use crate::metrics;
use crate::status::tally::{Counters, Reloaded, Skipped, UserCounts};
use crate::status::{Breaker, Flag, RuleStatus, Scope, Status};
use bailiff_engine::engine::Now;
use bailiff_engine::verdict::Hold;

/// Maximum number of flags with a series of their own: a rule that matches everything must not fill Prometheus.
pub const MOST_FLAGS: usize = 256;

/// Values at the time of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moment {
    /// Time.
    pub now: Now,
    /// Process metrics.
    pub own: Own,
}

/// Writes the page.
///
/// # Errors
/// If writing to `out` fails.
pub fn write(status: &Status, moment: &Moment, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Writer::new(format, out);
    rules(&status.rules, &mut page);
    actions(&status.counters, &mut page);
    page.put(&metrics::ACTION_IN_FLIGHT, &Labels::default(), status.in_flight.is_some());
    withheld(status, &mut page);
    flags(&status.flags, &mut page);
    notices(&status.counters, &mut page);
    leases(status, &mut page);
    policy(status, &mut page);
    stream(status, moment.now.boot, &mut page);
    let version = Labels::default().with("version", env!("CARGO_PKG_VERSION"));
    page.put(&metrics::BUILD_INFO, &version, PRESENT);
    own::write(&moment.own, &mut page);
    page.end()
}

/// A metric with one value per rule.
type Column = (&'static Family, fn(&RuleStatus) -> Option<u64>);

const RULES: [Column; 4] = [
    (&metrics::RULE_MATCHES, |rule| rule.matches),
    (&metrics::RULE_PENDING, |rule| rule.pending),
    (&metrics::RULE_UNKNOWN, |rule| rule.unknown),
    (&metrics::OWNER_HOLDS, |rule| rule.owner_holds),
];

fn rules(rules: &[RuleStatus], page: &mut Writer<'_>) {
    for rule in rules {
        let labels = Labels::default().with("rule", &rule.name).with("mode", rule.mode.name());
        page.put(&metrics::RULE_INFO, &labels.with("target", rule.target.name()), PRESENT);
    }
    for (family, number) in RULES {
        for rule in rules {
            if let Some(number) = number(rule) {
                page.put(family, &Labels::default().with("rule", &rule.name), number);
            }
        }
    }
}

fn actions(counters: &Counters, page: &mut Writer<'_>) {
    for (step, count) in counters.steps.iter() {
        let labels = Labels::default().with("rule", &step.rule).with("step", &step.step);
        let labels = labels.with("mode", step.mode.name()).with("result", step.result.name());
        page.put(&metrics::STEPS, &labels, count);
    }
    for (kill, count) in counters.kills.iter() {
        let labels = Labels::default().with("rule", &kill.rule).with("result", kill.result.name());
        page.put(&metrics::KILLS, &labels, count);
    }
    page.put(&metrics::MEMORY_RELEASED, &Labels::default(), counters.released_bytes);
    users(counters, page);
}

/// Names that are cut to the same label are summed up, so that no series occurs twice.
fn users(counters: &Counters, page: &mut Writer<'_>) {
    let mut users: BTreeMap<Labels, UserCounts> = BTreeMap::new();
    for (user, more) in &counters.users {
        let counts = users.entry(Labels::default().with("user", user)).or_default();
        counts.notices += more.notices;
        counts.released_bytes += more.released_bytes;
        more.kills.iter().for_each(|(result, count)| counts.kills.add(*result, count));
    }
    for (labels, counts) in &users {
        page.put(&metrics::USER_NOTICES, labels, counts.notices);
    }
    for (labels, counts) in &users {
        for (result, count) in counts.kills.iter() {
            page.put(&metrics::USER_KILLS, &labels.clone().with("result", result.name()), count);
        }
    }
    for (labels, counts) in &users {
        page.put(&metrics::USER_MEMORY_RELEASED, labels, counts.released_bytes);
    }
}

fn withheld(status: &Status, page: &mut Writer<'_>) {
    let none = Labels::default();
    for hold in Hold::ALL.into_iter().filter(|hold| hold.node_wide()) {
        page.put_as((&metrics::HOLD_ACTIVE, "hold", hold.name()), &none, status.is_held(hold));
    }
    for breaker in Breaker::ALL {
        page.put_as((&metrics::BREAKER_OPEN, "breaker", breaker.name()), &none, status.is_open(breaker));
    }
    let node = || status.budgets.iter().find(|budget| budget.scope == Scope::Node);
    if let Some(budget) = node() {
        page.put_as((&metrics::BUDGET_USED, "budget", Scope::Node.name()), &none, budget.used);
        page.put_as((&metrics::BUDGET_LIMIT, "budget", Scope::Node.name()), &none, budget.limit);
    }
}

fn flags(flags: &[Flag], page: &mut Writer<'_>) {
    let mut ordered: Vec<&Flag> = flags.iter().collect();
    ordered.sort_by(|a, b| Reverse(a.severity).cmp(&Reverse(b.severity)).then(a.since.total_cmp(&b.since)));
    let mut shown = BTreeSet::new();
    for flag in ordered {
        let labels = flag_labels(flag);
        // Names are truncated; two flags with the same labels must not break the page.
        if shown.len() < MOST_FLAGS && !shown.contains(&labels) {
            page.put(&metrics::FLAG, &labels, PRESENT);
            shown.insert(labels);
        }
    }
    let dropped = flags.len().saturating_sub(shown.len()) as u64;
    page.put(&metrics::FLAGS_DROPPED, &Labels::default(), dropped);
}

fn flag_labels(flag: &Flag) -> Labels {
    let gpu = if let [gpu] = flag.gpus.as_slice() { Some(gpu.as_str()) } else { None };
    let labels = Labels::default().with("rule", &flag.rule).with("severity", flag.severity.name());
    let labels = labels.with("target", &flag.target).maybe("gpu_uuid", gpu);
    let labels = if let Some(pid) = flag.pid { labels.with_pid(pid) } else { labels };
    labels.maybe("user", flag.user.as_deref())
}

fn notices(counters: &Counters, page: &mut Writer<'_>) {
    for (notice, count) in counters.notices.iter() {
        let labels = Labels::default().with("channel", &notice.channel).with("result", &notice.result);
        page.put(&metrics::NOTIFICATIONS, &labels, count);
    }
    for (request, count) in counters.pod_requests.iter() {
        let labels = Labels::default().with("verb", &request.verb).with("code", &request.code);
        page.put(&metrics::KUBERNETES_REQUESTS, &labels, count);
    }
    page.put(&metrics::AUDIT_FAILURES, &Labels::default(), counters.audit_failures);
}

fn leases(status: &Status, page: &mut Writer<'_>) {
    let none = Labels::default();
    if let Some(leases) = &status.leases {
        page.put(&metrics::LEASE_AGENT_UP, &none, leases.up);
    }
    for (done, count) in status.counters.leases.iter() {
        let labels = none.clone().with("action", done.act.name()).with("result", done.result.name());
        page.put(&metrics::LEASE_AGENT_ACTIONS, &labels, count);
    }
    for judgement in Judgement::NAMES {
        if let Some(leases) = status.leases.as_ref().filter(|leases| leases.up) {
            let count = leases.judged_as(judgement) as u64;
            page.put_as((&metrics::LEASE_AGENT_GPUS, "judgement", judgement), &none, count);
        }
    }
}

fn policy(status: &Status, page: &mut Writer<'_>) {
    let none = Labels::default();
    let policy = &status.policy;
    if let Some(sha256) = &policy.sha256 {
        page.put_as((&metrics::POLICY_INFO, "sha256", sha256), &none, PRESENT);
    }
    if let Some(last) = policy.last {
        page.put(&metrics::POLICY_LOADED, &none, last != Reloaded::Refused);
    }
    if let Some(good) = policy.good {
        page.put(&metrics::POLICY_LOADED_AT, &none, good);
    }
    for reloaded in Reloaded::ALL {
        let count = status.counters.reloads.of(&reloaded);
        page.put_as((&metrics::POLICY_RELOADS, "result", reloaded.name()), &none, count);
    }
}

fn stream(status: &Status, boot: Duration, page: &mut Writer<'_>) {
    let none = Labels::default();
    let (stream, counters) = (&status.stream, &status.counters);
    page.put(&metrics::STREAM_CONNECTED, &none, stream.connected);
    for (reason, count) in counters.refused.iter() {
        page.put(&metrics::STREAM_REFUSED, &none.clone().with("reason", reason), count);
    }
    if let Some(age) = stream.age(boot) {
        page.put(&metrics::SNAPSHOT_AGE, &none, age.as_secs_f64());
    }
    page.put(&metrics::SNAPSHOTS, &none, counters.snapshots);
    for skipped in Skipped::ALL {
        let count = counters.skipped.of(&skipped);
        page.put_as((&metrics::SNAPSHOTS_SKIPPED, "reason", skipped.name()), &none, count);
    }
    if let Some(seconds) = stream.tick_seconds {
        page.put(&metrics::TICK_DURATION, &none, seconds);
    }
}
