//! Whether a command has left its GPUs idle for long enough: snapshots in, a verdict out. No clock and no process.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bailiff_snapshot::{Fault, Gpu, Holder, ProcessId, ProcessKey, Snapshot, Streak, Truth, Utilization};

pub(crate) use super::flags::Count;
use super::visible::Visible;

/// When a command is idle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Usage is below this many percent, strictly.
    pub(crate) threshold: u32,
    /// In so many looks, on each GPU that counts.
    pub(crate) looks: u32,
    /// After more unknown ones in a row they are counted again.
    pub(crate) max_gap: u32,
    /// Which GPUs count.
    pub(crate) count: Count,
}

/// Why these GPUs count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The command has a context on them.
    Used,
    /// It has none, so all count that it can see.
    Visible,
    /// Nobody can tell where it has one (another PID namespace), so all count that it can see.
    Unattributed,
    /// All were asked for.
    All,
}

/// What there is to look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) before: Option<&'a Snapshot>,
    pub(crate) now: &'a Snapshot,
    /// The command's processes, by pid.
    pub(crate) tree: &'a HashMap<u32, ProcessKey>,
    pub(crate) visible: &'a Visible,
    /// Looks that should have been taken since the one before, and were not.
    pub(crate) missed: u32,
    /// A sample is the most that was seen in one look, or in several.
    pub(crate) ends_sample: bool,
}

/// The GPUs that count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) basis: Basis,
    pub(crate) gpus: Vec<Figure>,
}

/// How much one GPU was used: by the command, or by whomever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) gpu: String,
    /// At least this many percent.
    least: u32,
    /// At most; `None` where that is not known.
    most: Option<u32>,
    /// Why it is not.
    pub(crate) why: &'static str,
}

/// What one look came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// With all that was seen of the sample so far; none where nobody can tell which GPUs count.
    pub(crate) counted: Option<Counted>,
    /// The command is to be ended.
    pub(crate) idle: bool,
}

/// The looks so far.
#[derive(Debug)]
pub(crate) struct Watch {
    rule: Rule,
    basis: Option<Basis>,
    streaks: BTreeMap<String, Streak>,
    /// What was seen of a sample that has not ended.
    begun: Vec<Figure>,
}

impl Watch {
    pub(crate) const fn new(rule: Rule) -> Self {
        Self { rule, basis: None, streaks: BTreeMap::new(), begun: Vec::new() }
    }

    /// Takes one look. A GPU that did not count before needs as many as any.
    pub(crate) fn see(&mut self, look: &Look<'_>) -> Seen {
        let Rule { threshold, looks, max_gap, .. } = self.rule;
        let Some(mut counted) = self.rule.counted(look) else {
            self.streaks.values_mut().for_each(|streak| {
                streak.miss(look.missed.saturating_add(1), max_gap);
            });
            self.begun.retain(|_| !look.ends_sample);
            return Seen { counted: None, idle: false };
        };
        // Whoever opens its first context is at work.
        if self.basis.replace(counted.basis) != Some(counted.basis) {
            self.streaks.clear();
        }
        self.streaks.retain(|gpu, _| counted.gpus.iter().any(|figure| figure.gpu == *gpu));
        // Where no GPU counts, none is idle.
        let mut idle = !counted.gpus.is_empty();
        for figure in &counted.gpus {
            let streak = self.streaks.entry(figure.gpu.clone()).or_default();
            streak.miss(look.missed, max_gap);
            let below = figure.below(threshold);
            streak.feed(below, max_gap);
            idle &= below == Truth::True && streak.count >= looks;
        }
        let begun = std::mem::take(&mut self.begun);
        for figure in &mut counted.gpus {
            if let Some(earlier) = begun.iter().find(|earlier| earlier.gpu == figure.gpu) {
                figure.join(earlier);
            }
        }
        if !look.ends_sample {
            self.begun.clone_from(&counted.gpus);
        }
        Seen { counted: Some(counted), idle: idle && look.ends_sample }
    }
}

impl Rule {
    fn counted(&self, look: &Look<'_>) -> Option<Counted> {
        if look.now.gpus.is_empty() {
            return None;
        }
        if self.count == Count::All {
            return Some(look.devices(Basis::All, &Visible::All));
        }
        if !look.now.namespace.attributes() {
            return Some(look.devices(Basis::Unattributed, look.visible));
        }
        if look.tree.is_empty() {
            return None;
        }
        let (used, unclear) = look.used();
        if used.is_empty() {
            // Where a list of processes is missing, the command may be in it.
            return unclear.is_empty().then(|| look.devices(Basis::Visible, look.visible));
        }
        Some(Counted { basis: Basis::Used, gpus: used.into_iter().chain(unclear).collect() })
    }
}

impl Look<'_> {
    /// Intervals since the look before that came to nothing: the machine slept, or was too busy.
    pub(crate) fn missed(before: Option<&Snapshot>, now: &Snapshot, interval: Duration) -> u32 {
        let Some(before) = before else { return 0 };
        let paces = now.at.boot.saturating_sub(before.at.boot).as_nanos() / interval.as_nanos().max(1);
        u32::try_from(paces.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The GPUs on which the command has a context, and those of which nobody can tell.
    fn used(&self) -> (Vec<Figure>, Vec<Figure>) {
        let (mut used, mut unclear) = (Vec::new(), Vec::new());
        for gpu in self.now.gpus.iter().filter(|gpu| is_there(gpu)) {
            let ours: Vec<&Holder> = gpu.holders.iter().filter(|holder| self.is_ours(holder)).collect();
            if !ours.is_empty() {
                used.push(self.by_tree(gpu, &ours));
            } else if !gpu.lists_processes() && self.visible.sees(&gpu.about) {
                unclear.push(self.by_anybody(gpu));
            }
        }
        (used, unclear)
    }

    pub(crate) fn is_ours(&self, holder: &Holder) -> bool {
        match holder.process {
            ProcessId::Live(key) => self.tree.get(&key.pid) == Some(&key),
            // To take another's context for ours lengthens the command's life, never shortens it.
            ProcessId::Unconfirmed { pid, .. } => self.tree.contains_key(&pid),
        }
    }

    fn devices(&self, basis: Basis, visible: &Visible) -> Counted {
        let gpus = self.now.gpus.iter().filter(|gpu| is_there(gpu) && visible.sees(&gpu.about));
        Counted { basis, gpus: gpus.map(|gpu| self.by_anybody(gpu)).collect() }
    }

    /// What the command's processes used, where each is known; else at most what the device as a whole was used.
    fn by_tree(&self, gpu: &Gpu, ours: &[&Holder]) -> Figure {
        let least = ours.iter().filter_map(|holder| holder.utilization.percent()).sum();
        let unknown = ours.iter().find_map(|holder| match holder.utilization {
            Utilization::Unknown(why) => Some(why.name()),
            Utilization::Observed(_) => None,
        });
        match unknown {
            None => Figure { gpu: name(gpu), least, most: Some(least), why: "" },
            Some(why) => Figure { least, why, ..self.by_anybody(gpu) },
        }
    }

    fn by_anybody(&self, gpu: &Gpu) -> Figure {
        let used = gpu.used_since(self.before.and_then(|before| before.gpu(&gpu.about)));
        let why = gpu.fault.map(Fault::name).or_else(|| used.err().map(bailiff_snapshot::Why::name));
        Figure {
            gpu: name(gpu),
            least: used.unwrap_or_default(),
            most: used.ok(),
            why: why.unwrap_or_default(),
        }
    }
}

impl Figure {
    /// The most of both.
    fn join(&mut self, earlier: &Self) {
        self.least = self.least.max(earlier.least);
        self.most = self.most.zip(earlier.most).map(|(one, other)| one.max(other));
        if earlier.most.is_none() {
            self.why = earlier.why;
        }
    }

    /// Whether it was used less than this.
    fn below(&self, threshold: u32) -> Truth {
        match self.most {
            _ if self.least >= threshold => Truth::False,
            Some(most) if most < threshold => Truth::True,
            _ => Truth::Unknown,
        }
    }

    /// The percentage that decides, where one does.
    pub(crate) fn shown(&self, threshold: u32) -> Option<u32> {
        let percent = match self.below(threshold) {
            Truth::False => Some(self.least),
            Truth::True => self.most,
            Truth::Unknown => None,
        };
        percent.map(|percent| percent.min(100))
    }
}

/// A GPU that has fallen off the bus hides nobody's work.
fn is_there(gpu: &Gpu) -> bool {
    gpu.fault != Some(Fault::Lost)
}

fn name(gpu: &Gpu) -> String {
    gpu.about.id.as_ref().map_or_else(|| format!("GPU {}", gpu.about.index), |id| id.0.clone())
}

#[cfg(test)]
mod tests;
