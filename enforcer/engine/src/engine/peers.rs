//! Pods that `stop_owner` acts on together: an owner is stopped only with all its pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::in_flight::{ActionTracker, InFlight, Turn};
use super::matches::{Candidate, Peer};
use super::{Engine, Tick, subject};
use crate::policy::Action;
use crate::verdict::{ActionReport, Hold};
use crate::view::TargetId;

/// Maximum number of other pods, each of which the API server is asked about.
const MOST: usize = 16;
/// Prefix of the entries of stopped owners among the times of actions.
const OWNER: &str = "owner:";

impl Engine {
    /// Returns the other pods of the candidate's namespace for which the same step of the rule is due. Which of them have the same
    /// owner, only the API server knows.
    pub(super) fn peers(&self, of: &Candidate, candidates: &[Candidate], tick: &Tick<'_>) -> Vec<Candidate> {
        let namespace = |candidate: &Candidate| {
            let pod = tick.view.pod(&tick.view.targets[candidate.subject])?;
            Some(pod.namespace().to_owned())
        };
        let stops = matches!(self.action(of), Some(Action::StopOwner { .. }));
        let Some(own) = namespace(of).filter(|_| stops) else { return Vec::new() };
        let same = |other: &&Candidate| {
            (other.rule, other.progress.step) == (of.rule, of.progress.step)
                && other.subject != of.subject
                && namespace(other).as_ref() == Some(&own)
                // Each pod of the owner waits for the others.
                && self.against(other, None, tick).is_none_or(|hold| hold == Hold::OtherPods)
        };
        let mut peers: Vec<Candidate> = candidates.iter().filter(same).copied().collect();
        // Others in turn, so that the pods of one owner do not displace those of another.
        let turn = usize::try_from(self.actions.next_id).unwrap_or_default() % peers.len().max(1);
        peers.rotate_left(turn);
        peers.truncate(MOST);
        peers
    }

    /// Returns the other pods to which the step of the action in flight applies.
    pub fn peers_in_flight(&self, id: u64) -> &[Peer] {
        let in_flight = self.actions.in_flight.as_ref().filter(|in_flight| in_flight.id == id);
        in_flight.map(|in_flight| in_flight.peers.as_slice()).unwrap_or_default()
    }

    /// Returns these candidates with their processes.
    pub(super) fn as_peers(&self, candidates: &[Candidate], tick: &Tick<'_>) -> Vec<Peer> {
        let peer = |candidate: &Candidate| {
            let track = self.owner(candidate, tick.view);
            let track = track.and_then(|number| self.evaluators[candidate.rule].tracks.get(number));
            let subject = subject::of(&tick.view.targets[candidate.subject], tick.view);
            Peer { subject: Arc::new(subject), streak: track.map_or(0, |track| track.streak.count) }
        };
        candidates.iter().map(peer).collect()
    }

    /// Returns the UIDs of the owners that were stopped, and when: since the Unix epoch.
    pub fn stopped_owners(&self) -> BTreeMap<String, Duration> {
        let mut stopped = BTreeMap::new();
        for (Turn(_, target), at) in &self.actions.turns {
            if let Some(uid) = target.0.strip_prefix(OWNER) {
                let last: &mut Duration = stopped.entry(uid.to_owned()).or_default();
                *last = at.wall().max(*last);
            }
        }
        stopped
    }
}

impl ActionTracker {
    /// Takes note of an owner that was stopped.
    pub(super) fn see_stopped(&mut self, in_flight: &InFlight, report: &ActionReport) {
        let (Some((turn, _)), Some(uid)) = (&in_flight.turn, &report.stopped) else { return };
        if let Some(at) = self.turns.get(turn).cloned() {
            self.turns.insert(Turn(turn.0.clone(), TargetId(format!("{OWNER}{uid}").into())), at);
        }
    }
}
