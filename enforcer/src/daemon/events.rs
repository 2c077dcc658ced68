//! Everything that can happen to the daemon, and the order in which it is taken.

use bailiff_lifecycle::signals::Hangups;
use tokio::sync::mpsc::Receiver;

use super::requests::ControlRequest;
use super::{Threads, reload, state};
use crate::actions;
use crate::agent;
use crate::stream::Arrival;
use crate::web::Reload;
use bailiff_engine::verdict::ActionReport;

/// Everything that can happen.
pub(super) enum Event {
    Arrival(Arrival),
    /// The file of rules was read.
    Read(reload::Read),
    /// SIGHUP.
    Hangup,
    /// A request to reload the file, with the outcome.
    Reload(Reload),
    ControlRequest(ControlRequest),
    ActionReport(ActionReport),
    /// The executor asks whether its action may go on.
    Question(actions::Question),
    /// What came of a notice.
    Delivered(actions::notices::Delivery),
    /// What the agent of leases has to say.
    Leases(agent::AgentEvent),
    /// The disk has come further.
    Kept,
    Interval,
}

/// Where events come from.
pub(super) struct Sources {
    pub(super) arrivals: Receiver<Arrival>,
    pub(super) reads: Receiver<reload::Read>,
    pub(super) hangups: Hangups,
    pub(super) reloads: Receiver<Reload>,
    pub(super) asked: Receiver<ControlRequest>,
    pub(super) threads: Threads,
    /// A question of the executor's, until all snapshots that have come were evaluated.
    pub(super) question: Option<actions::Question>,
    pub(super) acks: state::Acks,
    pub(super) interval: tokio::time::Interval,
}

impl Sources {
    /// The next one.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            if let Some(question) = self.question.take() {
                // The answer rests on the newest snapshot: what has come is read first.
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
            // The result of an action is handled before the next snapshot is evaluated, and requests before both.
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
