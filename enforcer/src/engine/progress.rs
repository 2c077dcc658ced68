//! How far a match has come: the steps that were taken, and what is remembered of them.

use serde::{Deserialize, Serialize};

use crate::policy::{Action, Severity, Step};
use crate::verdict::Hold;

/// How far one match has come.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The step that is next.
    pub(crate) step: u8,
    /// The worst flag that is up.
    pub(crate) flagged: Option<Severity>,
    /// Somebody was told, or acted upon: so an end of the match is a reprieve.
    pub(crate) warned: bool,
    /// A destructive step of this match was taken.
    pub(crate) acted: bool,
    /// One was decided: what another match decided is not confirmed by this one.
    #[serde(skip)]
    pub(crate) decided: bool,
    /// One is being carried out.
    pub(crate) flying: bool,
    /// A deed failed or was refused: this match does nothing destructive any more.
    pub(crate) failed: bool,
    /// The hold that was told last.
    pub(crate) told: Option<Hold>,
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
    /// The next step, where it is due after so many true samples since the match.
    pub(crate) fn due<'a>(
        &self,
        then: &'a [Step],
        since: u32,
        needs: impl Fn(&Step) -> u32,
    ) -> Option<Due<'a>> {
        let step = then.get(usize::from(self.step)).filter(|step| since >= needs(step))?;
        Some(if step.action.destructive() { Due::Destructive } else { Due::Now(&step.action) })
    }

    /// Notes a step that was taken.
    pub(crate) fn took(&mut self, action: &Action) {
        self.step = self.step.saturating_add(1);
        self.told = None;
        match action {
            Action::Flag(severity) => self.flagged = self.flagged.max(Some(*severity)),
            Action::Notify(_) => self.warned = true,
            _ => (self.warned, self.acted) = (true, true),
        }
    }

    /// The match has ended; a flag stays up until it has been down long enough.
    pub(crate) fn end(&mut self) {
        *self = Self { flagged: self.flagged, off: self.off, ..Self::default() };
    }
}
