//! Poller of one daemon: a thread that reads the daemon's logs at each interval, and queries the daemon less
//! often.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::Duration;

use bailiff_snapshot::{MpsDaemon, MpsFault, MpsFile, MpsLog, Truth, millis};

use super::MpsSettings;
use super::figures::Figures;
use super::query::{Address, Asked, query};
use super::tail::Tail;

/// Log files of a daemon, without the suffix `.log`.
const FILES: [&str; 2] = ["control", "server"];
/// Values that rarely change (percentages, limits) are read only once in this many queries, because each
/// command adds lines to the daemon's log.
const SETTINGS_EVERY: u32 = 10;

/// Request for one poll, sent to a poller's thread at each sample.
pub(super) struct Turn {
    /// Time of the sample, since boot.
    pub(super) boot: Duration,
    pub(super) daemon: MpsDaemon,
    pub(super) devices: usize,
    /// Time since boot at which the daemon became available for queries; `None` if it cannot be queried.
    pub(super) asks: Option<Duration>,
}

/// Latest report of a poller's thread.
#[derive(Debug, Clone, Default)]
pub(super) struct PollReport {
    /// Time of the request that it answers, since boot.
    boot: Duration,
    pub(super) asked: Option<Asked>,
    pub(super) log: Option<MpsLog>,
    pub(super) files: BTreeMap<String, MpsFile>,
    pub(super) owns_directory: bool,
    /// Whether values are missing, which is counted as a gap.
    pub(super) gap: bool,
}

/// Handle of a poller's thread.
pub(super) struct Poller {
    /// Requests; `None` if the thread is to end.
    turns: Option<SyncSender<Turn>>,
    reports: Receiver<PollReport>,
    latest: Option<PollReport>,
    seen: Duration,
    pub(super) uid: Option<u32>,
    /// Time of the first request, since boot.
    began: Option<Duration>,
    /// Answers to queries before this time are discarded.
    queryable_since: Option<Duration>,
}

impl Poller {
    /// Starts a thread, which waits for its first request.
    pub(super) fn start(settings: MpsSettings, uid: Option<u32>) -> io::Result<Self> {
        let (poller, taken, reports) = Self::new(uid);
        let thread = PollerThread::new(settings);
        thread::Builder::new().name("mps".into()).spawn(move || thread.run(&taken, &reports))?;
        Ok(poller)
    }

    /// Returns a poller without a thread, and the channel ends for its thread.
    fn new(uid: Option<u32>) -> (Self, Receiver<Turn>, Sender<PollReport>) {
        // At most one request is queued, so a thread that hangs does not accumulate requests.
        let (turns, taken) = sync_channel(1);
        let (sender, reports) = channel();
        let (seen, latest) = (Duration::ZERO, None);
        (
            Self { turns: Some(turns), reports, latest, seen, uid, began: None, queryable_since: None },
            taken,
            sender,
        )
    }

    /// Returns the time since boot at which the daemon was last seen.
    pub(super) const fn seen(&self) -> Duration {
        self.seen
    }

    /// Returns whether the thread takes requests.
    pub(super) const fn is_open(&self) -> bool {
        self.turns.is_some()
    }

    /// Lets the thread end, and returns whether it has ended. It may hang in a file system.
    pub(super) fn close(&mut self) -> bool {
        self.turns = None;
        while self.reports.try_recv().is_ok() {}
        matches!(self.reports.try_recv(), Err(TryRecvError::Disconnected))
    }

    /// Starts a poll, and returns the latest report unless it is older than `fresh`.
    pub(super) fn turn(&mut self, mut turn: Turn, fresh: Duration) -> PollReport {
        let boot = turn.boot;
        self.seen = boot;
        let began = *self.began.get_or_insert(boot);
        self.queryable_since = turn.asks.and(self.queryable_since.or(turn.asks));
        turn.asks = self.queryable_since;
        // A failed send is ignored: the thread is busy and has a request already, or it has ended.
        if let Some(turns) = &self.turns {
            let _ = turns.try_send(turn);
        }
        if let Some(report) = self.reports.try_iter().last() {
            self.latest = Some(report);
        }
        let latest = self.latest.clone().filter(|report| boot.saturating_sub(report.boot) <= fresh);
        let Some(mut report) = latest else {
            // A thread that was just started has no report yet, which is not a gap.
            return PollReport { gap: boot.saturating_sub(began) > fresh, ..PollReport::default() };
        };
        let since = self.queryable_since.map(millis);
        report.asked = report.asked.filter(|asked| since.is_some_and(|since| asked.answer.boot_ms >= since));
        if let Some(latest) = &mut self.latest {
            // A gap is reported only once.
            latest.gap = false;
        }
        report
    }
}

/// State of a poller's thread.
struct PollerThread {
    settings: MpsSettings,
    logs: Option<Logs>,
    queryable_since: Option<Duration>,
    asked: Option<Asked>,
    /// Time of the next query, since boot; `None` for at once.
    due: Option<Duration>,
    times: u32,
    logged: Option<MpsFault>,
}

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
            // The daemon was stopped or continued since the last query, so its earlier answers are outdated.
            if self.queryable_since != turn.asks {
                (self.asked, self.due, self.queryable_since) = (None, None, turn.asks);
            }
            let mut report =
                PollReport { boot: turn.boot, asked: self.asked.clone(), ..PollReport::default() };
            report.owns_directory = turn.daemon.pipe_directory.as_ref().is_some_and(|directory| {
                rustix::fs::stat(directory).is_ok_and(|about| Some(about.st_uid) == turn.daemon.uid)
            });
            self.read(&turn, &mut report);
            if turn.asks.is_some() && self.due.is_none_or(|due| turn.boot >= due) {
                // The log figures are reported first, because the query may wait for a hanging daemon.
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

    /// Logs a change of the daemon's fault once.
    fn say(&mut self, turn: &Turn, asked: &Asked) {
        let pid = turn.daemon.process.pid;
        match asked.answer.fault {
            fault if fault == self.logged => {}
            Some(fault) => tracing::warn!("MPS control daemon {pid}: {}: {}", fault.name(), asked.error),
            None => tracing::info!("MPS control daemon {pid} responds"),
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
            // The pid may have been reused by a process of another user.
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
            owns_directory: false,
            log_directory: None,
            own_pids: Truth::Unknown,
            answer: None,
            log: None,
            files: BTreeMap::new(),
        };
        Turn { boot, daemon, devices: 1, asks: asks.then_some(boot) }
    }

    #[test]
    fn closed_poller_has_ended_once_its_thread_has() {
        let (mut poller, taken, reports) = Poller::new(Some(0));
        reports.send(PollReport::default()).unwrap();
        assert!(poller.is_open() && !poller.close() && !poller.is_open());
        assert!(taken.recv().is_err(), "the thread is told to end");
        drop(reports);
        assert!(poller.close());
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
