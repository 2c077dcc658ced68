//! Executor: a thread that runs one destructive action at a time. Callers never wait for it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::context::ExecutorSettings;
use super::inbox::{Inbox, Task};
use super::permit::{Permission, Question};
use super::request::ActionRequest;
use super::worker::Worker;
use crate::audit::Audit;
use crate::clock::Deadline;
use bailiff_engine::verdict::ActionReport;
use bailiff_engine::view::View;

/// Handle of the executor. When dropped, the executor finishes its current step, records the result and ends.
#[derive(Debug)]
pub struct Executor {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// Channels from the executor.
#[derive(Debug)]
pub struct Channels {
    /// Results of actions.
    pub reports: UnboundedReceiver<ActionReport>,
    /// Questions whether the action in flight may continue; each is answered with [`Executor::permit`].
    pub questions: UnboundedReceiver<Question>,
}

impl Executor {
    /// Starts the executor. Each action results in one report, in order.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(settings: ExecutorSettings, audit: Audit) -> std::io::Result<(Self, Channels)> {
        let (questions, asked) = unbounded_channel();
        let inbox = Arc::new(Inbox::new(questions)?);
        let (reports, receiver) = unbounded_channel();
        let worker = Worker { settings, audit, inbox: Arc::clone(&inbox) };
        let thread = std::thread::Builder::new().name("hand".to_owned()).spawn(move || {
            let (mut prepared, mut coming) = (None, None);
            while let Some(task) = worker.inbox.next(coming) {
                match task {
                    Task::Prepare(until) => {
                        coming = Some(until);
                        // The old table is freed first, because two tables of a large node need much memory.
                        drop(prepared.take());
                        prepared = worker.prepare();
                    }
                    Task::ActionRequest(request) => {
                        let fresh = prepared.take().filter(|(_, good): &(_, Deadline)| !good.passed());
                        let report = worker.act(&request, fresh.map(|(table, _)| table));
                        coming = None;
                        worker.inbox.done();
                        // The receiver is closed during shutdown; the audit log has the report.
                        drop(reports.send(report));
                    }
                }
            }
        })?;
        Ok((Self { inbox, thread: Some(thread) }, Channels { reports: receiver, questions: asked }))
    }

    /// Queues an action.
    ///
    /// # Errors
    /// Returns the action if another one is queued or running.
    pub fn act(&self, request: ActionRequest) -> Result<(), Box<ActionRequest>> {
        self.inbox.act(Box::new(request))
    }

    /// Announces that an action may come within this time, so that the process table is read in advance.
    pub fn prepare(&self, within: Duration) {
        self.inbox.prepare(Deadline::after(within));
    }

    /// Returns whether an action would be accepted.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.inbox.idle()
    }

    /// Passes on a new snapshot, which shows whether a target is busy and whether its memory was released.
    pub fn seen(&self, view: Arc<View>) {
        self.inbox.seen(view);
    }

    /// Answers a question of the executor.
    pub fn permit(&self, question: Question, answer: Permission) {
        self.inbox.answer(question, answer);
    }

    /// Cancels an action: a SIGKILL that was not sent yet is not sent.
    pub fn cancel(&self, id: u64) {
        self.inbox.cancel(id);
    }

    /// Stops the executor, and waits until the result of its current step is recorded.
    pub fn finish(&mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.finish();
    }
}
