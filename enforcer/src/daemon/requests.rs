//! Requests on the control socket and the users' socket. Each is passed to the daemon's loop and answered there.

use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::control::{self, Answers, Peer};
use bailiff_snapshot::SubordinateUids;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::spawn_blocking;

use super::{Daemon, reload, state};
use crate::audit::AuditSettings;
use crate::audit::entries::{PAUSE, Wanted, entries};
use crate::clock::now;
use crate::control::{Question, UserQuestion};
use crate::web::Outcome;
use bailiff_engine::engine::{Explained, HoldRequest, LastAction, Pending};
use bailiff_engine::policy::Mode;

/// Maximum number of steps in a response to a user.
const MOST_STEPS: usize = 256;

/// The socket of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The control socket.
    Control,
    /// The users' socket.
    User,
}

/// A request from one of the sockets, with the peer and the channel for the response.
pub(super) struct ControlRequest {
    pub(super) origin: Origin,
    pub(super) peer: Peer,
    pub(super) question: Value,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// Response to a request.
pub(super) enum Answer {
    Value(Value),
    /// Response to a change, sent once this version of the state is on disk.
    Saved(Value, u64),
    /// Response to which the wanted entries of the audit log are added.
    Own(Value, Wanted),
    /// Outcome of a reload, sent once the file was read.
    Reload(oneshot::Receiver<Outcome>),
}

/// Handler of one of the sockets, which passes each request to the daemon's loop.
pub(super) struct ControlHandler {
    pub(super) origin: Origin,
    pub(super) asked: Sender<ControlRequest>,
    pub(super) acks: state::Acks,
    pub(super) audit: AuditSettings,
    pub(super) subordinate: watch::Receiver<SubordinateUids>,
    /// Earliest time of the next search of the audit log.
    pub(super) next_search: Arc<Mutex<tokio::time::Instant>>,
}

/// A step that a rule will take against a target if its condition stays true.
#[derive(Serialize)]
struct ComingStep {
    rule: String,
    mode: Mode,
    target: String,
    user: Option<String>,
    step: String,
    /// Seconds until then, at the earliest.
    due_in: Option<f64>,
    /// Why the step is withheld.
    withheld: Option<String>,
    /// Remaining seconds of a hold of the owner.
    held: Option<f64>,
}

impl Answers for ControlHandler {
    fn user(&self, uid: u32) -> u32 {
        self.subordinate.borrow().user(uid)
    }

    fn needs_groups(&self) -> bool {
        self.origin == Origin::Control
    }

    async fn answer(&self, peer: &Peer, question: Value) -> Value {
        let (answer, answered) = oneshot::channel();
        let asked = ControlRequest { origin: self.origin, peer: peer.clone(), question, answer };
        if self.asked.send(asked).await.is_err() {
            return control::refusal("the daemon is shutting down");
        }
        let ends = || control::refusal("the daemon is shutting down");
        match answered.await {
            Ok(Answer::Value(value)) => value,
            Ok(Answer::Saved(mut value, state)) => {
                if let Some(answer) = value.as_object_mut() {
                    answer.insert("saved".to_owned(), self.acks.has(state).await.into());
                }
                value
            }
            Ok(Answer::Own(value, wanted)) => self.with_entries(value, wanted).await,
            Ok(Answer::Reload(outcome)) => {
                outcome.await.map_or_else(|_| ends(), |answer| reload::answer(&answer))
            }
            Err(_) => ends(),
        }
    }
}

impl ControlHandler {
    /// Adds entries of the audit log to a response. Only one search runs at a time, and not more often than once in
    /// [`PAUSE`].
    async fn with_entries(&self, mut value: Value, wanted: Wanted) -> Value {
        let mut next = Arc::clone(&self.next_search).lock_owned().await;
        tokio::time::sleep_until(*next).await;
        let settings = self.audit.clone();
        // The search has the lock, because it can outlast this request.
        let search = move || {
            let found = entries(&settings, &wanted);
            *next = tokio::time::Instant::now() + PAUSE;
            found
        };
        let found = spawn_blocking(search).await;
        value["entries"] = json!(found.unwrap_or_default());
        value
    }
}

impl Daemon {
    /// Explains rules and targets, with the last action of each rule against each target.
    fn explain(&self, question: &bailiff_engine::engine::Question) -> Option<Vec<Explained>> {
        let mut all = self.engine.explain(now(), question)?;
        for one in &mut all {
            let (rule, target) = (&*one.pending.rule, &*one.pending.target.0);
            let mut actions = self.status.actions.iter();
            let last = actions.find(|action| action.rule == rule && action.target == target);
            one.last = last.map(|action| LastAction {
                seconds_ago: (now().wall.as_secs_f64() - action.at).max(0.0),
                step: action.step.clone(),
                outcome: action.outcome,
                detail: action.detail.clone(),
            });
        }
        Some(all)
    }

    fn has_rule(&self, name: &str) -> bool {
        self.engine.policy().rules.iter().any(|rule| *rule.name == *name)
    }

    /// Answers a request of a user, unless the user waits no longer. Returns whether it has changed anything.
    pub(super) fn answer_user(&mut self, asked: ControlRequest) -> bool {
        let ControlRequest { peer, question, answer, .. } = asked;
        if answer.is_closed() {
            return false;
        }
        let reply = match serde_json::from_value::<UserQuestion>(question) {
            Ok(UserQuestion::Hold { for_seconds, reason, which }) => {
                let length = Duration::from_secs(for_seconds);
                self.hold_for_owner(&HoldRequest { uid: peer.uid, length, reason, which })
            }
            Ok(UserQuestion::Coming) => {
                Answer::Value(json!({"ok": true, "coming": self.coming(peer.uid, None)}))
            }
            Ok(UserQuestion::Why { pid, job }) => {
                let coming = self.coming(peer.uid, pid);
                Answer::Own(json!({"ok": true, "coming": coming}), Wanted { uid: peer.uid, pid, job })
            }
            Err(error) => Answer::Value(control::refusal(&format!("invalid request: {error}"))),
        };
        let has_changed = matches!(reply, Answer::Saved(..));
        drop(answer.send(reply));
        has_changed
    }

    /// Returns the next step of each rule against a user's targets, the nearest ones; root gets those of all users.
    fn coming(&self, uid: u32, pid: Option<u32>) -> Vec<ComingStep> {
        let owner = (uid != 0).then_some(uid);
        let question = bailiff_engine::engine::Question { pid, rule: None, owner, brief: true };
        let explained = self.engine.explain(now(), &question).unwrap_or_default().into_iter();
        let steps = explained.filter_map(|one| {
            let Pending { rule, mode, target, user, next, due_in, ends, hold, .. } = one.pending;
            let hold = hold.or(one.holds.first().copied());
            let (target, withheld) = (target.to_string(), hold.map(|hold| hold.meaning().to_owned()));
            let held = one.owner_hold.and_then(|hold| hold.left);
            // The end of the process concerns its owner more than a notice before it.
            let (step, due_in) = match ends {
                Some((step, due_in)) => (step, Some(due_in)),
                None => (next?, due_in),
            };
            Some(ComingStep { rule, mode, target, user, step, due_in, withheld, held })
        });
        let mut steps: Vec<ComingStep> = steps.collect();
        let due = |step: &ComingStep| step.due_in.unwrap_or(f64::INFINITY);
        steps.sort_by(|one, other| due(one).total_cmp(&due(other)));
        steps.truncate(MOST_STEPS);
        steps
    }

    /// Answers a request of the control socket; `group` is the group of the socket file.
    pub(super) fn answer(&mut self, peer: &Peer, question: &Value, group: u32) -> Answer {
        let refused = |why: &str| Answer::Value(control::refusal(why));
        let question = match serde_json::from_value::<Question>(question.clone()) {
            Ok(question) => question,
            Err(error) => return refused(&format!("invalid request: {error}")),
        };
        if question.changes() && !crate::control::may_change(peer, group) {
            return refused(
                "permission denied: root, or membership in the group of the control socket, is required",
            );
        }
        match question {
            Question::Status => Answer::Value(json!({"ok": true, "status": &self.status})),
            Question::Explain { rule: Some(rule), .. } if !self.has_rule(&rule) => {
                refused(&format!("there is no rule {rule:?}; `status` lists the rules in force"))
            }
            Question::Explain { pid, rule } => {
                match self.explain(&bailiff_engine::engine::Question { pid, rule, ..Default::default() }) {
                    Some(answer) => Answer::Value(json!({"ok": true, "explanation": answer})),
                    None => refused("these rules have not evaluated a snapshot yet"),
                }
            }
            Question::Pause { for_seconds, reason } => self.pause(for_seconds, reason, peer.uid),
            Question::Resume => self.resume(peer.uid),
            Question::Reload => {
                let (answer, outcome) = oneshot::channel();
                self.ask_to_read("requested over the control socket", answer);
                Answer::Reload(outcome)
            }
        }
    }
}
