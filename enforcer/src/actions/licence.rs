//! Where watching and enforcing part, and the only place that knows of it: whatever does harm asks for a
//! [`Licence`], and nothing but [`carry_out`] makes one, once the audit log has the deed on disk.

use super::clock;
use super::deed::Deed;
use super::ending::Ending;
use crate::audit::{Audit, BEGUN};
use crate::policy::Mode;
use crate::verdict::Outcome;

/// The right to do the deed in hand.
#[derive(Debug)]
pub(crate) struct Licence(());

/// Does the deed, or where the rule watches, all but it.
pub(super) fn carry_out(audit: &Audit, deed: &Deed, act: impl FnOnce(&Licence) -> Ending) -> Ending {
    match deed.mode {
        Mode::Watch => Ending::new(Outcome::Watched, "the rule watches; all but the deed was done"),
        Mode::Enforce => match audit.record(&deed.record(BEGUN, "", None)) {
            Ok(()) if deed.until.is_some_and(|until| clock::since_boot() > until) => {
                Ending::new(Outcome::Cancelled, "it took too long to begin; what was seen is old")
            }
            Ok(()) => act(&Licence(())),
            Err(error) => Ending::new(Outcome::Refused, error.to_string()),
        },
    }
}

/// The deeds of tests have no audit log.
#[cfg(test)]
pub(super) const fn for_a_test() -> Licence {
    Licence(())
}
