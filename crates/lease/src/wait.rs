//! Waiting for GPUs. A ticket has a position in our queue of tickets. In addition, its client opens one slot per
//! requested GPU: a connection that blocks on the list of idle GPUs, alongside the clients of GPU.py. A slot pops a
//! GPU for the first ticket in the queue, which may be another client's ticket.

#![expect(clippy::disallowed_methods, reason = "a wait has a deadline")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, InfoDict, RedisResult};

use crate::connection::Connection;
use crate::holder::LocalHost;
use crate::pool::{Grant, Pool, Ticket, TicketStatus};
use crate::{LeaseError, Leases as _, Op};

/// The longest time between two renewals of a ticket.
const INTERVAL: Duration = Duration::from_secs(10);
/// The pause between two rounds of CLIENT UNBLOCK that end the slots.
const UNBLOCK_INTERVAL: Duration = Duration::from_millis(5);
/// The maximum number of such rounds.
const UNBLOCK_ROUNDS: u32 = 400;
/// The polling interval of tickets for particular GPUs, and the pause of a slot after a GPU that no ticket could use.
const SELECTIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Number of waiters at the front that reap at every renewal. Waiters behind them reap less often.
const FRONT: u64 = 4;
/// Delay of a new waiter's first reaping per ticket ahead, because many waiters can arrive together.
const REAP_STAGGER: Duration = Duration::from_millis(50);
/// The initial and the maximum pause between two attempts to reach Redis.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Pool {
    /// Requests GPUs and waits until they are granted, until the deadline, or indefinitely. `on_position` receives the
    /// number of tickets ahead after every query. Leases of exited holders on this host are freed at the start and
    /// from time to time. Returns [`TicketStatus::Waiting`] if the deadline passed; the ticket is then withdrawn.
    ///
    /// # Errors
    /// If Redis refuses, or does not respond to the first request. Later requests are repeated until it responds.
    pub fn wait(
        &mut self,
        ticket: &Ticket,
        (local_host, until): (&LocalHost, Option<Instant>),
        mut on_position: impl FnMut(u64),
    ) -> Result<TicketStatus, LeaseError> {
        let selective = ticket.about.iter().any(|(field, _)| *field == "among");
        let mut status = self.request(ticket)?;
        let mut slots: Option<Slots> = None;
        let mut intervals = Intervals::of(if selective { SELECTIVE_INTERVAL } else { INTERVAL });
        let mut pause = PAUSES.0;
        while let TicketStatus::Waiting { before } = status {
            on_position(before);
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() && intervals.reaped {
                return self.withdraw(ticket).map(|()| status);
            }
            let (interval, reaps) = intervals.next(before, left);
            if slots.is_none() && !selective {
                slots = Some(Slots::open(self, ticket.want));
            }
            // After the server's restart barrier, a request is served at once, so there is no need to wait longer.
            let interval = self.closed.map_or(interval, |closed| interval.min(closed + UNBLOCK_INTERVAL));
            let woken =
                if interval.is_zero() { Ok(None) } else { self.wait_for_wakeup(&ticket.lease, interval) };
            let awaited = woken.and_then(|grant| match grant {
                Some(grant) => Ok(TicketStatus::Held(grant)),
                None if reaps => self
                    .reap_local_host(local_host, ticket.ttl)
                    .and_then(|_| self.touch(&ticket.lease, ticket.ttl, None)),
                None => self.touch(&ticket.lease, ticket.ttl, None),
            });
            status = match awaited {
                Err(error) if error.passes() => {
                    std::thread::park_timeout(pause.min(left));
                    pause = (pause * 2).min(PAUSES.1);
                    self.request_again(ticket, status)?
                }
                Ok(TicketStatus::Ended(how)) if how == "unknown" => self.request(ticket)?,
                awaited => {
                    pause = PAUSES.0;
                    awaited?
                }
            };
        }
        Ok(status)
    }

    /// Reconnects and repeats the request. Returns the previous status if that fails.
    fn request_again(&mut self, ticket: &Ticket, before: TicketStatus) -> Result<TicketStatus, LeaseError> {
        match self.reconnect().and_then(|()| self.request(ticket)) {
            Err(error) if error.passes() => Ok(before),
            answer => answer,
        }
    }

    /// Withdraws a ticket. If it was granted at the last moment, the lease is released.
    fn withdraw(&mut self, ticket: &Ticket) -> Result<(), LeaseError> {
        let offset = ticket.about.iter().find(|(field, _)| *field == "offset");
        let offset = offset.and_then(|(_, offset)| offset.parse().ok()).unwrap_or_default();
        self.release(&ticket.lease, None, (offset, std::process::id())).map(drop)
    }

    /// Waits for the wake-up message of a ticket.
    fn wait_for_wakeup(&mut self, lease: &str, at_most: Duration) -> Result<Option<Grant>, LeaseError> {
        let key = format!("{}_V2:WAKE:{lease}", self.prefix);
        // In Redis, 0 means no limit.
        let seconds = at_most.max(Duration::from_millis(1)).as_secs_f64();
        let mut command = redis::cmd("BLPOP");
        command.arg(key).arg(seconds);
        let answer: Option<(String, String)> = self.block(&command, at_most)?;
        let Some((_, woken)) = answer else { return Ok(None) };
        let grant = woken.split_once(':').and_then(|(token, gpus)| Grant::parse(token, gpus));
        grant.map(Some).ok_or_else(|| LeaseError::unexpected(format!("a wake-up {woken:?}")))
    }
}

/// When a ticket is renewed, and when its waiter reaps leases of exited holders.
struct Intervals {
    started: Instant,
    usual: Duration,
    passed: u64,
    /// Whether the first reaping was done.
    reaped: bool,
}

impl Intervals {
    fn of(usual: Duration) -> Self {
        Self { started: Instant::now(), usual, passed: 0, reaped: false }
    }

    /// Returns the time until the next renewal, and whether the waiter reaps then. Every waiter reaps once before its
    /// deadline. Only the waiters at the front do so repeatedly, because the load on the server would otherwise be too
    /// high.
    fn next(&mut self, before: u64, left: Duration) -> (Duration, bool) {
        if !self.reaped {
            let first = REAP_STAGGER * u32::try_from(before).unwrap_or(u32::MAX);
            let till = first.saturating_sub(self.started.elapsed()).min(left);
            self.reaped = till <= self.usual;
            return (till.min(self.usual), self.reaped);
        }
        self.passed += 1;
        (self.usual.min(left), self.passed.is_multiple_of(1 + before / FRONT))
    }
}

/// Positions in Redis' queue, each with a connection and a thread that is blocked in it. Dropping this ends the
/// threads without waiting for them. A GPU that a slot still pops is given to the next ticket.
struct Slots {
    over: Arc<AtomicBool>,
    /// Nothing is sent on this channel. Dropping it wakes [`Line::run`], whose thread is already running, so that the
    /// caller can continue at once.
    _leave: Sender<()>,
}

impl Slots {
    fn open(pool: &Pool, count: u32) -> Self {
        let (over, (leave, left)) = (Arc::new(AtomicBool::new(false)), channel());
        let line = Line {
            server: pool.server.clone(),
            prefix: pool.prefix.clone(),
            patience: pool.patience,
            over: Arc::clone(&over),
        };
        let supervisor = std::thread::Builder::new().name("slots".to_owned());
        // If the thread cannot be started, the ticket is served at its next renewal.
        let _ = supervisor.spawn(move || line.run(count, &left));
        Self { over, _leave: leave }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What a slot needs to block in Redis' queue.
#[derive(Clone)]
struct Line {
    server: ConnectionInfo,
    prefix: String,
    patience: Duration,
    over: Arc<AtomicBool>,
}

impl Line {
    /// Runs `count` slots until `left` is closed, and then unblocks them.
    fn run(&self, count: u32, left: &Receiver<()>) {
        let (sender, client_ids) = channel();
        let slot = |_| {
            let (line, sender) = (self.clone(), sender.clone());
            let slot = std::thread::Builder::new().name("slot".to_owned());
            slot.spawn(move || line.run_slot(&sender)).ok()
        };
        let threads: Vec<JoinHandle<()>> = (0..count).filter_map(slot).collect();
        let _ = left.recv();
        let Ok(mut connection) = Connection::open(&self.server, self.patience) else { return };
        let mut connections: Vec<u64> = Vec::new();
        // Repeated, because a slot may have been about to block again when it was unblocked.
        for _ in 0..UNBLOCK_ROUNDS {
            if threads.iter().all(JoinHandle::is_finished) {
                return;
            }
            connections.extend(client_ids.try_iter());
            for id in &connections {
                let unblocked: RedisResult<u64> =
                    redis::cmd("CLIENT").arg("UNBLOCK").arg(id).query(&mut connection);
                if unblocked.is_err() {
                    return;
                }
            }
            std::thread::park_timeout(UNBLOCK_INTERVAL);
        }
    }

    /// Runs a slot. The client ids of its connections are sent to `client_ids`.
    fn run_slot(&self, client_ids: &Sender<u64>) {
        let mut pause = PAUSES.0;
        while !self.is_over() {
            let popped = Connection::open(&self.server, self.patience).and_then(|mut connection| {
                let _ = client_ids.send(redis::cmd("CLIENT").arg("ID").query(&mut connection)?);
                self.pop(&mut connection, &mut pause)
            });
            if popped.is_err() && !self.is_over() {
                std::thread::park_timeout(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Pops GPUs for the next ticket until the wait is over. Both commands are sent in a single write, so that a
    /// popped GPU is assigned even if this program exits in between.
    fn pop(&self, connection: &mut Connection, pause: &mut Duration) -> RedisResult<()> {
        let server: InfoDict = redis::cmd("INFO").arg("server").query(connection)?;
        let run: String = server.get("run_id").unwrap_or_default();
        let (idle, gathering) = (format!("{}_IDLE", self.prefix), format!("{}_V2:POT", self.prefix));
        let load = || redis::cmd("SCRIPT").arg("LOAD").arg(Op::Assign.text()).to_owned();
        load().exec(connection)?;
        connection.patience = None;
        while !self.is_over() {
            let mut both = redis::pipe();
            both.cmd("BRPOPLPUSH").arg(&idle).arg(&gathering).arg(0).ignore();
            both.cmd("EVALSHA").arg(Op::Assign.script().get_hash()).arg(1).arg(&self.prefix).arg(&run);
            let served: RedisResult<(String,)> = both.query(connection);
            let served = match served {
                // SCRIPT FLUSH was called meanwhile. Sends the script itself, to assign what was popped.
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    let mut whole = redis::cmd("EVAL");
                    whole.arg(Op::Assign.text()).arg(1).arg(&self.prefix).arg(&run);
                    let served = whole.query(connection)?;
                    load().exec(connection)?;
                    served
                }
                served => served?.0,
            };
            *pause = PAUSES.0;
            if served == "BACK" && !self.is_over() {
                std::thread::park_timeout(SELECTIVE_INTERVAL);
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_waiter_reaps_once_before_its_deadline() {
        let hour = Duration::from_hours(1);
        for (before, waited, left, reaps) in [
            (0, 0, Duration::MAX, true),
            (150, 0, Duration::MAX, true),
            (1000, 0, Duration::MAX, false),
            (1000, 45, Duration::MAX, true),
            (1000, 60, Duration::MAX, true),
            (u64::MAX, 0, hour, false),
            (1000, 0, Duration::from_secs(3), true),
            (1000, 0, Duration::ZERO, true),
        ] {
            let mut intervals = Intervals::of(INTERVAL);
            intervals.started -= Duration::from_secs(waited);
            let (interval, found) = intervals.next(before, left);
            assert_eq!(found, reaps, "{before} before, after {waited} s");
            assert!(
                interval <= INTERVAL && interval <= left,
                "{before} before, after {waited} s: {interval:?}"
            );
            assert_eq!(intervals.reaped, reaps);
        }
    }

    #[test]
    fn waiters_at_the_front_reap_more_often() {
        let reaps = |before| {
            let mut intervals = Intervals { reaped: true, ..Intervals::of(INTERVAL) };
            (0..60).filter(|_| intervals.next(before, Duration::MAX).1).count()
        };
        assert_eq!([0, 3, 4, 40, 1000].map(reaps), [60, 60, 30, 5, 0]);
    }
}
