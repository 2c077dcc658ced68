//! Rebuilds the Slurm jobs of a snapshot, with their GPUs.

use std::collections::BTreeMap;

use bailiff_prometheus::Labels;
use bailiff_snapshot::slurm::{AllocatedGpu, JobId, JobRecord, SlurmNode};
use bailiff_snapshot::{Allocation, AllocationState};

use super::held::{SAME_START, Scrape, Scraped, whole};

/// Start of each job, in milliseconds of wall-clock time. If a job did not leave its GPUs unused from its start on, this is
/// when it was first scraped.
#[derive(Debug, Default)]
pub(super) struct Jobs(BTreeMap<JobId, u64>);

impl Jobs {
    /// Returns the jobs of a scrape; `None` if the exporter could not read them.
    pub(super) fn node(
        &mut self,
        (scrape, scraped): (&Scrape<'_>, &Scraped),
        wall_ms: u64,
    ) -> Option<SlurmNode> {
        let up = |(labels, up): (&Labels, f64)| {
            up > 0.0 && labels.get("source").is_some_and(|source| source == "slurm")
        };
        scrape.of("bailiff_source_up").any(up).then_some(())?;
        let mut node = SlurmNode::default();
        for (labels, _) in scrape.of("bailiff_slurm_gpu_allocation_info") {
            node.allocations.extend(allocation(labels, scraped));
        }
        for (labels, seconds) in scrape.of("bailiff_slurm_gpu_unused_seconds") {
            let job = scraped.label(labels, "slurm_job");
            let same =
                |gpu: &&mut Allocation| Some(gpu.job.as_ref()) == job && labels.get("gpu") == Some(&gpu.gpu);
            for gpu in node.allocations.iter_mut().filter(same) {
                gpu.unused_ms = Some(whole(seconds * 1000.0));
            }
        }
        let mut starts = BTreeMap::new();
        for gpu in &node.allocations {
            let start = starts.entry(gpu.job.clone()).or_insert_with(|| self.start(gpu, wall_ms));
            match node.jobs.iter_mut().find(|record| record.job == gpu.job) {
                Some(record) => record.gpus.iter_mut().for_each(|gpus| gpus.push(allocated(gpu))),
                None => node.jobs.push(record(gpu, *start)),
            }
        }
        self.0 = starts;
        Some(node)
    }

    fn start(&self, gpu: &Allocation, wall_ms: u64) -> u64 {
        let unused = gpu.unused_ms.filter(|_| gpu.state == AllocationState::NeverUsed);
        let start = unused.map(|unused| wall_ms.saturating_sub(unused));
        let known = self.0.get(&gpu.job).copied();
        let same =
            |known: &u64| start.is_none_or(|start| known.abs_diff(start) <= whole(SAME_START * 1000.0));
        known.filter(same).or(start).unwrap_or(wall_ms)
    }
}

fn allocation(labels: &Labels, scraped: &Scraped) -> Option<Allocation> {
    let label = |name| scraped.label(labels, name).map(str::to_owned);
    let state = label("state")?;
    let state = AllocationState::ALL.into_iter().find(|known| known.name() == state)?;
    Some(Allocation {
        job: label("slurm_job")?.parse().ok()?,
        uid: label("uid")?.parse().ok()?,
        user: label("user").filter(|user| label("uid").as_ref() != Some(user)),
        account: label("account"),
        gpu: label("gpu")?,
        gpu_uuid: label("gpu_uuid"),
        state,
        unused_ms: None,
        used: matches!(state, AllocationState::InUse | AllocationState::Idle),
        complete: state == AllocationState::NeverUsed,
    })
}

fn record(gpu: &Allocation, boot_ms: u64) -> JobRecord {
    JobRecord {
        boot_id: "prometheus".to_owned(),
        job: gpu.job.clone(),
        sluid: None,
        uid: gpu.uid,
        user: gpu.user.clone(),
        account: gpu.account.clone(),
        node: String::new(),
        gpus: Some(vec![allocated(gpu)]),
        boot_ms,
    }
}

fn allocated(gpu: &Allocation) -> AllocatedGpu {
    AllocatedGpu { position: 0, minor: 0, uuid: gpu.gpu_uuid.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the start and the number of GPUs of each job, after a scrape at this time with GPUs of a job, each with its
    /// state and for how long it was unused.
    fn scrape(
        jobs: &mut Jobs,
        at: u64,
        up: f64,
        gpus: &[(&str, &str, Option<f64>)],
    ) -> Option<Vec<(u64, usize)>> {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let of = |gpu: &str, state: &str| {
            labels(&[("slurm_job", "7"), ("uid", "1000"), ("user", "alice"), ("gpu", gpu), ("state", state)])
        };
        let (source, scraped) = (labels(&[("source", "slurm")]), Scraped::of(&Labels::default()));
        let rows: Vec<(Labels, Option<f64>)> =
            gpus.iter().map(|(gpu, state, unused)| (of(gpu, state), *unused)).collect();
        let mut samples = vec![("bailiff_source_up", &source, up)];
        for (labels, unused) in &rows {
            samples.push(("bailiff_slurm_gpu_allocation_info", labels, 1.0));
            samples.extend(unused.map(|unused| ("bailiff_slurm_gpu_unused_seconds", labels, unused)));
        }
        let node = jobs.node((&Scrape(samples), &scraped), at * 1000)?;
        Some(
            node.jobs.iter().map(|job| (job.boot_ms / 1000, job.gpus.as_ref().map_or(0, Vec::len))).collect(),
        )
    }

    #[test]
    fn start_of_a_job_is_that_of_its_unused_gpu() {
        let mut jobs = Jobs::default();
        let unused = |seconds| ("0", "never_used", Some(seconds));
        let busy = ("1", "in_use", None);
        assert_eq!(scrape(&mut jobs, 1000, 1.0, &[unused(400.0), busy]), Some(vec![(600, 2)]));
        assert_eq!(scrape(&mut jobs, 1015, 1.0, &[("0", "idle", Some(9.0)), busy]), Some(vec![(600, 2)]));
        assert_eq!(scrape(&mut jobs, 1030, 1.0, &[unused(430.5)]), Some(vec![(600, 1)]));
        assert_eq!(scrape(&mut jobs, 1045, 1.0, &[unused(5.0)]), Some(vec![(1040, 1)]), "requeued");
        assert_eq!(scrape(&mut jobs, 1060, 1.0, &[]), Some(vec![]));
        assert_eq!(scrape(&mut jobs, 1075, 1.0, &[busy]), Some(vec![(1075, 1)]), "seen first");
        assert_eq!(scrape(&mut jobs, 1090, 0.0, &[busy]), None, "the records could not be read");
    }
}
