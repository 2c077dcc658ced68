//! Step `terminate`: SIGTERM, grace period, SIGKILL, then verification that processes and memory are gone.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_snapshot::ProcessKey;
use rustix::io::Errno;

use super::activity::Activity;

use super::ActionResult;
use super::cgroup_kill;
use super::client::LetGo;
use super::context::ActionContext;
use super::freezer::{self, Frozen};
use super::group::Group;
use super::memory::{Back, Memory, back};
use super::permit::{Permission, Permit, Question, Stage};
use crate::audit::{After, HeldStill, STOPPING};
use crate::clock::{self, Deadline};
use crate::privileged::{self, SignalError};
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

/// Maximum number of searches for newly started processes before SIGKILL.
const PASSES: u32 = 3;
/// Time limit for all members to be stopped, or to exit, before new members are searched.
const SETTLE: Duration = Duration::from_millis(500);
/// Interval of checks whether all members are stopped; no file descriptor reports it.
const INTERVAL: Duration = Duration::from_millis(2);
/// Interval between attempts to record the action before SIGKILL.
const AGAIN: Duration = Duration::from_millis(200);
/// Maximum number of searches for new members after all known ones have exited; then the grace period ends.
const MOST_RENEWALS: u32 = 64;

/// A termination in progress.
pub(super) struct Termination<'a> {
    context: &'a ActionContext<'a>,
    group: Group<'a>,
    grace: Duration,
    permit: &'a Permit,
    /// GPU memory in the last snapshot before the action.
    before: Option<Memory>,
    activity: Activity,
    /// Results of the MPS checks.
    clients: LetGo,
    /// Processes that the audit log lists as about to be stopped.
    recorded: BTreeSet<ProcessKey>,
    /// Whether the privileged process continues what was stopped if the enforcer dies.
    watched: bool,
}

/// Why a termination ended before its verification.
enum Stop {
    /// It was cancelled, or the enforcer is shutting down.
    Cancelled(&'static str),
    Refused(Refusal),
}

impl From<&'static str> for Stop {
    fn from(why: &'static str) -> Self {
        Self::Cancelled(why)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<'a> Termination<'a> {
    pub(super) fn new(
        context: &'a ActionContext<'a>,
        group: Group<'a>,
        grace: Duration,
        permit: &'a Permit,
    ) -> Self {
        let view = context.inbox.view();
        let mut activity = Activity::default();
        if let Some(view) = &view {
            activity.see(&view.snapshot, &group.keys());
        }
        let before = view.map(|view| Memory::of(&view.snapshot));
        let activity = activity.forgotten();
        let (clients, recorded) = (LetGo::default(), BTreeSet::new());
        Self { context, group, grace, permit, before, activity, clients, recorded, watched: true }
    }

    pub(super) fn run(mut self) -> ActionResult {
        let mut ending = match self.end() {
            Ok(ending) => ending,
            Err(Stop::Cancelled(why)) => ActionResult::new(Outcome::Cancelled, why),
            Err(Stop::Refused(refusal)) => {
                self.context.note_if_late(&refusal);
                let Refusal { outcome, mut why } = refusal;
                if !self.group.sent.is_empty() {
                    why += "; only the listed signals were sent";
                }
                ActionResult::new(outcome, why)
            }
        };
        // After an error, a member may still be stopped, so the privileged process continues it.
        if self.group.denied.is_none() {
            privileged::forget();
        }
        ending.after.sent.append(&mut self.group.sent);
        ending.after.notes.append(&mut self.group.notes);
        ending
    }

    fn end(&mut self) -> Result<ActionResult, Stop> {
        self.group.renew_after_a_while()?;
        let frozen = self.frozen()?;
        self.let_go()?;
        self.context.confirm()?;
        self.unless_called_off(Group::ask)?;
        self.group.continue_stopped(self.permit);
        self.group.notes.extend(frozen.iter().map(|frozen| frozen.thaw(self.permit)));
        if let Some(error) = &self.group.denied {
            let (outcome, why) = match error {
                SignalError::Kernel(Errno::PERM) => {
                    (Outcome::Failed, format!("{error}: CAP_KILL is missing"))
                }
                // The owner of a process can have changed for a moment.
                SignalError::Refused(_) if self.group.sent.is_empty() => {
                    (Outcome::Refused, error.to_string())
                }
                _ => (Outcome::Failed, format!("not every signal was sent: {error}")),
            };
            return Ok(ActionResult::new(outcome, why));
        }
        if !self.wait()? {
            self.kill()?;
        }
        Ok(self.verify())
    }

    /// Returns the members' frozen cgroups. Fails if one cannot be thawed: SIGTERM would have no effect.
    fn frozen(&self) -> Result<Vec<Frozen>, Refusal> {
        let Some(root) = &self.context.settings.cgroups else { return Ok(Vec::new()) };
        freezer::find(root, self.context.proc_table, &self.group.pids()).map_err(Refusal::refused)
    }

    /// Before members are signalled, has the MPS server terminate those that are its clients.
    fn let_go(&mut self) -> Result<(), Refusal> {
        let notes = self.clients.those_of(self.context, (&self.group, self.group.pids()))?;
        self.group.notes.extend(notes);
        Ok(())
    }

    /// Waits for all members to exit; extends the grace period once while they are busy. Processes that they
    /// start meanwhile, such as checkpoint writers, are not signalled before the grace period is over. Returns
    /// whether all members have exited.
    fn wait(&mut self) -> Result<bool, Stop> {
        let mut deadline = Deadline::after(self.grace);
        let mut extended = false;
        let mut renewals = 0;
        loop {
            self.events()?;
            if self.group.all_ended() {
                renewals += 1;
                if self.group.renew()? == 0 {
                    return Ok(true);
                }
            }
            if deadline.passed() || renewals > MOST_RENEWALS {
                if extended || !self.activity.busy() {
                    return Ok(false);
                }
                extended = true;
                deadline = Deadline::after(self.grace);
                self.group.notes.push("the grace period was extended: the process was still busy".to_owned());
            }
            self.until_event(deadline);
        }
    }

    /// Handles new events and adds new members.
    fn events(&mut self) -> Result<(), Stop> {
        let events = self.context.inbox.events(self.context.request.id);
        if let Some(why) = events.give_up {
            return Err(why.into());
        }
        if let Some(view) = events.view {
            self.activity.see(&view.snapshot, &self.group.keys());
            self.group.renew()?;
            // A member that was stopped since then cannot handle SIGTERM.
            self.group.continue_stopped(self.permit);
        }
        Ok(())
    }

    /// Kills the remaining members and their new child processes.
    fn kill(&mut self) -> Result<(), Stop> {
        self.let_go()?;
        self.until_recorded()?;
        let killed = self.stop_and_kill();
        if (killed.is_err() || self.group.denied.is_some()) && self.group.was_stopped() {
            self.group.go_on(self.permit);
        }
        killed
    }

    fn stop_and_kill(&mut self) -> Result<(), Stop> {
        self.hold_still()?;
        self.unless_called_off(Group::kill)?;
        self.until_ended(Deadline::after(SETTLE.min(self.context.settings.verify)));
        // New processes are killed with the whole cgroup, or else one by one; none gets a second SIGKILL.
        if self.group.renew()? > 0 && !self.kill_cgroup() {
            self.unless_called_off(Group::kill)?;
        }
        self.until_ended(Deadline::after(self.context.settings.verify));
        Ok(())
    }

    /// Sends signals, unless the action is cancelled: nothing is sent after a `pause` was acknowledged.
    fn unless_called_off(&mut self, send: fn(&mut Group<'a>, &Permit)) -> Result<(), &'static str> {
        self.context.inbox.unless_called_off(self.context.request.id, || send(&mut self.group, self.permit))
    }

    /// Waits until the state and the list of what will be stopped are on disk.
    fn until_recorded(&mut self) -> Result<(), Stop> {
        let question = Question { id: self.context.request.id, stage: Stage::Kill };
        loop {
            self.events()?;
            let again = Deadline::after(AGAIN);
            let answer = self.context.inbox.ask(question, again);
            if self.group.all_ended() || (answer == Some(Permission::Granted) && self.record_stop()) {
                return Ok(());
            }
            while !again.passed() && self.given_up().is_none() && !self.group.all_ended() {
                self.until_event(again);
            }
        }
    }

    /// Records the members that are about to be stopped; returns whether the audit log lists them all.
    fn record_stop(&mut self) -> bool {
        let processes: Vec<ProcessKey> =
            self.group.living_keys().into_iter().filter(|key| self.recorded.insert(*key)).collect();
        if processes.is_empty() {
            return true;
        }
        let still = HeldStill { processes, freezer: None };
        let recorded = self.record(&still);
        if !recorded {
            self.recorded.retain(|key| !still.processes.contains(key));
        }
        recorded
    }

    /// Records in the audit log what is about to be stopped, and passes it to the privileged process.
    fn record(&mut self, still: &HeldStill) -> bool {
        let after = After { held_still: Some(still.clone()), ..After::default() };
        let recorded =
            self.context.audit.record(&self.context.request.record(STOPPING, "", Some(&after))).is_ok();
        if recorded {
            self.watched = privileged::watch(still);
        }
        if !self.watched {
            let why = "processes were not stopped before SIGKILL: the privileged process does not respond";
            self.group.notes.push(why.to_owned());
        }
        recorded
    }

    fn given_up(&self) -> Option<&'static str> {
        self.context.inbox.given_up(self.context.request.id)
    }

    /// Stops members until no new one is found. A member killed before its children are known leaves orphans.
    fn hold_still(&mut self) -> Result<(), Stop> {
        for _ in 0..PASSES {
            if !self.watched || !self.record_stop() {
                break;
            }
            self.unless_called_off(Group::stop)?;
            let deadline = Deadline::after(SETTLE);
            while !self.group.stands_still() && !deadline.passed() {
                self.until_event(deadline.or(Deadline::after(INTERVAL)));
            }
            if self.group.renew()? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Last resort: kills all processes of a container or unit at once, so that none can start another.
    fn kill_cgroup(&mut self) -> bool {
        let context = self.context;
        let Some(root) = &context.settings.cgroups else { return false };
        let freezer = cgroup_kill::freezer(root, &self.group);
        if freezer.is_none()
            || !self.record(&HeldStill { freezer, ..HeldStill::default() })
            || !self.watched
            || self.given_up().is_some()
        {
            return false;
        }
        match cgroup_kill::kill(root, context.inbox, &mut self.group, self.permit) {
            Ok(()) => self.group.sent_to_all("cgroup.kill"),
            Err(ref why) => self.group.notes.push(format!("the cgroup was not killed as a whole: {why}")),
        }
        self.group.sent.last().is_some_and(|sent| sent.signal == "cgroup.kill")
    }

    fn until_ended(&self, deadline: Deadline) {
        while !self.group.all_ended() && !deadline.passed() {
            self.until_event(deadline);
        }
    }

    /// Waits for the exit of a member or an event. Returns at once if all members have exited.
    fn until_event(&self, deadline: Deadline) {
        let living = self.group.living();
        if !living.is_empty() {
            self.context.inbox.wait(&living, deadline);
        }
    }

    /// Verifies that all members have exited and that their GPU memory was released.
    fn verify(&mut self) -> ActionResult {
        let left: Vec<String> = self.group.left().map(|held| describe(held, self.context)).collect();
        if !left.is_empty() {
            return ActionResult::new(Outcome::Unkillable, left.join(", "));
        }
        released(self.context, (&self.group.keys(), self.group.age_ms()), self.before.as_ref())
    }
}

/// Verifies that the GPU memory of processes that have exited was released. `before` is the memory before the action.
pub(super) fn released(
    context: &ActionContext<'_>,
    (keys, gone_ms): (&BTreeSet<ProcessKey>, u64),
    before: Option<&Memory>,
) -> ActionResult {
    let gone_at = clock::since_boot();
    let held = before.map(|before| before.held_by(keys));
    let back = until_back(context, before, (keys, gone_at));
    let mut ending = match back {
        Back::Yes { bytes, left } => {
            let mut ending = ActionResult::new(Outcome::Released, "");
            ending.released = Some(bytes);
            ending.after.vram_after = Some(left);
            ending
        }
        Back::No { why, left } => {
            let mut ending = ActionResult::new(Outcome::GoneNotReleased, why);
            ending.after.vram_after = Some(left);
            ending
        }
        Back::Unknown(why) => ActionResult::new(Outcome::Undetermined, why),
    };
    ending.after.gone_ms = Some(gone_ms);
    ending.after.vram_before = held;
    ending
}

/// Examines snapshots taken after the exit, until one shows the release or the time limit passes.
fn until_back(
    context: &ActionContext<'_>,
    before: Option<&Memory>,
    (ended, gone_at): (&BTreeSet<ProcessKey>, Duration),
) -> Back {
    let inbox = context.inbox;
    let Some((before, interval)) = before.zip(inbox.view().map(|view| view.interval())) else {
        return Back::Unknown("there is no snapshot from before the action".to_owned());
    };
    // Two intervals are enough for one snapshot that was started after the exit.
    let patience = context.settings.verify.max(interval * 2);
    let deadline = Deadline::after(patience);
    let mut last = Back::Unknown("no snapshot arrived in time".to_owned());
    loop {
        let stopped = inbox.events(context.request.id).stopped;
        if let Some(view) = inbox.view().filter(|view| view.boot() > gone_at) {
            last = back(before, &Memory::of(&view.snapshot), ended);
            if matches!(last, Back::Yes { .. }) {
                return last;
            }
        }
        if deadline.passed() || stopped {
            return last;
        }
        inbox.wait(&[], deadline);
    }
}

/// Describes a process that is still running.
fn describe(held: &super::group::MemberHandle, context: &ActionContext<'_>) -> String {
    let pid = held.found.key().pid;
    let now = context.proc_table.person(pid).ok().flatten();
    let state = now.map_or("unknown", |person| person.stat.state.name());
    format!("process {pid} is still running, in state {state}")
}
