//! Inbox of the executor, and its only way to wait: for processes to exit, for events and for a deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_proc::{Pidfd, readable};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedSender;

use super::permit::{Permission, Question};
use super::request::ActionRequest;
use crate::clock::Deadline;
use bailiff_engine::view::View;

/// Wait before a poll that failed for lack of memory is retried.
const AGAIN: Duration = Duration::from_millis(100);
/// Interval at which the process table is read again for an announced action.
pub(super) const FRESH: Duration = Duration::from_millis(250);

/// Content of the inbox.
#[derive(Debug, Default)]
struct InboxState {
    request: Option<Box<ActionRequest>>,
    /// Whether an action is queued or running.
    busy: bool,
    view: Option<Arc<View>>,
    /// Whether the view is newer than the last one that was fetched.
    fresh: bool,
    cancelled: Option<u64>,
    /// Last answer, with its question.
    answer: Option<(Question, Permission)>,
    /// Time until which an announced action may come.
    prepare: Option<Deadline>,
    stop: bool,
}

/// Task of the executor.
#[derive(Debug)]
pub(super) enum Task {
    /// Carry out an action.
    ActionRequest(Box<ActionRequest>),
    /// Read the process table for an action that is announced until this deadline.
    Prepare(Deadline),
}

/// Inbox, shared by the executor and its callers.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<InboxState>,
    questions: UnboundedSender<Question>,
    /// Eventfd, readable while there are new events.
    bell: OwnedFd,
}

impl InboxState {
    fn give_up(&self, id: u64) -> Option<&'static str> {
        if self.stop {
            Some("the enforcer is shutting down")
        } else if self.cancelled == Some(id) {
            Some("the action was cancelled")
        } else {
            None
        }
    }
}

/// New events.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// New snapshot, if any.
    pub(super) view: Option<Arc<View>>,
    /// Reason to abort the action, if any.
    pub(super) give_up: Option<&'static str>,
    /// Whether the enforcer is stopping.
    pub(super) stopped: bool,
}

impl Inbox {
    pub(super) fn new(questions: UnboundedSender<Question>) -> Result<Self, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), questions, bell })
    }

    /// Queues an action.
    ///
    /// # Errors
    /// Returns the action if another one is queued or running.
    pub fn act(&self, request: ActionRequest) -> Result<(), Box<ActionRequest>> {
        let request = Box::new(request);
        let mut state = self.state();
        if state.busy {
            return Err(request);
        }
        state.busy = true;
        state.request = Some(request);
        drop(state);
        self.ring();
        Ok(())
    }

    /// Passes on a new snapshot, which shows whether a target is busy and whether its memory was released.
    pub fn seen(&self, view: Arc<View>) {
        let mut state = self.state();
        state.view = Some(view);
        state.fresh = true;
        drop(state);
        self.ring();
    }

    /// Requests permission for an action and waits for the answer; `None` if it does not come in time.
    pub(super) fn ask(&self, question: Question, until: Deadline) -> Option<Permission> {
        self.questions.send(question).ok()?;
        loop {
            let mut state = self.state();
            if let Some(why) = state.give_up(question.id) {
                return Some(Permission::Denied(why.to_owned()));
            }
            if let Some((_, answer)) = state.answer.take().filter(|(asked, _)| *asked == question) {
                return Some(answer);
            }
            drop(state);
            if until.passed() {
                return None;
            }
            self.wait(&[], until);
        }
    }

    /// Answers a question of the executor.
    pub fn permit(&self, question: Question, answer: Permission) {
        self.state().answer = Some((question, answer));
        self.ring();
    }

    /// Cancels an action: a SIGKILL that was not sent yet is not sent.
    pub fn cancel(&self, id: u64) {
        self.state().cancelled = Some(id);
        self.ring();
    }

    /// Announces that an action may come within this time, so that the process table is read in advance.
    pub fn prepare(&self, within: Duration) {
        self.state().prepare = Some(Deadline::after(within));
        self.ring();
    }

    pub(super) fn stop(&self) {
        self.state().stop = true;
        self.ring();
    }

    /// Marks the action as completed.
    pub(super) fn done(&self) {
        self.state().busy = false;
    }

    /// Returns the newest snapshot.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.state().view.clone()
    }

    /// Returns new events without waiting.
    pub(super) fn events(&self, id: u64) -> Events {
        let mut state = self.state();
        let view = if state.fresh { state.view.clone() } else { None };
        state.fresh = false;
        Events { view, give_up: state.give_up(id), stopped: state.stop }
    }

    /// Returns the reason to abort the action, if any.
    pub(super) fn given_up(&self, id: u64) -> Option<&'static str> {
        self.state().give_up(id)
    }

    /// Runs `act` unless the action was cancelled. A concurrent `pause` waits for the lock and for `act`.
    pub(super) fn unless_called_off<T>(&self, id: u64, act: impl FnOnce() -> T) -> Result<T, &'static str> {
        let state = self.state();
        state.give_up(id).map_or_else(|| Ok(act()), Err)
    }

    /// Waits for an event, the exit of a process, or the deadline.
    pub(super) fn wait(&self, living: &[&Pidfd], until: Deadline) {
        let mut files = vec![self.bell.as_fd()];
        files.extend(living.iter().map(|handle| handle.as_fd()));
        if readable(&files, Some(until)).is_err() {
            drop(readable(&[], Some(until.or(Deadline::after(AGAIN)))));
        }
        self.hush();
    }

    /// Waits for the next task; `None` at shutdown. Until `coming`, returns a `Prepare` task every [`FRESH`].
    pub(super) fn next(&self, coming: Option<Deadline>) -> Option<Task> {
        let again = coming.filter(|coming| !coming.passed()).map(|_| Deadline::after(FRESH));
        loop {
            {
                let mut state = self.state();
                let prepare = state.prepare.take();
                if let Some(request) = state.request.take() {
                    return Some(Task::ActionRequest(request));
                }
                if state.stop {
                    return None;
                }
                if let Some(until) = prepare.or(coming.filter(|_| again.is_some_and(Deadline::passed))) {
                    return Some(Task::Prepare(until));
                }
                state.fresh = false;
            }
            if readable(&[self.bell.as_fd()], again).is_err() {
                drop(readable(&[], Some(Deadline::after(AGAIN))));
            }
            self.hush();
        }
    }

    fn ring(&self) {
        // A write can fail only if the eventfd is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
