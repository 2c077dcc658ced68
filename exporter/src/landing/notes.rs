//! What deserves a look, before all figures: sources and GPUs that say nothing, holders that are stuck.

use bailiff_exposition::html::Html;
use bailiff_exposition::human::Bytes;
use bailiff_snapshot::stuck::MUCH_OF_NOBODY;
use bailiff_snapshot::{Fault, Gpu, PidNamespace, Snapshot};

use super::words;

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
    notes.extend(snapshot.gpus.iter().filter_map(|gpu| stuck(snapshot, gpu)));
    notes.extend(snapshot.gpus.iter().filter_map(of_nobody));
    notes
}

fn of_gpu(gpu: &Gpu) -> Option<String> {
    Some(format!("GPU {} says nothing: {}.", gpu.about.index, words::fault(gpu.fault?)))
}

fn stuck(snapshot: &Snapshot, gpu: &Gpu) -> Option<String> {
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

fn of_nobody(gpu: &Gpu) -> Option<String> {
    let bytes = gpu.parts.map(|parts| parts.unaccounted).filter(|bytes| *bytes >= MUCH_OF_NOBODY)?;
    Some(format!("GPU {}: {} are held by nobody who is listed.", gpu.about.index, Bytes(bytes.into())))
}
