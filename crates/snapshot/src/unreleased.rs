//! Memory that was not released after its holders exited: the increase of unattributed memory since then, at
//! most what the holders held. Pure computation.
//!
//! Unattributed memory is used memory minus the memory of all running processes. When an exited process's
//! memory is released, unattributed memory returns to its earlier value. The driver's figures are not read at
//! one moment, the driver frees memory a little after a process exits, and its lists may be late. Therefore
//! only calm samples count, in which no other process started, exited or grew since the previous sample.
//! Memory is called unreleased only from the third sample on. If another process takes over released memory,
//! the driver lists it with that memory, so it is no longer unattributed.
//!
//! | sample | result |
//! |---|---|
//! | a part of the memory breakdown is unknown, or the driver's pids belong to another namespace | unknown |
//! | the first sample, or the first after a gap of a minute in which no holder exited | unknown |
//! | no holder exited | 0 |
//! | calm, unattributed memory is at its earlier value | 0: all memory is released |
//! | calm, at least the third since a holder exited | the increase of unattributed memory, at most what the holders held |
//! | calm, before the third | unknown: the driver may still be freeing memory |
//! | not calm | unknown |
//! | undecided for a minute, or a holder exited in a gap or without a calm sample before | given up: unknown until a calm sample has no more unattributed memory than before the exit |

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Holder, Parts, Process, ProcessId};

/// Differences up to this many bytes are due to rounding by the driver, and count as 0.
const SLACK: u64 = 16 << 20;
/// Number of samples after an exit before unattributed memory is called unreleased.
const SETTLED: u32 = 2;

crate::label_values! {
/// Why the unreleased memory is unknown.
pub enum UnknownReason {
    /// There is no previous sample with enough data.
    FirstSample = "first_sample",
    /// A part of the GPU's memory breakdown is unknown.
    MemoryUnknown = "memory_unknown",
    /// The driver's pids belong to another namespace, so exits cannot be seen.
    PidNamespace = "pid_namespace",
    /// A holder has just exited, and the driver may not have freed all its memory yet.
    Settling = "settling",
    /// Other processes started, exited or grew since the previous sample.
    OthersChanged = "others_changed",
    /// Not decided in time; unattributed memory is above its value before the exit.
    GivenUp = "given_up",
}
}

/// Memory of a GPU in one sample in which all parts are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// Time of the sample, since boot.
    pub(crate) at: Duration,
    /// How long later samples may be compared with this one.
    pub(crate) good_for: Duration,
    /// Bytes in use that no running process holds.
    pub(crate) unattributed: i64,
    /// Bytes of each running process.
    pub(crate) living: BTreeMap<ProcessId, u64>,
}

impl Account {
    /// Returns the memory of a GPU in a sample, without its time.
    pub(crate) fn of(
        parts: Option<Parts>,
        holders: &[Holder],
        processes: &BTreeMap<ProcessId, Process>,
    ) -> Result<Self, UnknownReason> {
        let mut unattributed = parts.ok_or(UnknownReason::MemoryUnknown)?.unaccounted;
        let mut living = BTreeMap::new();
        for holder in holders {
            let bytes = holder.memory.ok_or(UnknownReason::MemoryUnknown)?;
            if processes.get(&holder.process).is_some_and(|process| process.state.ended()) {
                unattributed = unattributed.saturating_add_unsigned(bytes);
            } else {
                living.insert(holder.process, bytes);
            }
        }
        Ok(Self { at: Duration::ZERO, good_for: Duration::ZERO, unattributed, living })
    }

    /// Adds the time since boot, and how long later samples may be compared with this one.
    pub(crate) fn at(self, at: Duration, good_for: Duration) -> Self {
        Self { at, good_for, ..self }
    }
}

/// Memory of exited holders that is being tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missing {
    /// Unattributed bytes before the first of these holders exited.
    before: i64,
    /// Bytes that a sample has shown to be unreleased.
    shown: u64,
    /// Bytes of the holders that exited since then.
    ended: u64,
    /// Time since boot at which the first exit counted in `ended` was found.
    since: Duration,
    /// Number of samples since the last exit.
    samples: u32,
}

/// Evidence of one GPU for the next sample, and the result of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreleased {
    last: Option<Account>,
    /// Unattributed bytes in the last calm sample, and the time of that sample.
    calm: Option<(i64, Duration)>,
    missing: Option<Missing>,
    result: Result<u64, UnknownReason>,
    /// Unattributed bytes before an exit after which the release could not be decided. Until they are down to
    /// this value again, the unreleased memory is unknown, whatever exits later.
    lost: Option<i64>,
    /// Whether this sample gave up deciding on an exit.
    given_up: bool,
}

/// Difference between a sample and the previous one.
struct Change {
    /// Bytes of the holders that exited; `None` if no holder exited.
    ended: Option<u64>,
    calm: bool,
}

impl Change {
    fn between(last: &Account, now: &Account) -> Self {
        let mut ended = 0_u64;
        let mut moved = 0_u64;
        let mut went = false;
        for (process, was) in &last.living {
            if let Some(is) = now.living.get(process) {
                moved = moved.saturating_add(was.abs_diff(*is));
            } else {
                (ended, went) = (ended.saturating_add(*was), true);
            }
        }
        let came = now.living.keys().any(|process| !last.living.contains_key(process));
        Self { ended: Some(ended).filter(|bytes| *bytes > 0), calm: !came && !went && moved <= SLACK }
    }
}

impl Missing {
    fn most(&self) -> u64 {
        self.shown.saturating_add(self.ended)
    }

    /// Returns the increase of unattributed memory; 0 if it is within `SLACK`.
    fn risen(&self, unattributed: i64) -> u64 {
        let risen = u64::try_from(unattributed.saturating_sub(self.before)).unwrap_or_default();
        if risen <= SLACK { 0 } else { risen.min(self.most()) }
    }
}

impl Unreleased {
    /// Returns the unreleased memory in bytes.
    ///
    /// # Errors
    /// If it is unknown.
    pub const fn bytes(&self) -> Result<u64, UnknownReason> {
        self.result
    }

    /// Returns whether this sample gave up deciding on an exited holder's memory.
    pub(crate) const fn given_up(&self) -> bool {
        self.given_up
    }

    /// Returns the state after one more sample, or after a sample without data for the given reason.
    pub(crate) fn after(before: Option<&Self>, step: Result<Account, UnknownReason>) -> Self {
        let nothing = Self {
            last: None,
            calm: None,
            missing: None,
            result: Err(UnknownReason::FirstSample),
            lost: None,
            given_up: false,
        };
        let mut next = before.cloned().unwrap_or(nothing);
        next.given_up = false;
        match step {
            Ok(account) => next.add(account),
            Err(why) => next.result = Err(why),
        }
        next
    }

    fn add(&mut self, now: Account) {
        self.result = match self.last.take() {
            None => Err(UnknownReason::FirstSample),
            Some(last) if now.at.saturating_sub(last.at) > now.good_for => self.after_a_gap(&last, &now),
            Some(last) => self.compare(&last, &now),
        };
        self.last = Some(now);
    }

    /// Handles a gap between two samples: exits in the gap cannot be evaluated.
    fn after_a_gap(&mut self, last: &Account, now: &Account) -> Result<u64, UnknownReason> {
        let went = last.living.keys().any(|process| !now.living.contains_key(process));
        if went || self.missing.is_some() {
            self.give_up(last);
        }
        self.calm = None;
        Err(if self.lost.is_some() { UnknownReason::GivenUp } else { UnknownReason::FirstSample })
    }

    fn compare(&mut self, last: &Account, now: &Account) -> Result<u64, UnknownReason> {
        let change = Change::between(last, now);
        if let Some(bytes) = change.ended {
            self.holder_ended(bytes, (last, now));
        } else if let Some(missing) = &mut self.missing {
            missing.samples += 1;
        }
        if change.calm {
            self.calm = Some((now.unattributed, now.at));
        }
        if let Some(before) = self.lost {
            if !change.calm || now.unattributed > before.saturating_add_unsigned(SLACK) {
                return Err(UnknownReason::GivenUp);
            }
            self.lost = None;
        }
        let result = self.evaluate(&change, now);
        // After so long without a decision, unattributed memory may have risen for any reason.
        let old =
            |missing: &Missing| missing.ended > 0 && now.at.saturating_sub(missing.since) > now.good_for;
        if self.missing.as_ref().is_some_and(old) {
            self.give_up(last);
            return Err(UnknownReason::GivenUp);
        }
        result
    }

    /// Gives up: it can no longer be decided how much is unreleased, or which process holds it later.
    fn give_up(&mut self, last: &Account) {
        let calm =
            self.calm.map_or(last.unattributed, |(unattributed, _)| unattributed.min(last.unattributed));
        let before = self.missing.take().map_or(calm, |missing| missing.before);
        self.given_up = self.lost.is_none();
        self.lost.get_or_insert(before);
    }

    /// Tracks an exit. Gives up without a recent calm sample, because there is no value to compare with.
    fn holder_ended(&mut self, bytes: u64, (last, now): (&Account, &Account)) {
        if self.lost.is_some() {
            return;
        }
        let fresh = self.calm.filter(|(_, at)| now.at.saturating_sub(*at) <= now.good_for);
        let before =
            self.missing.map(|missing| missing.before).or(fresh.map(|(unattributed, _)| unattributed));
        let Some(before) = before else {
            self.give_up(last);
            return;
        };
        let none = Missing { before, shown: 0, ended: 0, since: now.at, samples: 0 };
        let earlier = self.missing.unwrap_or(none);
        let since = if earlier.ended > 0 { earlier.since } else { now.at };
        let ended = earlier.ended.saturating_add(bytes);
        self.missing = Some(Missing { ended, since, samples: 0, ..earlier });
    }

    fn evaluate(&mut self, change: &Change, now: &Account) -> Result<u64, UnknownReason> {
        let Some(missing) = &mut self.missing else { return Ok(0) };
        let settling = missing.samples < SETTLED;
        if !change.calm {
            return Err(if settling { UnknownReason::Settling } else { UnknownReason::OthersChanged });
        }
        let risen = missing.risen(now.unattributed);
        if risen == 0 {
            self.missing = None;
            return Ok(0);
        }
        if settling {
            return Err(UnknownReason::Settling);
        }
        // Memory that was released once does not become unreleased again.
        (missing.shown, missing.ended) = (risen, 0);
        Ok(risen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessKey;

    const MIB: u64 = 1 << 20;
    const UNKNOWN: Result<u64, UnknownReason> = Err(UnknownReason::MemoryUnknown);
    const FIRST: Result<u64, UnknownReason> = Err(UnknownReason::FirstSample);
    const SETTLING: Result<u64, UnknownReason> = Err(UnknownReason::Settling);
    const CHANGED: Result<u64, UnknownReason> = Err(UnknownReason::OthersChanged);
    const GIVEN_UP: Result<u64, UnknownReason> = Err(UnknownReason::GivenUp);

    /// Unattributed memory in MiB, and pid and MiB of each running holder; `None` for a sample without data.
    type Step = Option<(i64, &'static [(u32, u64)])>;

    /// Name of the case, its samples, and their results in MiB.
    type Case = (&'static str, &'static [Step], &'static [Result<u64, UnknownReason>]);

    fn account(interval: u64, step: Step) -> Result<Account, UnknownReason> {
        let (unattributed, living) = step.ok_or(UnknownReason::MemoryUnknown)?;
        let id = |pid| ProcessId::Live(ProcessKey { pid, start_ticks: 7 });
        Ok(Account {
            at: Duration::from_secs(5 * interval),
            good_for: Duration::from_mins(1),
            unattributed: unattributed * (1 << 20),
            living: living.iter().map(|(pid, mib)| (id(*pid), mib * MIB)).collect(),
        })
    }

    /// Returns the result of each sample in MiB, and the indexes of the samples that gave up.
    fn walk(samples: &[Step]) -> (Vec<Result<u64, UnknownReason>>, Vec<usize>) {
        let mut last = None;
        let (mut result, mut given_up) = (Vec::new(), Vec::new());
        for (interval, step) in (0_u64..).zip(samples) {
            let next = Unreleased::after(last.as_ref(), account(interval, *step));
            if next.given_up() {
                given_up.push(result.len());
            }
            result.push(next.bytes().map(|bytes| bytes / MIB));
            last = Some(next);
        }
        (result, given_up)
    }

    /// Process 1 (Alice) holds 1000 MiB, process 2 (Bob) 300 MiB. Samples are five seconds apart.
    const BOTH: Step = Some((0, &[(1, 1000), (2, 300)]));
    const BOB: &[(u32, u64)] = &[(2, 300)];

    fn check(name: &str, samples: &[Step], expected: &[Result<u64, UnknownReason>]) {
        let (result, given_up) = walk(samples);
        assert_eq!(result, expected, "{name}");
        assert_eq!(given_up, [0; 0], "{name}");
    }

    const BACK_OR_NOT: &[Case] = &[
        ("no exit", &[BOTH, BOTH, BOTH], &[FIRST, Ok(0), Ok(0)]),
        ("all is back", &[BOTH, BOTH, Some((0, BOB)), Some((0, BOB))], &[FIRST, Ok(0), SETTLING, Ok(0)]),
        (
            "the driver frees two intervals later",
            &[BOTH, BOTH, Some((1000, BOB)), Some((1000, BOB)), Some((0, BOB))],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(0)],
        ),
        (
            "it keeps all, then a part, then nothing",
            &[
                BOTH,
                BOTH,
                Some((1000, BOB)),
                Some((1000, BOB)),
                Some((1000, BOB)),
                Some((400, BOB)),
                Some((0, BOB)),
            ],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000), Ok(400), Ok(0)],
        ),
        (
            "memory that was unattributed before stays so",
            &[
                Some((700, &[(1, 1000)])),
                Some((700, &[(1, 1000)])),
                Some((700, &[])),
                Some((700, &[])),
                Some((700, &[])),
            ],
            &[FIRST, Ok(0), SETTLING, Ok(0), Ok(0)],
        ),
        (
            "never more than they held, whatever else is unattributed",
            &[BOTH, BOTH, Some((5000, BOB)), Some((5000, BOB)), Some((5000, BOB)), Some((1500, BOB))],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000), Ok(1000)],
        ),
        (
            "released memory is not missing again when unattributed memory rises",
            &[
                BOTH,
                BOTH,
                Some((1000, BOB)),
                Some((1000, BOB)),
                Some((1000, BOB)),
                Some((400, BOB)),
                Some((900, BOB)),
            ],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000), Ok(400), Ok(400)],
        ),
        (
            "reads are not at one moment: a little is nothing, and below nothing is nothing",
            &[BOTH, Some((-9, &[(1, 1000), (2, 300)])), Some((3, BOB)), Some((7, BOB)), Some((-20, BOB))],
            &[FIRST, Ok(0), SETTLING, Ok(0), Ok(0)],
        ),
        (
            "two end one after the other, and one's memory stays",
            &[
                BOTH,
                BOTH,
                Some((1000, BOB)),
                Some((1000, &[])),
                Some((1000, &[])),
                Some((1000, &[])),
                Some((0, &[])),
            ],
            &[FIRST, Ok(0), SETTLING, SETTLING, SETTLING, Ok(1000), Ok(0)],
        ),
    ];

    #[test]
    fn what_came_back_and_what_did_not() {
        for (name, samples, expected) in BACK_OR_NOT {
            check(name, samples, expected);
        }
    }

    const OTHERS: &[Case] = &[
        (
            "another process takes the released memory at once",
            &[BOTH, BOTH, Some((0, &[(2, 300), (3, 1000)])), Some((0, &[(2, 300), (3, 1000)]))],
            &[FIRST, Ok(0), SETTLING, Ok(0)],
        ),
        (
            "another process grows in the same interval by as much as stays",
            &[BOTH, BOTH, Some((1000, &[(2, 1300)])), Some((1000, &[(2, 1300)])), Some((1000, &[(2, 1300)]))],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000)],
        ),
        (
            "a process grows in every sample: unknown until it stops",
            &[
                BOTH,
                BOTH,
                Some((1000, &[(2, 400)])),
                Some((900, &[(2, 500)])),
                Some((0, &[(2, 600)])),
                Some((700, &[(2, 700)])),
                Some((0, &[(2, 700)])),
            ],
            &[FIRST, Ok(0), SETTLING, SETTLING, CHANGED, CHANGED, Ok(0)],
        ),
        (
            "unreleased memory is unknown while others start, and is not forgotten",
            &[
                BOTH,
                BOTH,
                Some((1000, BOB)),
                Some((1000, BOB)),
                Some((1000, BOB)),
                Some((1000, &[(2, 300), (3, 50)])),
                Some((1000, &[(2, 300), (3, 50)])),
            ],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000), CHANGED, Ok(1000)],
        ),
        (
            "a late list shows a new process's memory as unattributed for an interval",
            &[
                BOTH,
                BOTH,
                Some((800, BOB)),
                Some((0, &[(2, 300), (3, 800)])),
                Some((0, &[(2, 300), (3, 800)])),
            ],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(0)],
        ),
    ];

    #[test]
    fn others_do_not_make_it_look_kept_or_back() {
        for (name, samples, expected) in OTHERS {
            check(name, samples, expected);
        }
    }

    #[test]
    fn sample_without_data_is_unknown_and_bridged() {
        check(
            "exit in the gap",
            &[BOTH, BOTH, None, None, Some((1000, BOB)), Some((1000, BOB)), None, Some((1000, BOB))],
            &[FIRST, Ok(0), UNKNOWN, UNKNOWN, SETTLING, SETTLING, UNKNOWN, Ok(1000)],
        );
        let mut samples = vec![BOTH, BOTH];
        samples.extend([None; 13]);
        let (whole, gap) = (samples.len(), [BOTH, BOTH]);
        samples.extend(gap);
        let (result, given_up) = walk(&samples);
        assert_eq!(
            (&result[whole..], given_up.len()),
            (&[FIRST, Ok(0)][..], 0),
            "after a minute it begins again"
        );
        samples.truncate(whole);
        samples.extend([Some((1000, BOB)), Some((1000, BOB)), Some((0, BOB))]);
        let (result, given_up) = walk(&samples);
        let expected = ([GIVEN_UP, GIVEN_UP, Ok(0)].as_slice(), vec![whole]);
        assert_eq!((&result[whole..], given_up), expected, "exit in a gap of a minute");
        samples.splice(2..2, [Some((1000, BOB)); 3]);
        samples.truncate(whole + 3);
        samples.extend([Some((1000, BOB)), Some((1000, BOB))]);
        let (result, _) = walk(&samples);
        assert_eq!(result[4], Ok(1000));
        assert_eq!(&result[whole + 3..], [GIVEN_UP, GIVEN_UP], "unreleased before a gap of a minute");
    }

    /// Samples for more than a minute, in each of which the memory of pid 2 grows.
    const GROWING: [Step; 14] = [
        Some((1000, &[(2, 400)])),
        Some((1000, &[(2, 500)])),
        Some((1000, &[(2, 600)])),
        Some((1000, &[(2, 700)])),
        Some((1000, &[(2, 800)])),
        Some((1000, &[(2, 900)])),
        Some((1000, &[(2, 1000)])),
        Some((1000, &[(2, 1100)])),
        Some((1000, &[(2, 1200)])),
        Some((1000, &[(2, 1300)])),
        Some((1000, &[(2, 1400)])),
        Some((1000, &[(2, 1500)])),
        Some((1000, &[(2, 1600)])),
        Some((1000, &[(2, 1700)])),
    ];

    #[test]
    fn what_cannot_be_found_out_is_given_up_and_counted() {
        let (result, given_up) = walk(&[BOTH, Some((1000, BOB)), Some((1000, BOB))]);
        assert_eq!(
            (result, given_up),
            (vec![FIRST, GIVEN_UP, GIVEN_UP], vec![1]),
            "no calm sample before the exit"
        );
        let grown: &[(u32, u64)] = &[(2, 1700)];
        let back =
            [Some((1000, grown)), Some((1000, grown)), Some((1000, &[])), Some((0, &[])), Some((0, &[]))];
        let samples: Vec<Step> = [BOTH, BOTH].into_iter().chain(GROWING).chain(back).collect();
        let (result, given_up) = walk(&samples);
        let expected = [GIVEN_UP, GIVEN_UP, GIVEN_UP, GIVEN_UP, Ok(0), Ok(0)];
        assert_eq!(
            (&result[15..], given_up),
            (&expected[..], vec![15]),
            "until it is released, whatever exits meanwhile"
        );
    }

    #[test]
    fn undecided_second_leak_makes_the_first_unknown() {
        let first = [
            Some((0, &[(1, 1000), (2, 300), (3, 500)][..])),
            Some((0, &[(1, 1000), (2, 300), (3, 500)])),
            Some((1000, &[(2, 300), (3, 500)])),
            Some((1000, &[(2, 300), (3, 500)])),
            Some((1000, &[(2, 300), (3, 500)])),
        ];
        let second = GROWING.map(|step| step.map(|(_, living)| (1500, living)));
        let rest: [Step; 2] = [Some((1500, &[(2, 1700)])); 2];
        let samples: Vec<Step> = first.into_iter().chain(second).chain(rest).collect();
        let (result, given_up) = walk(&samples);
        assert_eq!((result[4], result.last(), given_up), (Ok(1000), Some(&GIVEN_UP), vec![18]));
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_holder() {
        let second = ProcessId::Live(ProcessKey { pid: 1, start_ticks: 8 });
        let first = Unreleased::after(None, account(0, BOTH));
        let mut last = Unreleased::after(Some(&first), account(1, BOTH));
        for interval in 2..5 {
            let mut step = account(interval, Some((1000, BOB))).unwrap();
            step.living.insert(second, 1000 * MIB);
            last = Unreleased::after(Some(&last), Ok(step));
        }
        assert_eq!(last.bytes(), Ok(1000 * MIB));
    }
}
