//! `bailiff lease run`: a command, and all that it starts, on GPUs of its own.

#![expect(clippy::disallowed_methods, reason = "runs the command")]

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use bailiff_lease::{Grant, Pool, Standing, Ticket, Trouble};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval};

use super::{LEASE, environment, obtain, offset, open, ticket};
use crate::exit::Failure;
use crate::flags;

/// A lease is renewed so often.
const BEAT: Duration = Duration::from_secs(20);

/// Runs a command.
pub(crate) fn run(flags: &flags::Run) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(held(flags))
}

async fn held(flags: &flags::Run) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    let words: Vec<String> = flags.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let ticket = ticket(&flags.ask, std::process::id(), &words.join(" "))?;
    let (mut pool, grant) = waited(&flags.ask, &ticket, &mut signals).await?;
    let lived = live(flags, (&ticket, &grant), &mut pool, &mut signals).await;
    let code = match lived {
        // Whoever is left has the lease, and it is freed when they have ended: see `Pool::reap_here`.
        Ok(Lived::Left(number)) => return Err(Failure::signalled(number)),
        Ok(Lived::Ended(status)) => Ok(status),
        Err(failure) => Err(failure),
    };
    if let Err(trouble) = pool.release(&ticket.lease, Some(grant.token), (offset(), std::process::id())) {
        eprintln!("bailiff: the GPUs could not be given back, and will be once Redis answers: {trouble}");
    }
    code.map(exit_code)
}

/// As a shell tells it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|number| 128 + number));
    u8::try_from(code.unwrap_or(255)).unwrap_or(255).into()
}

/// Waits in a thread of its own, so that a signal ends it in order.
async fn waited(ask: &flags::Ask, ticket: &Ticket, signals: &mut Signals) -> Result<(Pool, Grant), Failure> {
    let mut pool = open(&ask.pool)?;
    let (tell, mut told) = unbounded_channel();
    let (theirs, wanted) = (ask.clone(), ticket.clone());
    std::thread::Builder::new().name("wait".to_owned()).spawn(move || {
        let mut progress = Progress { shown: false, want: wanted.want };
        let obtained = obtain(&mut pool, &theirs, &wanted, |before| progress.tell(before));
        drop(progress);
        let _ = tell.send(obtained.map(|grant| (pool, grant)));
    })?;
    tokio::select! {
        Some(obtained) = told.recv() => obtained,
        number = signals.any() => {
            open(&ask.pool)?.release(&ticket.lease, None, (offset(), std::process::id()))?;
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

/// Runs the command until nobody is left whom it started.
async fn live(
    flags: &flags::Run,
    (ticket, grant): (&Ticket, &Grant),
    pool: &mut Pool,
    signals: &mut Signals,
) -> Result<Lived, Failure> {
    // Whoever loses his parent becomes our child, so that the last one's end is seen at once.
    set_child_subreaper(Some(getpid())).map_err(std::io::Error::from)?;
    let Some((program, arguments)) = flags.command.split_first() else {
        return Err(Failure::usage("there is no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment(pool, &ticket.lease, grant)?);
    let child = command.spawn().map_err(|error| Failure::start(&program.to_string_lossy(), &error))?;
    let child = Pid::from_child(&child);
    let mut ends = ends()?;
    let mut ended = None;
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            end = ends.recv() => match (end, ended) {
                (Some((pid, status)), _) if pid == child => ended = Some(status),
                (Some(_), _) => {}
                (None, Some(status)) => return Ok(Lived::Ended(status)),
                (None, None) => return Err(Failure::unavailable("the command's end was not seen")),
            },
            number = signals.any() => match ended {
                Some(_) => return Ok(Lived::Left(number)),
                // The terminal sends these to the command itself.
                None if number == Signal::INT.as_raw() || number == Signal::QUIT.as_raw() => {}
                None => {
                    let signal = if number == Signal::HUP.as_raw() { Signal::HUP } else { Signal::TERM };
                    // It may have ended just now.
                    let _ = kill_process(child, signal);
                }
            },
            _ = beat.tick() => match renew(pool, ticket, grant) {
                Ok(Standing::Conflict(shared)) => {
                    eprintln!("bailiff: somebody else was given GPUs of this lease: {:?}", shared.gpus);
                }
                Ok(Standing::Ended(how)) => eprintln!("bailiff: the lease has ended in Redis: {how}"),
                Ok(_) => {}
                Err(trouble) => eprintln!("bailiff: the lease could not be renewed: {trouble}"),
            },
        }
    }
}

/// Renews a lease; one that Redis has forgotten is asked back.
fn renew(pool: &mut Pool, ticket: &Ticket, grant: &Grant) -> Result<Standing, Trouble> {
    match pool.touch(&ticket.lease, LEASE, Some(grant.token))? {
        Standing::Ended(how) if how == "unknown" => pool.reclaim(ticket, grant, LEASE),
        standing => Ok(standing),
    }
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
