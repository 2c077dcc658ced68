//! What deserves a look, before all figures: sources and GPUs that say nothing, holders that are stuck.

use bailiff_exposition::html::Html;
use bailiff_exposition::human::Bytes;
use bailiff_snapshot::{Fault, Gpu, PidNamespace, Snapshot};

use super::{stuck, words};

/// The list, where there is anything to be said.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    html.notes(&notes(snapshot));
}

fn notes(snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    for (source, state) in &snapshot.sources {
        if let Some(fault) = state.fault {
            notes.push(match fault {
                Fault::NoDevices => "The driver knows no GPU.".to_owned(),
                fault => format!("The source {} says nothing: {}.", source.name(), words::fault(fault)),
            });
        }
    }
    match snapshot.namespace {
        PidNamespace::Host => {}
        PidNamespace::Other => notes.push(
            "This exporter is not in the host's PID namespace: who holds memory cannot be told.".to_owned(),
        ),
        PidNamespace::Unknown => notes.push(
            "Whether this is the host's PID namespace cannot be told, and so not who holds memory."
                .to_owned(),
        ),
    }
    notes.extend(snapshot.gpus.iter().filter_map(of_gpu));
    notes.extend(of_gpus(snapshot, says_no_figure, "no call for memory or utilization succeeds."));
    notes.extend(of_gpus(
        snapshot,
        |gpu| words::unlisted(gpu).is_some(),
        "who is there is unknown: the driver gave no list of processes.",
    ));
    notes.extend(snapshot.gpus.iter().filter_map(|gpu| held_up(snapshot, gpu)));
    notes.extend(snapshot.gpus.iter().filter_map(unattributed));
    notes
}

/// What is to be said of all GPUs of which this is true.
fn of_gpus(snapshot: &Snapshot, is_true: impl Fn(&Gpu) -> bool, what: &str) -> Option<String> {
    let gpus = snapshot.gpus.iter().filter(|gpu| gpu.fault.is_none() && is_true(gpu));
    let gpus: Vec<&str> = gpus.map(|gpu| gpu.about.index.as_str()).collect();
    (!gpus.is_empty()).then(|| format!("GPU {}: {what}", gpus.join(", ")))
}

fn says_no_figure(gpu: &Gpu) -> bool {
    gpu.memory.is_none() && gpu.telemetry.utilization.is_none()
}

fn of_gpu(gpu: &Gpu) -> Option<String> {
    Some(format!("GPU {} says nothing: {}.", gpu.about.index, words::fault(gpu.fault?)))
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
            "GPU {}: {} stuck, with {held}; see below what frees it.",
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
    Some(format!("GPU {}: {} are held by nobody who is listed.", gpu.about.index, Bytes(bytes)))
}
