//! What the hand's thread does with a deed: the guard is asked, the deed is done or not, and what came of it is
//! written and reported.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bailiff_snapshot::ProcessKey;

use super::clock::Deadline;
use super::deed::Deed;
use super::ending::Ending;
use super::group::Group;
use super::hand::Settings;
use super::inbox::{FRESH, Inbox};
use super::licence::carry_out;
use super::terminate::Termination;
use super::{exec, mps, release, signal};
use crate::audit::Audit;
use crate::census::{Census, Table};
use crate::guard::Refusal;
use crate::policy::{Action, Kind};
use crate::verdict::{Outcome, Report, Subject};

/// The hand's thread.
pub(super) struct Worker {
    pub(super) settings: Settings,
    pub(super) audit: Audit,
    pub(super) inbox: Arc<Inbox>,
}

/// One deed, with what it is done with.
pub(super) struct Work<'a> {
    pub(super) settings: &'a Settings,
    pub(super) audit: &'a Audit,
    pub(super) inbox: &'a Inbox,
    pub(super) census: &'a Census,
    pub(super) deed: &'a Deed,
    /// Who was there when the deed was seen to come.
    pub(super) prepared: Cell<Option<Table>>,
}

impl Worker {
    /// Does a deed, and has written what came of it when it returns.
    pub(super) fn act(&self, deed: &Deed, prepared: Option<Table>) -> Report {
        let mut ending = self.end(deed, prepared).unwrap_or_else(Ending::from);
        // What was done in part was not refused: it counts, and so does that it went wrong.
        let undone = matches!(ending.outcome, Outcome::Refused | Outcome::IdentityChanged);
        if undone && !ending.after.sent.is_empty() {
            ending.outcome = Outcome::Failed;
        }
        if ending.after.vram_before.is_none() {
            ending.after.vram_before = vram(&deed.subject);
        }
        self.audit.tell(&deed.record(ending.outcome.name(), &ending.detail, Some(&ending.after)));
        Report { id: deed.id, outcome: ending.outcome, detail: ending.detail, released: ending.released }
    }

    /// Looks at everybody, for a deed that is coming; tells how long that is good for.
    pub(super) fn prepare(&self) -> Option<(Table, Deadline)> {
        let good = Deadline::after(FRESH * 2);
        let census = Census::open(&self.settings.procfs, &self.settings.devices).ok()?;
        Some((census.everybody().ok()?, good))
    }

    fn end(&self, deed: &Deed, prepared: Option<Table>) -> Result<Ending, Refusal> {
        let census = Census::open(&self.settings.procfs, &self.settings.devices)?;
        let work = Work {
            settings: &self.settings,
            audit: &self.audit,
            inbox: &self.inbox,
            census: &census,
            deed,
            prepared: Cell::new(prepared),
        };
        match &deed.action {
            Action::Terminate { grace } => {
                let group = work.gather()?;
                Ok(work.carry_out(|licence| Termination::new(&work, group, *grace, licence).run()))
            }
            Action::Signal(signal) => signal::send(&work, *signal),
            Action::ShutdownMps => mps::shut_down(&work),
            Action::Exec(program) => exec::run(&work, program),
            Action::ReleaseLease => release::release(&work),
            Action::Flag(_) | Action::Notify(_) => Err(Refusal::refused("that is no deed")),
        }
    }
}

impl<'a> Work<'a> {
    /// Takes hold of the subject's processes, or refuses.
    pub(super) fn gather(&self) -> Result<Group<'a>, Refusal> {
        match self.deed.subject.kind {
            Kind::Process | Kind::Workload => {
                let table = match self.prepared.take() {
                    Some(before) => self.census.since(before, &BTreeSet::new())?,
                    None => self.census.everybody()?,
                };
                Group::gather(self.census, self.deed, (self.holding(), table))
            }
            Kind::Gpu | Kind::Lease => Err(Refusal::refused("that has no processes of its own")),
            Kind::MpsServer => Err(Refusal::refused("a server of MPS is never signalled")),
        }
    }

    /// The deed, unless the rule watches.
    pub(super) fn carry_out(&self, act: impl FnOnce(&super::licence::Licence) -> Ending) -> Ending {
        carry_out(self.audit, self.deed, act)
    }

    /// All that the newest snapshot lists.
    fn holding(&self) -> BTreeSet<ProcessKey> {
        let view = self.inbox.view();
        let listed = view.iter().flat_map(|view| &view.snapshot.processes);
        let named = listed
            .filter_map(|process| Some(ProcessKey { pid: process.pid, start_ticks: process.start_ticks? }));
        named.collect()
    }
}

/// What the subject held when it was judged; none where a part is not known.
fn vram(subject: &Subject) -> Option<u64> {
    subject.members.iter().map(|member| member.vram).sum()
}

/// For deeds that end where they are done.
pub(super) fn done(outcome: Outcome, detail: impl Into<String>, mut group: Group<'_>) -> Ending {
    let mut ending = Ending::new(outcome, detail);
    ending.after.sent.append(&mut group.sent);
    ending.after.notes.append(&mut group.notes);
    ending
}
