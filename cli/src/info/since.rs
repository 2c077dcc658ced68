//! Two reports compared: what memory did, who came, ended and grew, and whether what the ended held came back. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::difference;
use super::report::{Gpu, Holder, Report};

/// What has changed on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Since {
    pub(crate) index: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uuid: Option<String>,
    /// It was in the earlier report.
    pub(crate) was_there: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) used: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) free: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unaccounted: Option<i64>,
    /// Who changed; none where that cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<Vec<Change>>,
    /// Whether the memory of those who ended came back; none where nobody ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) back: Option<Back>,
}

/// A holder that is no longer as it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    pub(crate) how: How,
    pub(crate) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) was: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) is: Option<u64>,
}

/// What became of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// It was not there before.
    Began,
    /// It holds more, or less, or that is not known.
    Changed,
    /// It is no longer listed.
    Ended,
    /// It has ended, and the driver lists it all the same.
    Died,
}

impl How {
    /// In a table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::Changed => "changed",
            Self::Ended => "ended",
            Self::Died => "died",
        }
    }
}

/// Whether memory came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "came_back")]
pub(crate) enum Back {
    /// All of it, so many bytes.
    All {
        /// What those who ended held.
        bytes: u64,
    },
    /// So much of it is held by nobody now, or by those who do not exist.
    Stayed {
        /// What did not come back.
        bytes: u64,
    },
    /// That cannot be told.
    Unknown {
        /// Why.
        why: &'static str,
    },
}

/// Whether pids of both reports mean the same processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boots {
    /// One boot.
    Same,
    /// The machine was restarted in between.
    Another,
    /// A report does not say which.
    UnknownReason,
}

impl Boots {
    pub(crate) fn of(before: &Report, now: &Report) -> Self {
        match (&before.boot_id, &now.boot_id) {
            (Some(before), Some(now)) if before == now => Self::Same,
            (Some(_), Some(_)) => Self::Another,
            _ => Self::UnknownReason,
        }
    }
}

/// What has changed, GPU by GPU, those of the newer report.
pub(crate) fn compare(before: &Report, now: &Report) -> Vec<Since> {
    let boots = Boots::of(before, now);
    now.gpus.iter().map(|gpu| on_one(earlier(before, gpu), gpu, boots)).collect()
}

/// The same GPU before: by UUID, and by index where it had none.
pub(crate) fn earlier<'a>(before: &'a Report, now: &Gpu) -> Option<&'a Gpu> {
    before.gpus.iter().find(|gpu| match (&gpu.uuid, &now.uuid) {
        (Some(before), Some(now)) => before == now,
        _ => gpu.index == now.index,
    })
}

/// GPUs that were there before and are not any more.
pub(crate) fn missing<'a>(before: &'a Report, now: &'a Report) -> impl Iterator<Item = &'a Gpu> {
    let is_there =
        |gpu: &&Gpu| now.gpus.iter().any(|now| earlier(before, now).is_some_and(|same| same == *gpu));
    before.gpus.iter().filter(move |gpu| !is_there(gpu))
}

fn on_one(before: Option<&Gpu>, now: &Gpu, boots: Boots) -> Since {
    let memory = before.and_then(|before| before.memory.as_ref()).zip(now.memory.as_ref());
    let holders = before
        .filter(|_| boots == Boots::Same)
        .and_then(|before| Some(changes(before.holders.as_deref()?, now.holders.as_deref()?)));
    let unaccounted = memory.and_then(|(was, is)| is.unaccounted?.checked_sub(was.unaccounted?));
    Since {
        index: now.index.clone(),
        uuid: now.uuid.clone(),
        was_there: before.is_some(),
        used: memory.map(|(was, is)| difference(was.used, is.used)),
        free: memory.map(|(was, is)| difference(was.free, is.free)),
        unaccounted,
        back: holders.as_deref().and_then(|holders| back(holders, unaccounted)),
        holders,
    }
}

/// A process: one that `/proc` did not show is known by its pid alone.
type Key = (u32, Option<u64>);

fn changes(before: &[Holder], now: &[Holder]) -> Vec<Change> {
    let keyed = |holders: &[Holder]| -> BTreeMap<Key, Holder> {
        holders.iter().map(|holder| ((holder.pid, holder.start_ticks), holder.clone())).collect()
    };
    let (mut before, now) = (keyed(before), keyed(now));
    let mut changes = Vec::new();
    for (key, is) in &now {
        // A pid that is listed without its process may be the one that had it.
        let earlier = before.keys().find(|earlier| *earlier == key).or_else(|| {
            before.keys().find(|earlier| key.1.is_none() && is.state == "gone" && earlier.0 == key.0)
        });
        let was = earlier.copied().and_then(|earlier| before.remove(&earlier));
        let how = match &was {
            None => How::Began,
            Some(was) if was.start_ticks != is.start_ticks => How::Died,
            Some(was) if was.memory == is.memory => continue,
            Some(_) => How::Changed,
        };
        changes.push(Change::of(how, was.as_ref(), Some(is)));
    }
    changes.extend(before.values().map(|was| Change::of(How::Ended, Some(was), None)));
    changes.sort_by_key(|change| (change.how, change.pid));
    changes
}

impl Change {
    fn of(how: How, was: Option<&Holder>, is: Option<&Holder>) -> Self {
        // Whoever has died is known as he was.
        let known = if how == How::Died { was.or(is) } else { is.or(was) };
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

/// Whether the memory of those who ended came back: their pids have left the list, and memory of nobody has not risen
/// by what they held.
fn back(changes: &[Change], unaccounted: Option<i64>) -> Option<Back> {
    let of = |how: How| changes.iter().filter(move |change| change.how == how);
    if of(How::Died).next().is_some() {
        let held = of(How::Died).map(|change| change.is).sum::<Option<u64>>();
        return Some(
            held.map_or(Back::Unknown { why: "the dead are listed" }, |bytes| Back::Stayed { bytes }),
        );
    }
    of(How::Ended).next()?;
    let Some(bytes) = of(How::Ended).map(|change| change.was).sum::<Option<u64>>() else {
        return Some(Back::Unknown { why: "what they held is not known" });
    };
    let Some(rise) = unaccounted else {
        return Some(Back::Unknown { why: "memory of nobody is not known" });
    };
    let moved = of(How::Changed).map(|change| Some(change.was?.abs_diff(change.is?))).sum::<Option<u64>>();
    let others = of(How::Began).next().is_some() || moved.is_none_or(|moved| moved > bytes / 4);
    let rise = u64::try_from(rise).unwrap_or_default();
    Some(match others {
        true => Back::Unknown { why: "others came or grew meanwhile" },
        // As the enforcer judges it: reads are not atomic, and the driver keeps a little.
        false if rise > 0 && rise >= (bytes / 16).max(16 << 20).min(bytes.div_ceil(2)) => {
            Back::Stayed { bytes: rise }
        }
        false => Back::All { bytes: bytes.saturating_sub(rise) },
    })
}

#[cfg(test)]
mod tests {
    use super::super::look::By;
    use super::super::report::{Memory, VERSION};
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A holder, by pid, start and GiB.
    fn holder((pid, start_ticks, held): (u32, Option<u64>, Option<u64>)) -> Holder {
        let state = if start_ticks.is_some() { "sleeping" } else { "gone" }.to_owned();
        Holder { pid, start_ticks, memory: held.map(|held| held * GIB), state, ..Holder::default() }
    }

    type Row = (u32, Option<u64>, Option<u64>);

    fn report(boot: Option<&str>, unaccounted: Option<i64>, rows: &[Row]) -> Report {
        let memory =
            Memory { total: 80 * GIB, used: 40 * GIB, free: 40 * GIB, unaccounted, ..Memory::default() };
        let gpu = Gpu {
            index: "0".into(),
            uuid: Some("GPU-1".into()),
            parent_uuid: None,
            name: None,
            compute_capability: None,
            fault: None,
            mig: false,
            instances: None,
            memory: Some(memory),
            utilization: None,
            compute_mode: None,
            lease: None,
            holders: Some(rows.iter().copied().map(holder).collect()),
            device_processes: None,
        };
        Report {
            version: VERSION,
            tag: "x".into(),
            wall_ms: 0,
            seen_by: By::Itself,
            age_ms: 0,
            interval_ms: 0,
            boot_id: boot.map(str::to_owned),
            pid_namespace: "host".into(),
            sources: BTreeMap::new(),
            words: None,
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

    const NOBODY: &str = "memory of nobody is not known";
    const OTHERS: &str = "others came or grew meanwhile";
    /// Its name, who holds now, what is of nobody now, who changed how, and what came back.
    type Case<'a> = (&'a str, &'a [Row], Option<i64>, &'a [(u32, &'a str)], Option<Back>);

    /// What became of whom, and what of their memory.
    fn seen(now: &[Row], unaccounted: Option<i64>) -> (Vec<(u32, &'static str)>, Option<Back>) {
        let (before, now) = (report(Some("b"), Some(0), &[ALICE, BOB]), report(Some("b"), unaccounted, now));
        let since = compare(&before, &now).remove(0);
        let changes = since.holders.unwrap_or_default();
        (changes.iter().map(|change| (change.pid, change.how.name())).collect(), since.back)
    }

    #[test]
    fn who_changed_and_what_came_back() {
        let back = |bytes| Some(Back::All { bytes });
        let stayed = |bytes| Some(Back::Stayed { bytes });
        let unknown = |why| Some(Back::Unknown { why });
        let cases: [Case<'_>; 11] = [
            ("nothing", &[ALICE, BOB], Some(0), &[], None),
            ("one ended", &[BOB], Some(0), &[(10, "ended")], back(8 * GIB)),
            ("and its memory stayed", &[BOB], Some(8 << 30), &[(10, "ended")], stayed(8 * GIB)),
            ("a little is anybody's", &[BOB], Some(1 << 28), &[(10, "ended")], back(8 * GIB - (1 << 28))),
            ("a part of it is not", &[BOB], Some(3 << 30), &[(10, "ended")], stayed(3 * GIB)),
            ("nobody knows", &[BOB], None, &[(10, "ended")], unknown(NOBODY)),
            (
                "it ended and is listed",
                &[(10, None, Some(8)), BOB],
                Some(0),
                &[(10, "died")],
                stayed(8 * GIB),
            ),
            (
                "another has its pid",
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
            let (found, came) = seen(now, unaccounted);
            assert_eq!((found.as_slice(), came), (changes, expected), "{name}");
        }
    }

    #[test]
    fn what_a_holder_held_must_be_known() {
        let (before, now) =
            (report(Some("b"), Some(0), &[(10, Some(1), None)]), report(Some("b"), Some(0), &[]));
        let why = "what they held is not known";
        assert_eq!(compare(&before, &now)[0].back, Some(Back::Unknown { why }));
    }

    #[test]
    fn pids_of_another_boot_mean_nothing() {
        let before = report(Some("b"), Some(0), &[ALICE]);
        for (boot, boots) in
            [(Some("b"), Boots::Same), (Some("c"), Boots::Another), (None, Boots::UnknownReason)]
        {
            let now = report(boot, Some(5), &[]);
            assert_eq!(Boots::of(&before, &now), boots);
            let since = compare(&before, &now).remove(0);
            assert_eq!(since.holders.is_some(), boots == Boots::Same, "{boots:?}");
            assert_eq!(since.unaccounted, Some(5), "memory is of the GPU");
        }
    }

    #[test]
    fn gpus_are_known_by_their_uuid() {
        let (before, mut now) = (report(None, None, &[]), report(None, None, &[]));
        now.gpus[0].index = "1".into();
        assert!(compare(&before, &now)[0].was_there && missing(&before, &now).next().is_none());
        now.gpus[0].uuid = Some("GPU-2".into());
        now.gpus[0].index = "0".into();
        assert!(!compare(&before, &now)[0].was_there);
        assert_eq!(missing(&before, &now).count(), 1);
    }
}
