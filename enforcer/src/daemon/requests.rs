//! Requests on the control socket. Each is passed to the daemon's loop and answered there.

use bailiff_lifecycle::control::{self, Answers, Peer};
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use super::{Daemon, reload, state};
use crate::clock::now;
use crate::control::Question;
use crate::web::Outcome;
use bailiff_engine::engine::{Explained, LastAction};

/// A request from the control socket, with the peer and the channel for the response.
pub(super) struct ControlRequest {
    pub(super) peer: Peer,
    pub(super) question: Value,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// Response to a request.
pub(super) enum Answer {
    Value(Value),
    /// Response to a change, sent once this version of the state is on disk.
    Saved(Value, u64),
    /// Outcome of a reload, sent once the file was read.
    Reload(oneshot::Receiver<Outcome>),
}

/// Handler of the control socket, which passes each request to the daemon's loop.
pub(super) struct ControlHandler {
    pub(super) asked: Sender<ControlRequest>,
    pub(super) acks: state::Acks,
}

impl Answers for ControlHandler {
    async fn answer(&self, peer: &Peer, question: Value) -> Value {
        let (answer, answered) = oneshot::channel();
        let asked = ControlRequest { peer: peer.clone(), question, answer };
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
            Ok(Answer::Reload(outcome)) => {
                outcome.await.map_or_else(|_| ends(), |answer| reload::answer(&answer))
            }
            Err(_) => ends(),
        }
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

    /// Answers a request; `group` is the group of the socket file.
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
                match self.explain(&bailiff_engine::engine::Question { pid, rule }) {
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
