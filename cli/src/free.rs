//! `bailiff free`: the GPUs of this machine that are free, or have enough free memory, best first.

use std::process::ExitCode;

use bailiff_snapshot::GpuState;
use clap::Args;
use serde::Serialize;

use crate::exit::{Failure, succeed};
use crate::info::collect;
use crate::info::figures::Units;
use crate::info::flags::SourceFlags;
use crate::info::report::{DEFAULT_TAG, GpuReport, InfoReport};
use crate::output::joined;
use crate::run::flags::above_zero;

/// The flags of `free`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Free {
    /// Accept GPUs that have this much free memory, also if processes use them, such as 20GiB.
    #[arg(long, value_name = "SIZE", value_parser = above_zero)]
    vram: Option<u64>,
    /// Wait until a GPU is free.
    #[arg(long)]
    wait: bool,
    /// Print all GPUs, with what is known of each.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: SourceFlags,
}

const EXAMPLES: &str = "Examples:
  bailiff free                               GPUs without processes and leases
  bailiff free --vram 20GiB                  GPUs with 20 GiB of free memory
  bailiff free --wait                        wait for a free GPU; `bailiff lease run` reserves it
  bailiff free --json | jq -r '.[0].uuid'    the best one, for CUDA_VISIBLE_DEVICES

A GPU that cannot be read, or of which not all is known, is unknown and never free. A GPU that is
free now may be used by another process a moment later.

Exit codes: 0: a GPU is free; 1: failure; 64: invalid flags; 69: no driver; 75: no GPU is free.";

/// What is known of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Candidate {
    index: String,
    uuid: Option<String>,
    name: Option<String>,
    /// Whether it is free; `None` if that is unknown.
    free: Option<bool>,
    free_bytes: Option<u64>,
    total_bytes: Option<u64>,
    /// Number of processes that hold its memory.
    processes: Option<usize>,
    /// State in the lease pool, if it is in one.
    lease: Option<GpuState>,
    /// Why it is not free, or unknown.
    why: Option<String>,
}

/// Prints the GPUs that are free.
pub(crate) fn free(flags: &Free) -> Result<ExitCode, Failure> {
    let mut source = collect::open(&flags.source)?;
    loop {
        let collected = source.next()?;
        let mut report = InfoReport::new(&collected, DEFAULT_TAG);
        // Without access to the pool, a GPU may be leased.
        let is_pool_known = report.error.is_none();
        report.gpus.retain(|gpu| gpu.instances.is_none_or(|count| count == 0));
        let mut all: Vec<Candidate> =
            report.gpus.iter().map(|gpu| candidate(gpu, flags.vram, is_pool_known)).collect();
        all.sort_by_key(|gpu| {
            (gpu.free != Some(true), gpu.free.is_none(), std::cmp::Reverse(gpu.free_bytes))
        });
        let is_found = all.iter().any(|gpu| gpu.free == Some(true));
        if !is_found && flags.wait {
            continue;
        }
        if !flags.all {
            all.retain(|gpu| gpu.free == Some(true));
        }
        let text = if flags.json { json(&all)? } else { table(&all) };
        succeed(&text)?;
        return if is_found { Ok(ExitCode::SUCCESS) } else { Err(Failure::busy("no GPU is free")) };
    }
}

fn candidate(gpu: &GpuReport, vram: Option<u64>, is_pool_known: bool) -> Candidate {
    let memory = gpu.memory.as_ref().map(|memory| &memory.observed);
    let (free_bytes, total_bytes) = (memory.map(|memory| memory.free), memory.map(|memory| memory.total));
    let processes = gpu.holders.as_ref().map(Vec::len);
    let lease = gpu.lease.as_ref().map(|lease| lease.gpu_state);
    let verdict = match (&gpu.fault, free_bytes, processes, lease) {
        (Some(fault), ..) => Err(fault.to_string()),
        (_, None, ..) => Err("its memory is unknown".to_owned()),
        (_, _, None, _) => Err("its processes are unknown".to_owned()),
        _ if !is_pool_known => Err("the lease pool cannot be read".to_owned()),
        (.., Some(state)) if state != GpuState::Idle => Ok(Some(format!("lease: {}", state.name()))),
        (_, Some(free), Some(count), _) => Ok(match vram {
            Some(vram) if free < vram => Some("not enough memory".to_owned()),
            None if count > 0 => {
                Some(format!("{count} {}", if count == 1 { "process" } else { "processes" }))
            }
            Some(_) | None => None,
        }),
    };
    let (free, why) = match verdict {
        Err(why) => (None, Some(why)),
        Ok(why) => (Some(why.is_none()), why),
    };
    Candidate {
        index: gpu.index.clone(),
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        free,
        free_bytes,
        total_bytes,
        processes,
        lease,
        why,
    }
}

fn json(all: &[Candidate]) -> Result<String, Failure> {
    let text = serde_json::to_string(all).map_err(|error| Failure::unavailable(error.to_string()))?;
    Ok(text + "\n")
}

fn table(all: &[Candidate]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| Units::Binary.size(bytes));
    let row = |gpu: &Candidate| {
        let state = match gpu.free {
            Some(true) => "free".to_owned(),
            Some(false) => gpu.why.clone().unwrap_or_default(),
            None => format!("unknown: {}", gpu.why.as_deref().unwrap_or_default()),
        };
        let (free, total) = (size(gpu.free_bytes), size(gpu.total_bytes));
        format!("{:<5} {free:>9} {total:>9}  {state}\n", gpu.index)
    };
    format!("{:<5} {:>9} {:>9}  STATE\n{}", "GPU", "FREE", "TOTAL", joined(all.iter().map(row), ""))
}
