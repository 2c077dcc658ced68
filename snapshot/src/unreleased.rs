//! Whether the memory of holders who ended came back: what memory of nobody has risen by since, at most what they held.
//! Pure.
//!
//! What a process held is back when memory in use fell by it, others' changes aside: memory in use less what all who
//! are there hold is memory of nobody, and that must be what it was before. The driver's figures are not read at one
//! moment, it frees a little later than a process ends, and its lists may be late; so a look says something only where
//! nobody else came, went or grew since the look before (a calm one), and memory is called unreleased only from the
//! third look on. Whoever takes over what was freed is listed with it, and so it is no longer of nobody.
//!
//! | look | what is told |
//! |---|---|
//! | a part of the sum is not known; the driver's pids mean nothing here | unknown |
//! | the first one, or the first after a minute without any and nobody has ended meanwhile | unknown |
//! | nobody has ended whose memory is looked for | 0 |
//! | calm, memory of nobody is what it was | 0: all is back |
//! | calm, the third since somebody ended or a later one | what memory of nobody rose by, at most what they held |
//! | before that | unknown: the driver may still be freeing |
//! | not calm | unknown |
//! | that could not be found out for a minute, or somebody ended while nobody looked | given up: unknown until a calm look at which memory of nobody is no more than before |

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Holder, Parts, Process, ProcessId};

/// Less than this is within what drivers round, and counts as nothing.
const SLACK: u64 = 16 << 20;
/// Looks after the one that found somebody ended, until memory that is still of nobody is called unreleased.
const SETTLED: u32 = 2;

/// Why nobody can say what did not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownReason {
    /// There is no look before this one that says enough.
    FirstLook,
    /// A part of the sum of the GPU's memory is not known.
    MemoryUnknown,
    /// The driver's pids are of another namespace: nobody can be seen to end.
    PidNamespace,
    /// Somebody has just ended, and the driver may not have freed all yet.
    Settling,
    /// Others came, went or grew since the look before.
    OthersChanged,
    /// Nobody could find it out in time, and memory of nobody is more than it was before somebody ended.
    GivenUp,
}

impl UnknownReason {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstLook => "first_look",
            Self::MemoryUnknown => "memory_unknown",
            Self::PidNamespace => "pid_namespace",
            Self::Settling => "settling",
            Self::OthersChanged => "others_changed",
            Self::GivenUp => "given_up",
        }
    }
}

/// What one look says of a GPU's memory, where it says all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// When, since boot.
    pub(crate) at: Duration,
    /// For how long it is good to be compared with.
    pub(crate) good_for: Duration,
    /// Bytes in use that nobody holds who has not ended.
    pub(crate) unattributed: i64,
    /// Bytes of each who holds some and has not ended.
    pub(crate) living: BTreeMap<ProcessId, u64>,
}

impl Account {
    /// What a look says of a GPU; it has no time yet.
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

    /// The same at a time since boot, good for so long.
    pub(crate) fn at(self, at: Duration, good_for: Duration) -> Self {
        Self { at, good_for, ..self }
    }
}

/// What those held who ended and whose memory is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missing {
    /// Bytes of nobody before the first of them ended.
    before: i64,
    /// Bytes that a look has shown to be missing.
    shown: u64,
    /// Bytes of those who ended since.
    ended: u64,
    /// When the first of these was found to have ended, since boot.
    since: Duration,
    /// Looks since the last of them was.
    looks: u32,
}

/// The evidence of one GPU, for the next look, and what this one tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreleased {
    last: Option<Account>,
    /// Bytes of nobody at the last calm look, and when that was.
    calm: Option<(i64, Duration)>,
    missing: Option<Missing>,
    told: Result<u64, UnknownReason>,
    /// Somebody ended, and whether his memory came back cannot be found out: bytes of nobody before that. Until there are no
    /// more than these, nobody can say what is missing, whoever ends after him.
    lost: Option<i64>,
    /// That is so since this look.
    given_up: bool,
}

/// How a look differs from the one before it.
struct Change {
    /// Bytes of those who ended; none where nobody did who held any.
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

    /// What memory of nobody rose by; nothing where it is next to nothing.
    fn risen(&self, unattributed: i64) -> u64 {
        let risen = u64::try_from(unattributed.saturating_sub(self.before)).unwrap_or_default();
        if risen <= SLACK { 0 } else { risen.min(self.most()) }
    }
}

impl Unreleased {
    /// What did not come back, in bytes.
    ///
    /// # Errors
    /// Where that cannot be told.
    pub const fn told(&self) -> Result<u64, UnknownReason> {
        self.told
    }

    /// At this look it was given up to find out whether somebody's memory came back.
    pub(crate) const fn given_up(&self) -> bool {
        self.given_up
    }

    /// Adds a look, or why it says nothing.
    pub(crate) fn after(before: Option<&Self>, look: Result<Account, UnknownReason>) -> Self {
        let nothing = Self {
            last: None,
            calm: None,
            missing: None,
            told: Err(UnknownReason::FirstLook),
            lost: None,
            given_up: false,
        };
        let mut next = before.cloned().unwrap_or(nothing);
        next.given_up = false;
        match look {
            Ok(account) => next.add(account),
            Err(why) => next.told = Err(why),
        }
        next
    }

    fn add(&mut self, now: Account) {
        self.told = match self.last.take() {
            None => Err(UnknownReason::FirstLook),
            Some(last) if now.at.saturating_sub(last.at) > now.good_for => self.after_a_gap(&last, &now),
            Some(last) => self.compare(&last, &now),
        };
        self.last = Some(now);
    }

    /// What happened while nobody looked is compared with nothing.
    fn after_a_gap(&mut self, last: &Account, now: &Account) -> Result<u64, UnknownReason> {
        let went = last.living.keys().any(|process| !now.living.contains_key(process));
        if went || self.missing.is_some() {
            self.give_up(last);
        }
        self.calm = None;
        Err(if self.lost.is_some() { UnknownReason::GivenUp } else { UnknownReason::FirstLook })
    }

    fn compare(&mut self, last: &Account, now: &Account) -> Result<u64, UnknownReason> {
        let change = Change::between(last, now);
        if let Some(bytes) = change.ended {
            self.somebody_ended(bytes, (last, now));
        } else if let Some(missing) = &mut self.missing {
            missing.looks += 1;
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
        let told = self.judge(&change, now);
        // Where no look has shown anything for so long, memory of nobody may have risen by anybody.
        let old =
            |missing: &Missing| missing.ended > 0 && now.at.saturating_sub(missing.since) > now.good_for;
        if self.missing.as_ref().is_some_and(old) {
            self.give_up(last);
            return Err(UnknownReason::GivenUp);
        }
        told
    }

    /// Nobody will find out what is missing now, nor whether it is another's later.
    fn give_up(&mut self, last: &Account) {
        let calm =
            self.calm.map_or(last.unattributed, |(unattributed, _)| unattributed.min(last.unattributed));
        let before = self.missing.take().map_or(calm, |missing| missing.before);
        self.given_up = self.lost.is_none();
        self.lost.get_or_insert(before);
    }

    /// Without a calm look shortly before it there is nothing to compare with.
    fn somebody_ended(&mut self, bytes: u64, (last, now): (&Account, &Account)) {
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
        let none = Missing { before, shown: 0, ended: 0, since: now.at, looks: 0 };
        let earlier = self.missing.unwrap_or(none);
        let since = if earlier.ended > 0 { earlier.since } else { now.at };
        let ended = earlier.ended.saturating_add(bytes);
        self.missing = Some(Missing { ended, since, looks: 0, ..earlier });
    }

    fn judge(&mut self, change: &Change, now: &Account) -> Result<u64, UnknownReason> {
        let Some(missing) = &mut self.missing else { return Ok(0) };
        let settling = missing.looks < SETTLED;
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
        // What has come back once does not stay away again.
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
    const FIRST: Result<u64, UnknownReason> = Err(UnknownReason::FirstLook);
    const SETTLING: Result<u64, UnknownReason> = Err(UnknownReason::Settling);
    const CHANGED: Result<u64, UnknownReason> = Err(UnknownReason::OthersChanged);
    const GIVEN_UP: Result<u64, UnknownReason> = Err(UnknownReason::GivenUp);

    /// Memory of nobody in MiB, and pid and MiB of each who lives; none is a look that says nothing.
    type Look = Option<(i64, &'static [(u32, u64)])>;

    /// What it is, its looks, and what each of them tells, in MiB.
    type Case = (&'static str, &'static [Look], &'static [Result<u64, UnknownReason>]);

    fn account(interval: u64, look: Look) -> Result<Account, UnknownReason> {
        let (unattributed, living) = look.ok_or(UnknownReason::MemoryUnknown)?;
        let id = |pid| ProcessId::Live(ProcessKey { pid, start_ticks: 7 });
        Ok(Account {
            at: Duration::from_secs(5 * interval),
            good_for: Duration::from_mins(1),
            unattributed: unattributed * (1 << 20),
            living: living.iter().map(|(pid, mib)| (id(*pid), mib * MIB)).collect(),
        })
    }

    /// What each look tells, in MiB, and at which of them a question was given up.
    fn walk(looks: &[Look]) -> (Vec<Result<u64, UnknownReason>>, Vec<usize>) {
        let mut last = None;
        let (mut told, mut given_up) = (Vec::new(), Vec::new());
        for (interval, look) in (0_u64..).zip(looks) {
            let next = Unreleased::after(last.as_ref(), account(interval, *look));
            if next.given_up() {
                given_up.push(told.len());
            }
            told.push(next.told().map(|bytes| bytes / MIB));
            last = Some(next);
        }
        (told, given_up)
    }

    /// Intervals of five seconds: alice is 1 with 1000 MiB, bob 2 with 300, carol 3.
    const BOTH: Look = Some((0, &[(1, 1000), (2, 300)]));
    const BOB: &[(u32, u64)] = &[(2, 300)];

    fn check(name: &str, looks: &[Look], expected: &[Result<u64, UnknownReason>]) {
        let (told, given_up) = walk(looks);
        assert_eq!(told, expected, "{name}");
        assert_eq!(given_up, [0; 0], "{name}");
    }

    const BACK_OR_NOT: &[Case] = &[
        ("nobody ends", &[BOTH, BOTH, BOTH], &[FIRST, Ok(0), Ok(0)]),
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
            "memory that was of nobody before stays so",
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
            "never more than they held, whatever nobody has besides",
            &[BOTH, BOTH, Some((5000, BOB)), Some((5000, BOB)), Some((5000, BOB)), Some((1500, BOB))],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000), Ok(1000)],
        ),
        (
            "what came back does not stay away again, though nobody's memory rises",
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
        for (name, looks, expected) in BACK_OR_NOT {
            check(name, looks, expected);
        }
    }

    const OTHERS: &[Case] = &[
        (
            "somebody takes at once what was freed",
            &[BOTH, BOTH, Some((0, &[(2, 300), (3, 1000)])), Some((0, &[(2, 300), (3, 1000)]))],
            &[FIRST, Ok(0), SETTLING, Ok(0)],
        ),
        (
            "somebody else grows in the same interval by as much as stays",
            &[BOTH, BOTH, Some((1000, &[(2, 1300)])), Some((1000, &[(2, 1300)])), Some((1000, &[(2, 1300)]))],
            &[FIRST, Ok(0), SETTLING, SETTLING, Ok(1000)],
        ),
        (
            "somebody grows at every look: nothing is told until he rests",
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
            "what is missing is not told while others come, and is not forgotten",
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
            "a list that is late shows a newcomer's memory as nobody's for an interval",
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
        for (name, looks, expected) in OTHERS {
            check(name, looks, expected);
        }
    }

    #[test]
    fn a_look_that_says_nothing_is_bridged_and_tells_nothing() {
        check(
            "he ended meanwhile",
            &[BOTH, BOTH, None, None, Some((1000, BOB)), Some((1000, BOB)), None, Some((1000, BOB))],
            &[FIRST, Ok(0), UNKNOWN, UNKNOWN, SETTLING, SETTLING, UNKNOWN, Ok(1000)],
        );
        let mut looks = vec![BOTH, BOTH];
        looks.extend([None; 13]);
        let (whole, gap) = (looks.len(), [BOTH, BOTH]);
        looks.extend(gap);
        let (told, given_up) = walk(&looks);
        assert_eq!(
            (&told[whole..], given_up.len()),
            (&[FIRST, Ok(0)][..], 0),
            "after a minute it begins again"
        );
        looks.truncate(whole);
        looks.extend([Some((1000, BOB)), Some((1000, BOB)), Some((0, BOB))]);
        let (told, given_up) = walk(&looks);
        let expected = ([GIVEN_UP, GIVEN_UP, Ok(0)].as_slice(), vec![whole]);
        assert_eq!((&told[whole..], given_up), expected, "he ended in a minute without any");
        looks.splice(2..2, [Some((1000, BOB)); 3]);
        looks.truncate(whole + 3);
        looks.extend([Some((1000, BOB)), Some((1000, BOB))]);
        let (told, _) = walk(&looks);
        assert_eq!(told[4], Ok(1000));
        assert_eq!(&told[whole + 3..], [GIVEN_UP, GIVEN_UP], "what was missing before a minute without any");
    }

    /// Bob grows at every look, for longer than a minute.
    const GROWING: [Look; 14] = [
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
        let (told, given_up) = walk(&[BOTH, Some((1000, BOB)), Some((1000, BOB))]);
        assert_eq!(
            (told, given_up),
            (vec![FIRST, GIVEN_UP, GIVEN_UP], vec![1]),
            "no calm look before he ended"
        );
        let grown: &[(u32, u64)] = &[(2, 1700)];
        let back =
            [Some((1000, grown)), Some((1000, grown)), Some((1000, &[])), Some((0, &[])), Some((0, &[]))];
        let looks: Vec<Look> = [BOTH, BOTH].into_iter().chain(GROWING).chain(back).collect();
        let (told, given_up) = walk(&looks);
        let expected = [GIVEN_UP, GIVEN_UP, GIVEN_UP, GIVEN_UP, Ok(0), Ok(0)];
        assert_eq!(
            (&told[15..], given_up),
            (&expected[..], vec![15]),
            "until it is back, whoever ends meanwhile"
        );
    }

    #[test]
    fn a_second_leak_that_cannot_be_told_leaves_the_first_one_untold() {
        let first = [
            Some((0, &[(1, 1000), (2, 300), (3, 500)][..])),
            Some((0, &[(1, 1000), (2, 300), (3, 500)])),
            Some((1000, &[(2, 300), (3, 500)])),
            Some((1000, &[(2, 300), (3, 500)])),
            Some((1000, &[(2, 300), (3, 500)])),
        ];
        let second = GROWING.map(|look| look.map(|(_, living)| (1500, living)));
        let rest: [Look; 2] = [Some((1500, &[(2, 1700)])); 2];
        let looks: Vec<Look> = first.into_iter().chain(second).chain(rest).collect();
        let (told, given_up) = walk(&looks);
        assert_eq!((told[4], told.last(), given_up), (Ok(1000), Some(&GIVEN_UP), vec![18]));
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_holder() {
        let second = ProcessId::Live(ProcessKey { pid: 1, start_ticks: 8 });
        let first = Unreleased::after(None, account(0, BOTH));
        let mut last = Unreleased::after(Some(&first), account(1, BOTH));
        for interval in 2..5 {
            let mut look = account(interval, Some((1000, BOB))).unwrap();
            look.living.insert(second, 1000 * MIB);
            last = Unreleased::after(Some(&last), Ok(look));
        }
        assert_eq!(last.told(), Ok(1000 * MIB));
    }
}
