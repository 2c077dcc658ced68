//! Adapts rules to the scrape interval: numbers of samples become the same durations in scrapes.

use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::attributes::Attribute;
use bailiff_engine::policy::{Condition, Field, Leaf, Policy, Span};
use bailiff_engine::value::{Test, Unit, Value};

/// Placeholder attribute for selectors on cgroups.
static CGROUPS: Attribute = Attribute {
    name: "cgroups",
    of: &Kind::ALL,
    unit: Unit::Flag,
    help: "Not available in Prometheus.",
    source: "prometheus",
    read: |_, _| Value::Unknown("not available in Prometheus"),
};

/// Adapts a policy to snapshots that are `interval` apart, from an exporter that samples every `tick`.
pub(super) fn adapt(mut policy: Policy, (interval, tick): (Duration, Duration)) -> Policy {
    policy.interval = None;
    policy.protect.iter_mut().for_each(|entry| blind(&mut entry.condition));
    for rule in &mut policy.rules {
        let spans = rule.then.iter_mut().map(|step| &mut step.after);
        let picked = rule.pick.iter_mut().map(|pick| &mut pick.idle_for);
        for span in spans.chain(picked).chain([&mut rule.span, &mut rule.clear_after]) {
            *span = timed(*span, tick);
        }
        rule.max_gap = gap(rule.max_gap, (interval, tick));
        let exempted = rule.except.iter_mut().map(|exception| &mut exception.condition);
        let picked = rule.pick.iter_mut().map(|pick| &mut pick.from);
        for query in exempted.chain(picked).chain(&mut rule.select).chain([&mut rule.when]) {
            blind(query);
        }
    }
    policy
}

fn timed(span: Span, tick: Duration) -> Span {
    match span {
        Span::Samples(samples) => Span::Time(tick.saturating_mul(samples)),
        time @ Span::Time(_) => time,
    }
}

/// Converts a number of samples to the number of scrapes that take the same time, rounded up, so that a rule that
/// tolerates one unknown sample tolerates at least one unknown scrape.
fn gap(ticks: u32, (interval, tick): (Duration, Duration)) -> u32 {
    let time = tick.saturating_mul(ticks);
    u32::try_from(time.as_nanos().div_ceil(interval.as_nanos().max(1))).unwrap_or(u32::MAX)
}

fn blind(query: &mut Condition) {
    match query {
        Condition::Select(selector) if selector.field == Field::Cgroups => {
            let comparison = selector.patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            *query = Condition::Leaf(Leaf { attribute: &CGROUPS, test: Test::Is(true), comparison });
        }
        Condition::Leaf(_) | Condition::Select(_) => {}
        Condition::All(asks) | Condition::Any(asks) => asks.iter_mut().for_each(blind),
        Condition::Not(query) => blind(query),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::simulation::uses;

    #[test]
    fn ticks_take_their_time_in_scrapes() {
        let text = "version: 1\nrules:\n  - {name: a, target: process, select: {not: {cgroups: ['/x*']}}, \
                    when: {gpu_util: {max: 1%}}, for: {samples: 60}, max_gap: 2, then: [{flag: info}]}\n";
        let policy = bailiff_engine::policy::load(
            text.as_bytes(),
            "rules.yaml",
            crate::policy_file::context(Duration::ZERO),
        )
        .unwrap()
        .policy;
        let seconds = Duration::from_secs;
        let adapted = adapt(policy, (seconds(15), seconds(5)));
        let rule = &adapted.rules[0];
        assert_eq!((rule.span.samples(seconds(15)), rule.max_gap), (20, 1));
        assert!(uses(&adapted, "cgroups") && uses(&adapted, "gpu_util"));
        assert!(
            matches!(&rule.select, Some(Condition::Not(query)) if matches!(**query, Condition::Leaf(_))),
            "{rule:?}"
        );
    }
}
