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
    /// It does not say.
    Unknown,
}

/// Who is known of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// There is no record, and the GPU is in no place; that was so at every look for so long.
    Nowhere(Duration),
    /// The process that it names, or one above it, lives.
    Lives,
    /// All of them are dead, or were before anybody looked.
    Dead,
    /// It cannot be told.
    Unknown,
}

/// A GPU that is to be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Who is known.
    pub line: Line,
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
    /// A GPU whose record's people are all dead is quiet; none, and it is never concluded.
    pub idle: Option<Duration>,
    /// A GPU is nowhere and quiet: a client of GPU.py is between its pop and its record for a millisecond.
    pub nowhere: Duration,
}

/// What was concluded, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It is held, or nobody can tell.
    Keep(&'static str),
    /// It looks abandoned, not for long enough.
    Suspect(&'static str),
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
            Self::Suspect(_) => "suspect",
            Self::Orphaned => "orphaned",
            Self::Lost => "lost",
        }
    }
}

/// Judges. The first row that fits wins.
///
/// | who | on the GPU | |
/// |---|---|---|
/// | of another host, or in PID namespaces that are not to be seen | | keep |
/// | lives | | keep |
/// | cannot be told | | keep |
/// | | somebody, or not known | keep: whom he started uses it |
/// | nowhere | nobody | lost, after `nowhere` of both |
/// | dead | nobody | orphaned, after `idle` |
#[must_use]
pub fn judge(case: &Case, limits: &Limits) -> Judgement {
    use Judgement::{Keep, Lost, Orphaned, Suspect};
    if !case.single_host {
        return Keep("clients may be on other hosts");
    }
    if !case.host_namespace {
        return Keep("not all processes of the host are to be seen from here");
    }
    let quiet = match (case.line, case.usage) {
        (Line::Lives, _) => return Keep("the process that took it, or one above it, lives"),
        (Line::Unknown, _) => return Keep("nobody can tell who took it"),
        (_, Use::Busy) => return Keep("somebody is on the GPU"),
        (_, Use::Unknown) => return Keep("the driver does not say who is on the GPU"),
        (Line::Nowhere(_) | Line::Dead, Use::Quiet(quiet)) => quiet,
    };
    match (case.line, limits.idle) {
        (Line::Nowhere(nowhere), _) if nowhere.min(quiet) >= limits.nowhere => Lost,
        (Line::Nowhere(_), _) => Suspect("it is in no place"),
        (_, Some(idle)) if quiet >= idle => Orphaned,
        (_, _) => Suspect("all who may have taken it are dead, and nobody is on it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_mins(15);
    const NOWHERE: Duration = Duration::from_secs(30);
    /// A second less.
    const IDLE_NOT_YET: Duration = Duration::from_secs(15 * 60 - 1);
    const NOWHERE_NOT_YET: Duration = Duration::from_secs(29);
    const LIMITS: Limits = Limits { idle: Some(IDLE), nowhere: NOWHERE };

    #[test]
    fn the_table() {
        use Line::{Dead, Lives, Nowhere, Unknown};
        use Use::{Busy, Quiet};
        let cases = [
            (Lives, Quiet(IDLE * 9), "keep"),
            (Lives, Busy, "keep"),
            (Lives, Use::Unknown, "keep"),
            (Unknown, Quiet(IDLE * 9), "keep"),
            (Dead, Busy, "keep"),
            (Dead, Use::Unknown, "keep"),
            (Dead, Quiet(Duration::ZERO), "suspect"),
            (Dead, Quiet(IDLE_NOT_YET), "suspect"),
            (Dead, Quiet(IDLE), "orphaned"),
            (Nowhere(IDLE), Busy, "keep"),
            (Nowhere(IDLE), Use::Unknown, "keep"),
            (Nowhere(Duration::ZERO), Quiet(IDLE), "suspect"),
            (Nowhere(IDLE), Quiet(NOWHERE_NOT_YET), "suspect"),
            (Nowhere(NOWHERE_NOT_YET), Quiet(IDLE), "suspect"),
            (Nowhere(NOWHERE), Quiet(NOWHERE), "lost"),
        ];
        for (line, usage, expected) in cases {
            let case = Case { line, usage, single_host: true, host_namespace: true };
            assert_eq!(judge(&case, &LIMITS).name(), expected, "{case:?}");
            for elsewhere in [Case { single_host: false, ..case }, Case { host_namespace: false, ..case }] {
                assert_eq!(judge(&elsewhere, &LIMITS).name(), "keep", "{elsewhere:?}");
            }
        }
    }

    #[test]
    fn without_a_limit_nobody_is_an_orphan() {
        let quiet = Use::Quiet(Duration::MAX);
        let case = Case { line: Line::Dead, usage: quiet, single_host: true, host_namespace: true };
        assert_eq!(judge(&case, &Limits { idle: None, ..LIMITS }).name(), "suspect");
        let lost = Case { line: Line::Nowhere(NOWHERE), ..case };
        assert_eq!(judge(&lost, &Limits { idle: None, ..LIMITS }), Judgement::Lost);
    }
}
