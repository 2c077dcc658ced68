//! Utilization of a GPU by a process, and when it is certain to be 0 %.
//!
#![doc = include_str!("utilization.md")]
//!
//! `docs/metrics.md` contains this table too, generated from the same file.

use serde::{Deserialize, Serialize};

use crate::{Answer, DeviceSampler, Engines, Gap, Gaps, Kinds, Reading, Role, Truth, UtilSample};

/// Maximum percent that counts as idle: for the device in rows 4 and 6 of the table, and for idle time.
pub const IDLE_AT_MOST_PERCENT: u32 = 1;

crate::label_values! {
/// Why a utilization is unknown.
pub enum Why {
    /// MIG is enabled, so the driver has no values of processes, and the activity of the instance is unknown or too low
    /// to tell.
    Mig = "mig",
    /// Several processes shared a MIG instance that was busy.
    SharedInstance = "shared_instance",
    /// The driver does not report utilization for this device.
    NotSupported = "not_supported",
    /// The driver call for samples failed or timed out.
    Failed = "failed",
    /// The driver's samples of this pid are implausible.
    Garbage = "garbage",
    /// The driver returned no data for this GPU in the previous snapshot, so there is no window yet.
    FirstSample = "first_sample",
    /// The process was not listed in the previous snapshot, or its pid belonged to another process.
    NotListedBefore = "not_listed_before",
    /// The process is an MPS client or server on a GPU that was in use.
    SharedByMps = "shared_by_mps",
    /// The GPU was busy, but the driver does not report which process used it.
    Unattributed = "unattributed",
    /// The driver reported no new samples of the GPU, so processes cannot be considered idle.
    SamplerSilent = "sampler_silent",
    /// There is no sample of the process, but the driver's accounting counted work of it.
    Accounted = "accounted",
    /// The newest sample of the process is from an earlier window but within `--look-back`, so the process was busy
    /// recently.
    SampledEarlier = "sampled_earlier",
    /// The clock of the driver's samples was set back.
    ClockStepped = "clock_stepped",
    /// More time has passed since the previous snapshot than the driver's buffer covers.
    WindowTooLong = "window_too_long",
}
}

/// Utilization of one GPU by one process in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Utilization {
    /// Observed, including 0.
    Observed(Engines),
    /// Not observed: neither idle nor busy.
    Unknown(Why),
}

impl Utilization {
    /// Returns the utilization of the busiest engine in percent, if observed.
    pub fn percent(&self) -> Option<u32> {
        match self {
            Self::Observed(engines) => Some(engines.busiest()),
            Self::Unknown(_) => None,
        }
    }

    /// Returns whether the utilization is at most [`IDLE_AT_MOST_PERCENT`]; `None` if unknown.
    pub fn idle(&self) -> Option<bool> {
        self.percent().map(|percent| percent <= IDLE_AT_MOST_PERCENT)
    }
}

/// Utilization evidence of one GPU over one window.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    /// Evidence from the previous snapshot; `None` if it does not contain the GPU.
    pub before: Option<&'a Reading>,
    /// Evidence from this snapshot.
    pub now: &'a Reading,
    /// Whether MIG is on, or this is a MIG instance.
    pub mig: bool,
    /// Activity of the MIG instance; `None` if it is unknown.
    pub instance: Option<Instance>,
}

/// Activity of a MIG instance in one window, and who may have caused it.
#[derive(Debug, Clone, Copy)]
pub struct Instance {
    /// Whether nothing ran.
    pub is_calm: bool,
    /// Utilization of each engine.
    pub engines: Engines,
    /// Who used the instance.
    pub users: InstanceUsers,
}

/// The processes of a MIG instance in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceUsers {
    /// One process, from the start to the end.
    One,
    /// Several processes.
    Several,
    /// MPS clients.
    Mps,
    /// Not all are known.
    Unknown,
}

impl Instance {
    fn evaluate(self, question: Question) -> Utilization {
        if !question.listed_before {
            return Utilization::Unknown(Why::NotListedBefore);
        }
        let users = if question.role.is_some() { InstanceUsers::Mps } else { self.users };
        match users {
            _ if self.is_calm => Utilization::Observed(Engines::default()),
            InstanceUsers::Mps => Utilization::Unknown(Why::SharedByMps),
            InstanceUsers::Unknown => Utilization::Unknown(Why::Unattributed),
            InstanceUsers::Several => Utilization::Unknown(Why::SharedInstance),
            // Copies are visible only as DRAM activity, and an average hides short work.
            InstanceUsers::One if self.engines.busiest() <= IDLE_AT_MOST_PERCENT => {
                Utilization::Unknown(Why::Mig)
            }
            InstanceUsers::One => Utilization::Observed(self.engines),
        }
    }

    fn idle(self) -> Truth {
        match self.engines.busiest() <= IDLE_AT_MOST_PERCENT {
            _ if self.is_calm => Truth::True,
            true => Truth::Unknown,
            false => Truth::False,
        }
    }
}

/// Holder whose utilization is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// Pid as reported by the driver.
    pub pid: u32,
    /// Lists that contain the process.
    pub kinds: Kinds,
    /// Role in MPS, if any.
    pub role: Option<Role>,
    /// Whether the same process was listed at the start of the window.
    pub listed_before: bool,
    /// Whether another process had this pid at the start of the window. Samples may belong to that process.
    pub was_another: bool,
}

impl Window<'_> {
    /// Returns the utilization by one holder, according to the table of this module.
    pub fn evaluate(&self, question: Question) -> Utilization {
        if self.mig {
            return self
                .instance
                .map_or(Utilization::Unknown(Why::Mig), |instance| instance.evaluate(question));
        }
        match &self.now.answer {
            Answer::Failed => return Utilization::Unknown(Why::Failed),
            Answer::NotSupported => return Utilization::Unknown(Why::NotSupported),
            Answer::Nothing | Answer::Samples(_) => {}
        }
        // Without a previous response or a start of the lookback, samples may be old.
        let Some(before) = self.before.filter(|before| before.answered() && self.now.since > 0) else {
            return Utilization::Unknown(Why::FirstSample);
        };
        if question.was_another {
            return Utilization::Unknown(Why::NotListedBefore);
        }
        if self.now.doubted.contains(&question.pid) {
            return Utilization::Unknown(Why::Garbage);
        }
        let serves = question.role == Some(Role::MpsServer);
        let is_reported = |engines: &Engines| !serves || engines.busiest() > IDLE_AT_MOST_PERCENT;
        if let Some(engines) = self.unseen(before, question.pid).filter(is_reported) {
            return Utilization::Observed(engines);
        }
        match self.device().map(|maximum| maximum <= IDLE_AT_MOST_PERCENT) {
            Err(why) => Utilization::Unknown(why),
            Ok(calm) if question.kinds.mps || serves => zero_if(calm, Why::SharedByMps),
            Ok(_) if !question.listed_before => Utilization::Unknown(Why::NotListedBefore),
            Ok(_) if !self.now.samples_of(question.pid).is_empty() => {
                Utilization::Unknown(Why::SampledEarlier)
            }
            Ok(false) if self.now.accounted.contains(&question.pid) => Utilization::Unknown(Why::Accounted),
            Ok(calm) if self.now.samples().is_empty() || self.now.strangers => {
                zero_if(calm, Why::Unattributed)
            }
            Ok(_) => Utilization::Observed(Engines::default()),
        }
    }

    /// Returns whether nothing computed on the GPU: according to the device, or because all listed processes
    /// were observed idle. Empty lists at both ends of the window are no evidence for the time in between.
    pub fn idle(&self, holders: impl Iterator<Item = Utilization>) -> Truth {
        if let Some(instance) = self.instance {
            return instance.idle();
        }
        let all: Vec<Option<bool>> = holders.map(|utilization| utilization.idle()).collect();
        if all.contains(&Some(false)) {
            return Truth::False;
        }
        match self.before.map(|_| self.device()) {
            Some(Ok(maximum)) => (maximum <= IDLE_AT_MOST_PERCENT).into(),
            _ if !all.is_empty() && !all.contains(&None) => Truth::True,
            _ => Truth::Unknown,
        }
    }

    /// Returns the maximum of this pid's samples that the previous snapshot lacks (row 3 of the table).
    fn unseen(&self, before: &Reading, pid: u32) -> Option<Engines> {
        let seen = before.samples_of(pid);
        let unseen = self.now.samples_of(pid).iter().filter(|sample| !seen.contains(sample));
        unseen.map(|sample| sample.engines).reduce(Engines::or_busier)
    }

    /// Returns the largest utilization of the device in the window, in percent, by any process.
    ///
    /// # Errors
    /// If the driver has no valid utilization samples of the device.
    pub fn device(&self) -> Result<u32, Why> {
        if self.mig {
            return Err(Why::Mig);
        }
        let before = self.before.map(|before| before.sampler);
        match (before, self.now.sampler) {
            (_, DeviceSampler::CurrentOnly { utilization }) => Ok(utilization),
            (None, _) => Err(Why::FirstSample),
            (
                Some(DeviceSampler::Stamped { newest: then, .. }),
                DeviceSampler::Stamped { newest, maximum, filled },
            ) => match newest.cmp(&then) {
                std::cmp::Ordering::Less => Err(Why::ClockStepped),
                std::cmp::Ordering::Equal => Err(Why::SamplerSilent),
                std::cmp::Ordering::Greater if filled => Err(Why::WindowTooLong),
                std::cmp::Ordering::Greater => Ok(maximum),
            },
            _ => Err(Why::SamplerSilent),
        }
    }
}

fn zero_if(calm: bool, otherwise: Why) -> Utilization {
    if calm { Utilization::Observed(Engines::default()) } else { Utilization::Unknown(otherwise) }
}

impl Reading {
    /// Returns the samples of one pid. Requires [`Self::cleaned`], which sorts them by pid.
    fn samples_of(&self, pid: u32) -> &[UtilSample] {
        let samples = self.samples();
        let start = samples.partition_point(|sample| sample.pid < pid);
        let end = samples.partition_point(|sample| sample.pid <= pid);
        &samples[start..end]
    }

    /// Returns whether the driver responded, even with an empty list.
    fn answered(&self) -> bool {
        matches!(self.answer, Answer::Nothing | Answer::Samples(_))
    }

    fn samples(&self) -> &[UtilSample] {
        match &self.answer {
            Answer::Samples(samples) => samples,
            Answer::Failed | Answer::NotSupported | Answer::Nothing => &[],
        }
    }

    /// Removes samples above 100 % or of unlisted pids (both counted as gaps), and samples older than the
    /// lookback. Sorts the rest by pid.
    pub fn cleaned(mut self, listed: impl Fn(u32) -> bool, gaps: &mut Gaps) -> Self {
        let Self { since, answer, doubted, strangers, .. } = &mut self;
        if let Answer::Samples(samples) = answer {
            samples.retain(|sample| {
                let current = sample.stamp > *since;
                if sample.engines.each().iter().any(|percent| *percent > 100) {
                    doubted.insert(sample.pid);
                    gaps.count(Gap::UtilizationAbove100);
                    return false;
                }
                if sample.pid == 0 || !listed(sample.pid) {
                    *strangers |= current;
                    gaps.count(Gap::UtilizationUnlisted);
                    return false;
                }
                current
            });
            samples.sort_unstable_by_key(|sample| (sample.pid, sample.stamp));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PID: u32 = 7;

    fn sample(pid: u32, stamp: u64, sm: u32) -> UtilSample {
        UtilSample { pid, stamp, engines: Engines { sm, ..Engines::default() } }
    }

    fn stamped(newest: u64, maximum: u32) -> DeviceSampler {
        DeviceSampler::Stamped { newest, maximum, filled: false }
    }

    fn reading(answer: Answer, sampler: DeviceSampler) -> Reading {
        Reading { since: 1, answer, sampler, ..Reading::default() }
    }

    fn ask(before: Option<&Reading>, now: &Reading) -> Utilization {
        let question = Question {
            pid: PID,
            kinds: Kinds { compute: true, ..Kinds::default() },
            role: None,
            listed_before: true,
            was_another: false,
        };
        Window { before, now, mig: false, instance: None }.evaluate(question)
    }

    const ZERO: Utilization =
        Utilization::Observed(Engines { sm: 0, memory: 0, encoder: 0, decoder: 0, jpeg: 0, ofa: 0 });

    #[test]
    fn each_row_of_the_table_in_its_order() {
        let before = reading(Answer::Nothing, stamped(100, 0));
        let others = || Answer::Samples(vec![sample(8, 150, 90)]);
        let mine = || Answer::Samples(vec![sample(PID, 150, 40)]);
        let filled = DeviceSampler::Stamped { newest: 200, maximum: 0, filled: true };
        let busy = Utilization::Observed(Engines { sm: 40, ..Engines::default() });
        let cases = [
            ("2: failed", reading(Answer::Failed, stamped(200, 0)), Utilization::Unknown(Why::Failed)),
            (
                "2: not supported",
                reading(Answer::NotSupported, stamped(200, 0)),
                Utilization::Unknown(Why::NotSupported),
            ),
            ("3: a new sample", reading(mine(), stamped(200, 90)), busy),
            ("3: also when the clock stepped", reading(mine(), stamped(50, 90)), busy),
            ("5: others only", reading(others(), stamped(200, 90)), ZERO),
            (
                "5: sampler dead",
                reading(others(), stamped(100, 90)),
                Utilization::Unknown(Why::SamplerSilent),
            ),
            (
                "5: sampler silent",
                reading(others(), DeviceSampler::Silent),
                Utilization::Unknown(Why::SamplerSilent),
            ),
            ("6: nothing, calm", reading(Answer::Nothing, stamped(200, 1)), ZERO),
            (
                "6: no sampler, calm",
                reading(Answer::Nothing, DeviceSampler::CurrentOnly { utilization: 0 }),
                ZERO,
            ),
            (
                "7: nothing, busy",
                reading(Answer::Nothing, stamped(200, 2)),
                Utilization::Unknown(Why::Unattributed),
            ),
            ("8: stepped back", reading(others(), stamped(50, 0)), Utilization::Unknown(Why::ClockStepped)),
            ("8: too long", reading(others(), filled), Utilization::Unknown(Why::WindowTooLong)),
        ];
        for (name, now, expected) in cases {
            assert_eq!(ask(Some(&before), &now), expected, "{name}");
        }
    }

    #[test]
    fn mig_and_first_samples_are_unknown() {
        let now = reading(Answer::Samples(vec![sample(PID, 150, 40)]), stamped(200, 40));
        assert_eq!(ask(None, &now), Utilization::Unknown(Why::FirstSample));
        let question = Question {
            pid: PID,
            kinds: Kinds::default(),
            role: None,
            listed_before: true,
            was_another: false,
        };
        let window = Window { before: Some(&now), now: &now, mig: true, instance: None };
        assert_eq!(window.evaluate(question), Utilization::Unknown(Why::Mig));
    }

    /// The rows of the table of MIG instances, for a process that was listed before or not.
    #[test]
    fn each_row_of_the_table_of_instances_in_its_order() {
        let low = Engines { sm: 1, memory: 1, ..Engines::default() };
        let copies = Engines { memory: 2, ..Engines::default() };
        let video = Engines { decoder: 90, ..Engines::default() };
        let busy = Engines { sm: 70, memory: 12, ..Engines::default() };
        let server = Some(Role::MpsServer);
        let unknown = Utilization::Unknown;
        let cases = [
            ("new", (false, None), (false, busy, InstanceUsers::One), unknown(Why::NotListedBefore)),
            ("new, calm", (false, None), (true, low, InstanceUsers::One), unknown(Why::NotListedBefore)),
            ("new, MPS", (false, None), (false, busy, InstanceUsers::Mps), unknown(Why::NotListedBefore)),
            ("new server", (false, server), (false, busy, InstanceUsers::One), unknown(Why::NotListedBefore)),
            ("calm", (true, None), (true, low, InstanceUsers::One), ZERO),
            ("calm, several", (true, None), (true, low, InstanceUsers::Several), ZERO),
            ("calm, MPS", (true, None), (true, low, InstanceUsers::Mps), ZERO),
            ("calm, not all known", (true, None), (true, low, InstanceUsers::Unknown), ZERO),
            ("calm server", (true, server), (true, low, InstanceUsers::One), ZERO),
            ("MPS", (true, None), (false, busy, InstanceUsers::Mps), unknown(Why::SharedByMps)),
            ("MPS, low", (true, None), (false, low, InstanceUsers::Mps), unknown(Why::SharedByMps)),
            ("server", (true, server), (false, busy, InstanceUsers::One), unknown(Why::SharedByMps)),
            (
                "not all known",
                (true, None),
                (false, busy, InstanceUsers::Unknown),
                unknown(Why::Unattributed),
            ),
            ("low, unknown", (true, None), (false, low, InstanceUsers::Unknown), unknown(Why::Unattributed)),
            ("several", (true, None), (false, busy, InstanceUsers::Several), unknown(Why::SharedInstance)),
            (
                "several, low",
                (true, None),
                (false, low, InstanceUsers::Several),
                unknown(Why::SharedInstance),
            ),
            ("one, low", (true, None), (false, low, InstanceUsers::One), unknown(Why::Mig)),
            ("one, 0", (true, None), (false, Engines::default(), InstanceUsers::One), unknown(Why::Mig)),
            ("one", (true, None), (false, busy, InstanceUsers::One), Utilization::Observed(busy)),
            ("one decodes", (true, None), (false, video, InstanceUsers::One), Utilization::Observed(video)),
            ("one copies", (true, None), (false, copies, InstanceUsers::One), unknown(Why::Mig)),
        ];
        for (name, (listed_before, role), (is_calm, engines, users), expected) in cases {
            let now = reading(Answer::Nothing, stamped(200, 0));
            let instance = Some(Instance { is_calm, engines, users });
            let window = Window { before: None, now: &now, mig: true, instance };
            let kinds = Kinds { compute: true, ..Kinds::default() };
            let question = Question { pid: PID, kinds, role, listed_before, was_another: !listed_before };
            assert_eq!(window.evaluate(question), expected, "{name}");
        }
    }

    #[test]
    fn work_that_accounting_counted_is_not_idleness() {
        let before = reading(Answer::Nothing, stamped(100, 0));
        let accounted = |maximum| Reading {
            accounted: BTreeSet::from([PID]),
            ..reading(Answer::Samples(vec![sample(8, 150, 90)]), stamped(200, maximum))
        };
        assert_eq!(ask(Some(&before), &accounted(90)), Utilization::Unknown(Why::Accounted));
        assert_eq!(ask(Some(&before), &accounted(1)), ZERO, "nothing worked more");
        let other = Reading { accounted: BTreeSet::from([8]), ..accounted(90) };
        assert_eq!(ask(Some(&before), &other), ZERO);
    }

    #[test]
    fn a_sample_counts_once_and_keeps_its_process_from_being_idle_while_it_lasts() {
        let before = reading(Answer::Samples(vec![sample(PID, 90, 40)]), stamped(100, 40));
        let again = reading(Answer::Samples(vec![sample(PID, 90, 40)]), stamped(200, 0));
        assert_eq!(
            ask(Some(&before), &again),
            Utilization::Unknown(Why::SampledEarlier),
            "not busy, not yet idle"
        );
        let gone = reading(Answer::Nothing, stamped(300, 0));
        assert_eq!(ask(Some(&again), &gone), ZERO);
    }

    #[test]
    fn an_mps_client_is_idle_only_on_a_calm_device_and_never_by_absence() {
        let before = reading(Answer::Nothing, stamped(100, 0));
        let others = |maximum| reading(Answer::Samples(vec![sample(8, 150, 90)]), stamped(200, maximum));
        let question = Question {
            pid: PID,
            kinds: Kinds { mps: true, ..Kinds::default() },
            role: None,
            listed_before: true,
            was_another: false,
        };
        let evaluate = |now: &Reading| {
            Window { before: Some(&before), now, mig: false, instance: None }.evaluate(question)
        };
        assert_eq!(evaluate(&others(90)), Utilization::Unknown(Why::SharedByMps));
        assert_eq!(evaluate(&others(1)), ZERO);
    }

    #[test]
    fn an_mps_server_is_not_idle_while_its_clients_work() {
        let before = reading(Answer::Nothing, stamped(100, 0));
        let own = |percent, maximum| {
            reading(Answer::Samples(vec![sample(PID, 150, percent)]), stamped(200, maximum))
        };
        let kinds = Kinds { compute: true, ..Kinds::default() };
        let role = Some(Role::MpsServer);
        let question = Question { pid: PID, kinds, role, listed_before: true, was_another: false };
        let evaluate = |now: &Reading| {
            Window { before: Some(&before), now, mig: false, instance: None }.evaluate(question)
        };
        assert_eq!(evaluate(&own(0, 90)), Utilization::Unknown(Why::SharedByMps));
        assert_eq!(evaluate(&own(70, 90)).percent(), Some(70));
        assert_eq!(evaluate(&own(0, 1)), ZERO);
    }

    #[test]
    fn a_new_process_is_not_idle_and_a_reused_pid_has_no_past() {
        let before = reading(Answer::Nothing, stamped(100, 0));
        let calm = reading(Answer::Nothing, stamped(200, 0));
        let busy = reading(Answer::Samples(vec![sample(PID, 150, 40)]), stamped(200, 40));
        let question = |was_another| Question {
            pid: PID,
            kinds: Kinds::default(),
            role: None,
            listed_before: false,
            was_another,
        };
        let window = |now| Window { before: Some(&before), now, mig: false, instance: None };
        assert_eq!(window(&calm).evaluate(question(false)), Utilization::Unknown(Why::NotListedBefore));
        assert_eq!(window(&busy).evaluate(question(false)).percent(), Some(40));
        assert_eq!(window(&busy).evaluate(question(true)), Utilization::Unknown(Why::NotListedBefore));
    }

    #[test]
    fn what_cannot_be_true_is_dropped_and_counted() {
        let samples = vec![
            sample(PID, 150, 101),
            sample(PID, 150, 40),
            sample(0, 150, 5),
            sample(9, 150, 5),
            sample(PID, 10, 3),
        ];
        let mut gaps = Gaps::default();
        let reading = Reading { since: 20, answer: Answer::Samples(samples), ..Reading::default() };
        let cleaned = reading.cleaned(|pid| pid == PID, &mut gaps);
        assert_eq!(cleaned.samples(), [sample(PID, 150, 40)]);
        assert_eq!((gaps.of(Gap::UtilizationAbove100), gaps.of(Gap::UtilizationUnlisted)), (1, 2));
    }

    #[test]
    fn implausible_samples_prove_no_idleness() {
        let before = reading(Answer::Nothing, stamped(100, 0));
        let of = |samples, maximum| {
            let now = reading(Answer::Samples(samples), stamped(200, maximum));
            ask(Some(&before), &now.cleaned(|pid| pid == PID || pid == 8, &mut Gaps::default()))
        };
        assert_eq!(of(vec![sample(PID, 150, 130)], 90), Utilization::Unknown(Why::Garbage));
        assert_eq!(of(vec![sample(8, 150, 130)], 90), Utilization::Unknown(Why::Unattributed));
        let stranger = vec![sample(8, 150, 40), sample(99, 150, 50)];
        assert_eq!(of(stranger, 90), Utilization::Unknown(Why::Unattributed));
        assert_eq!(
            of(vec![sample(99, 150, 1)], 1),
            ZERO,
            "a calm device is calm whatever the process samples say"
        );
    }

    #[test]
    fn without_an_answer_before_old_samples_are_not_taken_for_new() {
        let failed = reading(Answer::Failed, stamped(100, 0));
        let now = reading(Answer::Samples(vec![sample(PID, 50, 40)]), stamped(200, 0));
        assert_eq!(ask(Some(&failed), &now), Utilization::Unknown(Why::FirstSample));
        let endless = Reading { since: 0, ..now };
        let before = reading(Answer::Nothing, stamped(100, 0));
        assert_eq!(ask(Some(&before), &endless), Utilization::Unknown(Why::FirstSample));
    }
}
