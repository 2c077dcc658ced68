//! Evaluates a GPU that a client of GPU.py has, or seems to have. The function is pure: the state of the processes
//! and of the GPU is passed in.

use std::time::Duration;

/// The use of a GPU, as the driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A process uses the GPU, or may use it.
    Busy,
    /// No process has used the GPU for this time, in all samples.
    Quiet(Duration),
    /// No process uses the GPU, but an older process in the session that took it has the device file open.
    Open,
    /// The driver does not report the use.
    Unknown,
}

/// The state of the process that took a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// There is no record, and the GPU has not been in any list of the pool, in all samples for this time.
    Nowhere(Duration),
    /// The process is running.
    Runs,
    /// The process has been seen as exited for this time. Processes that it started may be running.
    Ended(Duration),
    /// The process was in another boot, so none of its processes remains.
    Gone,
    /// The state cannot be determined.
    Unknown,
}

/// A GPU to be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The process that took the GPU.
    pub taker: Taker,
    /// The use of the GPU.
    pub usage: Use,
    /// Whether all clients of this pool run on this host, and the GPU is on this host.
    pub single_host: bool,
    /// Whether the processes of the whole host are visible.
    pub host_namespace: bool,
}

/// How long a state must last before it has consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long the process that took the GPU must have exited and the GPU must be unused. `None` if that alone never
    /// makes the GPU orphaned.
    pub idle: Option<Duration>,
    /// How long the GPU must be unused and not in any list of the pool. A client of GPU.py needs a millisecond
    /// between its pop and its record.
    pub nowhere: Duration,
}

/// The result of an evaluation, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The GPU is held, or its state is unknown.
    Keep(&'static str),
    /// The GPU seems abandoned. It is freed after this further time, or never.
    Suspect(&'static str, Option<Duration>),
    /// The process that took the GPU has exited, and no process uses the GPU.
    Orphaned,
    /// The GPU is not in any list of the pool.
    Lost,
}

impl Judgement {
    /// All label values.
    pub const NAMES: [&'static str; 4] = ["keep", "suspect", "orphaned", "lost"];

    /// Returns the label value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep(_) => "keep",
            Self::Suspect(..) => "suspect",
            Self::Orphaned => "orphaned",
            Self::Lost => "lost",
        }
    }
}

/// Evaluates a GPU. The first matching row applies.
///
/// | process that took the GPU | process on the GPU | result |
/// |---|---|---|
/// | on another host, or in PID namespaces that are not visible | | keep |
/// | running | | keep |
/// | unknown | | keep |
/// | | exists, or unknown | keep: a process that it started uses the GPU |
/// | none, and the GPU is not in any list of the pool | none | lost, after both lasted for `nowhere` |
/// | was in another boot | none | orphaned |
/// | exited | none | orphaned, after both lasted for `idle` |
pub fn evaluate(case: &Case, limits: &Limits) -> Judgement {
    use Judgement::{Keep, Lost, Orphaned, Suspect};
    if !case.single_host {
        return Keep("clients may be on other hosts");
    }
    if !case.host_namespace {
        return Keep("some processes on the host are not visible");
    }
    let (taker, limit, end, why) = match case.taker {
        Taker::Runs => return Keep("the process that took it is running"),
        Taker::Unknown => return Keep("it is unknown whether the process that took it is running"),
        Taker::Gone => (Duration::MAX, Some(Duration::ZERO), Orphaned, ENDED),
        Taker::Ended(ended) => (ended, limits.idle, Orphaned, ENDED),
        Taker::Nowhere(nowhere) => {
            (nowhere, Some(limits.nowhere), Lost, "it is recorded neither as idle nor as taken")
        }
    };
    let quiet = match case.usage {
        Use::Busy => return Keep("a process is on the GPU"),
        Use::Open => return Keep("a process of the same session has the device open"),
        Use::Unknown => return Keep("the driver does not report which processes are on the GPU"),
        Use::Quiet(quiet) => quiet,
    };
    match limit.map(|limit| limit.saturating_sub(taker.min(quiet))) {
        Some(Duration::ZERO) => end,
        left => Suspect(why, left),
    }
}

const ENDED: &str = "the process that took it has exited, and no process is on the GPU";

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_mins(15);
    const NOWHERE: Duration = Duration::from_secs(30);
    /// One second less than the limit.
    const BEFORE_IDLE: Duration = Duration::from_secs(15 * 60 - 1);
    const BEFORE_NOWHERE: Duration = Duration::from_secs(29);
    const LIMITS: Limits = Limits { idle: Some(IDLE), nowhere: NOWHERE };
    /// A GPU that was never used.
    const CASE: Case = Case {
        taker: Taker::Unknown,
        usage: Use::Quiet(Duration::MAX),
        single_host: true,
        host_namespace: true,
    };

    #[test]
    fn every_table_row_has_its_judgement() {
        use Taker::{Ended, Gone, Nowhere, Runs, Unknown};
        use Use::{Busy, Open, Quiet};
        let cases = [
            (Runs, Quiet(IDLE * 9), "keep"),
            (Runs, Busy, "keep"),
            (Runs, Use::Unknown, "keep"),
            (Unknown, Quiet(IDLE * 9), "keep"),
            (Ended(IDLE), Busy, "keep"),
            (Ended(IDLE), Open, "keep"),
            (Ended(IDLE), Use::Unknown, "keep"),
            (Ended(IDLE), Quiet(Duration::ZERO), "suspect"),
            (Ended(IDLE), Quiet(BEFORE_IDLE), "suspect"),
            (Ended(BEFORE_IDLE), Quiet(IDLE), "suspect"),
            (Ended(IDLE), Quiet(IDLE), "orphaned"),
            (Gone, Busy, "keep"),
            (Gone, Open, "keep"),
            (Gone, Use::Unknown, "keep"),
            (Gone, Quiet(Duration::ZERO), "orphaned"),
            (Nowhere(IDLE), Busy, "keep"),
            (Nowhere(IDLE), Use::Unknown, "keep"),
            (Nowhere(Duration::ZERO), Quiet(IDLE), "suspect"),
            (Nowhere(IDLE), Quiet(BEFORE_NOWHERE), "suspect"),
            (Nowhere(BEFORE_NOWHERE), Quiet(IDLE), "suspect"),
            (Nowhere(NOWHERE), Quiet(NOWHERE), "lost"),
        ];
        for (taker, usage, expected) in cases {
            let case = Case { taker, usage, single_host: true, host_namespace: true };
            assert_eq!(evaluate(&case, &LIMITS).name(), expected, "{case:?}");
            for elsewhere in [Case { single_host: false, ..case }, Case { host_namespace: false, ..case }] {
                assert_eq!(evaluate(&elsewhere, &LIMITS).name(), "keep", "{elsewhere:?}");
            }
        }
    }

    #[test]
    fn suspect_has_remaining_time() {
        let left = |taker, usage, limits| match evaluate(&Case { taker, usage, ..CASE }, &limits) {
            Judgement::Suspect(_, left) => left,
            other => panic!("{other:?}"),
        };
        let second = Duration::from_secs(1);
        assert_eq!(left(Taker::Ended(BEFORE_IDLE), Use::Quiet(IDLE), LIMITS), Some(second));
        assert_eq!(left(Taker::Nowhere(NOWHERE), Use::Quiet(BEFORE_NOWHERE), LIMITS), Some(second));
        assert_eq!(left(Taker::Ended(IDLE), Use::Quiet(IDLE), Limits { idle: None, ..LIMITS }), None);
    }

    #[test]
    fn exited_taker_without_limit_stays_suspect() {
        let never = Limits { idle: None, ..LIMITS };
        let judgement = |taker| evaluate(&Case { taker, ..CASE }, &never).name();
        assert_eq!(judgement(Taker::Ended(Duration::MAX)), "suspect");
        assert_eq!(judgement(Taker::Gone), "orphaned");
        assert_eq!(judgement(Taker::Nowhere(NOWHERE)), "lost");
    }
}
