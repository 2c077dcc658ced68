//! Metrics of GPUs that Slurm has allocated.

use std::time::Duration;

use bailiff_exposition::{Labels, PRESENT, Writer};
use bailiff_snapshot::slurm::JobId;
use bailiff_snapshot::{Allocation, Snapshot};

use crate::metrics;

/// Writes all metrics of Slurm; nothing if its hooks have not run.
pub(super) fn write(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let Some(slurm) = &snapshot.slurm else { return };
    let label = |job: Option<&JobId>, gpu: &str, uuid: Option<&str>| {
        let job = job.map(AsRef::as_ref);
        Labels::default().maybe("slurm_job", job).with("gpu", gpu).maybe("gpu_uuid", uuid)
    };
    for allocation in &slurm.allocations {
        let Allocation { job, gpu, gpu_uuid, account, state, .. } = allocation;
        let uid = allocation.uid.to_string();
        let user = allocation.user.as_deref().unwrap_or(&uid);
        let labels = label(Some(job), gpu, gpu_uuid.as_deref()).with("uid", &uid).with("user", user);
        let labels = labels.maybe("account", account.as_deref()).with("state", state.name());
        page.put(&metrics::SLURM_ALLOCATION, &labels, PRESENT);
    }
    for allocation in &slurm.allocations {
        if let Some(unused) = allocation.unused_ms {
            let labels = label(Some(&allocation.job), &allocation.gpu, allocation.gpu_uuid.as_deref());
            page.put(&metrics::SLURM_UNUSED, &labels, Duration::from_millis(unused).as_secs_f64());
        }
    }
    for held in &slurm.unallocated {
        let labels = label(held.job.as_ref(), &held.gpu, held.gpu_uuid.as_deref());
        page.put(&metrics::SLURM_UNALLOCATED, &labels, held.bytes);
    }
    for runs in &slurm.runs {
        let labels = Labels::default().with("hook", &runs.hook).with("result", &runs.result);
        page.put(&metrics::SLURM_HOOK_RUNS, &labels, runs.count);
    }
}
