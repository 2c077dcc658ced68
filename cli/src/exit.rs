//! Failures of a command and their exit codes.

use std::fmt;
use std::process::ExitCode;

use crate::output::{escaped, print_message, print_stdout};
use bailiff_lease::LeaseError;

/// A failed command: an exit code of `sysexits.h` or `timeout(1)`, and a message.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Failure {
    /// Creates a failure for invalid flags (`EX_USAGE`).
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 64, message: message.into() }
    }

    /// Creates a failure without a code of its own.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// Creates a failure for a time limit that was reached (`timeout(1)`).
    pub(crate) fn late(message: impl Into<String>) -> Self {
        Self { code: 124, message: message.into() }
    }

    /// Creates a failure for a request that may succeed later (`EX_TEMPFAIL`).
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self { code: 75, message: message.into() }
    }

    /// Creates a failure for something required that is missing or cannot be used (`EX_UNAVAILABLE`).
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: 69, message: message.into() }
    }

    /// Creates a failure for a missing lease pool.
    pub(crate) fn no_pool() -> Self {
        Self::unavailable(
            "the lease pool has no GPUs (check --prefix, or create the pool: bailiff lease init)",
        )
    }

    /// Creates a failure for a lease that belongs to another holder, or has ended.
    pub(crate) fn not_ours(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into() }
    }

    /// Creates a failure for an unknown lease ID.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into() }
    }

    /// Creates a failure for a lost lease whose command was ended (`EX_IOERR`).
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self { code: 74, message: message.into() }
    }

    /// Creates a failure without a message for an exit by a signal.
    pub(crate) fn signalled(number: i32) -> Self {
        Self { code: u8::try_from(128 + number).unwrap_or(255), message: String::new() }
    }

    /// Creates a failure for a program that cannot be started: 127 if not found, 126 if not executable, as in
    /// shells.
    pub(crate) fn start(program: &str, error: &std::io::Error) -> Self {
        let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
        Self { code, message: format!("cannot run {program}: {}", bailiff_lifecycle::exit::plain(error)) }
    }

    /// Removes control characters from the message.
    pub(crate) fn sanitized(self) -> Self {
        Self { message: bailiff_exposition::terminal::line(&self.message), ..self }
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        if !self.message.is_empty() {
            print_message(&self);
        }
        self.code.into()
    }
}

/// Writes the text to standard output, and succeeds; a closed pipe is not an error.
pub(crate) fn succeed(text: &str) -> Result<ExitCode, Failure> {
    print_stdout(text)?;
    Ok(ExitCode::SUCCESS)
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        // It can contain what a server responded.
        let text = escaped(&error.to_string());
        match error {
            LeaseError::Address(_) | LeaseError::NotLocalHost(_) => Self::usage(text),
            LeaseError::HeldElsewhere(_) => Self::not_ours(text),
            _ => Self::unavailable(text),
        }
    }
}

impl From<bailiff_prometheus::Refused> for Failure {
    fn from(refused: bailiff_prometheus::Refused) -> Self {
        Self::unavailable(refused.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self { code: 1, message: bailiff_lifecycle::exit::plain(&error) }
    }
}
