//! Processes of a subject, each held by a pidfd and compared with the evaluated process after it was opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bailiff_proc::{LATE, Pidfd};
use bailiff_snapshot::State::{self, Dead, DiskSleep, Stopped, Traced, Zombie};
use bailiff_snapshot::{ProcessKey, Truth, millis};
use rustix::io::Errno;
use rustix::process::Signal;

use super::cgroup::Boundary;
use super::freezer;
use super::permit::{Permit, send};
use super::request::ActionRequest;
use crate::audit::Sent;
use crate::clock::{self, Deadline};
use crate::privileged::SignalError;
use crate::process_table::{OPEN_FILES, ProcessTableError, Processes};
use bailiff_engine::Kind;
use bailiff_engine::guard::{self, Found, Ourselves, Refusal};
use bailiff_engine::members::Members;
use bailiff_engine::process::{ProcessInfo, Table};
use bailiff_engine::verdict::Outcome;
use bailiff_engine::view::View;

/// If the first signal is not sent within this time, new members are searched again.
const A_WHILE: Duration = Duration::from_millis(10);

/// A process with its pidfd.
#[derive(Debug)]
pub(super) struct MemberHandle {
    pub(super) handle: Pidfd,
    pub(super) found: Found,
    /// Signals that were sent; only SIGCONT is sent more than once.
    sent: Vec<Signal>,
}

/// Members of a subject.
#[derive(Debug)]
pub(super) struct Group<'a> {
    proc_table: &'a Processes,
    pub(super) request: &'a ActionRequest,
    /// Snapshot that shows which processes hold GPU memory.
    view: Option<Arc<View>>,
    /// Process table at its last read.
    table: Table,
    /// Uid of the members.
    pub(super) owner: u32,
    pub(super) held: Vec<MemberHandle>,
    pub(super) sent: Vec<Sent>,
    pub(super) notes: Vec<String>,
    /// Whether the action was begun without a signal, so that all evaluated members may exit.
    pub(super) begun: bool,
    began: Duration,
    /// Cgroup of the workload. If it is removed, a process at the same path belongs to another workload.
    pub(super) boundary: Boundary,
    /// Error of a signal that the kernel refused.
    pub(super) denied: Option<SignalError>,
}

impl From<ProcessTableError> for Refusal {
    fn from(blind: ProcessTableError) -> Self {
        let outcome = if blind.is_late() { Outcome::Cancelled } else { Outcome::Refused };
        Self { outcome, why: blind.to_string() }
    }
}

impl<'a> Group<'a> {
    /// Opens pidfds of all members and lets the guard check them. `view` is the newest snapshot.
    pub(super) fn gather(
        proc_table: &'a Processes,
        request: &'a ActionRequest,
        (view, table): (Option<Arc<View>>, Table),
    ) -> Result<Self, Refusal> {
        let mut group = Self {
            proc_table,
            request,
            view,
            table,
            owner: 0,
            held: Vec::new(),
            sent: Vec::new(),
            notes: Vec::new(),
            begun: false,
            began: clock::running(),
            boundary: Boundary::default(),
            denied: None,
        };
        let expected = group.expected();
        group.refuse_unclear(&group.table, &expected)?;
        group.held = group.hold(&expected, &group.table.unread)?;
        group.let_go();
        let found = group.found();
        group.notes = guard::identify(&request.subject, &found)?;
        group.owner = owner(request, &found)?;
        group.permit(&found, &group.table)?;
        Ok(group)
    }

    /// Lets the guard check processes.
    fn permit(&self, found: &[Found], table: &Table) -> Result<(), Refusal> {
        let limits = &self.request.limits;
        // The containers of a pod can have different users.
        let owner = Some(self.owner).filter(|_| self.request.subject.kind != Kind::Pod);
        guard::permit(owner, found, &ourselves(table, limits.exporter), limits)
    }

    /// Drops processes that are not members when they are read again through their pidfd.
    fn let_go(&mut self) {
        let people = self.held.iter().map(|held| held.found.person.clone());
        self.table = std::mem::take(&mut self.table).with(people);
        let expected = self.expected();
        self.held.retain(|held| expected.get(&held.found.key().pid) == Some(&held.found.key()));
    }

    /// Reads all processes again, opens pidfds of new members, and lets the guard check all. Returns the
    /// number of new members.
    pub(super) fn renew(&mut self) -> Result<usize, Refusal> {
        // The old table is freed first, because two tables of a large node need much memory.
        self.table = Table::default();
        let table = self.proc_table.since(Table::default(), &self.held_pids())?;
        self.take_in(table)
    }

    fn held_pids(&self) -> BTreeSet<u32> {
        self.held.iter().map(|held| held.found.key().pid).collect()
    }

    /// Like [`Group::renew`], just before the first signal. Reads only members and new processes, and nothing
    /// if the group was gathered a moment ago.
    pub(super) fn renew_after_a_while(&mut self) -> Result<usize, Refusal> {
        if clock::running().saturating_sub(self.began) < A_WHILE {
            return Ok(0);
        }
        let table = self.proc_table.since(std::mem::take(&mut self.table), &self.held_pids())?;
        self.take_in(table)
    }

    fn take_in(&mut self, table: Table) -> Result<usize, Refusal> {
        for held in &mut self.held {
            if let Some(person) = table.get(held.found.key()) {
                held.found.person = person.clone();
            }
        }
        // As long as a member lives, its pid is not reused, even if it could not be read again.
        let same = |held: &&MemberHandle| table.unread.contains(&held.found.key().pid) && held.handle.lives();
        let unread: Vec<ProcessInfo> =
            self.held.iter().filter(same).map(|held| held.found.person.clone()).collect();
        let table = if unread.is_empty() { table } else { table.with(unread) };
        let known: BTreeSet<ProcessKey> = self.held.iter().map(|held| held.found.key()).collect();
        let mut expected = self.members(&self.living_keys()).find(&table);
        self.refuse_unclear(&table, &expected)?;
        let stands = self.boundary.stands();
        expected.retain(|_, key| stands && !known.contains(key));
        let new = self.hold(&expected, &table.unread)?;
        let living = self.held.iter().filter(|held| held.handle.lives()).map(|held| held.found.clone());
        let all: Vec<Found> = living.chain(new.iter().map(|held| held.found.clone())).collect();
        if self.sent.is_empty() && !self.begun {
            // Until the first signal, members may still turn out to be other processes.
            guard::identify(&self.request.subject, &all)?;
        }
        self.permit(&all, &table)?;
        let came = new.len();
        self.held.extend(new);
        self.table = table;
        Ok(came)
    }

    /// Sends SIGTERM to running members to which it was not sent before.
    pub(super) fn ask(&mut self, permit: &Permit) {
        self.send(Signal::TERM, "SIGTERM", permit);
    }

    /// Sends SIGKILL to all running members, after SIGTERM to members to which SIGTERM was not sent before.
    pub(super) fn kill(&mut self, permit: &Permit) {
        self.send(Signal::TERM, "SIGTERM", permit);
        self.send(Signal::KILL, "SIGKILL", permit);
    }

    /// Stops the running members, so that they start no process while they are examined. They are killed or
    /// continued ([`Group::go_on`]) within a second.
    pub(super) fn stop(&mut self, permit: &Permit) {
        self.send(Signal::STOP, "SIGSTOP", permit);
    }

    /// Sends SIGCONT to all running members.
    pub(super) fn go_on(&mut self, permit: &Permit) {
        self.send(Signal::CONT, "SIGCONT", permit);
    }

    /// Returns whether a member was stopped by this action.
    pub(super) fn was_stopped(&self) -> bool {
        self.held.iter().any(|held| held.sent.contains(&Signal::STOP))
    }

    /// Continues stopped members, so that they handle SIGTERM.
    pub(super) fn continue_stopped(&mut self, permit: &Permit) {
        if self.left().any(|held| held.found.person.stat.state == Stopped) {
            self.go_on(permit);
        }
    }

    /// Returns the pid of a member that holds GPU memory and is stopped, traced or frozen, if any.
    pub(super) fn on_hold(&self, cgroups: Option<&Path>) -> Option<u32> {
        let members = &self.request.subject.members;
        let holds = |pid: u32| members.iter().any(|member| member.holds && member.pid == pid);
        let frozen = |pid| cgroups.is_some_and(|root| freezer::is_frozen(root, self.proc_table, pid));
        let each = self.held.iter().map(|held| (held.found.key().pid, held.found.person.stat.state));
        let on_hold =
            each.filter(|(pid, _)| holds(*pid)).find(|(pid, state)| state.on_hold() || frozen(*pid));
        on_hold.map(|(pid, _)| pid)
    }

    /// Returns whether no member can start a process: all are stopped, in uninterruptible sleep, or exited.
    pub(super) fn stands_still(&self) -> bool {
        self.left().all(|held| {
            let states = self.proc_table.threads(held.found.key().pid);
            let is_still = |state: &State| matches!(state, Stopped | Traced | DiskSleep | Zombie | Dead);
            states.is_ok_and(|states| states.iter().all(is_still))
        })
    }

    /// Sends a signal to all running members to which it was not sent before.
    pub(super) fn send(&mut self, signal: Signal, name: &'static str, permit: &Permit) {
        for held in &mut self.held {
            // SIGCONT may be needed again if a member was stopped again; other signals are sent once.
            if (held.sent.contains(&signal) && signal != Signal::CONT) || !held.handle.lives() {
                continue;
            }
            held.sent.push(signal);
            let result = match send(&held.handle, signal, permit) {
                Ok(true) => "sent".to_owned(),
                Ok(false) => "had exited".to_owned(),
                Err(error) => {
                    let why = error.to_string();
                    self.denied = Some(error);
                    why
                }
            };
            // If the privileged process hangs, each further signal would wait as long.
            let hangs = matches!(self.denied, Some(SignalError::Kernel(Errno::TIMEDOUT | Errno::PIPE)));
            let key = held.found.key();
            self.sent.push(Sent {
                pid: key.pid,
                start_ticks: key.start_ticks,
                comm: held.found.person.stat.comm.clone(),
                signal: name,
                at_ms: millis(clock::running().saturating_sub(self.began)),
                result,
            });
            if hangs {
                break;
            }
        }
    }

    /// Records an effect on the whole group, such as `cgroup.kill`.
    pub(super) fn sent_to_all(&mut self, what: &'static str) {
        let at_ms = self.age_ms();
        let comm = String::new();
        self.sent.push(Sent { pid: 0, start_ticks: 0, comm, signal: what, at_ms, result: "sent".to_owned() });
    }

    pub(super) fn living(&self) -> Vec<&Pidfd> {
        self.held.iter().map(|held| &held.handle).filter(|handle| !handle.ended()).collect()
    }

    /// Returns the members that are not known to have exited.
    pub(super) fn left(&self) -> impl Iterator<Item = &MemberHandle> {
        self.held.iter().filter(|held| !held.handle.ended())
    }

    pub(super) fn all_ended(&self) -> bool {
        self.held.iter().all(|held| held.handle.ended())
    }

    /// Returns the keys of all members, including those that have exited.
    pub(super) fn keys(&self) -> BTreeSet<ProcessKey> {
        self.held.iter().map(|held| held.found.key()).collect()
    }

    /// Returns the pids of the running members.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.living_keys().iter().map(|key| key.pid).collect()
    }

    /// Returns whether the member with this pid is running.
    pub(super) fn lives(&self, pid: u32) -> bool {
        self.held.iter().any(|held| held.found.key().pid == pid && held.handle.lives())
    }

    /// Returns all processes of the node at the last read of the table.
    pub(super) fn people(&self) -> impl Iterator<Item = &ProcessInfo> {
        self.table.people.values()
    }

    /// Returns whether a process was not read in time at the last read of the table.
    pub(super) fn is_unread(&self, pid: u32) -> bool {
        self.table.unread.contains(&pid)
    }

    /// Returns this program's cgroup of version 2.
    pub(super) fn own_cgroup(&self) -> Option<Arc<str>> {
        self.proc_table.person(std::process::id()).ok().flatten()?.unified
    }

    /// Returns the milliseconds since the group was gathered.
    pub(super) fn age_ms(&self) -> u64 {
        millis(clock::running().saturating_sub(self.began))
    }

    pub(super) fn living_keys(&self) -> Vec<ProcessKey> {
        self.left().map(|held| held.found.key()).collect()
    }

    fn found(&self) -> Vec<Found> {
        self.held.iter().map(|held| held.found.clone()).collect()
    }

    fn members<'b>(
        &'b self,
        verified: &'b [ProcessKey],
    ) -> Members<'b, impl Fn(ProcessKey) -> Truth + use<'a, 'b>> {
        let holds = |key| self.view.as_ref().map_or(Truth::Unknown, |view| view.holds(key));
        Members { subject: &self.request.subject, verified, holds }
    }

    /// Fails if a process whose cgroup is unknown may belong to the subject, or if one of these members may be a separate target.
    fn refuse_unclear(&self, table: &Table, members: &BTreeMap<u32, ProcessKey>) -> Result<(), Refusal> {
        if let Some(pid) = self.members(&[]).unclear(table, members) {
            let why = format!("process {pid} may belong to the target, because its cgroup is unknown");
            return Err(Refusal::refused(why));
        }
        self.members(&[]).separate(members).map_or(Ok(()), |pid| {
            if table.unread.contains(&pid) {
                // Its user can make reads of it hang, so these attempts must be counted.
                return Err(ProcessTableError::Process(pid, LATE).into());
            }
            let why = format!("process {pid} may be a separate target, because its GPU memory is unknown");
            Err(Refusal { outcome: Outcome::Reprieved, why })
        })
    }

    /// Returns all processes of the subject, and every process with the pid of an evaluated holder.
    fn expected(&self) -> BTreeMap<u32, ProcessKey> {
        let mut expected = self.members(&[]).find(&self.table);
        for member in self.request.subject.members.iter().filter(|member| member.holds) {
            if let Some(person) = self.table.people.get(&member.pid) {
                expected.insert(member.pid, person.stat.key);
            }
        }
        expected
    }

    /// Opens a pidfd of each process, then reads its identity. Omits processes that have exited or changed.
    /// Fails if one of them was not read in time, because its identity is unknown.
    fn hold(
        &self,
        expected: &BTreeMap<u32, ProcessKey>,
        unread: &BTreeSet<u32>,
    ) -> Result<Vec<MemberHandle>, Refusal> {
        if let Some(pid) = expected.keys().find(|pid| unread.contains(pid)) {
            return Err(ProcessTableError::Process(*pid, LATE).into());
        }
        if expected.len() > self.request.limits.max_processes {
            let most = self.request.limits.max_processes;
            return Err(Refusal::refused(format!(
                "the target has {} processes; the maximum is {most}",
                expected.len()
            )));
        }
        let until = Deadline::after(OPEN_FILES);
        let held = expected.values().filter_map(|key| self.hold_one(*key, until).transpose());
        held.collect()
    }

    fn hold_one(&self, key: ProcessKey, until: Deadline) -> Result<Option<MemberHandle>, Refusal> {
        let handle = match Pidfd::open(key.pid) {
            Ok(Some(handle)) => handle,
            Ok(None) => return Ok(None),
            Err(Errno::NOSYS) => {
                return Err(Refusal::refused(
                    "the kernel does not support pidfds (Linux 5.3 or newer is required)",
                ));
            }
            Err(error) => {
                return Err(Refusal::refused(format!("cannot open a pidfd of process {}: {error}", key.pid)));
            }
        };
        let holds = self.request.subject.members.iter().any(|member| member.holds && member.pid == key.pid);
        let found = if holds {
            let holder = self.proc_table.holder(key.pid, until)?;
            holder.map(|(person, devices)| Found { person, devices: Some(devices) })
        } else {
            self.proc_table.person(key.pid)?.map(|person| Found { person, devices: None })
        };
        let Some(found) = found.filter(|found| found.key() == key) else { return Ok(None) };
        // What was read belongs to the process of the pidfd only if that process is still running.
        Ok(handle.lives().then_some(MemberHandle { handle, found, sent: Vec::new() }))
    }
}

fn owner(request: &ActionRequest, found: &[Found]) -> Result<u32, Refusal> {
    if let Some(job) = &request.subject.job {
        return Ok(job.uid);
    }
    if request.subject.kind == Kind::Pod {
        return Ok(request.subject.charged().unwrap_or_default());
    }
    let holders =
        request.subject.members.iter().filter(|member| member.holds).filter_map(|member| member.key);
    let mut living = holders.filter_map(|key| found.iter().find(|found| found.key() == key));
    let holder = living.next().ok_or_else(|| Refusal::refused("the owner of the target is unknown"))?;
    Ok(holder.person.uid)
}

/// Returns processes that are never signalled: this program, its ancestors, the exporter, its descendants, and processes
/// below CRIU.
fn ourselves(table: &Table, exporter: Option<ProcessKey>) -> Ourselves {
    let us = std::process::id();
    let own = table.ancestors(us).into_iter().chain([us]);
    let mut all: BTreeMap<u32, &'static str> =
        own.map(|pid| (pid, "it is the enforcer or one of its ancestors")).collect();
    let exporter = exporter.filter(|key| table.has(*key)).map(|key| key.pid);
    let criu =
        table.people.values().filter(|person| guard::restores(person)).map(|person| person.stat.key.pid);
    let mut next: Vec<_> = criu.map(|pid| (pid, guard::RESTORED)).collect();
    next.extend(exporter.map(|pid| (pid, "it belongs to the exporter")));
    while let Some((pid, why)) = next.pop() {
        if all.insert(pid, why) != Some(why) {
            next.extend(table.children(pid).iter().map(|child| (*child, why)));
        }
    }
    Ourselves(all)
}
