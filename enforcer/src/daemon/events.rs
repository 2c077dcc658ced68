//! Events of the daemon, in order of priority.

use bailiff_lifecycle::signals::Hangups;
use tokio::sync::mpsc::Receiver;

use super::requests::ControlRequest;
use super::{Threads, reload, state};
use crate::actions;
use crate::agent;
use crate::stream::Arrival;
use crate::web::Reload;
use bailiff_engine::verdict::ActionReport;

/// An event for the daemon's loop.
pub(super) enum Event {
    Arrival(Arrival),
    /// The rules file was read.
    Read(reload::Read),
    /// SIGHUP.
    Hangup,
    /// Request to reload the rules file, with a channel for the outcome.
    Reload(Reload),
    ControlRequest(ControlRequest),
    ActionReport(ActionReport),
    /// The executor requests permission to continue its action.
    Question(actions::Question),
    /// Result of a notification.
    Delivered(actions::notices::Delivery),
    /// Event of the lease agent.
    Leases(agent::AgentEvent),
    /// The state writer has finished a write.
    Kept,
    Interval,
}

/// Sources of the events.
pub(super) struct Sources {
    pub(super) arrivals: Receiver<Arrival>,
    pub(super) reads: Receiver<reload::Read>,
    pub(super) hangups: Hangups,
    pub(super) reloads: Receiver<Reload>,
    pub(super) asked: Receiver<ControlRequest>,
    pub(super) threads: Threads,
    /// Question from the executor, held back until all queued snapshots are evaluated.
    pub(super) question: Option<actions::Question>,
    pub(super) acks: state::Acks,
    pub(super) interval: tokio::time::Interval,
}

impl Sources {
    /// Returns the next event.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            if let Some(question) = self.question.take() {
                // The answer must be based on the newest snapshot, so queued snapshots are handled first.
                tokio::task::yield_now().await;
                let Ok(arrival) = self.arrivals.try_recv() else { return Event::Question(question) };
                self.question = Some(question);
                return Event::Arrival(arrival);
            }
            match self.any().await {
                Event::Question(question) => self.question = Some(question),
                event => return event,
            }
        }
    }

    async fn any(&mut self) -> Event {
        tokio::select! {
            // In order of priority: results of actions and requests are handled before the next snapshot.
            biased;
            Some(report) = self.threads.reports.reports.recv() => Event::ActionReport(report),
            () = self.acks.next() => Event::Kept,
            Some(delivery) = self.threads.deliveries.recv() => Event::Delivered(delivery),
            Some(events) = self.threads.leases.recv() => Event::Leases(events),
            Some(asked) = self.asked.recv() => Event::ControlRequest(asked),
            Some(reload) = self.reloads.recv() => Event::Reload(reload),
            () = self.hangups.next() => Event::Hangup,
            Some(read) = self.reads.recv() => Event::Read(read),
            Some(arrival) = self.arrivals.recv() => Event::Arrival(arrival),
            Some(question) = self.threads.reports.questions.recv() => Event::Question(question),
            _ = self.interval.tick() => Event::Interval,
        }
    }
}
