//! An action: a verdict that is to be carried out, with what of the policy holds of it.

use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::ProcessKey;

use crate::audit::{After, Record};
use bailiff_engine::guard::{Limits, OnHold, Protect, Root};
use bailiff_engine::policy::{Action, Leases, Mode, Policy};
use bailiff_engine::verdict::{Evidence, Subject, Verdict, What};

/// Something to be done.
#[derive(Debug, Clone)]
pub struct ActionRequest {
    /// Names it in the audit log and in its report.
    pub id: u64,
    /// The rule that asks for it.
    pub rule: Arc<str>,
    /// Whether it may be done.
    pub mode: Mode,
    /// Its target.
    pub subject: Arc<Subject>,
    /// What.
    pub action: Action,
    /// Why.
    pub evidence: Evidence,
    /// SHA-256 of the policy.
    pub policy: Arc<str>,
    /// What the guard goes by.
    pub limits: Limits,
    /// Where leases are.
    pub leases: Option<Arc<Leases>>,
    /// Later than this, since boot, it is not begun: what confirmed it is old then.
    pub until: Option<Duration>,
}

impl ActionRequest {
    /// The action of a verdict that says to act; none of any other.
    #[must_use]
    pub fn of(verdict: &Verdict, policy: &Policy) -> Option<Self> {
        let What::Act(id, action) = &verdict.what else { return None };
        let rule = policy.rules.iter().find(|rule| rule.name == verdict.rule);
        let exempts = rule.is_none_or(bailiff_engine::policy::Rule::exempts_on_hold);
        Some(Self {
            id: *id,
            rule: Arc::clone(&verdict.rule),
            mode: verdict.mode,
            subject: Arc::clone(&verdict.subject),
            action: action.clone(),
            evidence: verdict.evidence.clone(),
            policy: policy.sha256.as_str().into(),
            limits: Limits {
                root: if policy.allow_root { Root::Allowed } else { Root::Protected },
                max_processes: policy.limits.max_processes,
                exporter: None,
                protect: None,
                on_hold: if exempts { OnHold::Exempt } else { OnHold::Continued },
            },
            leases: policy.leases.clone(),
            until: None,
        })
    }

    /// To be begun by then, since boot, or not at all.
    #[must_use]
    pub fn beginning_by(mut self, until: Duration) -> Self {
        self.until = Some(until);
        self
    }

    /// With the exporter, which no rule may touch, nor what it has started.
    #[must_use]
    pub fn beside(mut self, exporter: Option<ProcessKey>) -> Self {
        self.limits.exporter = exporter;
        self
    }

    /// With the file's `protect` and the rule's exceptions, asked again of each process at the moment of the action.
    #[must_use]
    pub fn protecting(mut self, protect: Protect) -> Self {
        self.limits.protect = Some(protect);
        self
    }

    /// A line of the audit log about it.
    pub(super) fn record<'a>(
        &'a self,
        result: &'a str,
        detail: &'a str,
        after: Option<&'a After>,
    ) -> Record<'a> {
        Record {
            id: Some(self.id),
            policy: &self.policy,
            rule: &self.rule,
            mode: Some(self.mode),
            step: self.action.name(),
            result,
            detail,
            target: Some(&self.subject),
            evidence: Some(&self.evidence),
            after,
        }
    }
}
