//! Queries the kubelet's pod-resources API in a thread, because the kubelet may be slow. A sample uses the last answer without
//! waiting.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use bailiff_proc::clock::{running, since_boot, until_next};
use bailiff_proc::{Directory, ReadError};
use bailiff_snapshot::pod_resources::{Allocatable, ContainerName, parse_allocatable, parse_list};
use bailiff_snapshot::{Fault, Gap, PodResources, SourceState, millis};

use crate::message::Rest;
use crate::settings::PodResourcesSettings;

/// The allocatable devices rarely change, so they are read only once in this many queries.
const ALLOCATABLE_EVERY: u32 = 10;
/// Maximum number of containers on a node whose names are read.
const MOST_CONTAINERS: usize = 8192;
/// Time that queries of both methods and the directory may take, in addition to the interval.
const PATIENCE: Duration = Duration::from_secs(10);

/// A method of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletMethod {
    /// Lists the devices of each container.
    List,
    /// Lists all devices that containers can have.
    GetAllocatableResources,
}

/// Why the kubelet did not answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct KubeletError {
    /// Kind of the failure.
    pub fault: Fault,
    /// Message for the log.
    pub text: String,
}

/// Calls a method of the kubelet that listens at a socket, and returns the message of its response. The function has a
/// deadline of its own.
pub type QueryKubelet = fn(&Path, KubeletMethod) -> Result<Vec<u8>, KubeletError>;

/// Result of one query.
struct Poll {
    took: Duration,
    outcome: Result<PodResources, KubeletError>,
    /// When the query was started, since boot.
    at: Duration,
    /// Whether the allocatable devices or the names of containers are missing.
    has_gap: bool,
}

/// Handle of the thread.
pub(crate) struct KubeletPoller {
    polls: Receiver<Poll>,
    latest: Option<Poll>,
    began: Duration,
    /// Maximum age of an answer.
    fresh: Duration,
    /// Ends the thread when it is dropped.
    _stop: SyncSender<()>,
}

impl KubeletPoller {
    /// Starts the thread. If that fails, the source is down.
    pub(crate) fn start(settings: PodResourcesSettings, query: QueryKubelet) -> Self {
        let (sender, polls) = channel();
        let (stop, stopped) = sync_channel(0);
        let (began, fresh) = (since_boot(), settings.interval + PATIENCE);
        let thread = PollerThread { settings, query, allocatable: None, age: 0 };
        let run = move || thread.run(&sender, &stopped);
        let started = thread::Builder::new().name("kubelet".into()).spawn(run);
        let latest = started.err().map(|error| Poll {
            took: Duration::ZERO,
            outcome: Err(KubeletError {
                fault: Fault::Error,
                text: format!("cannot start a thread: {error}"),
            }),
            at: began,
            has_gap: false,
        });
        Self { polls, latest, began, fresh, _stop: stop }
    }

    /// Adds the last answer and the state of the source. Before the first query is complete, there is neither.
    pub(crate) fn fill(&mut self, now: Duration, rest: &mut Rest) {
        if let Some(poll) = self.polls.try_iter().last() {
            if poll.has_gap {
                rest.gaps.count(Gap::PodResources);
            }
            self.latest = Some(poll);
        }
        let last = self.latest.as_ref().map_or(self.began, |poll| poll.at);
        if now.saturating_sub(last) > self.fresh {
            self.latest = None;
            rest.pod_resources_state = Some(SourceState::down(Fault::Timeout));
            rest.pod_resources_error = Some("the query of the kubelet has not ended in time".to_owned());
            return;
        }
        let Some(Poll { took, outcome, .. }) = &self.latest else { return };
        match outcome {
            Ok(found) => {
                rest.pod_resources_state = Some(SourceState::up(*took));
                rest.pod_resources = Some(found.clone());
            }
            Err(KubeletError { fault, text }) => {
                rest.pod_resources_state = Some(SourceState::down(*fault));
                rest.pod_resources_error = Some(text.clone());
            }
        }
    }
}

/// State of the thread.
struct PollerThread {
    settings: PodResourcesSettings,
    query: QueryKubelet,
    allocatable: Option<Allocatable>,
    /// Number of queries since `allocatable` was read.
    age: u32,
}

impl PollerThread {
    fn run(mut self, polls: &Sender<Poll>, stopped: &Receiver<()>) {
        loop {
            let began = running();
            if polls.send(self.poll()).is_err() {
                return;
            }
            let pause = until_next(running().saturating_sub(began), self.settings.interval);
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn poll(&mut self) -> Poll {
        let (began, at) = (running(), since_boot());
        let containers = container_names(&self.settings.containers);
        let mut has_gap = containers.is_none();
        let list = self.call(KubeletMethod::List, parse_list);
        let took = running().saturating_sub(began);
        let outcome = list.map(|list| {
            self.renew_allocatable();
            has_gap |= self.allocatable.is_none();
            PodResources {
                boot_ms: millis(at),
                list,
                allocatable: self.allocatable.clone(),
                containers: containers.unwrap_or_default(),
                live: None,
            }
        });
        has_gap &= outcome.is_ok();
        Poll { took, outcome, at, has_gap }
    }

    fn renew_allocatable(&mut self) {
        self.age += 1;
        if self.allocatable.is_none() || self.age >= ALLOCATABLE_EVERY {
            self.allocatable = self.call(KubeletMethod::GetAllocatableResources, parse_allocatable).ok();
            self.age = 0;
        }
    }

    fn call<T, E: std::fmt::Display>(
        &self,
        method: KubeletMethod,
        parse: fn(&[u8]) -> Result<T, E>,
    ) -> Result<T, KubeletError> {
        let message = (self.query)(&self.settings.socket, method)?;
        parse(&message).map_err(|error| KubeletError { fault: Fault::Error, text: error.to_string() })
    }
}

/// Reads the names of containers by id; `None` if there are too many, or the directory cannot be read.
fn container_names(directory: &Path) -> Option<BTreeMap<String, ContainerName>> {
    let mut names = BTreeMap::new();
    let add = |name: &str| {
        names.extend(ContainerName::of_log(name).map(|(id, name)| (id.to_owned(), name)));
        names.len() <= MOST_CONTAINERS
    };
    match Directory::open(directory).and_then(|directory| directory.each_name(add)) {
        Ok(()) => Some(names).filter(|names| names.len() <= MOST_CONTAINERS),
        // Without it, a process in a pod with several containers belongs to an unknown one.
        Err(ReadError::Gone) => Some(BTreeMap::new()),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const SECOND: Duration = Duration::from_secs(1);

    fn poller() -> (KubeletPoller, Sender<Poll>) {
        let (sender, polls) = channel();
        let (began, fresh) = (100 * SECOND, 40 * SECOND);
        (KubeletPoller { polls, latest: None, began, fresh, _stop: sync_channel(0).0 }, sender)
    }

    fn poll(at: u32, outcome: Result<PodResources, KubeletError>) -> Poll {
        Poll { took: SECOND, outcome, at: at * SECOND, has_gap: true }
    }

    #[test]
    fn answer_is_used_until_the_next_or_until_it_is_too_old() {
        let (mut poller, polls) = poller();
        let mut at = |seconds: u32| {
            let mut rest = Rest::default();
            poller.fill(seconds * SECOND, &mut rest);
            let state = rest.pod_resources_state.map(|state| state.fault);
            (state, rest.pod_resources.map(|found| found.boot_ms), rest.gaps.of(Gap::PodResources))
        };
        assert_eq!(at(101), (None, None, 0), "the first query is not complete");
        assert_eq!(at(141), (Some(Some(Fault::Timeout)), None, 0));
        let answer = |boot_ms| Ok(PodResources { boot_ms, ..PodResources::default() });
        polls.send(poll(142, answer(1))).unwrap();
        assert_eq!(at(143), (Some(None), Some(1), 1));
        assert_eq!(at(182), (Some(None), Some(1), 0), "a gap is counted once");
        assert_eq!(at(183), (Some(Some(Fault::Timeout)), None, 0));
        polls.send(poll(183, answer(2))).unwrap();
        polls.send(poll(184, Err(KubeletError { fault: Fault::Unreachable, text: String::new() }))).unwrap();
        assert_eq!(at(185), (Some(Some(Fault::Unreachable)), None, 1));
    }

    #[test]
    fn names_of_containers_are_those_of_the_links() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(container_names(&directory.path().join("absent")), Some(BTreeMap::new()));
        let id = "0123456789abcdef".repeat(4);
        for name in [format!("web-0_team_main-{id}.log"), "other.log".to_owned()] {
            symlink("/nowhere", directory.path().join(name)).unwrap();
        }
        let name = ContainerName::new("team", "web-0", "main").unwrap();
        assert_eq!(container_names(directory.path()), Some([(id, name)].into()));
        let file = directory.path().join("other.log");
        assert_eq!(container_names(&file), Some(BTreeMap::new()), "the link leads nowhere");
        for n in 0..=MOST_CONTAINERS {
            symlink("/nowhere", directory.path().join(format!("web-0_team_main-{n:064x}.log"))).unwrap();
        }
        assert_eq!(container_names(directory.path()), None, "there are too many");
    }
}
