//! `bailiff free`: the GPUs of this machine or a cluster that are free, or have enough free memory, best first.

mod cluster;

use std::cmp::Reverse;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_exposition::terminal::{line, width};
use bailiff_snapshot::GpuState;
use clap::Args;
use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use crate::args::PrometheusLogin;
use crate::exit::{Failure, succeed};
use crate::info::collect;
use crate::info::figures::Units;
use crate::info::flags::SourceFlags;
use crate::info::report::{DEFAULT_TAG, GpuReport, InfoReport};
use crate::output::{self, joined};
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
    /// Query the GPUs of all nodes from the Prometheus server at this address, such as `http://prometheus:9090`.
    #[arg(long, value_name = "URL", conflicts_with = "alone")]
    prometheus: Option<String>,
    /// With --prometheus, the maximum age of a node's data; older data is unknown.
    #[arg(long, value_name = "TIME", value_parser = crate::args::span, default_value = "2m", requires = "prometheus")]
    max_age: Duration,
    #[command(flatten)]
    login: PrometheusLogin,
    #[command(flatten)]
    source: SourceFlags,
}

const EXAMPLES: &str = "Examples:
  bailiff free                               GPUs without processes and leases
  bailiff free --vram 20GiB                  GPUs with 20 GiB of free memory
  bailiff free --wait                        wait for a free GPU; `bailiff lease run` reserves it
  bailiff free --json | jq -r '.[0].uuid'    the best one, for CUDA_VISIBLE_DEVICES
  bailiff free --prometheus http://prometheus:9090 --vram 40GiB
                                             GPUs of all nodes that this server scrapes

A GPU that cannot be read, or of which not all is known, is unknown and never free. A GPU that is
free now may be used by another process a moment later. With --prometheus, a node without recent
data is unknown, and leases in the pool of a machine (not in Redis) are not seen.

Exit codes: 0: a GPU is free; 1: failure; 64: invalid flags; 69: no driver, or Prometheus does not
respond; 75: no GPU is free.";

/// What is known of a GPU.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Candidate {
    /// The `instance` label of the node; `None` for this machine.
    node: Option<String>,
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

/// Returns the GPUs; waits before it samples or queries them again.
type Source = Box<dyn FnMut() -> Result<Vec<Candidate>, Failure>>;

/// What decides whether a GPU is free.
#[derive(Debug, Default)]
struct Evidence {
    /// Why the state of the GPU is unknown.
    fault: Option<String>,
    free_bytes: Option<u64>,
    processes: Option<usize>,
    /// Why the state of leases and jobs is unknown.
    reservations_fault: Option<String>,
    /// The lease or job that has the GPU.
    reserved: Option<String>,
}

impl Evidence {
    /// Returns `None` if the GPU is free, why it is not free, or why that is unknown.
    fn verdict(&self, vram: Option<u64>) -> Result<Option<String>, String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let free = self.free_bytes.ok_or("its memory is unknown")?;
        let processes = self.processes.ok_or("its processes are unknown")?;
        if self.reserved.is_some() {
            return Ok(self.reserved.clone());
        }
        if let Some(fault) = &self.reservations_fault {
            return Err(fault.clone());
        }
        Ok(match vram {
            Some(vram) if free < vram => Some("not enough memory".to_owned()),
            None if processes > 0 => {
                Some(format!("{processes} {}", if processes == 1 { "process" } else { "processes" }))
            }
            Some(_) | None => None,
        })
    }
}

/// Prints the GPUs that are free.
pub(crate) fn free(flags: &Free) -> Result<ExitCode, Failure> {
    let mut next = match &flags.prometheus {
        Some(url) => cluster::open(flags.login.open(url)?, (flags.vram, flags.max_age)),
        None => local(flags)?,
    };
    loop {
        let mut all = next()?;
        all.sort_by_key(|gpu| (gpu.free != Some(true), gpu.free.is_none(), Reverse(gpu.free_bytes)));
        let is_found = all.iter().any(|gpu| gpu.free == Some(true));
        if !is_found && flags.wait {
            continue;
        }
        if !flags.all {
            all.retain(|gpu| gpu.free == Some(true));
        }
        let text = if flags.json { output::json(&all)? } else { table(&all, flags.prometheus.is_some()) };
        succeed(&text)?;
        return if is_found { Ok(ExitCode::SUCCESS) } else { Err(Failure::busy("no GPU is free")) };
    }
}

/// Returns a function that samples the GPUs of this machine.
fn local(flags: &Free) -> Result<Source, Failure> {
    let mut source = collect::open(&flags.source)?;
    let vram = flags.vram;
    Ok(Box::new(move || {
        let mut report = InfoReport::new(&source.next()?, DEFAULT_TAG);
        // Without access to the pool, a GPU may be leased.
        let is_pool_known = report.error.is_none();
        report.gpus.retain(|gpu| gpu.instances.is_none_or(|count| count == 0));
        Ok(report.gpus.iter().map(|gpu| candidate(gpu, vram, is_pool_known)).collect())
    }))
}

fn candidate(gpu: &GpuReport, vram: Option<u64>, is_pool_known: bool) -> Candidate {
    let memory = gpu.memory.as_ref().map(|memory| &memory.observed);
    let lease = gpu.lease.as_ref().map(|lease| lease.gpu_state);
    let evidence = Evidence {
        fault: gpu.fault.as_ref().map(ToString::to_string),
        free_bytes: memory.map(|memory| memory.free),
        processes: gpu.holders.as_ref().map(Vec::len),
        reservations_fault: (!is_pool_known).then(|| "the lease pool cannot be read".to_owned()),
        reserved: lease
            .filter(|state| is_pool_known && *state != GpuState::Idle)
            .map(|state| format!("lease: {}", state.name())),
    };
    let verdict = evidence.verdict(vram);
    Candidate {
        node: None,
        index: gpu.index.clone(),
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        free: verdict.as_ref().ok().map(Option::is_none),
        free_bytes: evidence.free_bytes,
        total_bytes: memory.map(|memory| memory.total),
        processes: evidence.processes,
        lease,
        why: verdict.unwrap_or_else(Some),
    }
}

fn table(all: &[Candidate], has_nodes: bool) -> String {
    if all.is_empty() {
        return String::new();
    }
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| Units::Binary.size(bytes));
    let nodes: Vec<String> = all.iter().map(|gpu| line(gpu.node.as_deref().unwrap_or_default())).collect();
    let longest = nodes.iter().map(|node| width(node)).max().unwrap_or_default().max("NODE".len());
    let column = |node: &str| {
        if has_nodes {
            format!("{node}{} ", " ".repeat(longest.saturating_sub(width(node))))
        } else {
            String::new()
        }
    };

    let row = |(gpu, node): (&Candidate, &String)| {
        let state = match gpu.free {
            Some(true) => "free".to_owned(),
            Some(false) => gpu.why.clone().unwrap_or_default(),
            None => format!("unknown: {}", gpu.why.as_deref().unwrap_or_default()),
        };
        let (free, total) = (size(gpu.free_bytes), size(gpu.total_bytes));
        format!("{}{:<5} {free:>9} {total:>9}  {}\n", column(node), line(&gpu.index), line(&state))
    };
    let rows = joined(all.iter().zip(&nodes).map(row), "");
    format!("{}{:<5} {:>9} {:>9}  STATE\n{rows}", column("NODE"), "GPU", "FREE", "TOTAL")
}
