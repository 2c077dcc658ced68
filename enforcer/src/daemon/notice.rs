//! Notifications of the daemon: they are passed to the channels, and their results recorded.

use std::sync::Arc;
use std::time::Duration;

use super::{Daemon, doing};
use crate::actions::notices::{Delivered, Delivery, Notice};
use crate::actions::wording;
use crate::audit::{Audit, Record};
use crate::clock::now;
use crate::status::tally;
use bailiff_engine::policy::{Action, Channel, Rule};
use bailiff_engine::verdict::{ActionReport, Outcome, Verdict};

/// Minimum time between two Events that an eviction of a pod is blocked.
const BLOCKED_AGAIN: Duration = Duration::from_hours(1);

impl Daemon {
    /// Notifies channels of a match.
    pub(super) fn notify(&mut self, verdict: &Verdict, channels: &[String]) {
        let Some(rule) = self.rule(verdict) else { return };
        let interval = self.view.as_ref().map(|view| view.interval()).unwrap_or_default();
        let notice = wording::of_match(verdict, rule, (&self.status.node, interval, now().wall));
        self.send(notice, channels);
    }

    /// Sends the result of an action to all channels that the rule notifies.
    pub(super) fn notify_end(&mut self, verdict: &Verdict, step: &str, report: &ActionReport) {
        let notify_step = self.rule(verdict).into_iter().flat_map(|rule| &rule.then).filter_map(|step| {
            match &step.action {
                Action::Notify(channels) => Some(channels),
                _ => None,
            }
        });
        let mut channels: Vec<String> = notify_step.flatten().cloned().collect();
        if report.outcome == Outcome::BlockedByPdb {
            // Repeated attempts are for those who look at the pod, once an hour.
            let is_event =
                |name: &String| matches!(self.engine.policy().channels.get(name), Some(Channel::Event(_)));
            channels.retain(is_event);
            let now = now().boot;
            self.blocked.retain(|_, at| now.saturating_sub(*at) < BLOCKED_AGAIN);
            if channels.is_empty() || self.blocked.contains_key(&verdict.subject.id) {
                return;
            }
            self.blocked.insert(verdict.subject.id.clone(), now);
        }
        channels.sort_unstable();
        channels.dedup();
        let Some(notice) = wording::of_result((verdict, step), report, (&self.status.node, now().wall))
        else {
            return;
        };
        self.send(notice, &channels);
    }

    fn rule(&self, verdict: &Verdict) -> Option<&Rule> {
        self.engine.policy().rules.iter().find(|rule| rule.name == verdict.rule)
    }

    fn send(&mut self, notice: Notice, channels: &[String]) {
        let notice = Arc::new(notice);
        let policy = Arc::clone(self.engine.policy());
        let named = channels.iter().filter_map(|name| Some((name.as_str(), policy.channels.get(name)?)));
        self.notices.notify(&notice, named);
    }

    /// Records the result of a notification. A delivered notification satisfies `requires_notice`.
    pub(super) fn delivered(&mut self, delivery: &Delivery) {
        let Delivery { notice, channel, result } = delivery;
        let outcome = delivery.outcome().name().to_owned();
        self.status.counters.notices.count(tally::Notice { channel: channel.clone(), result: outcome });
        if result.is_ok() && notice.step == "notify" {
            self.engine.delivered(&notice.rule, &notice.about.0.id);
        }
        // The log has how it ended.
        if delivery.outcome() != Delivered::Deferred {
            record(&self.audit, &self.engine.policy().sha256, delivery);
        }
    }
}

/// Writes the result of a notification to the audit log.
pub(super) fn record(audit: &Audit, policy: &str, delivery: &Delivery) {
    let Delivery { notice, channel, result } = delivery;
    let (result, detail) = match result {
        Ok(()) => ("delivered", channel.clone()),
        Err((_, why)) => ("failed", format!("{channel}: {why}")),
    };
    let (subject, mode) = &notice.about;
    let change = doing::change(policy, ("notify", result), &detail);
    audit.later(&Record { rule: &notice.rule, mode: Some(*mode), target: Some(subject), ..change });
}
