//! What the executor is told while it works, and the one way in which it waits: for processes to end, for news, and
//! for the time to be up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedSender;

use super::clock::Deadline;
use super::permit::{Permission, Question};
use super::pidfd::{Handle, readable};
use super::request::ActionRequest;
use crate::view::View;

/// Where a poll fails, for want of memory, it is tried again after this long.
const AGAIN: Duration = Duration::from_millis(100);
/// What was looked up for an action that is coming is not older than this.
pub(super) const FRESH: Duration = Duration::from_millis(250);

/// What has been told.
#[derive(Debug, Default)]
struct Told {
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

/// Shared by those who tell and the one who does.
#[derive(Debug)]
pub(super) struct Inbox {
    told: Mutex<Told>,
    questions: UnboundedSender<Question>,
    /// Readable when there is news.
    bell: OwnedFd,
}

impl Told {
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
pub(super) struct News {
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
        Ok(Self { told: Mutex::default(), questions, bell })
    }

    /// Takes an action, unless there is one already.
    pub(super) fn act(&self, request: Box<ActionRequest>) -> Result<(), Box<ActionRequest>> {
        let mut told = self.told();
        if told.busy {
            return Err(request);
        }
        told.busy = true;
        told.request = Some(request);
        drop(told);
        self.ring();
        Ok(())
    }

    pub(super) fn seen(&self, view: Arc<View>) {
        let mut told = self.told();
        told.view = Some(view);
        told.fresh = true;
        drop(told);
        self.ring();
    }

    /// Asks whether an action may go on, and waits for the answer; none where it does not come in time.
    pub(super) fn ask(&self, question: Question, until: Deadline) -> Option<Permission> {
        self.questions.send(question).ok()?;
        loop {
            let mut told = self.told();
            if let Some(why) = told.give_up(question.id) {
                return Some(Permission::Denied(why.to_owned()));
            }
            if let Some((_, answer)) = told.answer.take().filter(|(asked, _)| *asked == question) {
                return Some(answer);
            }
            drop(told);
            if until.passed() {
                return None;
            }
            self.wait(&[], until);
        }
    }

    pub(super) fn answer(&self, question: Question, answer: Permission) {
        self.told().answer = Some((question, answer));
        self.ring();
    }

    pub(super) fn cancel(&self, id: u64) {
        self.told().cancelled = Some(id);
        self.ring();
    }

    pub(super) fn prepare(&self, until: Deadline) {
        self.told().prepare = Some(until);
        self.ring();
    }

    pub(super) fn stop(&self) {
        self.told().stop = true;
        self.ring();
    }

    /// No action is waiting or being done.
    pub(super) fn idle(&self) -> bool {
        !self.told().busy
    }

    /// The action is over.
    pub(super) fn done(&self) {
        self.told().busy = false;
    }

    /// The newest snapshot.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        self.told().view.clone()
    }

    /// What is new, at once.
    pub(super) fn news(&self, id: u64) -> News {
        let mut told = self.told();
        let view = if told.fresh { told.view.clone() } else { None };
        told.fresh = false;
        News { view, give_up: told.give_up(id), stopped: told.stop }
    }

    /// Why an action is to be given up, where it is.
    pub(super) fn given_up(&self, id: u64) -> Option<&'static str> {
        self.told().give_up(id)
    }

    /// Acts, unless the action was called off. A `pause` that comes meanwhile waits for the lock, so it is answered afterwards.
    pub(super) fn unless_called_off<T>(&self, id: u64, act: impl FnOnce() -> T) -> Result<T, &'static str> {
        let told = self.told();
        told.give_up(id).map_or_else(|| Ok(act()), Err)
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
                let mut told = self.told();
                let prepare = told.prepare.take();
                if let Some(request) = told.request.take() {
                    return Some(Task::ActionRequest(request));
                }
                if told.stop {
                    return None;
                }
                if let Some(until) = prepare.or(coming.filter(|_| again.is_some_and(Deadline::passed))) {
                    return Some(Task::Prepare(until));
                }
                told.fresh = false;
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

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
