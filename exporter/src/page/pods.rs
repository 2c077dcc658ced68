//! Metrics of GPUs that the kubelet has allocated.

use bailiff_exposition::{Labels, PRESENT, Writer};
use bailiff_snapshot::Snapshot;
use bailiff_snapshot::pod_resources::{ContainerName, PodAllocation};

use crate::metrics;

/// Writes all metrics of allocations; nothing if the kubelet did not answer.
pub(super) fn write(snapshot: &Snapshot, page: &mut Writer<'_>) {
    let Some(pods) = &snapshot.pods else { return };
    for allocation in &pods.allocations {
        let shared = if allocation.shared { "true" } else { "false" };
        page.put(&metrics::POD_ALLOCATION, &of_allocation(allocation).with("shared", shared), PRESENT);
    }
    for allocation in &pods.allocations {
        for (state, seconds) in allocation.seconds.iter().flatten() {
            page.put(&metrics::POD_SECONDS, &of_allocation(allocation).with("state", state.name()), *seconds);
        }
    }
    for (reason, count) in &pods.unattributed {
        page.put(&metrics::POD_UNATTRIBUTED, &Labels::default().with("reason", reason), *count);
    }
    for gpu in &pods.unallocated {
        let labels = Labels::default().with("gpu", &gpu.gpu).maybe("gpu_uuid", gpu.gpu_uuid.as_deref());
        page.put(&metrics::POD_UNALLOCATED, &labels, gpu.processes);
    }
    for device in &pods.dynamic {
        let labels = of_container(Labels::default(), &device.container).with_path("driver", &device.driver);
        let labels = labels.with_path("pool", &device.pool).with_path("device", &device.device);
        page.put(&metrics::DRA_ALLOCATION, &labels, PRESENT);
    }
}

fn of_allocation(allocation: &PodAllocation) -> Labels {
    let labels = Labels::default().with("gpu", &allocation.gpu);
    let labels = labels.maybe("gpu_uuid", allocation.gpu_uuid.as_deref());
    of_container(labels, &allocation.container).with_path("resource", &allocation.resource)
}

fn of_container(labels: Labels, container: &ContainerName) -> Labels {
    let ContainerName { namespace, pod, container } = container;
    labels.with("namespace", namespace).with_path("pod", pod).with("container", container)
}
