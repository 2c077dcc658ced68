//! Step `evict_pod`: has the API server of Kubernetes evict a pod after its processes were checked and the API server's view of
//! it was compared, and verifies the result. No process is signalled.

use std::path::Path;
use std::time::Duration;

use bailiff_engine::eviction::{self, MARGIN};
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::{Kubernetes, Mode, Recreated};
use bailiff_engine::verdict::Outcome;
use bailiff_lifecycle::control::query_within;
use bailiff_proc::Pidfd;
use bailiff_snapshot::pod_api::{PodAnswer, PodFacts, PodRequest};
use bailiff_snapshot::pod_resources::PodName;

use super::ActionResult;
use super::context::{ActionContext, done};
use super::group::Group;
use super::memory::Memory;
use super::terminate::released;
use crate::clock::{self, Deadline};

/// Time limit of a request. The API server answers after 10 s if another pod of this name is pending.
const PATIENCE: Duration = Duration::from_secs(25);
/// Longest time for which the verification waits, so that other actions go on. After that, the pod is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(45);
/// Interval in which processes that were started meanwhile are looked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// An eviction in progress.
struct Eviction<'a> {
    context: &'a ActionContext<'a>,
    kubernetes: &'a Kubernetes,
    pod: PodName,
    group: Group<'a>,
    /// GPU memory in the last snapshot before the action.
    before: Option<Memory>,
}

pub(super) fn evict(context: &ActionContext<'_>, recreated: Recreated) -> Result<ActionResult, Refusal> {
    let group = context.gather()?;
    let name_missing = || Refusal::refused("the name of the pod is not known (/var/log/pods)");
    let pod = context.request.subject.pod.clone().ok_or_else(name_missing)?;
    let kubernetes = context.request.kubernetes.as_deref();
    let kubernetes = kubernetes.ok_or_else(|| Refusal::refused("the rules have no `kubernetes`"))?;
    let before = context.inbox.view().map(|view| Memory::of(&view.snapshot));
    let mut eviction = Eviction { context, kubernetes, pod, group, before };
    let annotation = kubernetes.keep.as_ref().map(|keep| keep.annotation.clone());
    let answer = eviction.query(&PodRequest::Get { pod: eviction.pod.clone(), annotation });
    let answer = answer.map_err(|why| eviction::no_answer(&why))?;
    let facts = match eviction::found(&answer, &eviction.pod) {
        Ok(facts) => facts,
        Err(refusal) => return Ok(refused(refusal, &answer)),
    };
    eviction::decide(facts, &eviction.pod, (recreated, clock::now().wall))?;
    if let Some(result) = eviction.kept(facts) {
        return Ok(result);
    }
    // The request may have taken a while.
    eviction.group.renew_after_a_while()?;
    Ok(eviction.carry_out(facts))
}

/// Returns the result of a request that the API server did not accept.
fn refused(refusal: Refusal, answer: &PodAnswer) -> ActionResult {
    ActionResult { retry_after: answer.retry_after.map(Duration::from_secs), ..refusal.into() }
}

/// Asks `bailiff-kubernetes`; fails if it does not answer.
pub(super) fn query(socket: &Path, request: &PodRequest) -> Result<PodAnswer, String> {
    let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
    let answer = query_within(socket, &request, PATIENCE);
    let answer = answer.map_err(|error| format!("{error:#}"))?;
    if let Some(why) = answer.get("error").and_then(|why| why.as_str()) {
        return Err(format!("bailiff-kubernetes: {why}"));
    }
    serde_json::from_value(answer).map_err(|error| format!("bailiff-kubernetes: {error}"))
}

impl Eviction<'_> {
    fn query(&self, request: &PodRequest) -> Result<PodAnswer, String> {
        query(&self.kubernetes.socket, request)
    }

    /// Returns the result if the pod's annotation delays the eviction.
    fn kept(&self, facts: &PodFacts) -> Option<ActionResult> {
        let keep = self.kubernetes.keep.as_ref()?;
        let evidence = &self.context.request.evidence;
        let interval = self.context.inbox.view().map(|view| view.interval()).unwrap_or_default();
        let now = clock::now().wall;
        let matched = now.saturating_sub(interval * evidence.streak.saturating_sub(evidence.needed));
        let left = eviction::kept_for(facts, keep, (matched, now))?;
        let value = facts.annotation.as_deref().unwrap_or_default().escape_default();
        let why = format!("pod {}: {} is {value}", self.pod, keep.annotation);
        Some(ActionResult { retry_after: Some(left), ..ActionResult::new(Outcome::Kept, why) })
    }

    fn carry_out(self, facts: &PodFacts) -> ActionResult {
        let name = format!("pod {}", self.pod);
        let context = self.context;
        if context.request.mode == Mode::DryRun {
            let test = eviction::accepted(&self.post(true));
            let test =
                test.map_or_else(|refusal| refusal.why, |()| "the API server would accept it".to_owned());
            let result = context.carry_out(|_| ActionResult::new(Outcome::Done, ""));
            return ActionResult { detail: format!("dry run: would evict {name}: {test}"), ..result };
        }
        let mut sent = false;
        let result = context.carry_out(|_| self.run(facts, &mut sent));
        let detail = if result.detail.is_empty() { name } else { format!("{name}: {}", result.detail) };
        ActionResult { detail, acted: sent, ..result }
    }

    /// Posts the eviction, or tests whether the API server would accept it.
    fn post(&self, dry_run: bool) -> PodAnswer {
        let request = PodRequest::Evict { pod: self.pod.clone(), dry_run };
        self.query(&request).unwrap_or_else(|message| PodAnswer { message, ..PodAnswer::default() })
    }

    /// Evicts the pod. Sets `sent` unless it is known that the request had no effect.
    fn run(mut self, facts: &PodFacts, sent: &mut bool) -> ActionResult {
        let answer = self.post(false);
        let accepted = eviction::accepted(&answer);
        *sent = accepted.as_ref().map_or_else(|refusal| refusal.outcome == Outcome::Unknown, |()| true);
        let mut result = match accepted {
            Ok(()) => self.verify(facts),
            Err(refusal) => refused(refusal, &answer),
        };
        let notes = done(result.outcome, "", self.group).after.notes;
        result.after.notes.extend(notes);
        result
    }

    /// Waits until the processes of all containers have exited and their memory was released.
    fn verify(&mut self, facts: &PodFacts) -> ActionResult {
        self.group.begun = true;
        let needed = Duration::from_secs(facts.grace_seconds).saturating_add(MARGIN);
        let deadline = Deadline::after(needed.min(LONGEST_WAIT));
        loop {
            if let Some(why) = self.context.inbox.events(self.context.request.id).give_up {
                return ActionResult::new(Outcome::Cancelled, why);
            }
            // Containers can start further processes while they end.
            if self.group.all_ended() && matches!(self.group.renew(), Ok(0)) {
                return self.released();
            }
            if deadline.passed() {
                let pids: Vec<String> = self.group.pids().iter().map(ToString::to_string).collect();
                let why = format!("processes still run: {}; none was signalled", pids.join(", "));
                let is_over = needed <= LONGEST_WAIT;
                let outcome = if is_over { Outcome::NotTerminated } else { Outcome::Terminating };
                return ActionResult::new(outcome, why);
            }
            let wait = deadline.or(Deadline::after(INTERVAL));
            let living: Vec<&Pidfd> = self.group.living();
            while !wait.passed() && self.group.living().len() == living.len() && !self.is_cancelled() {
                self.context.inbox.wait(&living, wait);
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.context.inbox.given_up(self.context.request.id).is_some()
    }

    fn released(&self) -> ActionResult {
        let held = self.before.as_ref().map(|before| before.held_by(&self.group.keys()));
        if held == Some(0) && !self.context.request.subject.members.iter().any(|member| member.holds) {
            return ActionResult::new(Outcome::Released, "");
        }
        released(self.context, &self.group, self.before.as_ref())
    }
}
