//! When it is looked for who has device files open, and what was found. All descriptors of a node may take long to read: a
//! part of them is read in a beat, as long as that may take.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bailiff_snapshot::{Gap, GpuSample, Moment, Openers, Seen};

use crate::message::Rest;
use crate::proc::{Folder, Search, keep_living};

/// A search begins at most this often, and ends after so long with what it has found.
const PAUSE: Duration = Duration::from_mins(1);
/// What was found is good until the search after the next has ended.
const GOOD: Duration = Duration::from_secs(150);
/// Memory in use that no living process holds, from which on it is looked for.
const FROM: u64 = 256 << 20;

/// What goes on from beat to beat.
#[derive(Default)]
pub(crate) struct Doors {
    search: Option<Search>,
    found: Option<Openers>,
    /// Those listed who had ended at the look before.
    ended: BTreeSet<u32>,
}

/// One beat.
pub(crate) struct Beat<'a> {
    pub(crate) root: &'a Folder,
    pub(crate) at: Moment,
    pub(crate) until: Instant,
    /// A GPU has much in use that no listed process holds.
    pub(crate) is_wanted: bool,
}

impl Doors {
    /// Looks on where that is wanted, and tells what is known.
    pub(crate) fn look(&mut self, beat: &Beat<'_>, rest: &mut Rest) {
        let is_wanted = self.has_ended(&rest.processes) || beat.is_wanted;
        let age = |since: Duration| beat.at.boot.saturating_sub(since);
        self.found = self.found.take().filter(|found| age(found.at.boot) < GOOD);
        if let Some(found) = &mut self.found {
            keep_living(beat.root, found);
        }
        let is_due = self.found.as_ref().is_none_or(|found| age(found.at.boot) >= PAUSE);
        if self.search.is_none() && is_wanted && is_due {
            self.search = Search::begin(beat.root, beat.at).ok();
        }
        if let Some(mut search) = self.search.take() {
            let is_done = search.go_on(beat.root, beat.until);
            let is_late = age(search.began()) >= PAUSE;
            if is_done || is_late {
                self.found = Some(ended(search, is_done, rest));
            } else {
                self.search = Some(search);
            }
        }
        rest.openers.clone_from(&self.found);
    }

    /// It is left alone in this beat, and begun anew at another.
    pub(crate) fn leave(&mut self, is_wanted: bool, rest: &mut Rest) {
        *self = Self::default();
        if is_wanted {
            rest.gaps.count(Gap::Openers);
        }
    }

    /// Whether somebody is listed who had ended at the look before as well: if not the driver, then another has his files.
    fn has_ended(&mut self, processes: &BTreeMap<u32, Seen>) -> bool {
        let ended = |seen: &Seen| match seen {
            Seen::Gone => true,
            Seen::Found(facts) => facts.state.ended(),
            Seen::Hidden => false,
        };
        let now: BTreeSet<u32> =
            processes.iter().filter(|(_, seen)| ended(seen)).map(|(pid, _)| *pid).collect();
        let before = std::mem::replace(&mut self.ended, now);
        self.ended.iter().any(|pid| before.contains(pid))
    }
}

/// What a search has found.
fn ended(search: Search, is_done: bool, rest: &mut Rest) -> Openers {
    let found = search.end();
    match (is_done, found.unreadable) {
        (false, _) => rest.gaps.count(Gap::Openers),
        (true, 0) => {}
        (true, _) => rest.gaps.count(Gap::NotPermitted),
    }
    found
}

/// Whether so much memory is in use that no listed process holds, as far as can be told, that it matters.
pub(crate) fn has_nobodys(gpu: &GpuSample) -> bool {
    let (Some(memory), Some(entries)) = (gpu.memory, &gpu.entries) else { return false };
    if gpu.telemetry.mig_enabled == Some(true) && gpu.about.mig.is_none() {
        return false;
    }
    let held = entries.iter().filter_map(|entry| entry.memory).fold(0_u64, u64::saturating_add);
    let reserved = if memory.reserved.is_none() { FROM * 2 } else { 0 };
    memory.used.saturating_sub(held).saturating_sub(reserved) >= FROM
}
