//! Waiting for GPUs: a ticket has its place among ours, and as many slots as GPUs that it wants have theirs in Redis' own
//! line, beside the clients of GPU.py. A slot pops for whomever of ours is next.

#![expect(clippy::disallowed_methods, reason = "a wait has an end")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult};

use crate::holder::Here;
use crate::pool::{Grant, Pool, Standing, Ticket};
use crate::{Op, Trouble};

/// A ticket is renewed at least so often.
const BEAT: Duration = Duration::from_secs(10);
/// Between two calls of slots out of the line.
const CALLED: Duration = Duration::from_millis(5);
/// Whoever wants some GPUs in particular asks so often, and whoever popped what nobody can use pops again after that.
const PARTICULAR: Duration = Duration::from_millis(500);
/// Between two attempts to reach Redis, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Pool {
    /// Asks, and waits until the GPUs are held, until then, or for ever. `told` hears how many tickets are before it
    /// whenever that was asked. What the dead of this host held is freed from time to time. Gives [`Standing::Waiting`] where the time was up; the ticket is withdrawn then.
    ///
    /// # Errors
    /// Where Redis refuses. Where it does not answer it is asked again; only the first time that is an error.
    pub fn wait(
        &mut self,
        ticket: &Ticket,
        (here, until): (&Here, Option<Instant>),
        mut told: impl FnMut(u64),
    ) -> Result<Standing, Trouble> {
        let particular = ticket.about.iter().any(|(field, _)| *field == "among");
        let beat = if particular { PARTICULAR } else { BEAT };
        let mut standing = self.ask(ticket)?;
        let mut slots: Option<Slots> = None;
        let mut pause = PAUSES.0;
        while let Standing::Waiting { before } = standing {
            told(before);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.withdraw(ticket).map(|()| standing);
            }
            if slots.is_none() && !particular {
                slots = Some(Slots::open(self, ticket.want));
            }
            let awaited =
                self.woken(&ticket.lease, left.unwrap_or(beat).min(beat)).and_then(|grant| match grant {
                    Some(grant) => Ok(Standing::Held(grant)),
                    None => self
                        .reap_here(here, ticket.ttl)
                        .and_then(|_| self.touch(&ticket.lease, ticket.ttl, None)),
                });
            standing = match awaited {
                Err(trouble) if trouble.passes() => {
                    std::thread::park_timeout(pause);
                    pause = (pause * 2).min(PAUSES.1);
                    if self.reconnect().is_err() { standing } else { self.ask(ticket)? }
                }
                awaited => {
                    pause = PAUSES.0;
                    awaited?
                }
            };
        }
        Ok(standing)
    }

    /// What came of it where it was granted in the last moment does not matter: it goes back.
    fn withdraw(&mut self, ticket: &Ticket) -> Result<(), Trouble> {
        let offset = ticket.about.iter().find(|(field, _)| *field == "offset");
        let offset = offset.and_then(|(_, offset)| offset.parse().ok()).unwrap_or_default();
        self.release(&ticket.lease, None, (offset, std::process::id())).map(drop)
    }

    /// Waits for the wake-up of a ticket.
    fn woken(&mut self, lease: &str, at_most: Duration) -> Result<Option<Grant>, Trouble> {
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
        let strange = || Trouble::Strange(format!("a wake-up {woken:?}"));
        let (token, gpus) = woken.split_once(':').ok_or_else(strange)?;
        let gpus = gpus.split(',').map(|id| id.parse().map_err(|_| strange())).collect::<Result<_, _>>()?;
        Ok(Some(Grant { token: token.parse().map_err(|_| strange())?, gpus }))
    }
}

/// Places in Redis' line, each a connection and a thread that is blocked in it.
struct Slots {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The numbers that Redis gives to connections.
    connections: Receiver<u64>,
    client: Client,
}

impl Slots {
    fn open(pool: &Pool, count: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (tell, connections) = channel();
        let slot = |_| {
            let (client, prefix) = (pool.client.clone(), pool.prefix.clone());
            let (over, tell) = (Arc::clone(&over), tell.clone());
            let slot = std::thread::Builder::new().name("slot".to_owned());
            // Without a slot the ticket is served too, when it is next renewed.
            let started = slot.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let stood = client.get_connection().and_then(|mut connection| {
                        let number: u64 = redis::cmd("CLIENT").arg("ID").query(&mut connection)?;
                        let _ = tell.send(number);
                        stand(&mut connection, &prefix, &over)
                    });
                    if stood.is_err() && !over.load(Ordering::Relaxed) {
                        std::thread::park_timeout(PAUSES.1);
                    }
                }
            });
            started.ok()
        };
        let threads = (0..count).filter_map(slot).collect();
        Self { over, threads, connections, client: pool.client.clone() }
    }
}

impl Drop for Slots {
    /// Leaves the line, and does not wait for that: whatever a slot still pops goes to the next.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let (_, nobody) = channel();
        let connections = std::mem::replace(&mut self.connections, nobody);
        let (threads, client) = (std::mem::take(&mut self.threads), self.client.clone());
        let closing = std::thread::Builder::new().name("slots".to_owned());
        let _ = closing.spawn(move || {
            let Ok(mut connection) = client.get_connection() else { return };
            let mut numbers: Vec<u64> = Vec::new();
            // One may have been about to stand in the line again when it was called out of it.
            while threads.iter().any(|thread| !thread.is_finished()) {
                numbers.extend(connections.try_iter());
                for number in &numbers {
                    let called: RedisResult<u64> =
                        redis::cmd("CLIENT").arg("UNBLOCK").arg(number).query(&mut connection);
                    if called.is_err() {
                        return;
                    }
                }
                std::thread::park_timeout(CALLED);
            }
        });
    }
}

/// Pops for whoever is next, again and again. Both commands go in one write: should this program die in between, what
/// was popped is assigned all the same.
fn stand(connection: &mut Connection, prefix: &str, over: &AtomicBool) -> RedisResult<()> {
    let load = || redis::cmd("SCRIPT").arg("LOAD").arg(Op::Assign.text()).to_owned();
    load().exec(connection)?;
    while !over.load(Ordering::Relaxed) {
        let mut both = redis::pipe();
        both.cmd("BRPOPLPUSH").arg(format!("{prefix}_IDLE")).arg(format!("{prefix}_V2:POT")).arg(0).ignore();
        both.cmd("EVALSHA").arg(Op::Assign.script().get_hash()).arg(1).arg(prefix);
        let served: RedisResult<(String,)> = both.query(connection);
        let served = match served {
            // Somebody has flushed the scripts meanwhile: what was popped is assigned now.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                let served =
                    redis::cmd("EVAL").arg(Op::Assign.text()).arg(1).arg(prefix).query(connection)?;
                load().exec(connection)?;
                served
            }
            served => served?.0,
        };
        if served == "BACK" && !over.load(Ordering::Relaxed) {
            std::thread::park_timeout(PARTICULAR);
        }
    }
    Ok(())
}
