//! Samples the GPUs of a command: detects idleness (`--idle-timeout`) and records usage for the summary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;

use bailiff_sampler::{Launcher, SamplerSettings, Supervisor};
use bailiff_snapshot::{Fault, Holder, ProcessId, Sample, Snapshot, Source};

use crate::command::{Event, pace};
use crate::exit::Failure;
use crate::idle_timeout::detector::{Count, DetectorInput, IdleDetector, IdleRule};
use crate::output::print_message;
use crate::process_tree::ProcessTree;
use crate::visible::Visible;

/// The maximum sampling interval, because the driver keeps its own samples only for a limited time.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum number of samples of an idle period.
const MIN_SAMPLES: u32 = 3;
/// Utilization below this percentage counts as idle.
const THRESHOLD: u32 = 1;
/// Consecutive unknown samples that do not reset the idle count.
const MAX_GAP: u32 = 2;

/// What the sampler is used for.
#[derive(Clone)]
pub(crate) struct MonitorOptions {
    /// The idle time after which the command is stopped.
    pub(crate) idle: Option<Duration>,
    /// Whether a missing driver is an error.
    pub(crate) needs_driver: bool,
    /// Whether sampling continues while the command runs.
    pub(crate) monitors_command: bool,
    /// The NVML library.
    pub(crate) library: Option<PathBuf>,
}

pub(crate) struct GpuSampler {
    supervisor: Supervisor,
    /// The number of the next sample.
    seq: u64,
    interval: Duration,
    before: Option<Snapshot>,
    detector: Option<IdleDetector>,
    options: MonitorOptions,
}

/// Monitors the GPU usage of a running command.
pub(crate) struct UsageMonitor {
    pace: Option<pace::Pace>,
    interval: Duration,
    visible: Visible,
    before: Option<Snapshot>,
    detector: Option<IdleDetector>,
    fault: Option<Fault>,
    used: GpuUsage,
}

impl GpuSampler {
    /// Starts the helper process that queries the driver.
    pub(crate) fn start(options: &MonitorOptions) -> Result<Self, Failure> {
        let samples = options.idle.map_or(MIN_SAMPLES, samples);
        let interval = options.idle.map_or(MAX_INTERVAL, |idle| idle / samples);
        let settings =
            SamplerSettings { nvml_library: options.library.clone(), interval, ..SamplerSettings::default() };
        let supervisor = Supervisor::new(Launcher::start(&settings)?, settings);
        let rule = IdleRule { threshold: THRESHOLD, samples, max_gap: MAX_GAP, count: Count::Used };
        let detector = options.idle.map(|_| IdleDetector::new(rule));
        Ok(Self { supervisor, seq: 1, interval, before: None, detector, options: options.clone() })
    }

    /// Fails if the driver is required but not installed.
    pub(crate) fn open(&mut self) -> Result<(), Failure> {
        if self.options.needs_driver
            && Source::Nvml.fault(&self.sample()?.sources) == Some(Fault::LibraryNotFound)
        {
            let library = self.options.library.as_deref().unwrap_or("libnvidia-ml.so.1".as_ref()).display();
            return Err(Failure::unavailable(format!(
                "--idle-timeout and --min-free need the NVIDIA driver, but {library} was not found"
            )));
        }
        Ok(())
    }

    pub(crate) fn sample(&mut self) -> Result<&Snapshot, Failure> {
        let gone = || Failure::unavailable("the helper process that queries the driver has exited");
        let sample = self.supervisor.sample(self.seq).ok_or_else(gone)?;
        self.seq += 1;
        let now = Snapshot::between(self.before.as_ref(), sample);
        Ok(self.before.insert(now))
    }

    pub(crate) fn newest(&self) -> Option<&Snapshot> {
        self.before.as_ref()
    }

    fn fault(&self) -> Option<Fault> {
        Source::Nvml.fault(&self.before.as_ref()?.sources)
    }

    /// Returns whether the driver is still being opened.
    pub(crate) fn is_starting(&self) -> bool {
        self.fault() == Some(Fault::Starting)
    }

    /// Returns whether sampling continues while the command runs.
    pub(crate) fn monitors_command(&self) -> bool {
        self.options.monitors_command
    }

    /// Starts to monitor a command that sees these GPUs.
    pub(crate) fn monitor(self, visible: Visible, events: Sender<Event>) -> Result<UsageMonitor, Failure> {
        let fault = self.fault();
        let Self { supervisor, seq, interval, before, detector, .. } = self;
        let pace = Some(pace::start(supervisor, (seq, interval), events)?);
        let used = GpuUsage::default();
        let mut monitor = UsageMonitor { pace, interval, visible, before, detector, fault: None, used };
        monitor.set_fault(fault);
        Ok(monitor)
    }
}

impl UsageMonitor {
    /// Evaluates a sample; returns true if the command's GPUs were idle for the idle timeout.
    pub(crate) fn observe(&mut self, sample: Option<Box<Sample>>, process_tree: &ProcessTree) -> bool {
        let Some(sample) = sample else {
            if self.detector.take().is_some() {
                print_message("GPU sampling has ended; --idle-timeout no longer applies to the command");
            }
            return false;
        };
        // Without the process tree the sample counts as missed.
        let Ok(descendants) = process_tree.descendants() else { return false };
        let now = Snapshot::between(self.before.as_ref(), *sample);
        self.set_fault(Source::Nvml.fault(&now.sources));
        let tree = descendants.into_iter().map(|(_, stat)| (stat.key.pid, stat.key)).collect();
        let input = DetectorInput {
            before: self.before.as_ref(),
            now: &now,
            tree: &tree,
            visible: &self.visible,
            missed: DetectorInput::missed(self.before.as_ref(), &now, self.interval),
            ends_sample: true,
        };
        self.used.add(&input);
        let idle = self.detector.as_mut().is_some_and(|detector| detector.observe(&input).idle);
        self.before = Some(now);
        idle
    }

    /// Returns the usage observed so far.
    pub(crate) fn usage(self) -> GpuUsage {
        self.used
    }

    fn set_fault(&mut self, fault: Option<Fault>) {
        // Sampling is only for the summary, and without a driver there is nothing to summarize.
        if self.detector.is_none() && fault == Some(Fault::LibraryNotFound) {
            self.pace = None;
        }
        if self.detector.is_some() && self.fault != fault {
            match fault {
                Some(fault) => print_message(format_args!(
                    "the driver does not respond ({}); the command is not considered idle meanwhile",
                    fault.name()
                )),
                None => print_message("the driver responds again"),
            }
        }
        self.fault = fault;
    }
}

/// Returns the number of samples of an idle period.
fn samples(span: Duration) -> u32 {
    u32::try_from(span.as_nanos().div_ceil(MAX_INTERVAL.as_nanos())).unwrap_or(u32::MAX).max(MIN_SAMPLES)
}

/// The usage observed so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct GpuUsage {
    /// Busy GPU-seconds per GPU and process; `None` before any was observed.
    busy: Option<BTreeMap<(String, ProcessId), f64>>,
    /// Peak memory per GPU, summed over the command's processes.
    pub(crate) peak: BTreeMap<String, u64>,
}

impl GpuUsage {
    pub(crate) fn add(&mut self, input: &DetectorInput<'_>) {
        for gpu in &input.now.gpus {
            let name = gpu.about.id.as_ref().map_or_else(|| gpu.about.index.clone(), |id| id.0.clone());
            let own: Vec<&Holder> = gpu.holders.iter().filter(|holder| input.is_ours(holder)).collect();
            for holder in own.iter().filter(|holder| holder.utilization.percent().is_some()) {
                let key = (name.clone(), holder.process);
                self.busy.get_or_insert_default().insert(key, holder.busy_seconds);
            }
            // If the memory of one process is unknown, so is the sum.
            let memory: Option<u64> = own.iter().map(|holder| holder.memory).sum();
            if let Some(memory) = memory.filter(|_| !own.is_empty()) {
                let peak = self.peak.entry(name).or_default();
                *peak = memory.max(*peak);
            }
        }
    }

    /// Returns the busy GPU-seconds, if any use was observed.
    pub(crate) fn busy_seconds(&self) -> Option<f64> {
        self.busy.as_ref().map(|busy| busy.values().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_period_is_sampled_every_five_seconds() {
        for (seconds, count, millis) in [(1800, 360, 5000), (62, 13, 4769), (15, 3, 5000), (3, 3, 1000)] {
            let span = Duration::from_secs(seconds);
            assert_eq!(samples(span), count, "{seconds}");
            assert_eq!((span / samples(span)).as_millis(), millis, "{seconds}");
        }
    }
}
