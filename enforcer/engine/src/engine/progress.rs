//! How far a match has come: the steps that were taken, and what is remembered of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::{Action, Rule, Severity, Span, Step};
use crate::verdict::Hold;

/// A notice that was not delivered is sent again after this long, where a step waits for it.
const AGAIN: Duration = Duration::from_mins(1);

/// How far one match has come.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The step that is next.
    pub(crate) step: u8,
    /// The worst flag that is up.
    pub(crate) flagged: Option<Severity>,
    /// A notification or an action was due: the end of the match is a reprieve then.
    pub(crate) warned: bool,
    /// A channel has delivered a notice of this match.
    #[serde(default)]
    pub(crate) delivered: bool,
    /// A destructive step of this match was taken.
    pub(crate) acted: bool,
    /// One was decided: what another match decided is not confirmed by this one.
    #[serde(skip)]
    pub(crate) decided: bool,
    /// One is being carried out.
    pub(crate) in_flight: bool,
    /// An action failed or was refused: this match does nothing destructive any more.
    pub(crate) failed: bool,
    /// The hold that was recorded last.
    pub(crate) shown_hold: Option<Hold>,
    /// Samples since the last true one, for a flag that waits to come down.
    pub(crate) off: u16,
}

/// A step that is due.
pub(crate) enum Due<'a> {
    /// Harmless: it is taken now.
    Now(&'a Action),
    /// Destructive: it has to be chosen, confirmed and let through.
    Destructive,
}

impl Progress {
    /// The next step, if it is due after this many true samples since the match.
    pub(crate) fn due<'a>(
        &self,
        then: &'a [Step],
        since: u32,
        needs: impl Fn(&Step) -> u32,
    ) -> Option<Due<'a>> {
        let step = then.get(usize::from(self.step)).filter(|step| since >= needs(step))?;
        Some(if step.action.destructive() { Due::Destructive } else { Due::Now(&step.action) })
    }

    /// The channels of the notices before a step that waits for one to be delivered: they are sent again every minute.
    pub(crate) fn again<'a>(&self, rule: &'a Rule, since: u32, interval: Duration) -> Option<&'a [String]> {
        let (place, then) = (usize::from(self.step), &rule.then);
        let step = then.get(place).filter(|_| rule.requires_notice(place))?;
        let waited = since.checked_sub(step.after.samples(interval)).filter(|_| !self.delivered)?;
        let every = Span::Time(AGAIN).samples(interval).max(1);
        (waited > 0 && waited.is_multiple_of(every)).then_some(())?;
        let before = then.get(..place)?;
        before.iter().rev().find_map(|step| match &step.action {
            Action::Notify(channels) => Some(channels.as_slice()),
            _ => None,
        })
    }

    /// Notes a step that was taken.
    pub(crate) fn took(&mut self, action: &Action) {
        self.step = self.step.saturating_add(1);
        self.shown_hold = None;
        match action {
            Action::Flag(severity) => self.flagged = self.flagged.max(Some(*severity)),
            Action::Notify(_) => self.warned = true,
            _ => (self.warned, self.acted) = (true, true),
        }
    }

    /// What a reload or restart leaves of it: under other steps no more than the flag, since they count from then on.
    pub(crate) fn taken_over(self, same_steps: bool) -> Self {
        if same_steps {
            return Self { shown_hold: None, ..self };
        }
        Self { flagged: self.flagged, off: self.off, ..Self::default() }
    }

    /// The match has ended; a flag stays up until it has been down long enough.
    pub(crate) fn end(&mut self) {
        *self = Self { flagged: self.flagged, off: self.off, ..Self::default() };
    }
}
