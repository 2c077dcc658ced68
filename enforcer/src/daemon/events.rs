//! Events of the daemon, in order of priority.

use bailiff_lifecycle::signals::Hangups;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until};

use super::requests::ControlRequest;
use super::{Threads, reload, state};
use crate::actions;
use crate::agent;
use crate::stream::Arrival;
use crate::web::Reload;
use bailiff_engine::verdict::ActionReport;

/// Maximum number of results of notifications that are handled before other events.
const MOST_DELIVERIES: usize = 64;

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
    /// Results of notifications.
    Delivered(Vec<actions::notices::Delivery>),
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
    pub(super) users: UserRequests,
    pub(super) threads: Threads,
    pub(super) taken: Taken,
    pub(super) acks: state::Acks,
    pub(super) interval: tokio::time::Interval,
}

/// What was received and is not an event yet.
#[derive(Default)]
pub(super) struct Taken {
    /// Question from the executor, held back until all queued snapshots are evaluated.
    question: Option<actions::Question>,
    delivered: Vec<actions::notices::Delivery>,
}

/// Requests of users. Everything else is handled first, and they take at most a tenth of the time.
pub(super) struct UserRequests {
    requests: Receiver<ControlRequest>,
    /// When the last request was passed on, if it may not be handled yet.
    began: Option<Instant>,
    /// Time before which no further request is handled.
    pause: Instant,
}

impl UserRequests {
    pub(super) fn new(requests: Receiver<ControlRequest>) -> Self {
        Self { requests, began: None, pause: Instant::now() }
    }

    /// Records that the last request has been handled.
    fn handled(&mut self) {
        if let Some(began) = self.began.take() {
            self.pause = Instant::now() + began.elapsed() * 9;
        }
    }

    async fn next(&mut self) -> Option<ControlRequest> {
        sleep_until(self.pause).await;
        let request = self.requests.recv().await?;
        self.began = Some(Instant::now());
        Some(request)
    }
}

impl Sources {
    /// Returns the next event; the previous one has been handled.
    pub(super) async fn next(&mut self) -> Event {
        self.users.handled();
        loop {
            if let Some(question) = self.taken.question.take() {
                // The answer must be based on the newest snapshot, so queued snapshots are handled first.
                tokio::task::yield_now().await;
                let Ok(arrival) = self.arrivals.try_recv() else { return Event::Question(question) };
                self.taken.question = Some(question);
                return Event::Arrival(arrival);
            }
            match self.any().await {
                Event::Question(question) => self.taken.question = Some(question),
                event => return event,
            }
        }
    }

    async fn any(&mut self) -> Event {
        tokio::select! {
            // In order of priority: results of actions and requests are handled before the next snapshot, and what users
            // cause comes last.
            biased;
            Some(report) = self.threads.reports.reports.recv() => Event::ActionReport(report),
            () = self.acks.next() => Event::Kept,
            Some(events) = self.threads.leases.recv() => Event::Leases(events),
            Some(asked) = self.asked.recv() => Event::ControlRequest(asked),
            Some(reload) = self.reloads.recv() => Event::Reload(reload),
            () = self.hangups.next() => Event::Hangup,
            Some(read) = self.reads.recv() => Event::Read(read),
            Some(arrival) = self.arrivals.recv() => Event::Arrival(arrival),
            Some(question) = self.threads.reports.questions.recv() => Event::Question(question),
            _ = self.interval.tick() => Event::Interval,
            // A user can cause very many notifications at once.
            1.. = self.threads.deliveries.recv_many(&mut self.taken.delivered, MOST_DELIVERIES) => {
                Event::Delivered(std::mem::take(&mut self.taken.delivered))
            }
            Some(asked) = self.users.next() => Event::ControlRequest(asked),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bailiff_lifecycle::control::Peer;
    use serde_json::Value;
    use tokio::sync::mpsc::channel;
    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;
    use crate::daemon::requests::Origin;

    #[tokio::test(start_paused = true)]
    async fn requests_of_users_take_a_tenth_of_the_time() {
        let (asked, requests) = channel(16);
        let mut users = UserRequests::new(requests);
        for _ in 0..3 {
            let peer = Peer { pid: None, uid: 1000, gid: 1000, groups: Vec::new() };
            let answer = oneshot::channel().0;
            let request = ControlRequest { origin: Origin::User, peer, question: Value::Null, answer };
            assert!(asked.try_send(request).is_ok());
        }
        let began = Instant::now();
        for end in [0, 100, 200] {
            assert!(users.next().await.is_some());
            assert_eq!(began.elapsed(), Duration::from_millis(end));
            // The request takes 10 ms.
            advance(Duration::from_millis(10)).await;
            users.handled();
        }
    }
}
