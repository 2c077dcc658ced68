//! Attributes of Slurm jobs.

use super::number;
use crate::value::Value;
use crate::view::{Target, View, joined};
use bailiff_snapshot::{Allocation, AllocationState, Truth, wire};

const NO_GPUS: &str = "the prolog did not determine the job's GPUs";
const UNKNOWN: &str = "the state of one of the job's GPUs is unknown";

pub(super) fn allocated_gpus(target: &Target, view: &View) -> Value {
    let gpus = view.job(target).and_then(|job| job.gpus.as_ref());
    number(gpus.map(|gpus| i128::try_from(gpus.len()).unwrap_or(i128::MAX)), NO_GPUS)
}

pub(super) fn never_used_gpus(target: &Target, view: &View) -> Value {
    count(target, view, |allocation| allocation.state == AllocationState::NeverUsed)
}

pub(super) fn used_gpus(target: &Target, view: &View) -> Value {
    count(target, view, |allocation| allocation.used)
}

fn count(target: &Target, view: &View, which: fn(&Allocation) -> bool) -> Value {
    match states(target, view) {
        Ok(all) => number(u32::try_from(all.into_iter().filter(|gpu| which(gpu)).count()).ok(), UNKNOWN),
        Err(why) => Value::Unknown(why),
    }
}

/// Returns the GPUs of a job, if the state of each is known.
fn states<'a>(target: &'a Target, view: &'a View) -> Result<Vec<&'a Allocation>, &'static str> {
    let job = view.job(target).ok_or(NO_GPUS)?;
    let gpus = job.gpus.as_ref().ok_or(NO_GPUS)?;
    if gpus.is_empty() {
        return Err("no GPU is allocated to the job");
    }
    let all: Vec<&Allocation> = view.allocations(job).collect();
    if all.len() != gpus.len() {
        return Err("the driver does not report one of the job's GPUs");
    }
    let known = all.iter().all(|allocation| allocation.state != AllocationState::Unknown);
    if known { Ok(all) } else { Err(UNKNOWN) }
}

/// Returns the utilization by the job's processes on any GPU; 0 if its GPUs are known to have none.
pub(super) fn gpu_util(target: &Target, view: &View) -> Value {
    if let Err(why) = states(target, view) {
        return Value::Unknown(why);
    }
    let own = view.holdings(target).map(|(_, holder)| holder.utilization);
    let own = own.map(|percent| percent.map(|percent| f64::from(percent) / 100.0));
    // A process that may belong to the job may be busy on another GPU.
    let may_be_own = |process: &wire::Process| {
        let owns = process.facts.as_ref().zip(view.job(target));
        owns.is_none_or(|(facts, job)| job.owns(&facts.place, facts.uid) == Truth::Unknown)
    };
    let others = view.snapshot.processes.iter().filter(|process| may_be_own(process)).map(|_| None);
    view.or_more(target, joined([Some(0.0)].into_iter().chain(own).chain(others), f64::max))
}
