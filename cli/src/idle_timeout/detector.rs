//! Detects whether a command's GPUs were idle for long enough, from snapshots. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bailiff_snapshot::{Fault, Gpu, Holder, ProcessId, ProcessKey, Snapshot, Streak, Truth, Utilization};

pub(crate) use super::flags::Count;
use crate::visible::Visible;

/// The condition under which a command is idle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdleRule {
    /// Utilization must be strictly below this percentage.
    pub(crate) threshold: u32,
    /// Number of consecutive samples in which each counted GPU must be idle.
    pub(crate) samples: u32,
    /// The number of consecutive unknown samples that do not reset the count.
    pub(crate) max_gap: u32,
    /// The GPUs that must be idle.
    pub(crate) count: Count,
}

/// Why GPUs are counted, that is, must be idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The command has a context on these GPUs.
    Used,
    /// The command has no context, so all visible GPUs count.
    Visible,
    /// Contexts cannot be attributed (another PID namespace), so all visible GPUs count.
    Unattributed,
    /// All GPUs were requested.
    All,
}

/// The input for one sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DetectorInput<'a> {
    pub(crate) before: Option<&'a Snapshot>,
    pub(crate) now: &'a Snapshot,
    /// The command's processes, by pid.
    pub(crate) tree: &'a HashMap<u32, ProcessKey>,
    pub(crate) visible: &'a Visible,
    /// The number of samples missed since the previous one.
    pub(crate) missed: u32,
    /// Whether this is the last driver sample of an interval. The maximum utilization in an interval counts.
    pub(crate) ends_sample: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) basis: Basis,
    pub(crate) gpus: Vec<GpuUse>,
}

/// The utilization of one GPU, by the command or by all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuUse {
    pub(crate) gpu: String,
    /// Lower bound of the utilization in percent.
    min: u32,
    /// Upper bound of the utilization in percent; `None` if unknown.
    max: Option<u32>,
    /// Why the upper bound is unknown.
    pub(crate) why: &'static str,
}

/// The result of one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observation {
    /// The counted GPUs with the maximum of the current interval; `None` if the GPUs are unknown.
    pub(crate) counted: Option<Counted>,
    /// Whether the command is idle and must be stopped.
    pub(crate) idle: bool,
}

/// Counts the idle samples of a command.
#[derive(Debug)]
pub(crate) struct IdleDetector {
    rule: IdleRule,
    basis: Option<Basis>,
    streaks: BTreeMap<String, Streak>,
    /// The utilization so far in the current interval.
    current: Vec<GpuUse>,
}

impl IdleDetector {
    pub(crate) const fn new(rule: IdleRule) -> Self {
        Self { rule, basis: None, streaks: BTreeMap::new(), current: Vec::new() }
    }

    /// Evaluates one sample. The idle samples of a newly used GPU are counted from zero.
    pub(crate) fn observe(&mut self, input: &DetectorInput<'_>) -> Observation {
        let IdleRule { threshold, samples, max_gap, .. } = self.rule;
        let Some(mut counted) = self.rule.counted(input) else {
            self.streaks.values_mut().for_each(|streak| {
                streak.miss(input.missed.saturating_add(1), max_gap);
            });
            self.current.retain(|_| !input.ends_sample);
            return Observation { counted: None, idle: false };
        };
        // If GPUs are counted for another reason, for example after the command's first context, the count
        // restarts.
        if self.basis.replace(counted.basis) != Some(counted.basis) {
            self.streaks.clear();
        }
        self.streaks.retain(|gpu, _| counted.gpus.iter().any(|usage| usage.gpu == *gpu));
        // Without counted GPUs (GPUs that must be idle), the command is not idle.
        let mut idle = !counted.gpus.is_empty();
        for usage in &counted.gpus {
            let streak = self.streaks.entry(usage.gpu.clone()).or_default();
            streak.miss(input.missed, max_gap);
            let below = usage.below(threshold);
            streak.feed(below, max_gap);
            idle &= below == Truth::True && streak.count >= samples;
        }
        let current = std::mem::take(&mut self.current);
        for usage in &mut counted.gpus {
            if let Some(earlier) = current.iter().find(|earlier| earlier.gpu == usage.gpu) {
                usage.join(earlier);
            }
        }
        if !input.ends_sample {
            self.current.clone_from(&counted.gpus);
        }
        Observation { counted: Some(counted), idle: idle && input.ends_sample }
    }
}

impl IdleRule {
    fn counted(&self, input: &DetectorInput<'_>) -> Option<Counted> {
        if input.now.gpus.is_empty() {
            return None;
        }
        if self.count == Count::All {
            return Some(input.devices(Basis::All, &Visible::All));
        }
        if !input.now.namespace.attributes() {
            return Some(input.devices(Basis::Unattributed, input.visible));
        }
        if input.tree.is_empty() {
            return None;
        }
        let (used, unclear) = input.used();
        if used.is_empty() {
            // If a GPU's process list is missing, the command may use that GPU, so its use is unknown.
            return unclear.is_empty().then(|| input.devices(Basis::Visible, input.visible));
        }
        Some(Counted { basis: Basis::Used, gpus: used.into_iter().chain(unclear).collect() })
    }
}

impl DetectorInput<'_> {
    /// Returns the number of intervals without a sample since the previous one, as after suspend or under
    /// overload.
    pub(crate) fn missed(before: Option<&Snapshot>, now: &Snapshot, interval: Duration) -> u32 {
        let Some(before) = before else { return 0 };
        let intervals = now.at.boot.saturating_sub(before.at.boot).as_nanos() / interval.as_nanos().max(1);
        u32::try_from(intervals.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Returns the GPUs on which the command has a context, and those for which that is unknown.
    fn used(&self) -> (Vec<GpuUse>, Vec<GpuUse>) {
        let (mut used, mut unclear) = (Vec::new(), Vec::new());
        for gpu in self.now.gpus.iter().filter(|gpu| is_present(gpu)) {
            let own: Vec<&Holder> = gpu.holders.iter().filter(|holder| self.is_ours(holder)).collect();
            if !own.is_empty() {
                used.push(self.command_use(gpu, &own));
            } else if !gpu.lists_processes() && self.visible.sees(&gpu.about) {
                unclear.push(self.device_use(gpu));
            }
        }
        (used, unclear)
    }

    /// Returns whether a holder belongs to the command.
    pub(crate) fn is_ours(&self, holder: &Holder) -> bool {
        match holder.process {
            ProcessId::Live(key) => self.tree.get(&key.pid) == Some(&key),
            // A wrong match can only delay the end of the command, never cause it.
            ProcessId::Unconfirmed { pid, .. } => self.tree.contains_key(&pid),
        }
    }

    fn devices(&self, basis: Basis, visible: &Visible) -> Counted {
        let gpus = self.now.gpus.iter().filter(|gpu| is_present(gpu) && visible.sees(&gpu.about));
        Counted { basis, gpus: gpus.map(|gpu| self.device_use(gpu)).collect() }
    }

    /// Returns the utilization by the command's processes. If one of them is unknown, the upper bound is that
    /// of the device.
    fn command_use(&self, gpu: &Gpu, own: &[&Holder]) -> GpuUse {
        let min = own.iter().filter_map(|holder| holder.utilization.percent()).sum();
        let unknown = own.iter().find_map(|holder| match holder.utilization {
            Utilization::Unknown(why) => Some(why.name()),
            Utilization::Observed(_) => None,
        });
        match unknown {
            None => GpuUse { gpu: name(gpu), min, max: Some(min), why: "" },
            Some(why) => GpuUse { min, why, ..self.device_use(gpu) },
        }
    }

    fn device_use(&self, gpu: &Gpu) -> GpuUse {
        let used = gpu.used_since(self.before.and_then(|before| before.gpu(&gpu.about)));
        let why = gpu.fault.map(Fault::name).or_else(|| used.err().map(bailiff_snapshot::Why::name));
        GpuUse { gpu: name(gpu), min: used.unwrap_or_default(), max: used.ok(), why: why.unwrap_or_default() }
    }
}

impl GpuUse {
    /// Merges with an earlier sample of the same interval; the maximum counts.
    fn join(&mut self, earlier: &Self) {
        self.min = self.min.max(earlier.min);
        self.max = self.max.zip(earlier.max).map(|(this, other)| this.max(other));
        if earlier.max.is_none() {
            self.why = earlier.why;
        }
    }

    /// Returns whether the utilization is below the threshold.
    fn below(&self, threshold: u32) -> Truth {
        match self.max {
            _ if self.min >= threshold => Truth::False,
            Some(max) if max < threshold => Truth::True,
            _ => Truth::Unknown,
        }
    }

    /// Returns the percentage that decides whether the GPU is idle, if it is known.
    pub(crate) fn decisive_percent(&self, threshold: u32) -> Option<u32> {
        let percent = match self.below(threshold) {
            Truth::False => Some(self.min),
            Truth::True => self.max,
            Truth::Unknown => None,
        };
        percent.map(|percent| percent.min(100))
    }
}

/// Returns whether the GPU is on the bus; a lost GPU cannot be in use.
fn is_present(gpu: &Gpu) -> bool {
    gpu.fault != Some(Fault::Lost)
}

fn name(gpu: &Gpu) -> String {
    gpu.about.id.as_ref().map_or_else(|| format!("GPU {}", gpu.about.index), |id| id.0.clone())
}

#[cfg(test)]
mod tests;
