//! The thread of one daemon: it reads the daemon's logs at each interval, and asks the daemon once in a while.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use bailiff_snapshot::{MpsDaemon, MpsFault, MpsFile, MpsLog, Truth};

use super::MpsSettings;
use super::figures::Figures;
use super::query::{Address, Asked, query};
use super::tail::Tail;

/// The files of a daemon's log directory, by their names without `.log`.
const FILES: [&str; 2] = ["control", "server"];
/// Values that rarely change (percentages, limits) are queried every this many times: each command adds lines to the daemon's log.
const SETTINGS_EVERY: u32 = 10;

/// What an interval has for a daemon's thread.
pub(super) struct Turn {
    /// When the interval began, since boot.
    pub(super) boot: Duration,
    pub(super) daemon: MpsDaemon,
    /// GPUs of the node.
    pub(super) devices: usize,
    /// Since when the daemon may be asked; none if it may not.
    pub(super) asks: Option<Duration>,
}

/// The latest report of a thread.
#[derive(Debug, Clone, Default)]
pub(super) struct PollReport {
    /// The turn's time.
    boot: Duration,
    pub(super) asked: Option<Asked>,
    pub(super) log: Option<MpsLog>,
    pub(super) files: BTreeMap<String, MpsFile>,
    /// Something is missing.
    pub(super) gap: bool,
}

/// A thread, as the interval holds it.
pub(super) struct Poller {
    turns: SyncSender<Turn>,
    reports: Receiver<PollReport>,
    latest: Option<PollReport>,
    seen: Duration,
    /// The daemon's user.
    pub(super) uid: Option<u32>,
    /// When it was first given a turn.
    began: Option<Duration>,
    /// Answers to what was asked before are let go.
    queryable_since: Option<Duration>,
}

impl Poller {
    /// Starts a thread that has nothing to do yet.
    pub(super) fn start(settings: MpsSettings, uid: Option<u32>) -> io::Result<Self> {
        let (poller, taken, reports) = Self::new(uid);
        let thread = PollerThread::new(settings);
        thread::Builder::new().name("mps".into()).spawn(move || thread.run(&taken, &reports))?;
        Ok(poller)
    }

    /// One without a thread, and what its thread has.
    fn new(uid: Option<u32>) -> (Self, Receiver<Turn>, Sender<PollReport>) {
        // A thread that hangs has one turn before it, and no more.
        let (turns, taken) = sync_channel(1);
        let (sender, reports) = channel();
        let (seen, latest) = (Duration::ZERO, None);
        (Self { turns, reports, latest, seen, uid, began: None, queryable_since: None }, taken, sender)
    }

    /// When an interval saw the daemon last.
    pub(super) const fn seen(&self) -> Duration {
        self.seen
    }

    /// Starts a poll, and returns the latest report unless it is older than `fresh`.
    pub(super) fn turn(&mut self, mut turn: Turn, fresh: Duration) -> PollReport {
        let boot = turn.boot;
        self.seen = boot;
        let began = *self.began.get_or_insert(boot);
        self.queryable_since = turn.asks.and(self.queryable_since.or(turn.asks));
        turn.asks = self.queryable_since;
        // Where it has ended nothing new comes, and where it has one already it is busy.
        let _ = self.turns.try_send(turn);
        if let Some(report) = self.reports.try_iter().last() {
            self.latest = Some(report);
        }
        let latest = self.latest.clone().filter(|report| boot.saturating_sub(report.boot) <= fresh);
        let Some(mut report) = latest else {
            // A thread that was just started has reported nothing yet.
            return PollReport { gap: boot.saturating_sub(began) > fresh, ..PollReport::default() };
        };
        let since = self.queryable_since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        report.asked = report.asked.filter(|asked| since.is_some_and(|since| asked.answer.boot_ms >= since));
        if let Some(latest) = &mut self.latest {
            // Reported once.
            latest.gap = false;
        }
        report
    }
}

/// The thread itself.
struct PollerThread {
    settings: MpsSettings,
    logs: Option<Logs>,
    queryable_since: Option<Duration>,
    asked: Option<Asked>,
    /// When the daemon is queried next; at once if none.
    due: Option<Duration>,
    times: u32,
    logged: Option<MpsFault>,
}

/// The logs of one directory.
struct Logs {
    directory: String,
    tails: [Tail; FILES.len()],
    figures: Figures,
}

impl PollerThread {
    const fn new(settings: MpsSettings) -> Self {
        Self { settings, logs: None, queryable_since: None, asked: None, due: None, times: 0, logged: None }
    }

    fn run(mut self, turns: &Receiver<Turn>, reports: &Sender<PollReport>) {
        while let Ok(turn) = turns.recv() {
            // What it answered before it stood still, or after, is not what it says now.
            if self.queryable_since != turn.asks {
                (self.asked, self.due, self.queryable_since) = (None, None, turn.asks);
            }
            let mut report =
                PollReport { boot: turn.boot, asked: self.asked.clone(), ..PollReport::default() };
            self.read(&turn, &mut report);
            if turn.asks.is_some() && self.due.is_none_or(|due| turn.boot >= due) {
                // What the logs say does not wait for a daemon that is silent.
                if reports.send(report.clone()).is_err() {
                    return;
                }
                self.query(&turn);
                report.asked.clone_from(&self.asked);
            }
            if reports.send(report).is_err() {
                return;
            }
        }
    }

    fn query(&mut self, turn: &Turn) {
        let Some(directory) = turn.daemon.pipe_directory.as_deref() else { return };
        let address = Address {
            program: &self.settings.control,
            directory: Path::new(directory),
            daemon: &turn.daemon,
        };
        let before = self.asked.take().filter(|_| !self.times.is_multiple_of(SETTINGS_EVERY));
        let asked = query(&address, (turn.boot, turn.devices), before);
        self.say(turn, &asked);
        self.times = if asked.answer.fault.is_none() { self.times.wrapping_add(1) } else { 0 };
        self.asked = Some(asked);
        self.due = Some(turn.boot + self.settings.interval);
    }

    /// Logs a change, once.
    fn say(&mut self, turn: &Turn, asked: &Asked) {
        let pid = turn.daemon.process.pid;
        match asked.answer.fault {
            fault if fault == self.logged => {}
            Some(fault) => tracing::warn!("MPS control daemon {pid}: {}: {}", fault.name(), asked.error),
            None => tracing::info!("MPS control daemon {pid} answers"),
        }
        self.logged = asked.answer.fault;
    }

    fn read(&mut self, turn: &Turn, report: &mut PollReport) {
        let Some(directory) = &turn.daemon.log_directory else { return };
        let logs = match self.logs.take() {
            Some(logs) if logs.directory == *directory => self.logs.insert(logs),
            _ => self.logs.insert(Logs::new(directory)),
        };
        logs.figures.at(turn.boot);
        for (name, tail) in FILES.iter().zip(&mut logs.tails) {
            let figures = &mut logs.figures;
            let read = tail.read(turn.daemon.uid, |line, old| figures.line(line, old));
            report.files.insert((*name).to_owned(), read.state);
            report.gap |= read.skipped > 0;
            logs.figures.skipped(read.skipped);
        }
        let own = turn.daemon.own_pids == Truth::True && self.settings.procfs.join("1").exists();
        logs.figures.forget(|uid, pid| {
            let about = || rustix::fs::stat(self.settings.procfs.join(pid.to_string()));
            // A pid may be another's by now.
            (own && pid != 0).then(|| about().is_ok_and(|about| about.st_uid == uid))
        });
        let read = report.files.values().any(|state| *state == MpsFile::Read);
        report.log = read.then(|| logs.figures.report());
    }
}

impl Logs {
    fn new(directory: &str) -> Self {
        let tails = FILES.map(|name| Tail::new(Path::new(directory).join(format!("{name}.log"))));
        Self { directory: directory.to_owned(), tails, figures: Figures::default() }
    }
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::{ProcessKey, State};

    use super::*;

    fn turn(seconds: u64, asks: bool) -> Turn {
        let boot = Duration::from_secs(seconds);
        let daemon = MpsDaemon {
            process: ProcessKey { pid: 7, start_ticks: 1 },
            uid: Some(0),
            state: State::Sleeping,
            started: None,
            pipe_directory: None,
            log_directory: None,
            own_pids: Truth::Unknown,
            answer: None,
            log: None,
            files: BTreeMap::new(),
        };
        Turn { boot, daemon, devices: 1, asks: asks.then_some(boot) }
    }

    #[test]
    fn a_thread_that_hangs_gathers_no_turns() {
        let (mut poller, taken, _reports) = Poller::new(Some(0));
        for second in 0..1000 {
            poller.turn(turn(second, true), Duration::from_secs(10));
        }
        assert_eq!(taken.try_iter().count(), 1);
    }

    #[test]
    fn report_has_the_time_since_the_daemon_may_be_queried() {
        let (mut poller, taken, _reports) = Poller::new(Some(0));
        let mut since = |second, asks| {
            poller.turn(turn(second, asks), Duration::from_secs(10));
            taken.try_recv().expect("a turn").asks.map(|since| since.as_secs())
        };
        let times = [since(1, true), since(2, true), since(3, false), since(4, true), since(5, true)];
        assert_eq!(times, [Some(1), Some(1), None, Some(4), Some(4)]);
    }
}
