//! What may be concluded of a GPU that a client of GPU.py has, or seems to have. Pure: who lives and what the driver says
//! comes in.

use std::time::Duration;

/// What the driver says of who is on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Somebody is, or might be.
    Busy,
    /// Nobody is, and that was seen again and again for so long.
    Quiet(Duration),
    /// No process is, and an older one of the session that took it has its device file open.
    Open,
    /// It does not say.
    Unknown,
}

/// What is known of the process that took a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// There is no record, and the GPU is in no place; that was so at every look for so long.
    Nowhere(Duration),
    /// It runs.
    Runs,
    /// It has ended, and was seen to have for so long; what it started may run.
    Ended(Duration),
    /// Nothing of it is left: it was of another boot.
    Gone,
    /// It cannot be told.
    Unknown,
}

/// A GPU that is to be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The process that took it.
    pub taker: Taker,
    /// Who is on it.
    pub usage: Use,
    /// Whoever takes leases of this pool does so on this host, and it is this host's GPU.
    pub single_host: bool,
    /// We see the processes of the whole host.
    pub host_namespace: bool,
}

/// How long something must be seen before anything is concluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The process that took the GPU has ended, and no process is on the GPU; none, and it is never concluded of that
    /// alone.
    pub idle: Option<Duration>,
    /// A GPU is nowhere and quiet: a client of GPU.py is between its pop and its record for a millisecond.
    pub nowhere: Duration,
}

/// What was concluded, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It is held, or nobody can tell.
    Keep(&'static str),
    /// It looks abandoned, not for long enough: after so much more time it is freed, or never.
    Suspect(&'static str, Option<Duration>),
    /// Whoever took it is dead and nobody uses it.
    Orphaned,
    /// It was lost on its way.
    Lost,
}

impl Judgement {
    /// Every name.
    pub const NAMES: [&'static str; 4] = ["keep", "suspect", "orphaned", "lost"];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep(_) => "keep",
            Self::Suspect(..) => "suspect",
            Self::Orphaned => "orphaned",
            Self::Lost => "lost",
        }
    }
}

/// Judges. The first row that fits wins.
///
/// | process that took it | on the GPU | |
/// |---|---|---|
/// | of another host, or in PID namespaces that are not to be seen | | keep |
/// | runs | | keep |
/// | cannot be told | | keep |
/// | | somebody, or not known | keep: what it started uses it |
/// | none, and the GPU is nowhere | nobody | lost, after `nowhere` of both |
/// | is gone with its boot | nobody | orphaned |
/// | has ended | nobody | orphaned, after `idle` of both |
#[must_use]
pub fn judge(case: &Case, limits: &Limits) -> Judgement {
    use Judgement::{Keep, Lost, Orphaned, Suspect};
    if !case.single_host {
        return Keep("clients may be on other hosts");
    }
    if !case.host_namespace {
        return Keep("not all processes of the host are to be seen from here");
    }
    let (taker, limit, end, why) = match case.taker {
        Taker::Runs => return Keep("the process that took it runs"),
        Taker::Unknown => return Keep("it cannot be told whether the process that took it runs"),
        Taker::Gone => (Duration::MAX, Some(Duration::ZERO), Orphaned, ENDED),
        Taker::Ended(ended) => (ended, limits.idle, Orphaned, ENDED),
        Taker::Nowhere(nowhere) => (nowhere, Some(limits.nowhere), Lost, "it is in no place"),
    };
    let quiet = match case.usage {
        Use::Busy => return Keep("a process is on the GPU"),
        Use::Open => return Keep("a process of its session has the device open"),
        Use::Unknown => return Keep("the driver does not say which processes are on the GPU"),
        Use::Quiet(quiet) => quiet,
    };
    match limit.map(|limit| limit.saturating_sub(taker.min(quiet))) {
        Some(Duration::ZERO) => end,
        left => Suspect(why, left),
    }
}

const ENDED: &str = "the process that took it has ended, and no process is on the GPU";

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_mins(15);
    const NOWHERE: Duration = Duration::from_secs(30);
    /// A second less.
    const IDLE_NOT_YET: Duration = Duration::from_secs(15 * 60 - 1);
    const NOWHERE_NOT_YET: Duration = Duration::from_secs(29);
    const LIMITS: Limits = Limits { idle: Some(IDLE), nowhere: NOWHERE };
    /// Nobody was ever on it.
    const CASE: Case = Case {
        taker: Taker::Unknown,
        usage: Use::Quiet(Duration::MAX),
        single_host: true,
        host_namespace: true,
    };

    #[test]
    fn the_table() {
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
            (Ended(IDLE), Quiet(IDLE_NOT_YET), "suspect"),
            (Ended(IDLE_NOT_YET), Quiet(IDLE), "suspect"),
            (Ended(IDLE), Quiet(IDLE), "orphaned"),
            (Gone, Busy, "keep"),
            (Gone, Open, "keep"),
            (Gone, Use::Unknown, "keep"),
            (Gone, Quiet(Duration::ZERO), "orphaned"),
            (Nowhere(IDLE), Busy, "keep"),
            (Nowhere(IDLE), Use::Unknown, "keep"),
            (Nowhere(Duration::ZERO), Quiet(IDLE), "suspect"),
            (Nowhere(IDLE), Quiet(NOWHERE_NOT_YET), "suspect"),
            (Nowhere(NOWHERE_NOT_YET), Quiet(IDLE), "suspect"),
            (Nowhere(NOWHERE), Quiet(NOWHERE), "lost"),
        ];
        for (taker, usage, expected) in cases {
            let case = Case { taker, usage, single_host: true, host_namespace: true };
            assert_eq!(judge(&case, &LIMITS).name(), expected, "{case:?}");
            for elsewhere in [Case { single_host: false, ..case }, Case { host_namespace: false, ..case }] {
                assert_eq!(judge(&elsewhere, &LIMITS).name(), "keep", "{elsewhere:?}");
            }
        }
    }

    #[test]
    fn suspect_says_how_much_longer() {
        let left = |taker, usage, limits| match judge(&Case { taker, usage, ..CASE }, &limits) {
            Judgement::Suspect(_, left) => left,
            other => panic!("{other:?}"),
        };
        let second = Duration::from_secs(1);
        assert_eq!(left(Taker::Ended(IDLE_NOT_YET), Use::Quiet(IDLE), LIMITS), Some(second));
        assert_eq!(left(Taker::Nowhere(NOWHERE), Use::Quiet(NOWHERE_NOT_YET), LIMITS), Some(second));
        assert_eq!(left(Taker::Ended(IDLE), Use::Quiet(IDLE), Limits { idle: None, ..LIMITS }), None);
    }

    #[test]
    fn without_a_limit_only_what_is_certain_is_orphaned() {
        let never = Limits { idle: None, ..LIMITS };
        let named = |taker| judge(&Case { taker, ..CASE }, &never).name();
        assert_eq!(named(Taker::Ended(Duration::MAX)), "suspect");
        assert_eq!(named(Taker::Gone), "orphaned");
        assert_eq!(named(Taker::Nowhere(NOWHERE)), "lost");
    }
}
