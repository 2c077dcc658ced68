//! Request of an action: a confirmed verdict with the parts of the policy that apply to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::audit::{After, Record};
use bailiff_engine::guard::{Limits, OnHold, Protect, Root};
use bailiff_engine::policy::{Action, Kubernetes, Leases, Mode, Policy, Slurm};
use bailiff_engine::verdict::{Evidence, Subject, Verdict, What};

/// Another pod to which the step of an action applies.
#[derive(Debug, Clone)]
pub struct PeerPod {
    /// The pod.
    pub subject: Arc<Subject>,
    /// True samples in its streak.
    pub streak: u32,
    /// The policy's exemptions for its processes.
    pub protect: Protect,
}

/// Request of an action.
#[derive(Debug, Clone)]
pub struct ActionRequest {
    /// Id of the action, in the audit log and in the report.
    pub id: u64,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Mode of the rule: dry run or enforce.
    pub mode: Mode,
    /// Target of the action.
    pub subject: Arc<Subject>,
    /// Action to carry out.
    pub action: Action,
    /// Values that made the rule match.
    pub evidence: Evidence,
    /// SHA-256 of the policy file.
    pub policy: Arc<str>,
    /// Limits that the guard checks.
    pub limits: Limits,
    /// Lease pool of the policy.
    pub leases: Option<Arc<Leases>>,
    /// Where Slurm is.
    pub slurm: Arc<Slurm>,
    /// How the API server of Kubernetes is asked.
    pub kubernetes: Option<Arc<Kubernetes>>,
    /// Other pods of the namespace to which the same step applies, for `stop_owner`.
    pub peers: Vec<PeerPod>,
    /// When owners were stopped, by UID, since the Unix epoch.
    pub stops: BTreeMap<String, Duration>,
    /// The rule's `cooldown`.
    pub cooldown: Duration,
    /// Latest start, as time since boot; later, the confirmation of the verdict is outdated.
    pub until: Option<Duration>,
}

impl ActionRequest {
    /// Returns the request of a verdict that demands an action; `None` for other verdicts.
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
            slurm: Arc::clone(&policy.slurm),
            kubernetes: policy.kubernetes.clone(),
            peers: Vec::new(),
            stops: BTreeMap::new(),
            cooldown: rule.map(|rule| rule.cooldown).unwrap_or_default(),
            until: None,
        })
    }

    /// Returns the requests of the same action about the other pods.
    pub(super) fn of_peers(&self) -> impl Iterator<Item = Self> {
        self.peers.iter().map(|peer| Self {
            subject: Arc::clone(&peer.subject),
            evidence: Evidence { streak: peer.streak, ..self.evidence.clone() },
            limits: Limits { protect: Some(peer.protect.clone()), ..self.limits.clone() },
            peers: Vec::new(),
            ..self.clone()
        })
    }

    /// Returns an audit log line about the action.
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
