//! What the executor receives while it works, and the one way in which it waits: for processes to end, for events, and
//! for a deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedSender;

use super::permit::{Permission, Question};
use super::pidfd::{Handle, readable};
use super::request::ActionRequest;
use crate::clock::Deadline;
use bailiff_engine::view::View;

/// Where a poll fails, for want of memory, it is tried again after this long.
const AGAIN: Duration = Duration::from_millis(100);
/// What was looked up for an action that is coming is not older than this.
pub(super) const FRESH: Duration = Duration::from_millis(250);

/// What has been received.
#[derive(Debug, Default)]
struct InboxState {
    request: Option<Box<ActionRequest>>,
    /// An action is waiting or being done.
    busy: bool,
    view: Option<Arc<View>>,
    /// It is newer than what was fetched.
    fresh: bool,
    cancelled: Option<u64>,
    /// The last answer, with its question.
    answer: Option<(Question, Permission)>,
    /// An action is coming, until then.
    prepare: Option<Deadline>,
    stop: bool,
}

/// What there is to do.
#[derive(Debug)]
pub(super) enum Task {
    /// An action.
    ActionRequest(Box<ActionRequest>),
    /// An action is coming, until then: what it will need can be looked up now.
    Prepare(Deadline),
}

/// Shared by the senders and the executor.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    questions: UnboundedSender<Question>,
    /// Readable when there is news.
    bell: OwnedFd,
}

impl InboxState {
    fn give_up(&self, id: u64) -> Option<&'static str> {
        if self.stop {
            Some("this program was asked to end")
        } else if self.cancelled == Some(id) {
            Some("it was called off")
        } else {
            None
        }
    }
}

/// What is new.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A snapshot.
    pub(super) view: Option<Arc<View>>,
    /// The action is to be given up, and why.
    pub(super) give_up: Option<&'static str>,
    /// This program is to end.
    pub(super) stopped: bool,
}

impl Inbox {
    pub(super) fn new(questions: UnboundedSender<Question>) -> Result<Self, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), questions, bell })
    }

    /// Takes an action, unless there is one already.
    pub(super) fn act(&self, request: Box<ActionRequest>) -> Result<(), Box<ActionRequest>> {
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

    pub(super) fn seen(&self, view: Arc<View>) {
        let mut state = self.state();
        state.view = Some(view);
        state.fresh = true;
        drop(state);
        self.ring();
    }

    /// Requests permission for an action and waits for the answer; none if it does not come in time.
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

    pub(super) fn answer(&self, question: Question, answer: Permission) {
        self.state().answer = Some((question, answer));
        self.ring();
    }

    pub(super) fn cancel(&self, id: u64) {
        self.state().cancelled = Some(id);
        self.ring();
    }

    pub(super) fn prepare(&self, until: Deadline) {
        self.state().prepare = Some(until);
        self.ring();
    }

    pub(super) fn stop(&self) {
        self.state().stop = true;
        self.ring();
    }

    /// No action is waiting or being done.
    pub(super) fn idle(&self) -> bool {
        !self.state().busy
    }

    /// The action is over.
    pub(super) fn done(&self) {
        self.state().busy = false;
    }

    /// The newest snapshot.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.state().view.clone()
    }

    /// What is new, at once.
    pub(super) fn events(&self, id: u64) -> Events {
        let mut state = self.state();
        let view = if state.fresh { state.view.clone() } else { None };
        state.fresh = false;
        Events { view, give_up: state.give_up(id), stopped: state.stop }
    }

    /// Why an action is to be given up, where it is.
    pub(super) fn given_up(&self, id: u64) -> Option<&'static str> {
        self.state().give_up(id)
    }

    /// Acts, unless the action was called off. A `pause` that comes meanwhile waits for the lock, so it is answered afterwards.
    pub(super) fn unless_called_off<T>(&self, id: u64, act: impl FnOnce() -> T) -> Result<T, &'static str> {
        let state = self.state();
        state.give_up(id).map_or_else(|| Ok(act()), Err)
    }

    /// Waits until there is news, one of them ends or the time is up.
    pub(super) fn wait(&self, living: &[&Handle], until: Deadline) {
        let mut files = vec![self.bell.as_fd()];
        files.extend(living.iter().map(|handle| handle.as_fd()));
        if readable(&files, Some(until)).is_err() {
            drop(readable(&[], Some(until.or(Deadline::after(AGAIN)))));
        }
        self.hush();
    }

    /// Waits for something to do, or for the end. Until `coming` an action may come, and is prepared for again and
    /// again.
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
        // A bell that rings already cannot ring more.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
