//! Why a command ends, and its exit code.

use std::fmt;
use std::process::ExitCode;

use crate::say::say;
use bailiff_lease::LeaseError;

/// What went wrong, with the code of `sysexits.h` or of `timeout(1)` that scripts know it by.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.why)
    }
}

impl Failure {
    /// Invalid flags (`EX_USAGE`).
    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self { code: 64, why: why.into() }
    }

    /// The time was up (`timeout(1)`).
    pub(crate) fn late(why: impl Into<String>) -> Self {
        Self { code: 124, why: why.into() }
    }

    /// Try again later (`EX_TEMPFAIL`).
    pub(crate) fn busy(why: impl Into<String>) -> Self {
        Self { code: 75, why: why.into() }
    }

    /// It is not there, or cannot be had (`EX_UNAVAILABLE`).
    pub(crate) fn unavailable(why: impl Into<String>) -> Self {
        Self { code: 69, why: why.into() }
    }

    /// Nobody has begun the pool.
    pub(crate) fn no_pool() -> Self {
        Self::unavailable(
            "this pool has no GPUs: is the prefix right, and has anybody run `bailiff lease init`?",
        )
    }

    /// The lease is not, or no longer, what it was taken for.
    pub(crate) fn not_ours(why: impl Into<String>) -> Self {
        Self { code: 3, why: why.into() }
    }

    /// Nothing is known of it.
    pub(crate) fn unknown(why: impl Into<String>) -> Self {
        Self { code: 4, why: why.into() }
    }

    /// The lease was lost (`EX_IOERR`), and the command with it.
    pub(crate) fn lost(why: impl Into<String>) -> Self {
        Self { code: 74, why: why.into() }
    }

    /// Ended by a signal.
    pub(crate) fn signalled(number: i32) -> Self {
        Self { code: u8::try_from(128 + number).unwrap_or(255), why: String::new() }
    }

    /// The program cannot be started: not found, or not executable (as shells have it).
    pub(crate) fn start(program: &str, error: &std::io::Error) -> Self {
        let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
        Self { code, why: format!("cannot run {program}: {}", bailiff_lifecycle::exit::plain(error)) }
    }

    /// The same in words that move no terminal.
    pub(crate) fn harmless(self) -> Self {
        Self { why: bailiff_exposition::terminal::line(&self.why), ..self }
    }

    pub(crate) fn tell(self) -> ExitCode {
        if !self.why.is_empty() {
            say(&self);
        }
        self.code.into()
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Address(_) | LeaseError::NotLocalHost(_) => Self::usage(error.to_string()),
            LeaseError::HeldElsewhere(_) => Self::not_ours(error.to_string()),
            _ => Self::unavailable(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: 1, why: bailiff_lifecycle::exit::plain(&error) }
    }
}
