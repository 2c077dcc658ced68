//! Notes at the top of the page: sources and GPUs that did not respond, stuck holders, unattributed memory.

use bailiff_exposition::html::Html;
use bailiff_exposition::human::Bytes;
use bailiff_snapshot::{Fault, Gpu, PidNamespace, Snapshot};

use super::{reasons, stuck};

/// Writes the notes, if there are any.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    html.notes(&notes(snapshot));
}

fn notes(snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    for (source, state) in &snapshot.sources {
        if let Some(fault) = state.fault {
            notes.push(match fault {
                Fault::NoDevices => "The driver lists no GPUs.".to_owned(),
                fault => format!("The source {} returned no data: {}.", source.name(), reasons::fault(fault)),
            });
        }
    }
    match snapshot.namespace {
        PidNamespace::Host => {}
        PidNamespace::Other => notes.push(
            "The exporter is not in the host's PID namespace, so the holders of memory are unknown.".to_owned(),
        ),
        PidNamespace::Unknown => notes.push(
            "It is unknown whether the exporter is in the host's PID namespace, so the holders of memory are unknown."
                .to_owned(),
        ),
    }
    notes.extend(snapshot.gpus.iter().filter_map(of_gpu));
    notes.extend(of_gpus(snapshot, says_no_figure, "all driver calls for memory and utilization fail."));
    notes.extend(of_gpus(
        snapshot,
        |gpu| reasons::unlisted(gpu).is_some(),
        "the processes are unknown, because the driver returned no process list.",
    ));
    notes.extend(snapshot.gpus.iter().filter_map(|gpu| held_up(snapshot, gpu)));
    notes.extend(snapshot.gpus.iter().filter_map(unattributed));
    notes
}

/// Returns one note on all GPUs for which `is_true` holds.
fn of_gpus(snapshot: &Snapshot, is_true: impl Fn(&Gpu) -> bool, what: &str) -> Option<String> {
    let gpus = snapshot.gpus.iter().filter(|gpu| gpu.fault.is_none() && is_true(gpu));
    let gpus: Vec<&str> = gpus.map(|gpu| gpu.about.index.as_str()).collect();
    (!gpus.is_empty()).then(|| format!("GPU {}: {what}", gpus.join(", ")))
}

fn says_no_figure(gpu: &Gpu) -> bool {
    gpu.memory.is_none() && gpu.telemetry.utilization.is_none()
}

fn of_gpu(gpu: &Gpu) -> Option<String> {
    Some(format!("The driver returned no data for GPU {}: {}.", gpu.about.index, reasons::fault(gpu.fault?)))
}

fn held_up(snapshot: &Snapshot, gpu: &Gpu) -> Option<String> {
    let stuck: Vec<_> = gpu.holders.iter().filter(|holder| snapshot.stuck(holder).is_some()).collect();
    let bytes: u64 = stuck.iter().filter_map(|holder| holder.memory).sum();
    let held = if stuck.iter().all(|holder| holder.memory.is_some()) {
        Bytes(bytes.into()).to_string()
    } else {
        format!("at least {}", Bytes(bytes.into()))
    };
    (!stuck.is_empty()).then(|| {
        format!(
            "GPU {}: {} stuck, with {held}; see below how to free the memory.",
            gpu.about.index,
            people(stuck.len())
        )
    })
}

fn people(count: usize) -> String {
    if count == 1 { "1 holder is".to_owned() } else { format!("{count} holders are") }
}

fn unattributed(gpu: &Gpu) -> Option<String> {
    let bytes = stuck::unattributed(gpu)?;
    Some(format!("GPU {}: {} of memory is not held by any listed process.", gpu.about.index, Bytes(bytes)))
}
