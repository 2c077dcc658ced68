//! `bailiff lease run`: a command, and all that it starts, on GPUs of its own.

#![expect(clippy::disallowed_methods, reason = "runs the command")]

use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use bailiff_lease::{Grant, Leases, Standing, Ticket, Trouble};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use rustix::process::{getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, wait};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::ask::{obtain, ticket};
use super::told::{self, Names, environment};
use super::{LEASE, offset, open};
use crate::exit::Failure;
use crate::flags::{self, OnLost};
use crate::tree;

/// Between two kills of a tree that goes on growing.
const AGAIN: Duration = Duration::from_millis(100);

/// Runs a command.
pub(crate) fn run(flags: &flags::Run) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(held(flags))
}

async fn held(flags: &flags::Run) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    let words: Vec<String> = flags.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut pool = open(&flags.ask.pool)?;
    let mut ticket = ticket(&mut *pool, &flags.ask, &words.join(" "))?;
    ticket.about.extend(flags.max_time.map(|time| ("max_ms", time.as_millis().to_string())));
    let (pool, grant) = waited(pool, &flags.ask, &ticket, &mut signals).await?;
    let mut held = Held { flags, ticket, grant, pool, stop: None };
    let lived = held.live(&mut signals).await;
    let why = held.stop.map(|stop| stop.why);
    let Held { ticket, grant, mut pool, .. } = held;
    let code = match lived {
        // Whoever is left has the lease, and it is freed when they have ended: see `Pool::reap_here`.
        Ok(Lived::Left(number)) => return Err(Failure::signalled(number)),
        Ok(Lived::Ended(status)) => Ok(status),
        Err(failure) => Err(failure),
    };
    if let Err(trouble) = pool.release(&ticket.lease, Some(grant.token), (offset(), std::process::id())) {
        eprintln!("bailiff: the GPUs could not be given back, and will be once Redis answers: {trouble}");
    }
    match why {
        Some(Why::TimeUp) => Err(Failure::late("the command was ended: its time was up")),
        Some(Why::Lost) => Err(Failure::lost("the command was ended: its lease was lost")),
        None => code.map(exit_code),
    }
}

/// As a shell tells it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|number| 128 + number));
    u8::try_from(code.unwrap_or(255)).unwrap_or(255).into()
}

/// Waits in a thread of its own, so that a signal ends it in order.
async fn waited(
    mut pool: Box<dyn Leases>,
    ask: &flags::Ask,
    ticket: &Ticket,
    signals: &mut Signals,
) -> Result<(Box<dyn Leases>, Grant), Failure> {
    let (tell, mut told) = unbounded_channel();
    let (theirs, wanted) = (ask.clone(), ticket.clone());
    std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
        let mut progress = Progress { shown: false, want: wanted.want };
        let obtained = obtain(&mut *pool, &theirs, &wanted, |before| progress.tell(before));
        drop(progress);
        let _ = tell.send(obtained.map(|grant| (pool, grant)));
    })?;
    tokio::select! {
        Some(obtained) = told.recv() => obtained,
        number = signals.any() => {
            let withdrawn = open(&ask.pool).and_then(|mut pool| {
                match pool.release(&ticket.lease, None, (offset(), std::process::id())) {
                    // It was granted just now, to this process, and is free with its end.
                    Ok(_) | Err(Trouble::Kept(_)) => Ok(()),
                    Err(trouble) => Err(trouble.into()),
                }
            });
            if let Err(failure) = withdrawn {
                eprintln!("bailiff: the place in the line ends once Redis answers: {failure}");
            }
            Err(Failure::signalled(number))
        }
    }
}

/// A line on the terminal that says how the wait goes.
struct Progress {
    shown: bool,
    want: u32,
}

impl Progress {
    fn tell(&mut self, before: u64) {
        if std::io::stderr().is_terminal() {
            self.shown = true;
            let gpus = if self.want == 1 { "a GPU" } else { "GPUs" };
            eprint!("\r\x1b[Kbailiff: waiting for {gpus}, behind {before} others");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// How it went.
enum Lived {
    /// The command and all that it started have ended.
    Ended(ExitStatus),
    /// The command has ended, others have not, and we were told to go.
    Left(i32),
}

/// Why the command is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    TimeUp,
    Lost,
}

/// The command is being ended.
#[derive(Debug, Clone, Copy)]
struct Stop {
    why: Why,
    /// All that is left is killed then, and again.
    kill: Instant,
}

/// The command's process. Its pid may be another's once it was waited for.
struct Child {
    pid: Pid,
    process: OwnedFd,
}

impl Child {
    /// Where it has ended, those whom it left behind are asked.
    fn ask_to_end(&self) {
        if pidfd_send_signal(&self.process, Signal::TERM).is_err() {
            for (_, stat) in tree::below(&[]) {
                tree::signal(stat.key, Signal::TERM);
            }
        }
    }
}

/// A command under a lease.
struct Held<'a> {
    flags: &'a flags::Run,
    ticket: Ticket,
    grant: Grant,
    pool: Box<dyn Leases>,
    stop: Option<Stop>,
}

impl Held<'_> {
    /// Runs the command until nobody is left whom it started.
    async fn live(&mut self, signals: &mut Signals) -> Result<Lived, Failure> {
        // Whoever loses his parent becomes our child, so that the last one's end is seen at once.
        set_child_subreaper(Some(getpid())).map_err(std::io::Error::from)?;
        let child = self.start()?;
        let mut ends = ends()?;
        let mut ended = None;
        let mut beat = interval(self.flags.renew);
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut up = self.flags.max_time.map(|time| Instant::now() + time);
        loop {
            tokio::select! {
                biased;
                end = ends.recv() => match (end, ended) {
                    (Some((pid, status)), _) if pid == child.pid => ended = Some(status),
                    (Some(_), _) => {}
                    (None, Some(status)) => return Ok(Lived::Ended(status)),
                    (None, None) => return Err(Failure::unavailable("the command's end was not seen")),
                },
                number = signals.any() => match ended {
                    Some(_) => return Ok(Lived::Left(number)),
                    None => forward(number, &child),
                },
                () = at(self.stop.map(|stop| stop.kill)) => self.kill(),
                () = at(up) => up = self.time_up(&child),
                _ = beat.tick() => self.renew(&child),
            }
        }
    }

    fn start(&mut self) -> Result<Child, Failure> {
        let Some((program, arguments)) = self.flags.command.split_first() else {
            return Err(Failure::usage("there is no command"));
        };
        let names = if self.flags.index { Names::Numbers } else { Names::Uuids };
        if self.flags.index {
            told::check_numbers(&mut *self.pool, &self.grant, &self.flags.nvml_library)?;
        }
        let mut command = Command::new(program);
        command.args(arguments);
        command.envs(environment(&mut *self.pool, (&self.ticket.lease, &self.grant), names)?);
        self.pool.pass_on(&self.ticket.lease)?;
        let child = command.spawn().map_err(|error| Failure::start(&program.to_string_lossy(), &error))?;
        // Nobody has waited for it yet, so the pid is its own.
        let pid = Pid::from_child(&child);
        Ok(Child { pid, process: pidfd_open(pid, PidfdFlags::empty()).map_err(std::io::Error::from)? })
    }

    /// Tells the command to end, unless it was given more time meanwhile: until when, then.
    fn time_up(&mut self, child: &Child) -> Option<Instant> {
        let audit = self.pool.audit().ok();
        let lease = audit.as_ref().and_then(|audit| told::lease(audit, &self.ticket.lease));
        let number = |field| lease?.get(field)?.parse::<u64>().ok();
        let left =
            number("granted").zip(number("max_ms")).zip(audit.as_ref()).map(|((granted, most), audit)| {
                Duration::from_millis((granted + most).saturating_sub(audit.now))
            });
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            eprintln!("bailiff: given more time: {}", humantime::format_duration(left));
            return Some(Instant::now() + left);
        }
        eprintln!("bailiff: the time is up: the command is told to end");
        self.end(Why::TimeUp, child);
        None
    }

    fn end(&mut self, why: Why, child: &Child) {
        if self.stop.is_some() {
            return;
        }
        let grace = if why == Why::Lost && self.flags.on_lost == OnLost::Kill {
            Duration::ZERO
        } else {
            self.flags.grace
        };
        if !grace.is_zero() {
            child.ask_to_end();
        }
        self.stop = Some(Stop { why, kill: Instant::now() + grace });
    }

    fn kill(&mut self) {
        tree::kill(&[]);
        if let Some(stop) = &mut self.stop {
            stop.kill = Instant::now() + AGAIN;
        }
    }

    fn renew(&mut self, child: &Child) {
        let lost = match self.pool.renew(&self.ticket, &self.grant, LEASE) {
            Ok(Standing::Conflict(shared)) => {
                eprintln!("bailiff: somebody else was given GPUs of this lease: {:?}", shared.gpus);
                true
            }
            Ok(Standing::Ended(how)) => {
                eprintln!("bailiff: the lease has ended in Redis: {how}");
                true
            }
            Ok(_) => false,
            // Nobody is given the GPUs while Redis is silent.
            Err(trouble) => {
                eprintln!("bailiff: the lease could not be renewed: {trouble}");
                false
            }
        };
        if lost && self.flags.on_lost != OnLost::Warn {
            self.end(Why::Lost, child);
        }
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// The terminal sends interrupts to the command itself.
fn forward(number: i32, child: &Child) {
    if number == Signal::INT.as_raw() || number == Signal::QUIT.as_raw() {
        return;
    }
    let signal = if number == Signal::HUP.as_raw() { Signal::HUP } else { Signal::TERM };
    // It may have ended just now.
    let _ = pidfd_send_signal(&child.process, signal);
}

/// The ends of all children, those included that others have left behind; closed once there are none.
fn ends() -> Result<UnboundedReceiver<(Pid, ExitStatus)>, Failure> {
    let (tell, ends) = unbounded_channel();
    std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => {
                    let _ = tell.send((pid, ExitStatus::from_raw(status.as_raw())));
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(ends)
}

/// What we may be told.
struct Signals([(i32, Stream); 4]);

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let one = |kind: SignalKind| Ok::<_, Failure>((kind.as_raw_value(), signal(kind)?));
        Ok(Self([
            one(SignalKind::interrupt())?,
            one(SignalKind::quit())?,
            one(SignalKind::terminate())?,
            one(SignalKind::hangup())?,
        ]))
    }

    /// The next one.
    async fn any(&mut self) -> i32 {
        let [interrupt, quit, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.1.recv() => interrupt.0,
            _ = quit.1.recv() => quit.0,
            _ = terminate.1.recv() => terminate.0,
            _ = hangup.1.recv() => hangup.0,
        }
    }
}
