//! MPS: one thread per control daemon queries the daemon and reads its logs. A sample uses the latest reports
//! of the threads without waiting, so a hanging daemon or file system affects only its own values.

mod figures;
mod poller;
mod query;
mod tail;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_snapshot::{
    Fault, Gap, Mps, MpsAnswer, MpsDaemon, MpsFault, ProcessKey, Sample, Source, SourceState, State, millis,
};

use crate::SampleSource;
use poller::{Poller, Turn};

/// Maximum number of daemons that are polled: in total, for all users except root together, and for each of
/// these users. Any user can start daemons.
const MOST: usize = 16;
const MOST_OF_USERS: usize = 8;
const MOST_OF_ONE: usize = 4;
/// Maximum age of published reports, in addition to two sampling intervals. The total is enough time for the
/// slowest daemon to respond.
const FRESH: Duration = Duration::from_secs(10);
/// A daemon that was not seen for this long is forgotten. It is longer than an interval because a single scan
/// may fail.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// How MPS control daemons are queried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsSettings {
    /// NVIDIA's client, which runs the queries; if empty, daemons are not queried.
    pub control: PathBuf,
    /// Time between two queries of a daemon.
    pub interval: Duration,
    /// `/proc`, in which waiting clients are looked up.
    pub procfs: PathBuf,
}

/// A sample source with MPS added.
pub struct Watching {
    source: Box<dyn SampleSource>,
    settings: MpsSettings,
    pollers: BTreeMap<ProcessKey, Poller>,
}

impl Watching {
    /// Creates the source without pollers; samples start them.
    pub fn new(source: Box<dyn SampleSource>, settings: MpsSettings) -> Self {
        Self { source, settings, pollers: BTreeMap::new() }
    }

    /// Fills in the threads' latest reports, and starts the next polls.
    fn fill(&mut self, mps: &mut Mps, sample: &mut Sample) {
        let devices = sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none()).count();
        for daemon in &mut mps.daemons {
            let unasked = unasked(daemon);
            let asks = unasked.is_none() && !self.settings.control.as_os_str().is_empty();
            let asks = asks.then_some(sample.at.boot);
            let turn = Turn { boot: sample.at.boot, daemon: daemon.clone(), devices, asks };
            let Some(poller) = self.poller(daemon) else {
                sample.gaps.count(Gap::Mps);
                continue;
            };
            let report = poller.turn(turn, FRESH + sample.interval * 2);
            if report.gap || report.asked.as_ref().is_some_and(|asked| asked.gap) {
                sample.gaps.count(Gap::Mps);
            }
            let (answer, servers) = match (unasked, report.asked) {
                (None, Some(asked)) => (Some(asked.answer), asked.servers),
                (fault @ Some(_), _) => {
                    let boot_ms = millis(sample.at.boot);
                    (Some(MpsAnswer { boot_ms, fault, ..MpsAnswer::default() }), BTreeMap::new())
                }
                (None, None) => (None, BTreeMap::new()),
            };
            (daemon.answer, daemon.log, daemon.files) = (answer, report.log, report.files);
            daemon.owns_directory = report.owns_directory;
            let own = mps.servers.iter_mut().filter(|server| server.daemon == Some(daemon.process));
            for server in own {
                if let Some(servers) = server.inside.and_then(|pid| servers.get(&pid)) {
                    server.status = servers.status;
                    server.clients.clone_from(&servers.clients);
                    server.thread_percentage = servers.thread_percentage;
                }
            }
        }
        if let Some(state) = state(&mps.daemons) {
            sample.sources.insert(Source::Mps, state);
        }
    }

    /// Returns the poller of a daemon and starts it if needed; `None` if too many pollers are running or it
    /// cannot be started.
    fn poller(&mut self, daemon: &MpsDaemon) -> Option<&mut Poller> {
        let (process, uid) = (daemon.process, daemon.uid);
        if !self.pollers.contains_key(&process) {
            if !has_room(self.pollers.values().map(|poller| poller.uid), uid) {
                return None;
            }
            match Poller::start(self.settings.clone(), uid) {
                Ok(poller) => drop(self.pollers.insert(process, poller)),
                Err(error) => {
                    tracing::warn!("cannot start the thread for the MPS daemon {}: {error}", process.pid);
                    return None;
                }
            }
        }
        self.pollers.get_mut(&process)
    }
}

impl SampleSource for Watching {
    fn sample(&mut self, seq: u64) -> Option<Sample> {
        let mut sample = self.source.sample(seq)?;
        if let Some(mut mps) = sample.mps.take() {
            self.fill(&mut mps, &mut sample);
            sample.mps = Some(mps);
        }
        let boot = sample.at.boot;
        // A poller keeps its place until its thread has ended, because a hanging thread uses resources.
        self.pollers.retain(|_, poller| {
            (poller.is_open() && boot.saturating_sub(poller.seen()) < FORGOTTEN) || !poller.close()
        });
        Some(sample)
    }
}

/// Returns whether one more daemon of this user may be polled, so that no user occupies all pollers.
fn has_room(taken: impl Iterator<Item = Option<u32>>, uid: Option<u32>) -> bool {
    let taken: Vec<Option<u32>> = taken.collect();
    let count = |is: &dyn Fn(&Option<u32>) -> bool| taken.iter().filter(|one| is(one)).count();
    let of_users = || count(&|one| *one != Some(0));
    let own = || count(&|one| *one == uid);
    taken.len() < MOST && (uid == Some(0) || (of_users() < MOST_OF_USERS && own() < MOST_OF_ONE))
}

/// Returns why a daemon cannot be queried; `None` if it can.
fn unasked(daemon: &MpsDaemon) -> Option<MpsFault> {
    if matches!(daemon.state, State::Stopped | State::Traced) {
        return Some(MpsFault::Stopped);
    }
    daemon.pipe_directory.is_none().then_some(MpsFault::NoDirectory)
}

/// Returns the state of the MPS source: up if at least one daemon responded, because any user can start a
/// daemon that does not respond; `None` if no daemon was queried.
fn state(daemons: &[MpsDaemon]) -> Option<SourceState> {
    let answers: Vec<&MpsAnswer> = daemons.iter().filter_map(|daemon| daemon.answer.as_ref()).collect();
    if let Some(took) = answers.iter().filter_map(|answer| answer.took_us).max() {
        return Some(SourceState::up(Duration::from_micros(took)));
    }
    Some(SourceState::down(fault(answers.iter().find_map(|answer| answer.fault)?)))
}

const fn fault(fault: MpsFault) -> Fault {
    match fault {
        MpsFault::Timeout | MpsFault::Stopped => Fault::Timeout,
        MpsFault::NoProgram => Fault::ProgramNotFound,
        MpsFault::NotPermitted | MpsFault::NoDirectory => Fault::NotPermitted,
        MpsFault::Unreachable | MpsFault::Foreign => Fault::Unreachable,
        MpsFault::Error => Fault::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_the_threads_of_all() {
        let taken = |of: &[(u32, usize)]| -> Vec<Option<u32>> {
            of.iter().flat_map(|(uid, count)| std::iter::repeat_n(Some(*uid), *count)).collect()
        };
        let cases = [
            (taken(&[(7, 3)]), 7, true),
            (taken(&[(7, 4)]), 7, false),
            (taken(&[(7, 4)]), 8, true),
            (taken(&[(7, 4), (8, 4)]), 9, false),
            (taken(&[(7, 4), (8, 4), (0, 7)]), 0, true),
            (taken(&[(0, 16)]), 0, false),
        ];
        for (taken, uid, expected) in cases {
            assert_eq!(has_room(taken.iter().copied(), Some(uid)), expected, "{taken:?} {uid}");
        }
    }
}
