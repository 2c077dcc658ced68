//! Limit of the texts that users choose, so that a snapshot is not longer than a line of the stream may be. If there is too
//! much text, the workloads with the most text lose it first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::{Facts, Place, Relative, Seen};

/// Maximum length of the texts of all holders, and of all relatives, in bytes of JSON.
const MOST_OF_HOLDERS: usize = 8 << 20;
const MOST_OF_RELATIVES: usize = 24 << 20;
/// Up to this many processes cannot have too much text.
const FEW: usize = 128;
/// Maximum length of a path that a snapshot contains for each process, such as a unit's cgroup or a program.
pub const LONGEST_PATH: usize = 1024;

/// Returns whether a path is short enough to be contained in a snapshot.
pub fn fits(path: &str) -> bool {
    json_len(path) <= LONGEST_PATH
}

/// Returns the length of a text in JSON.
fn json_len(text: &str) -> usize {
    let written = |letter: char| match letter {
        '"' | '\\' => 2,
        letter if letter.is_control() => 6,
        letter => letter.len_utf8(),
    };
    text.chars().map(written).sum()
}

fn length(text: Option<&String>) -> usize {
    text.map_or(0, |text| json_len(text))
}

fn place_len(place: &Place) -> usize {
    let Place { cgroup, boundary, container, runtime, pod_uid, pod, namespace, slurm_job, slurm_step, unit } =
        place;
    let others = [boundary, container, runtime, pod_uid, pod, namespace, slurm_job, slurm_step, unit];
    json_len(cgroup) + others.into_iter().map(|text| length(text.as_ref())).sum::<usize>()
}

/// Drops texts of relatives that are too long together: command lines, programs and cgroups. They remain members of their pods,
/// because a busy member keeps the pod.
pub fn limit_relatives(relatives: &mut [Relative]) {
    if relatives.len() <= FEW {
        return;
    }
    let mut places: HashMap<*const Place, usize> = HashMap::new();
    let mut length_of = |relative: &Relative| {
        let place = places.entry(Arc::as_ptr(&relative.place)).or_insert_with(|| place_len(&relative.place));
        let texts = length(relative.exe.as_ref()) + length(relative.command.as_ref());
        json_len(&relative.workload) + *place + texts
    };
    let lengths: Vec<(&str, usize)> =
        relatives.iter().map(|relative| (relative.workload.as_str(), length_of(relative))).collect();
    let shares = shares(&lengths, MOST_OF_RELATIVES);
    let mut short: HashMap<*const Place, Arc<Place>> = HashMap::new();
    for (relative, share) in relatives.iter_mut().zip(shares) {
        let Some(share) = share else { continue };
        let mut left = share.saturating_sub(json_len(&relative.workload));
        if !take(place_len(&relative.place), &mut left) {
            relative.place = Arc::clone(
                short
                    .entry(Arc::as_ptr(&relative.place))
                    .or_insert_with(|| Arc::new(relative.place.of_pod())),
            );
        }
        keep([&mut relative.exe, &mut relative.command], left);
    }
}

/// Drops texts of holders that are too long together: command lines, programs, notebooks, and the part of the cgroup path in which
/// the process can move.
pub fn limit_holders(seen: &mut BTreeMap<u32, Seen>) {
    if seen.len() <= FEW {
        return;
    }
    let mut holders: Vec<&mut Facts> = seen.values_mut().filter_map(Seen::found_mut).collect();
    let length_of = |facts: &Facts| {
        let texts = [&facts.exe, &facts.command, &facts.notebook];
        place_len(&facts.place) + texts.into_iter().map(|text| length(text.as_ref())).sum::<usize>()
    };
    let lengths: Vec<(&str, usize)> = holders
        .iter()
        .map(|facts| (facts.workload.as_deref().unwrap_or_default(), length_of(facts)))
        .collect();
    let shares = shares(&lengths, MOST_OF_HOLDERS);
    for (facts, share) in holders.iter_mut().zip(shares) {
        let Some(mut left) = share else { continue };
        if !take(place_len(&facts.place), &mut left) {
            // Without it, no action against the process would be possible.
            facts.place.cgroup = String::from(facts.place.confinement());
        }
        keep([&mut facts.exe, &mut facts.command, &mut facts.notebook], left);
    }
}

/// Drops the texts that are longer than what is left.
fn keep<const N: usize>(texts: [&mut Option<String>; N], mut left: usize) {
    for text in texts {
        let len = length(text.as_ref());
        *text = text.take().filter(|_| take(len, &mut left));
    }
}

fn take(len: usize, left: &mut usize) -> bool {
    let fits = len <= *left;
    *left -= if fits { len } else { 0 };
    fits
}

/// Returns how much text each process may have, given its workload and the length of its text; `None` if all of it. The
/// workloads with the least text come first, so that one with much text takes nothing from others.
fn shares(lengths: &[(&str, usize)], most: usize) -> Vec<Option<usize>> {
    let mut workloads: HashMap<&str, (usize, usize)> = HashMap::new();
    for (workload, len) in lengths {
        let (sum, count) = workloads.entry(workload).or_default();
        (*sum, *count) = (*sum + len, *count + 1);
    }
    let mut order: Vec<_> = workloads.into_iter().collect();
    order.sort_unstable_by_key(|(_, (sum, _))| *sum);
    let mut limits: HashMap<&str, Option<usize>> = HashMap::new();
    let (mut left, mut due) = (most, order.len());
    for (workload, (sum, count)) in order {
        let fair = left / due;
        limits.insert(workload, (sum > fair).then_some(fair / count));
        (left, due) = (left - sum.min(fair), due - 1);
    }
    lengths.iter().map(|(workload, _)| limits.get(workload).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claim, Io, ProcessKey, State};

    /// Maximum length of a line of the stream, in the enforcer.
    const LINE: usize = 64 << 20;
    /// Length of quotas with as many figures as the sampler permits.
    const MOST_OF_QUOTAS: usize = 8 << 20;

    /// Returns a process whose program's path has this length.
    fn relative((pid, exe): (u32, usize), workload: &str, place: &Arc<Place>) -> Relative {
        Relative {
            key: ProcessKey { pid, start_ticks: u64::MAX },
            state: State::ZombieLeader,
            ppid: pid,
            comm: "\u{1}".repeat(15),
            uid: Some(u32::MAX),
            user: None,
            place: Arc::clone(place),
            exe: Some("e".repeat(exe)),
            exe_uid: Some(u32::MAX),
            command: Some("\u{1}".repeat(256)),
            workload: workload.to_owned(),
            cpu_seconds: 123_456_789.123_456_78,
            reaped_cpu_seconds: 123_456_789.123_456_78,
        }
    }

    #[test]
    fn texts_of_a_workload_with_very_many_processes_are_dropped_and_others_are_kept() {
        let long = format!("/{}.service", "u".repeat(LONGEST_PATH - 9));
        let place =
            Arc::new(Place { cgroup: long.clone(), unit: Some(long[1..].to_owned()), ..Place::default() });
        let workload = format!("unit:{long}");
        // The second one fits into the share of a process.
        for exe in [LONGEST_PATH, 740] {
            let mut all: Vec<Relative> =
                (2..32 << 10).map(|pid| relative((pid, exe), &workload, &place)).collect();
            all.push(relative((1, exe), "unit:/other.service", &Arc::default()));
            let other = all.last().cloned();
            limit_relatives(&mut all);
            assert_eq!(all.last(), other.as_ref());
            let text = |it| serde_json::to_string(&crate::wire::Relative::from(it)).unwrap().len();
            let written: usize = all.iter().map(text).sum();
            assert!(written < LINE - MOST_OF_HOLDERS - MOST_OF_QUOTAS, "{exe}: {written}");
        }
    }

    #[test]
    fn holder_keeps_the_path_that_it_cannot_leave() {
        let cgroup = format!("/user.slice/user-1000.slice/user@1000.service/{}", "deep/".repeat(800));
        let place = Place { cgroup, ..Place::default() };
        let facts = |pid| Facts {
            key: ProcessKey { pid, start_ticks: 7 },
            state: State::Sleeping,
            ppid: 1,
            comm: String::new(),
            uid: Some(1000),
            user: None,
            place: place.clone(),
            command: Some("train".to_owned()),
            started: None,
            cpu_seconds: 0.0,
            io: None::<Io>,
            orphaned: None,
            reaped_cpu_seconds: None,
            workload: Some("tree:1@1".to_owned()),
            exe: None,
            exe_uid: None,
            role: None,
            claim: Claim::Unread,
            notebook: Some("n".repeat(LONGEST_PATH)),
            ancestors: None,
            restored: false,
            reused_pid: false,
            unread_relatives: false,
        };
        for (count, expected) in [(1000, place.cgroup.as_str()), (4000, "/user.slice/user-1000.slice")] {
            let mut seen: BTreeMap<u32, Seen> =
                (0..count).map(|pid| (pid, Seen::Found(Box::new(facts(pid))))).collect();
            limit_holders(&mut seen);
            let facts = seen[&7].found().unwrap();
            assert_eq!((facts.place.cgroup.as_str(), facts.command.as_deref()), (expected, Some("train")));
            assert_eq!(facts.place.confinement(), place.confinement());
        }
    }

    #[test]
    fn workloads_with_little_text_keep_it() {
        let lengths = [("a", 10), ("b", 40), ("b", 30), ("c", 20)];
        assert_eq!(shares(&lengths, 100), [None; 4]);
        assert_eq!(shares(&lengths, 60), [None, Some(15), Some(15), None]);
        assert_eq!(shares(&lengths, 45), [None, Some(9), Some(9), Some(17)]);
    }
}
