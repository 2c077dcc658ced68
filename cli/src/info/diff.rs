//! Compares two reports: changes of memory and holders, and whether the memory of exited holders was
//! released. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use super::figures::difference;
use super::report::{GpuReport, Holder, InfoReport};

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct GpuChanges {
    pub(crate) index: String,
    pub(crate) uuid: Option<String>,
    /// Whether the GPU was in the earlier report.
    pub(crate) was_there: bool,
    pub(crate) used: Option<i64>,
    pub(crate) free: Option<i64>,
    pub(crate) unaccounted: Option<i64>,
    /// The changed holders; `None` if unknown.
    pub(crate) holders: Option<Vec<Change>>,
    /// Whether the memory of exited holders was released; `None` if no holder exited.
    pub(crate) back: Option<MemoryRelease>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    pub(crate) how: ChangeKind,
    pub(crate) pid: u32,
    pub(crate) user: Option<String>,
    pub(crate) comm: Option<String>,
    pub(crate) was: Option<u64>,
    pub(crate) is: Option<u64>,
}

bailiff_snapshot::label_values! {
/// How a holder changed.
pub enum ChangeKind {
    /// The process is a new holder.
    Began = "began",
    /// The holder's memory changed, or is unknown.
    Changed = "changed",
    /// The driver no longer lists the process.
    Ended = "ended",
    /// The process has exited, but the driver still lists it.
    Died = "died",
}
}

/// Whether the memory of exited holders was released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "came_back")]
pub(crate) enum MemoryRelease {
    /// All memory was released.
    All {
        /// The released bytes.
        bytes: u64,
    },
    /// Some memory is unattributed now, or attributed to processes that do not exist.
    Stayed {
        /// The bytes that were not released.
        bytes: u64,
    },
    /// Unknown whether the memory was released.
    Unknown {
        /// Why it is unknown.
        why: &'static str,
    },
}

/// Whether both reports are from the same boot, so that their pids can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BootMatch {
    /// Both reports are from the same boot.
    Same,
    /// The machine was rebooted in between.
    Different,
    /// A report has no boot id.
    Unknown,
}

impl BootMatch {
    /// Compares the boot ids of two reports.
    pub(crate) fn of(before: &InfoReport, now: &InfoReport) -> Self {
        match (&before.boot_id, &now.boot_id) {
            (Some(before), Some(now)) if before == now => Self::Same,
            (Some(_), Some(_)) => Self::Different,
            _ => Self::Unknown,
        }
    }
}

/// Returns the changes of each GPU of the newer report.
pub(crate) fn compare(before: &InfoReport, now: &InfoReport) -> Vec<GpuChanges> {
    let boots = BootMatch::of(before, now);
    now.gpus.iter().map(|gpu| compare_gpu(earlier(before, gpu), gpu, boots)).collect()
}

/// Returns the same GPU in the earlier report, by UUID, or by index if it has none.
pub(crate) fn earlier<'a>(before: &'a InfoReport, now: &GpuReport) -> Option<&'a GpuReport> {
    before.gpus.iter().find(|gpu| match (&gpu.uuid, &now.uuid) {
        (Some(before), Some(now)) => before == now,
        _ => gpu.index == now.index,
    })
}

/// Returns the GPUs that are only in the earlier report.
pub(crate) fn missing<'a>(
    before: &'a InfoReport,
    now: &'a InfoReport,
) -> impl Iterator<Item = &'a GpuReport> {
    let is_present =
        |gpu: &&GpuReport| now.gpus.iter().any(|now| earlier(before, now).is_some_and(|same| same == *gpu));
    before.gpus.iter().filter(move |gpu| !is_present(gpu))
}

fn compare_gpu(before: Option<&GpuReport>, now: &GpuReport, boots: BootMatch) -> GpuChanges {
    let memory = before.and_then(|before| before.memory.as_ref()).zip(now.memory.as_ref());
    let holders = before
        .filter(|_| boots == BootMatch::Same)
        .and_then(|before| Some(changes(before.holders.as_deref()?, now.holders.as_deref()?)));
    let unaccounted =
        memory.and_then(|(was, is)| is.observed.unaccounted?.checked_sub(was.observed.unaccounted?));
    GpuChanges {
        index: now.index.clone(),
        uuid: now.uuid.clone(),
        was_there: before.is_some(),
        used: memory.map(|(was, is)| difference(was.observed.used, is.observed.used)),
        free: memory.map(|(was, is)| difference(was.observed.free, is.observed.free)),
        unaccounted,
        back: holders.as_deref().and_then(|holders| memory_release(holders, unaccounted)),
        holders,
    }
}

/// Pid and start time of a process; the start time is missing without `/proc` data.
type Key = (u32, Option<u64>);

fn changes(before: &[Holder], now: &[Holder]) -> Vec<Change> {
    let keyed = |holders: &[Holder]| -> BTreeMap<Key, Holder> {
        holders.iter().map(|holder| ((holder.pid, holder.start_ticks), holder.clone())).collect()
    };
    let (mut before, now) = (keyed(before), keyed(now));
    let mut changes = Vec::new();
    for (key, is) in &now {
        // A listed pid without a process is matched with the earlier process that had this pid.
        let earlier = before.keys().find(|earlier| *earlier == key).or_else(|| {
            before.keys().find(|earlier| {
                key.1.is_none() && is.state == bailiff_snapshot::State::Gone && earlier.0 == key.0
            })
        });
        let was = earlier.copied().and_then(|earlier| before.remove(&earlier));
        let how = match &was {
            None => ChangeKind::Began,
            Some(was) if was.start_ticks != is.start_ticks => ChangeKind::Died,
            Some(was) if was.memory == is.memory => continue,
            Some(_) => ChangeKind::Changed,
        };
        changes.push(Change::of(how, was.as_ref(), Some(is)));
    }
    changes.extend(before.values().map(|was| Change::of(ChangeKind::Ended, Some(was), None)));
    changes.sort_by_key(|change| (change.how, change.pid));
    changes
}

impl Change {
    fn of(how: ChangeKind, was: Option<&Holder>, is: Option<&Holder>) -> Self {
        // User and name of an exited process are in the earlier report.
        let known = if how == ChangeKind::Died { was.or(is) } else { is.or(was) };
        Self {
            how,
            pid: known.map(|holder| holder.pid).unwrap_or_default(),
            user: known.and_then(Holder::owner),
            comm: known.and_then(|holder| holder.comm.clone()),
            was: was.and_then(|holder| holder.memory),
            is: is.and_then(|holder| holder.memory),
        }
    }
}

/// Returns whether the memory of exited holders was released: the driver no longer lists them, and
/// unattributed memory has not increased by what they held.
fn memory_release(changes: &[Change], unaccounted: Option<i64>) -> Option<MemoryRelease> {
    let of_kind = |how: ChangeKind| changes.iter().filter(move |change| change.how == how);
    if of_kind(ChangeKind::Died).next().is_some() {
        let held = of_kind(ChangeKind::Died).map(|change| change.is).sum::<Option<u64>>();
        return Some(
            held.map_or(MemoryRelease::Unknown { why: "exited processes are still listed" }, |bytes| {
                MemoryRelease::Stayed { bytes }
            }),
        );
    }
    of_kind(ChangeKind::Ended).next()?;
    let Some(bytes) = of_kind(ChangeKind::Ended).map(|change| change.was).sum::<Option<u64>>() else {
        return Some(MemoryRelease::Unknown { why: "the memory of exited processes is unknown" });
    };
    let Some(rise) = unaccounted else {
        return Some(MemoryRelease::Unknown { why: "unattributed memory is unknown" });
    };
    let moved = of_kind(ChangeKind::Changed)
        .map(|change| Some(change.was?.abs_diff(change.is?)))
        .sum::<Option<u64>>();
    let others = of_kind(ChangeKind::Began).next().is_some() || moved.is_none_or(|moved| moved > bytes / 4);
    let rise = u64::try_from(rise).unwrap_or_default();
    Some(match others {
        true => MemoryRelease::Unknown { why: "other processes started or grew meanwhile" },
        // The enforcer has the same tolerance: reads are not atomic, and the driver keeps some memory.
        false if rise > 0 && rise >= (bytes / 16).max(16 << 20).min(bytes.div_ceil(2)) => {
            MemoryRelease::Stayed { bytes: rise }
        }
        false => MemoryRelease::All { bytes: bytes.saturating_sub(rise) },
    })
}

#[cfg(test)]
mod tests {
    use bailiff_snapshot::wire;

    use super::super::collect::SeenBy;
    use super::super::report::{Memory, VERSION};
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Creates a holder from pid, start time and memory in GiB.
    fn holder((pid, start_ticks, held): (u32, Option<u64>, Option<u64>)) -> Holder {
        let state = if start_ticks.is_some() { "sleeping" } else { "gone" }.into();
        Holder { pid, start_ticks, memory: held.map(|held| held * GIB), state, ..Holder::default() }
    }

    type Row = (u32, Option<u64>, Option<u64>);

    fn report(boot: Option<&str>, unaccounted: Option<i64>, rows: &[Row]) -> InfoReport {
        let (total, used, free) = (80 * GIB, 40 * GIB, 40 * GIB);
        let observed = wire::Memory { total, used, free, unaccounted, ..wire::Memory::default() };
        let memory = Memory { observed, ..Memory::default() };
        let gpu = GpuReport {
            index: "0".into(),
            uuid: Some("GPU-1".into()),
            parent_uuid: None,
            name: None,
            compute_capability: None,
            fault: None,
            mig: false,
            instances: None,
            memory_unknown: None,
            memory: Some(memory),
            utilization: None,
            activity: BTreeMap::new(),
            compute_mode: None,
            recovery_action: None,
            energy_mj: None,
            energy_parts_mj: None,
            xids: BTreeMap::new(),
            cgroups: Vec::new(),
            lease: None,
            holders: Some(rows.iter().copied().map(holder).collect()),
            device_processes: None,
        };
        InfoReport {
            version: VERSION,
            tag: "x".into(),
            wall_ms: 0,
            seen_by: SeenBy::Itself,
            age_ms: 0,
            interval_ms: 0,
            boot_id: boot.map(str::to_owned),
            pid_namespace: "host".into(),
            sources: BTreeMap::new(),
            driver_message: None,
            error: None,
            queue: None,
            gpus: vec![gpu],
            unreadable: None,
            device_processes_age_ms: None,
            device_processes_failed: false,
        }
    }

    const ALICE: Row = (10, Some(1), Some(8));
    const BOB: Row = (20, Some(5), Some(30));

    const UNKNOWN_MEMORY: &str = "unattributed memory is unknown";
    const OTHERS: &str = "other processes started or grew meanwhile";
    /// The name, current holders, unattributed memory, expected changes, and expected release.
    type Case<'a> = (&'a str, &'a [Row], Option<i64>, &'a [(u32, &'a str)], Option<MemoryRelease>);

    /// Returns the changes of holders and the memory release.
    fn compare_with(
        now: &[Row],
        unaccounted: Option<i64>,
    ) -> (Vec<(u32, &'static str)>, Option<MemoryRelease>) {
        let (before, now) = (report(Some("b"), Some(0), &[ALICE, BOB]), report(Some("b"), unaccounted, now));
        let since = compare(&before, &now).remove(0);
        let changes = since.holders.unwrap_or_default();
        (changes.iter().map(|change| (change.pid, change.how.name())).collect(), since.back)
    }

    #[test]
    fn changes_and_memory_release_are_detected() {
        let back = |bytes| Some(MemoryRelease::All { bytes });
        let stayed = |bytes| Some(MemoryRelease::Stayed { bytes });
        let unknown = |why| Some(MemoryRelease::Unknown { why });
        let cases: [Case<'_>; 11] = [
            ("nothing", &[ALICE, BOB], Some(0), &[], None),
            ("one ended", &[BOB], Some(0), &[(10, "ended")], back(8 * GIB)),
            ("memory not released", &[BOB], Some(8 << 30), &[(10, "ended")], stayed(8 * GIB)),
            ("small increase", &[BOB], Some(1 << 28), &[(10, "ended")], back(8 * GIB - (1 << 28))),
            ("part not released", &[BOB], Some(3 << 30), &[(10, "ended")], stayed(3 * GIB)),
            ("unknown increase", &[BOB], None, &[(10, "ended")], unknown(UNKNOWN_MEMORY)),
            ("exited and listed", &[(10, None, Some(8)), BOB], Some(0), &[(10, "died")], stayed(8 * GIB)),
            (
                "its pid was reused",
                &[(10, Some(9), Some(8)), BOB],
                Some(0),
                &[(10, "began"), (10, "ended")],
                unknown(OTHERS),
            ),
            (
                "another grew much",
                &[(20, Some(5), Some(40))],
                Some(0),
                &[(20, "changed"), (10, "ended")],
                unknown(OTHERS),
            ),
            (
                "another grew a little",
                &[(20, Some(5), Some(31))],
                Some(0),
                &[(20, "changed"), (10, "ended")],
                back(8 * GIB),
            ),
            ("one began", &[ALICE, BOB, (30, Some(7), None)], Some(0), &[(30, "began")], None),
        ];
        for (name, now, unaccounted, changes, expected) in cases {
            let (found, came) = compare_with(now, unaccounted);
            assert_eq!((found.as_slice(), came), (changes, expected), "{name}");
        }
    }

    #[test]
    fn unknown_holder_memory_makes_release_unknown() {
        let (before, now) =
            (report(Some("b"), Some(0), &[(10, Some(1), None)]), report(Some("b"), Some(0), &[]));
        let why = "the memory of exited processes is unknown";
        assert_eq!(compare(&before, &now)[0].back, Some(MemoryRelease::Unknown { why }));
    }

    #[test]
    fn holders_of_different_boots_are_not_compared() {
        let before = report(Some("b"), Some(0), &[ALICE]);
        for (boot, boots) in
            [(Some("b"), BootMatch::Same), (Some("c"), BootMatch::Different), (None, BootMatch::Unknown)]
        {
            let now = report(boot, Some(5), &[]);
            assert_eq!(BootMatch::of(&before, &now), boots);
            let since = compare(&before, &now).remove(0);
            assert_eq!(since.holders.is_some(), boots == BootMatch::Same, "{boots:?}");
            assert_eq!(since.unaccounted, Some(5), "memory of the GPU is compared");
        }
    }

    #[test]
    fn gpus_are_matched_by_uuid() {
        let (before, mut now) = (report(None, None, &[]), report(None, None, &[]));
        now.gpus[0].index = "1".into();
        assert!(compare(&before, &now)[0].was_there && missing(&before, &now).next().is_none());
        now.gpus[0].uuid = Some("GPU-2".into());
        now.gpus[0].index = "0".into();
        assert!(!compare(&before, &now)[0].was_there);
        assert_eq!(missing(&before, &now).count(), 1);
    }
}
