//! Handling of verdicts: each is recorded, and then notified, shown, or passed to the executor.

use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::control;
use serde_json::json;

use super::Daemon;
use super::requests::Answer;
use crate::actions::{ActionRequest, PeerPod, Permission, Question, Stage};
use crate::audit::Record;
use crate::clock::now;
use crate::process_table::Processes;
use crate::status;
use crate::status::tally::is_kill;
use bailiff_engine::engine::{Exemptions, HoldRequest, Holds, Peer};
use bailiff_engine::guard::Protect;
use bailiff_engine::policy::{Action, Mode, Policy};
use bailiff_engine::process::Program;
use bailiff_engine::verdict::{ActionReport, Hold, Outcome, Subject, Verdict, What};
use bailiff_engine::view::{TargetId, View};

impl Daemon {
    /// Records a verdict and carries it out.
    pub(super) fn carry(&mut self, verdict: &Verdict) {
        let counters = &mut self.status.counters;
        match &verdict.what {
            What::Flag(severity) => {
                counters.step(&verdict.rule, ("flag", verdict.mode), Outcome::Done);
                let key = (Arc::clone(&verdict.rule), verdict.subject.id.clone());
                self.flagged.entry(key).or_insert_with(|| now().wall.as_secs_f64());
                self.note(verdict, ("flag", "raised"), severity.name());
            }
            What::Clear(severity) => {
                self.flagged.remove(&(Arc::clone(&verdict.rule), verdict.subject.id.clone()));
                self.note(verdict, ("flag", "cleared"), severity.name());
            }
            What::Notify(channels) => {
                counters.step(&verdict.rule, ("notify", verdict.mode), Outcome::Done);
                if let Some(user) = counters.user(verdict.subject.user.as_deref()) {
                    user.notices += 1;
                }
                self.notify(verdict, channels);
                self.note(verdict, ("notify", "queued"), &channels.join(", "));
            }
            What::Due(action) => {
                // Saves the budget that the action will use. The action is held until that is on disk.
                if verdict.mode == Mode::Enforce {
                    self.save();
                    self.executor
                        .prepare(self.view.as_ref().map(|view| view.interval() * 2).unwrap_or_default());
                }
                self.note(verdict, (action.name(), "due"), "waiting for confirmation by the next snapshot");
            }
            What::Withheld(action, hold) => self.note(verdict, (action.name(), "withheld"), hold.meaning()),
            What::Reprieved(why) => self.note(verdict, ("reprieve", "skipped"), why),
            What::Act(id, action) => self.act(verdict, *id, action),
        }
    }

    fn note(&self, verdict: &Verdict, (step, result): (&str, &str), detail: &str) {
        let target = verdict.subject.id.0.as_ref();
        tracing::info!(rule = %verdict.rule, target, step, result, detail, "verdict");
        self.audit.later(&Record {
            rule: &verdict.rule,
            mode: Some(verdict.mode),
            target: Some(&verdict.subject),
            evidence: Some(&verdict.evidence),
            ..change(&self.engine.policy().sha256, (step, result), detail)
        });
    }

    /// Passes an action to the executor. Its use of the budget was saved when it became due.
    fn act(&mut self, verdict: &Verdict, id: u64, action: &Action) {
        self.status.in_flight = Some(status::InFlight {
            id,
            rule: verdict.rule.to_string(),
            step: action.name().to_owned(),
            target: verdict.subject.id.to_string(),
            since: now().wall.as_secs_f64(),
            waits: None,
        });
        self.request = Some(verdict.clone());
        self.tried_to_save = false;
        let refused = |detail: &str| ActionReport::new(id, Outcome::Refused, detail);
        let policy = Arc::clone(self.engine.policy());
        let Some(mut request) = ActionRequest::of(verdict, &policy) else { return };
        // The action must start within one interval, because its confirmation is outdated afterwards.
        let interval = self.view.as_ref().map(|view| view.interval()).unwrap_or_default();
        let Some(view) = self.view.clone() else { return self.completed(&refused("there is no snapshot")) };
        let protect = |subject: &Subject| {
            self.exemptions((&verdict.rule, &subject.id), (Arc::clone(&policy), Arc::clone(&view)))
        };
        request.limits.protect = Some(protect(&verdict.subject));
        let peers = self.engine.peers_in_flight(id).iter().cloned();
        request.peers = peers
            .map(|Peer { subject, streak }| PeerPod { protect: protect(&subject), subject, streak })
            .collect();
        request.stops = self.engine.stopped_owners();
        request.limits.exporter = self.exporter;
        request.until = Some(now().boot + interval);
        if self.executor.act(request).is_err() {
            self.completed(&refused("another action is in flight"));
        }
    }

    /// Answers a permission request, based on the newest snapshot, or before SIGKILL, on whether the action can
    /// be recorded.
    pub(super) fn permit(&mut self, question: Question) {
        if question.stage == Stage::Kill && !std::mem::replace(&mut self.tried_to_save, true) {
            // Only a write shows whether the disk still accepts the state.
            self.save();
        }
        self.check_audit_log();
        self.check_state();
        let answer = match question.stage {
            Stage::First => match self.engine.agrees(question.id) {
                Ok(()) => Permission::Granted,
                Err(why) => Permission::Denied(why.to_owned()),
            },
            Stage::Kill => match self.engine.unrecorded() {
                None => Permission::Granted,
                Some(hold) => Permission::Later(hold.meaning().to_owned()),
            },
        };
        if let Some(doing) = self.status.in_flight.as_mut().filter(|doing| doing.id == question.id) {
            let waits = if let Permission::Later(why) = &answer { Some(why.clone()) } else { None };
            if waits.is_some() && doing.waits.is_none() {
                tracing::warn!(id = doing.id, why = waits.as_deref(), "SIGKILL is delayed");
            }
            doing.waits = waits;
        }
        self.executor.permit(question, answer);
    }

    /// Returns the policy's exemptions, evaluated once a pidfd is open, because the program is read then.
    fn exemptions(
        &self,
        (rule, target): (&Arc<str>, &TargetId),
        (policy, view): (Arc<Policy>, Arc<View>),
    ) -> Protect {
        let of = (Arc::clone(rule), target.clone());
        let exemptions = Exemptions::new(policy, of, view, now().wall);
        let procfs = self.settings.executor.procfs.clone();
        let line = exemptions.command_line();
        Protect(Arc::new(move |person| {
            let proc_table = Processes::open(&procfs, "");
            let program = match proc_table {
                // A process that has exited exempts nothing.
                Ok(proc_table) => proc_table.runs(person.stat.key, line)?,
                Err(_) => Program::default(),
            };
            exemptions.exempt(person, &program)
        }))
    }

    /// Counts an action that has ended.
    fn count(&mut self, verdict: &Verdict, step: &str, report: &ActionReport) {
        let counters = &mut self.status.counters;
        let released = report.released.unwrap_or_default();
        counters.step(&verdict.rule, (step, verdict.mode), report.outcome);
        counters.released_bytes += released;
        if let Some(user) = counters.user(verdict.subject.user.as_deref()) {
            if is_kill(step, verdict.mode) {
                user.kills.count(report.outcome);
            }
            user.released_bytes += released;
        }
    }

    /// Handles the report of an action that has ended.
    pub(super) fn completed(&mut self, report: &ActionReport) {
        self.engine.report(report);
        let Some(doing) = self.status.in_flight.take_if(|doing| doing.id == report.id) else { return };
        let Some(verdict) = self.request.take() else { return };
        let (result, detail) = (report.outcome.name(), report.detail.as_str());
        tracing::info!(rule = %doing.rule, target = doing.target, step = doing.step, result, detail, "action");
        self.count(&verdict, &doing.step, report);
        if is_kill(&doing.step, verdict.mode) {
            self.notify_end(&verdict, &doing.step, report);
        }
        self.status.remember(status::PastAction {
            id: report.id,
            at: now().wall.as_secs_f64(),
            rule: doing.rule,
            mode: verdict.mode,
            step: doing.step,
            target: doing.target,
            user: verdict.subject.user.clone(),
            outcome: report.outcome,
            detail: report.detail.clone(),
            released: report.released,
        });
        self.save();
    }

    /// Sets or clears a hold.
    pub(super) fn hold_if(&mut self, hold: Hold, holds: bool) {
        self.engine.hold(hold, if holds { Holds::Yes } else { Holds::No });
    }

    pub(super) fn pause(&mut self, for_seconds: Option<u64>, reason: String, uid: u32) -> Answer {
        let now = now();
        let length = for_seconds.map(Duration::from_secs);
        // A pause whose end overflows the clock has no end.
        let until = length.and_then(|length| now.wall.checked_add(length));
        let detail = format!("by uid {uid}: {reason}");
        if let Some(request) = self.engine.pause(now, length, reason) {
            self.executor.cancel(request);
        }
        self.record_change(("pause", "done"), &detail);
        let value = json!({"ok": true, "until": until.map(|until| until.as_secs_f64())});
        Answer::Saved(value, self.save())
    }

    /// Grants or refuses holds that an owner requests.
    pub(super) fn hold_for_owner(&mut self, request: &HoldRequest) -> Answer {
        let request = HoldRequest { reason: shortened(&request.reason), ..request.clone() };
        let holds = match self.engine.hold_for_owner(now(), &request) {
            Ok(holds) => holds,
            Err(why) => return Answer::Value(control::refusal(why)),
        };
        let granted: Vec<_> = holds.iter().filter(|hold| hold.left.is_some()).collect();
        for hold in &granted {
            let length = humantime::format_duration(Duration::from_secs_f64(hold.left.unwrap_or_default()));
            let detail = format!("for {length} by uid {}: {}", hold.uid, hold.reason);
            self.audit.later(&Record {
                rule: &hold.rule,
                target: self.engine.subject(&hold.target).as_ref(),
                ..change(&self.engine.policy().sha256, ("hold", "granted"), &detail)
            });
        }
        let is_granted = !granted.is_empty();
        let value = json!({"ok": true, "holds": holds});
        // A user must not delay actions against others, so no action waits for this save.
        if is_granted {
            Answer::Saved(value, self.state_writer.save_later(&self.engine))
        } else {
            Answer::Value(value)
        }
    }

    pub(super) fn resume(&mut self, uid: u32) -> Answer {
        self.engine.resume();
        self.record_change(("resume", "done"), &format!("by uid {uid}"));
        Answer::Saved(json!({"ok": true}), self.save())
    }

    /// Records a change that has no verdict, such as a reload.
    pub(super) fn record_change(&self, what: (&str, &str), detail: &str) {
        self.audit.later(&change(&self.engine.policy().sha256, what, detail));
    }
}

/// Returns the reason of a user, which may be long.
fn shortened(reason: &str) -> String {
    const LONGEST: usize = 200;
    reason.chars().take(LONGEST).collect()
}

/// Returns the audit log line of a change that has no verdict.
pub(super) fn change<'a>(policy: &'a str, (step, result): (&'a str, &'a str), detail: &'a str) -> Record<'a> {
    Record { policy, step, result, detail, ..Record::default() }
}
