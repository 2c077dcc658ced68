//! MPS: control daemons that a look has found are asked, and their logs read, by a thread each. The beat takes what the
//! threads told last and waits for none of them, so a daemon or a file system that hangs costs its own figures alone.

mod ask;
mod figures;
mod post;
mod tail;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_snapshot::{
    Fault, Gap, Mps, MpsAnswer, MpsDaemon, MpsFault, ProcessKey, Sample, Source, SourceState, State,
};

use crate::Look;
use post::{Post, Turn};

/// Daemons that are asked and whose logs are read, and those of them that are users': anybody can start some.
const MOST: usize = 16;
const MOST_OF_USERS: usize = 8;
/// What a thread told is told for this long and two beats: an answer to the slowest daemon is no older.
const FRESH: Duration = Duration::from_secs(10);
/// A daemon that was not seen for so long is forgotten: a look may fail now and then.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// How daemons are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// NVIDIA's client, which asks; daemons are not asked where it is empty.
    pub control: PathBuf,
    /// Between two times that a daemon is asked.
    pub interval: Duration,
    /// Where clients that wait are looked for.
    pub procfs: PathBuf,
}

/// A look, and what MPS says beside it.
pub struct Watching {
    look: Box<dyn Look>,
    settings: Settings,
    posts: BTreeMap<ProcessKey, Post>,
}

impl Watching {
    /// Begins with nobody to ask.
    #[must_use]
    pub fn new(look: Box<dyn Look>, settings: Settings) -> Self {
        Self { look, settings, posts: BTreeMap::new() }
    }

    /// Fills in what the threads told, and has them go on.
    fn fill(&mut self, mps: &mut Mps, sample: &mut Sample) {
        let devices = sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none()).count();
        let ambiguous: Vec<bool> = mps.daemons.iter().map(|daemon| mps.is_ambiguous(daemon)).collect();
        for (daemon, ambiguous) in mps.daemons.iter_mut().zip(ambiguous) {
            let unasked = unasked(daemon, ambiguous);
            let asks = unasked.is_none() && !self.settings.control.as_os_str().is_empty();
            let turn = Turn { boot: sample.at.boot, daemon: daemon.clone(), devices, asks };
            let Some(post) = self.post(daemon) else {
                sample.gaps.count(Gap::Mps);
                continue;
            };
            let report = post.turn(turn, FRESH + sample.interval * 2);
            if report.gap {
                sample.gaps.count(Gap::Mps);
            }
            let (answer, told) = match (unasked, report.asked) {
                (None, Some(asked)) => (Some(asked.answer), asked.servers),
                (fault @ Some(_), _) => {
                    let boot_ms = u64::try_from(sample.at.boot.as_millis()).unwrap_or(u64::MAX);
                    (Some(MpsAnswer { boot_ms, fault, ..MpsAnswer::default() }), BTreeMap::new())
                }
                (None, None) => (None, BTreeMap::new()),
            };
            (daemon.answer, daemon.log, daemon.files) = (answer, report.log, report.files);
            let own = mps.servers.iter_mut().filter(|server| server.daemon == Some(daemon.process));
            for server in own {
                if let Some(told) = server.inside.and_then(|pid| told.get(&pid)) {
                    server.status = told.status;
                    server.clients.clone_from(&told.clients);
                    server.thread_percentage = told.thread_percentage;
                }
            }
        }
        if let Some(state) = state(&mps.daemons) {
            sample.sources.insert(Source::Mps, state);
        }
    }

    /// A daemon's thread; none where there are too many, or it cannot be started.
    fn post(&mut self, daemon: &MpsDaemon) -> Option<&mut Post> {
        let (process, of_user) = (daemon.process, daemon.uid != Some(0));
        if !self.posts.contains_key(&process) {
            let of_users = self.posts.values().filter(|post| post.of_user).count();
            if self.posts.len() >= MOST || (of_user && of_users >= MOST_OF_USERS) {
                return None;
            }
            match Post::start(self.settings.clone(), of_user) {
                Ok(post) => drop(self.posts.insert(process, post)),
                Err(error) => {
                    tracing::warn!(
                        "no thread can be started that asks the MPS daemon {}: {error}",
                        process.pid
                    );
                    return None;
                }
            }
        }
        self.posts.get_mut(&process)
    }
}

impl Look for Watching {
    fn look(&mut self, seq: u64) -> Option<Sample> {
        let mut sample = self.look.look(seq)?;
        if let Some(mut mps) = sample.mps.take() {
            self.fill(&mut mps, &mut sample);
            sample.mps = Some(mps);
        }
        let boot = sample.at.boot;
        self.posts.retain(|_, post| boot.saturating_sub(post.seen()) < FORGOTTEN);
        Some(sample)
    }
}

/// Why a daemon is not asked at all.
fn unasked(daemon: &MpsDaemon, ambiguous: bool) -> Option<MpsFault> {
    if matches!(daemon.state, State::Stopped | State::Traced) {
        return Some(MpsFault::Stopped);
    }
    if daemon.pipe_directory.is_none() {
        return Some(MpsFault::NoDirectory);
    }
    ambiguous.then_some(MpsFault::Ambiguous)
}

/// The source as a whole is up where one daemon answered: anybody can start one that does not. None where none was asked.
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
        MpsFault::Unreachable => Fault::Unreachable,
        MpsFault::Ambiguous | MpsFault::Error => Fault::Error,
    }
}
