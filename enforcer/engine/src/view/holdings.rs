//! Which process holds memory on which GPU, by index in the snapshot.

use bailiff_snapshot::{Quota, QuotaProcess, wire};
use hashbrown::HashMap;

use super::{Health, Target, View, joined};
use crate::value::Value;

/// For each process: the index of each GPU, and its index among the GPU's holders.
#[derive(Debug, Clone)]
pub(super) struct Holdings {
    /// Start of each process' part of `all`, and the end of the last.
    begins: Vec<u32>,
    all: Vec<(u32, u32)>,
}

impl Holdings {
    pub(super) fn of_all(snapshot: &wire::Snapshot) -> Self {
        let places: HashMap<u32, u32> =
            snapshot.processes.iter().map(|process| process.pid).zip(0..).collect();
        let mut held: Vec<(u32, (u32, u32))> = Vec::new();
        for (gpu, number) in snapshot.gpus.iter().zip(0..) {
            let of_gpu = gpu.holders.iter().zip(0..);
            held.extend(
                of_gpu.filter_map(|(holder, place)| Some((*places.get(&holder.pid)?, (number, place)))),
            );
        }
        held.sort_unstable();
        let mut begins = Vec::with_capacity(snapshot.processes.len() + 1);
        let mut all = Vec::with_capacity(held.len());
        let mut held = held.into_iter().peekable();
        for process in (0..).take(snapshot.processes.len()) {
            begins.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
            while let Some((_, holding)) = held.next_if(|(of, _)| *of == process) {
                all.push(holding);
            }
        }
        begins.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
        Self { begins, all }
    }

    pub(super) fn of(&self, process: usize) -> &[(u32, u32)] {
        let at = |place| self.begins.get(place).map(|begin| *begin as usize);
        let Some((begin, end)) = at(process).zip(at(process + 1)) else { return &[] };
        self.all.get(begin..end).unwrap_or_default()
    }
}

const NO_QUOTA: &str = "it is not under a quota that the exporter can read";

impl View {
    /// Returns every quota slot of a target's processes.
    ///
    /// # Errors
    /// With the reason why they are unknown.
    fn places<'a>(&'a self, target: &'a Target) -> Result<Vec<(&'a Quota, &'a QuotaProcess)>, &'static str> {
        if !self.snapshot.sources.contains_key("quota") {
            return Err("the exporter has no quota directory");
        }
        let quotas = self.snapshot.quotas.as_ref().filter(|_| self.source("quota") == Health::Well);
        let quotas = quotas.ok_or("the quota directory could not be read")?;
        let keys = self.processes(target).filter_map(wire::Process::key);
        let places = keys.flat_map(|key| {
            quotas.iter().filter_map(move |quota| quota.place(key).map(|place| (quota, place)))
        });
        let places: Vec<_> = places.collect();
        if places.is_empty() { Err(NO_QUOTA) } else { Ok(places) }
    }

    /// Returns the largest used share of a limit, over the GPUs on which the target has memory.
    pub(crate) fn quota_ratio(&self, target: &Target) -> Value {
        let places = match self.places(target) {
            Ok(places) => places,
            Err(why) => return Value::Unknown(why),
        };
        let ratios = places.into_iter().flat_map(|(quota, place)| {
            let has = quota.gpus.iter().zip(&place.used).filter(|(_, used)| **used > 0);
            has.filter(|(gpu, _)| gpu.limit.is_some()).map(|(gpu, _)| gpu.ratio())
        });
        joined(ratios, f64::max)
    }

    /// Returns the number of allocations refused to a target since the previous snapshot.
    pub(crate) fn quota_denied(&self, target: &Target) -> Value {
        #[expect(clippy::cast_precision_loss, reason = "2^53 requests in an interval are not to be expected")]
        match self.places(target) {
            Ok(places) => {
                let denied =
                    places.into_iter().map(|(_, place)| place.denied_since.map(|denied| denied as f64));
                joined(denied, |sum, denied| sum + denied)
            }
            Err(why) => Value::Unknown(why),
        }
    }
}
