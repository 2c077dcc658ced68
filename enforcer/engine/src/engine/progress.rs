//! The progress of a match: its steps so far, and what must be remembered about them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::{Action, Rule, Severity, Span, Step};
use crate::verdict::{Hold, Outcome};

/// An undelivered notification that a step waits for is sent again after this time.
const AGAIN: Duration = Duration::from_mins(1);

/// With this many attempts without effect, a flag is raised, and another workload is picked.
const WITHOUT_EFFECT: u8 = 3;

/// Progress of one match.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Index of the next step.
    pub(crate) step: u8,
    /// Highest severity of a raised flag.
    pub(crate) flagged: Option<Severity>,
    /// A notification was sent or an action was due, so the end of the match is reported as a reprieve.
    pub(crate) warned: bool,
    /// A channel has delivered a notification of this match.
    #[serde(default)]
    pub(crate) delivered: bool,
    /// A destructive step of this match was taken.
    pub(crate) acted: bool,
    /// The last step of this match was an action, and it is done.
    #[serde(default)]
    pub(crate) is_over: bool,
    /// An action was decided in this match; only then can the match confirm a decision.
    #[serde(skip)]
    pub(crate) decided: bool,
    /// Number of decisions of this match that were not confirmed, and of its actions that were cancelled before they had an
    /// effect.
    #[serde(skip)]
    pub(crate) cancelled: u8,
    /// The last action of this match was refused. The next attempt waits for the cooldown.
    #[serde(default)]
    pub(crate) refused: bool,
    /// An action of this match is being carried out.
    pub(crate) in_flight: bool,
    /// An action failed, or can never be permitted; this match takes no destructive step any more.
    pub(crate) failed: bool,
    /// The next sample raises a flag, because Kubernetes does not permit the step, or several attempts had no effect.
    #[serde(default)]
    pub(crate) flag_due: bool,
    /// The hold that was recorded last.
    pub(crate) shown_hold: Option<Hold>,
    /// Number of samples since the last true one, for clearing a flag.
    pub(crate) off: u16,
}

/// A step that is due.
pub(crate) enum Due<'a> {
    /// Harmless: taken at once.
    Now(&'a Action),
    /// Destructive: it must be decided and confirmed.
    Destructive,
}

impl Progress {
    /// Returns the next step if it is due after this many true samples since the match.
    pub(crate) fn due<'a>(
        &self,
        then: &'a [Step],
        since: u32,
        needs: impl Fn(&Step) -> u32,
    ) -> Option<Due<'a>> {
        let step = then.get(usize::from(self.step)).filter(|step| since >= needs(step))?;
        Some(if step.action.destructive() { Due::Destructive } else { Due::Now(&step.action) })
    }

    /// Returns the channels of earlier notifications if the next step waits for a delivery and it is time to
    /// send them again.
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

    /// Takes note of a decision that was not confirmed, or of an action that was cancelled. The user can cause that, so several of
    /// these are flagged while the match lasts.
    pub(crate) const fn cancel(&mut self) {
        self.cancelled = self.cancelled.saturating_add(1);
        self.flag_due |= self.cancelled >= WITHOUT_EFFECT;
    }

    /// Returns whether the next step waits although it has been due for a while: for a delivery, for the cooldown, or after
    /// several attempts without effect; or whether the last action is done, and the target still matches.
    pub(crate) fn stalls(&self, rule: &Rule, since: u32, interval: Duration) -> bool {
        let place = usize::from(self.step);
        let undelivered = rule.then.get(place).filter(|_| !self.delivered && rule.requires_notice(place));
        let waits = |step: &Step| {
            since > step.after.samples(interval).saturating_add(Span::Time(AGAIN).samples(interval))
        };
        let waits_for_cooldown = self.refused || self.shown_hold == Some(Hold::Cooldown);
        self.is_over
            || waits_for_cooldown
            || self.cancelled >= WITHOUT_EFFECT
            || undelivered.is_some_and(waits)
    }

    /// Records a step that was taken.
    pub(crate) fn took(&mut self, action: &Action) {
        self.step = self.step.saturating_add(1);
        (self.shown_hold, self.refused) = (None, false);
        match action {
            Action::Flag(severity) => self.flagged = self.flagged.max(Some(*severity)),
            Action::Notify(_) => self.warned = true,
            _ => (self.warned, self.acted) = (true, true),
        }
    }

    /// Ends the destructive steps of this match. What Kubernetes does not permit is flagged while the match lasts, because
    /// nothing else would show it.
    pub(crate) const fn give_up(&mut self, outcome: Outcome) {
        (self.failed, self.flag_due) = (true, outcome.raises_flag());
    }

    /// Returns the flag that is to be raised now.
    pub(crate) fn take_flag(&mut self) -> Option<Severity> {
        let severity = std::mem::take(&mut self.flag_due).then_some(Severity::Warning);
        let raised = severity.filter(|severity| self.flagged < Some(*severity))?;
        self.flagged = Some(raised);
        Some(raised)
    }

    /// Returns what remains after a reload or restart. If the steps changed, only the flag remains, because the
    /// counters of the steps start at zero.
    pub(crate) fn taken_over(self, same_steps: bool) -> Self {
        if same_steps {
            return Self { shown_hold: None, ..self };
        }
        Self { flagged: self.flagged, off: self.off, ..Self::default() }
    }

    /// Ends the match; a flag stays until it is cleared.
    pub(crate) fn end(&mut self) {
        *self = Self { flagged: self.flagged, off: self.off, ..Self::default() };
    }
}
