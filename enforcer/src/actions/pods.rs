//! Requests to the API server of Kubernetes about pods: the processes of a pod are checked, the API server's view of it is
//! compared, the request is sent through `bailiff-kubernetes`, and its effect is verified. No process is signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bailiff_engine::eviction::{self, MARGIN};
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::{Kubernetes, Mode, Recreated};
use bailiff_engine::verdict::Outcome;
use bailiff_lifecycle::control::query_within;
use bailiff_proc::Pidfd;
use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::pod_api::{PodAnswer, PodFacts, PodRequest};
use bailiff_snapshot::pod_resources::ObjectName;

use super::ActionResult;
use super::context::{ActionContext, done};
use super::group::Group;
use super::memory::Memory;
use super::terminate::released;
use crate::clock::{self, Deadline};

/// Time limit of a request. The API server answers after 10 s if another pod of this name is pending.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long a request may take until it is sent, so that it is not sent when the pod is busy again.
const SEND_WITHIN: Duration = Duration::from_secs(5);
/// Least time limit of a request that reads, with short sampling intervals.
const LEAST_PATIENCE: Duration = Duration::from_secs(5);
/// How long a pod waits that was not read in time.
const LATE_WAIT: Duration = Duration::from_secs(10);
/// Longest time for which the verification waits, so that other actions go on. After that, the pod is looked at again.
const LONGEST_WAIT: Duration = Duration::from_secs(45);
/// Interval in which processes that were started meanwhile are looked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Requests to the API server since the start, by verb and status; 0 stands for no answer.
static REQUESTS: Mutex<BTreeMap<(&str, u16), u64>> = Mutex::new(BTreeMap::new());

/// A result that ends an action early.
pub(super) type Ended = Box<ActionResult>;

/// A pod whose processes were checked, as the API server has it.
pub(super) struct CheckedPod<'a> {
    pub(super) name: ObjectName,
    pub(super) facts: PodFacts,
    group: Group<'a>,
}

/// A request about pods in progress.
pub(super) struct PodAction<'a> {
    context: &'a ActionContext<'a>,
    kubernetes: &'a Kubernetes,
    pods: Vec<CheckedPod<'a>>,
    /// What is sent; whether it is only a test, and until when, is set later.
    request: PodRequest,
    /// GPU memory in the last snapshot before the action.
    before: Option<Memory>,
}

/// Returns how the API server is asked.
fn settings<'a>(context: &ActionContext<'a>) -> Result<&'a Kubernetes, Refusal> {
    let kubernetes = context.request.kubernetes.as_deref();
    kubernetes.ok_or_else(|| Refusal::refused("the rules have no `kubernetes`"))
}

/// Reads from the API server. An action must begin within one sampling interval, so a much later answer is of no use.
pub(super) fn read(context: &ActionContext<'_>, request: &PodRequest) -> Result<PodAnswer, Ended> {
    in_time(context, "reading took too long")?;
    let left = context.request.until.map(|until| until.saturating_sub(clock::since_boot()));
    let patience = left.unwrap_or(PATIENCE).clamp(LEAST_PATIENCE, PATIENCE);
    let answer = query_within_time(&settings(context)?.socket, request, patience);
    answer.map_err(|why| in_time(context, &why).err().unwrap_or_else(|| eviction::no_answer(&why).into()))
}

/// Fails if the action can no longer begin in time. The pod's author can cause that, so only this pod has to wait.
fn in_time(context: &ActionContext<'_>, why: &str) -> Result<(), Ended> {
    if context.request.until.is_none_or(|until| clock::since_boot() <= until) {
        return Ok(());
    }
    let why = format!("the API server was not read within one sampling interval: {why}");
    let result = ActionResult::new(Outcome::Cancelled, why);
    Err(Box::new(ActionResult { retry_after: Some(LATE_WAIT), ..result }))
}

/// Asks `bailiff-kubernetes`; fails if it does not answer.
pub(super) fn query(socket: &Path, request: &PodRequest) -> Result<PodAnswer, String> {
    query_within_time(socket, request, PATIENCE)
}

fn query_within_time(socket: &Path, request: &PodRequest, patience: Duration) -> Result<PodAnswer, String> {
    let answer = try_query(socket, request, patience);
    let status = answer.as_ref().ok().and_then(|answer| answer.status).unwrap_or_default();
    let mut requests = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    *requests.entry((request.verb(), status)).or_default() += 1;
    answer
}

/// Returns the requests since the start, by verb and status; 0 stands for no answer.
pub(crate) fn requests() -> BTreeMap<(&'static str, u16), u64> {
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn try_query(socket: &Path, request: &PodRequest, patience: Duration) -> Result<PodAnswer, String> {
    let request = serde_json::to_value(request).map_err(|error| error.to_string())?;
    let answer = query_within(socket, &request, patience);
    let answer = answer.map_err(|error| format!("{error:#}"))?;
    if let Some(why) = answer.get("error").and_then(|why| why.as_str()) {
        return Err(format!("bailiff-kubernetes: {why}"));
    }
    serde_json::from_value(answer).map_err(|error| format!("bailiff-kubernetes: {error}"))
}

/// Reads a pod's processes and the API server's view of it, and checks that both permit a request.
pub(super) fn check<'a>(context: &ActionContext<'a>, recreated: Recreated) -> Result<CheckedPod<'a>, Ended> {
    let kubernetes = settings(context)?;
    let group = context.gather()?;
    let name_missing = || Refusal::refused("the name of the pod is not known (/var/log/pods)");
    let name = context.request.subject.pod.clone().ok_or_else(name_missing)?;
    let annotation = kubernetes.keep.as_ref().map(|keep| keep.annotation.clone());
    let answer = read(context, &PodRequest::Get { pod: name.clone(), annotation })?;
    let facts = eviction::found(&answer, &name).map_err(|refusal| refused(refusal, &answer))?.clone();
    eviction::decide(&facts, &name, (recreated, clock::now().wall))?;
    kept(context, kubernetes, (&name, &facts))?;
    Ok(CheckedPod { name, facts, group })
}

/// Returns the result of a request that the API server did not accept.
pub(super) fn refused(refusal: Refusal, answer: &PodAnswer) -> Ended {
    let retry_after = answer.retry_after.map(Duration::from_secs);
    Box::new(ActionResult { retry_after, ..refusal.into() })
}

/// Fails if the pod's annotation delays the request.
fn kept(
    context: &ActionContext<'_>,
    kubernetes: &Kubernetes,
    (name, facts): (&ObjectName, &PodFacts),
) -> Result<(), Ended> {
    let Some(keep) = &kubernetes.keep else { return Ok(()) };
    let evidence = &context.request.evidence;
    let interval = context.inbox.view().map(|view| view.interval()).unwrap_or_default();
    let now = clock::now().wall;
    let matched = now.saturating_sub(interval * evidence.streak.saturating_sub(evidence.needed));
    let Some(left) = eviction::kept_for(facts, keep, (matched, now)) else { return Ok(()) };
    let value = facts.annotation.as_deref().unwrap_or_default().escape_default();
    let why = format!("pod {name}: {} is {value}", keep.annotation);
    Err(Box::new(ActionResult { retry_after: Some(left), ..ActionResult::new(Outcome::Kept, why) }))
}

impl<'a> PodAction<'a> {
    /// Prepares a request about checked pods, which may have been checked a while ago.
    pub(super) fn new(
        context: &'a ActionContext<'a>,
        mut pods: Vec<CheckedPod<'a>>,
        request: PodRequest,
    ) -> Result<Self, Ended> {
        let kubernetes = settings(context)?;
        let before = context.inbox.view().map(|view| Memory::of(&view.snapshot));
        in_time(context, "reading took too long")?;
        for pod in &mut pods {
            pod.group.renew_after_a_while()?;
        }
        Ok(Self { context, kubernetes, pods, request, before })
    }

    /// Sends the request, or in dry-run mode has the API server test it.
    pub(super) fn carry_out(self) -> ActionResult {
        let context = self.context;
        let about = match &self.request {
            PodRequest::Stop { owner, .. } => format!("{} {}", owner.kind.escape_default(), owner.object),
            request => format!("pod {}", request.pod()),
        };
        if context.request.mode == Mode::DryRun {
            let test = eviction::accepted(&self.send(true));
            let test =
                test.map_or_else(|refusal| refusal.why, |()| "the API server would accept it".to_owned());
            let does = if matches!(self.request, PodRequest::Stop { .. }) { "stop" } else { "evict" };
            let result = context.carry_out(|_| ActionResult::new(Outcome::Done, ""));
            return ActionResult { detail: format!("dry run: would {does} {about}: {test}"), ..result };
        }
        let mut sent = false;
        let result = context.carry_out(|_| self.run(&mut sent));
        let detail = if result.detail.is_empty() { about } else { format!("{about}: {}", result.detail) };
        ActionResult { detail, acted: sent, ..result }
    }

    /// Sends the request.
    fn send(&self, test: bool) -> PodAnswer {
        let mut request = self.request.clone();
        if let PodRequest::Evict { dry_run, until_ms, .. } | PodRequest::Stop { dry_run, until_ms, .. } =
            &mut request
        {
            let until = clock::since_boot() + SEND_WITHIN;
            (*dry_run, *until_ms) = (test, u64::try_from(until.as_millis()).unwrap_or(u64::MAX));
        }
        let answer = query(&self.kubernetes.socket, &request);
        answer.unwrap_or_else(|message| PodAnswer { message, ..PodAnswer::default() })
    }

    /// Sends the request, and verifies its effect. Sets `sent` unless it is known that the request had none.
    fn run(mut self, sent: &mut bool) -> ActionResult {
        let answer = self.send(false);
        let accepted = eviction::accepted(&answer);
        *sent = accepted.as_ref().map_or_else(|refusal| refusal.outcome == Outcome::Unknown, |()| true);
        let mut result = match accepted {
            Ok(()) => self.verify(),
            Err(refusal) => *refused(refusal, &answer),
        };
        if let PodRequest::Stop { owner, .. } = &self.request {
            result.stopped = sent.then(|| owner.object.uid().to_owned());
        }
        for pod in self.pods {
            result.after.notes.extend(done(result.outcome, "", pod.group).after.notes);
        }
        result
    }

    /// Waits until the processes of all containers have exited and their memory was released.
    fn verify(&mut self) -> ActionResult {
        for pod in &mut self.pods {
            pod.group.begun = true;
        }
        let grace = self.pods.iter().map(|pod| pod.facts.grace_seconds).max().unwrap_or_default();
        let needed = Duration::from_secs(grace).saturating_add(MARGIN);
        let deadline = Deadline::after(needed.min(LONGEST_WAIT));
        loop {
            if let Some(why) = self.context.inbox.events(self.context.request.id).give_up {
                return ActionResult::new(Outcome::Cancelled, why);
            }
            if self.have_ended() {
                return self.released();
            }
            if deadline.passed() {
                let pids = self.pods.iter().flat_map(|pod| pod.group.pids());
                let pids: Vec<String> = pids.map(|pid| pid.to_string()).collect();
                let why = format!("processes still run: {}; none was signalled", pids.join(", "));
                let is_over = needed <= LONGEST_WAIT;
                let outcome = if is_over { Outcome::NotTerminated } else { Outcome::Terminating };
                return ActionResult::new(outcome, why);
            }
            let living: Vec<&Pidfd> = self.pods.iter().flat_map(|pod| pod.group.living()).collect();
            self.context.wait_for_exit(&living, deadline.or(Deadline::after(INTERVAL)));
        }
    }

    /// Returns whether all processes have exited, with those that containers start while they end.
    fn have_ended(&mut self) -> bool {
        self.pods.iter_mut().all(|pod| pod.group.all_ended() && matches!(pod.group.renew(), Ok(0)))
    }

    fn released(&self) -> ActionResult {
        let keys: BTreeSet<ProcessKey> = self.pods.iter().flat_map(|pod| pod.group.keys()).collect();
        let held = self.before.as_ref().map(|before| before.held_by(&keys));
        if held == Some(0) && !self.context.request.subject.members.iter().any(|member| member.holds) {
            return ActionResult::new(Outcome::Released, "");
        }
        let gone_ms = self.pods.iter().map(|pod| pod.group.age_ms()).max().unwrap_or_default();
        released(self.context, (&keys, gone_ms), self.before.as_ref())
    }
}
