//! The one place that reads a clock: steady time, for the beat and for ages.

#![expect(clippy::disallowed_methods, reason = "the one file that reads a clock")]

use std::time::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    Instant::now()
}
