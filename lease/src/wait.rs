//! Waiting for GPUs: a ticket has its place among ours, and as many slots as GPUs that it wants have theirs in Redis' own
//! line, beside the clients of GPU.py. A slot pops for whomever of ours is next.

#![expect(clippy::disallowed_methods, reason = "a wait has an end")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::{Client, Connection, InfoDict, RedisResult};

use crate::holder::LocalHost;
use crate::pool::{Grant, Pool, Ticket, TicketStatus};
use crate::{LeaseError, Op};

/// A ticket is renewed at least so often.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two calls of slots out of the line.
const CALLED: Duration = Duration::from_millis(5);
/// So many calls are enough for those who hear them.
const CALLS: u32 = 400;
/// Whoever wants some GPUs in particular asks so often, and whoever popped what nobody can use pops again after that.
const PARTICULAR: Duration = Duration::from_millis(500);
/// So many who wait look after the dead at every renewal; those behind them less often.
const FRONT: u64 = 4;
/// Whoever comes looks after the dead at once, and behind others so much later for each: many come together.
const APART: Duration = Duration::from_millis(50);
/// Between two attempts to reach Redis, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Pool {
    /// Asks, and waits until the GPUs are held, until then, or for ever. `told` hears how many tickets are before it
    /// whenever that was asked. What the dead of this host held is freed as soon as it is waited for, and from time to
    /// time. Gives [`TicketStatus::Waiting`] where the time was up; the ticket is withdrawn then.
    ///
    /// # Errors
    /// Where Redis refuses. Where it does not answer it is asked again; only the first time that is an error.
    pub fn wait(
        &mut self,
        ticket: &Ticket,
        (local_host, until): (&LocalHost, Option<Instant>),
        mut told: impl FnMut(u64),
    ) -> Result<TicketStatus, LeaseError> {
        let particular = ticket.about.iter().any(|(field, _)| *field == "among");
        let mut status = self.request(ticket)?;
        let mut slots: Option<Slots> = None;
        let mut intervals = Intervals::of(if particular { PARTICULAR } else { INTERVAL });
        let mut pause = PAUSES.0;
        while let TicketStatus::Waiting { before } = status {
            told(before);
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() && intervals.looked {
                return self.withdraw(ticket).map(|()| status);
            }
            let (interval, looks) = intervals.next(before, left);
            if slots.is_none() && !particular {
                slots = Some(Slots::open(self, ticket.want));
            }
            // Who asks a moment after the server gives away again need not wait longer than that.
            let interval = self.closed.map_or(interval, |closed| interval.min(closed + CALLED));
            let woken = if interval.is_zero() { Ok(None) } else { self.woken(&ticket.lease, interval) };
            let awaited = woken.and_then(|grant| match grant {
                Some(grant) => Ok(TicketStatus::Held(grant)),
                None if looks => self
                    .reap_local_host(local_host, ticket.ttl)
                    .and_then(|_| self.touch(&ticket.lease, ticket.ttl, None)),
                None => self.touch(&ticket.lease, ticket.ttl, None),
            });
            status = match awaited {
                Err(error) if error.passes() => {
                    std::thread::park_timeout(pause.min(left));
                    pause = (pause * 2).min(PAUSES.1);
                    self.ask_again(ticket, status)?
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

    /// After a connection broke; it stands as before where there is no other yet.
    fn ask_again(&mut self, ticket: &Ticket, before: TicketStatus) -> Result<TicketStatus, LeaseError> {
        match self.reconnect().and_then(|()| self.request(ticket)) {
            Err(error) if error.passes() => Ok(before),
            asked => asked,
        }
    }

    /// What came of it where it was granted in the last moment does not matter: it goes back.
    fn withdraw(&mut self, ticket: &Ticket) -> Result<(), LeaseError> {
        let offset = ticket.about.iter().find(|(field, _)| *field == "offset");
        let offset = offset.and_then(|(_, offset)| offset.parse().ok()).unwrap_or_default();
        self.release(&ticket.lease, None, (offset, std::process::id())).map(drop)
    }

    /// Waits for the wake-up of a ticket.
    fn woken(&mut self, lease: &str, at_most: Duration) -> Result<Option<Grant>, LeaseError> {
        let key = format!("{}_V2:WAKE:{lease}", self.prefix);
        // Redis takes 0 for ever.
        let seconds = at_most.max(Duration::from_millis(1)).as_secs_f64();
        let patience = self.patience;
        let mut command = redis::cmd("BLPOP");
        command.arg(key).arg(seconds);
        let answer: Option<(String, String)> = self.with(|connection| {
            connection.set_read_timeout(Some(at_most + patience))?;
            let answer = command.query(connection);
            connection.set_read_timeout(Some(patience))?;
            answer
        })?;
        let Some((_, woken)) = answer else { return Ok(None) };
        let strange = || LeaseError::Strange(format!("a wake-up {woken:?}"));
        let (token, gpus) = woken.split_once(':').ok_or_else(strange)?;
        let gpus = gpus.split(',').map(|id| id.parse().map_err(|_| strange())).collect::<Result<_, _>>()?;
        Ok(Some(Grant { token: token.parse().map_err(|_| strange())?, gpus }))
    }
}

/// When a ticket is renewed, and when its waiter looks after the dead.
struct Intervals {
    began: Instant,
    usual: Duration,
    passed: u64,
    /// It has looked after the dead.
    looked: bool,
}

impl Intervals {
    fn of(usual: Duration) -> Self {
        Self { began: Instant::now(), usual, passed: 0, looked: false }
    }

    /// How long until the next, and whether the dead are looked after then: once by whoever comes, before his time is up,
    /// and again and again by those in front. Were it all, the server would do nothing else.
    fn next(&mut self, before: u64, left: Duration) -> (Duration, bool) {
        if !self.looked {
            let first = APART * u32::try_from(before).unwrap_or(u32::MAX);
            let till = first.saturating_sub(self.began.elapsed()).min(left);
            self.looked = till <= self.usual;
            return (till.min(self.usual), self.looked);
        }
        self.passed += 1;
        (self.usual.min(left), self.passed.is_multiple_of(1 + before / FRONT))
    }
}

/// Places in Redis' line, each a connection and a thread that is blocked in it. They are left when this is dropped, which
/// is not waited for: whatever a slot still pops goes to the next.
struct Slots {
    over: Arc<AtomicBool>,
    /// Nothing is sent: its end tells [`Line::keep`], whose thread is there already, since whoever was served goes on at once.
    _leave: Sender<()>,
}

impl Slots {
    fn open(pool: &Pool, count: u32) -> Self {
        let (over, (leave, left)) = (Arc::new(AtomicBool::new(false)), channel());
        let line = Line { client: pool.client.clone(), prefix: pool.prefix.clone(), over: Arc::clone(&over) };
        let keeper = std::thread::Builder::new().name("slots".to_owned());
        // Without slots the ticket is served too, when it is next renewed.
        let _ = keeper.spawn(move || line.keep(count, &left));
        Self { over, _leave: leave }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What a slot knows of the line.
#[derive(Clone)]
struct Line {
    client: Client,
    prefix: String,
    over: Arc<AtomicBool>,
}

impl Line {
    /// Stands in it so many times until that was left, and calls the slots out of it then.
    fn keep(&self, count: u32, left: &Receiver<()>) {
        let (tell, numbers) = channel();
        let slot = |_| {
            let (line, tell) = (self.clone(), tell.clone());
            let slot = std::thread::Builder::new().name("slot".to_owned());
            slot.spawn(move || line.fill(&tell)).ok()
        };
        let threads: Vec<JoinHandle<()>> = (0..count).filter_map(slot).collect();
        let _ = left.recv();
        let Ok(mut connection) = self.client.get_connection() else { return };
        let mut connections: Vec<u64> = Vec::new();
        // One may have been about to stand in the line again when it was called out of it.
        for _ in 0..CALLS {
            if threads.iter().all(JoinHandle::is_finished) {
                return;
            }
            connections.extend(numbers.try_iter());
            for number in &connections {
                let called: RedisResult<u64> =
                    redis::cmd("CLIENT").arg("UNBLOCK").arg(number).query(&mut connection);
                if called.is_err() {
                    return;
                }
            }
            std::thread::park_timeout(CALLED);
        }
    }

    /// A slot. `tell` hears the numbers that Redis gives to its connections.
    fn fill(&self, tell: &Sender<u64>) {
        let mut pause = PAUSES.0;
        while !self.is_over() {
            let stood = self.client.get_connection().and_then(|mut connection| {
                let _ = tell.send(redis::cmd("CLIENT").arg("ID").query(&mut connection)?);
                self.stand(&mut connection, &mut pause)
            });
            if stood.is_err() && !self.is_over() {
                std::thread::park_timeout(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// Pops for whoever is next, again and again. Both commands go in one write: should this program die in between,
    /// what was popped is assigned all the same.
    fn stand(&self, connection: &mut Connection, pause: &mut Duration) -> RedisResult<()> {
        let server: InfoDict = redis::cmd("INFO").arg("server").query(connection)?;
        let run: String = server.get("run_id").unwrap_or_default();
        let (idle, pot) = (format!("{}_IDLE", self.prefix), format!("{}_V2:POT", self.prefix));
        let load = || redis::cmd("SCRIPT").arg("LOAD").arg(Op::Assign.text()).to_owned();
        load().exec(connection)?;
        while !self.is_over() {
            let mut both = redis::pipe();
            both.cmd("BRPOPLPUSH").arg(&idle).arg(&pot).arg(0).ignore();
            both.cmd("EVALSHA").arg(Op::Assign.script().get_hash()).arg(1).arg(&self.prefix).arg(&run);
            let served: RedisResult<(String,)> = both.query(connection);
            let served = match served {
                // Somebody has flushed the scripts meanwhile: what was popped is assigned now.
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
                std::thread::park_timeout(PARTICULAR);
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
    fn whoever_comes_looks_after_the_dead_once_however_many_are_before_him() {
        let late = Duration::from_hours(1);
        for (before, waited, left, looks) in [
            (0, 0, Duration::MAX, true),
            (150, 0, Duration::MAX, true),
            (1000, 0, Duration::MAX, false),
            (1000, 45, Duration::MAX, true),
            (1000, 60, Duration::MAX, true),
            (u64::MAX, 0, late, false),
            (1000, 0, Duration::from_secs(3), true),
            (1000, 0, Duration::ZERO, true),
        ] {
            let mut intervals = Intervals::of(INTERVAL);
            intervals.began -= Duration::from_secs(waited);
            let (interval, found) = intervals.next(before, left);
            assert_eq!(found, looks, "{before} before, after {waited} s");
            assert!(
                interval <= INTERVAL && interval <= left,
                "{before} before, after {waited} s: {interval:?}"
            );
            assert_eq!(intervals.looked, looks);
        }
    }

    #[test]
    fn those_in_front_look_more_often() {
        let looks = |before| {
            let mut intervals = Intervals { looked: true, ..Intervals::of(INTERVAL) };
            (0..60).filter(|_| intervals.next(before, Duration::MAX).1).count()
        };
        assert_eq!([0, 3, 4, 40, 1000].map(looks), [60, 60, 30, 5, 0]);
    }
}
