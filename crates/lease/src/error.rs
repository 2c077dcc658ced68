//! Errors of the lease pools. The messages say how to fix the problem.

use std::io;
use std::path::Path;

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The most bytes of a text of the server in an error.
const MOST_TEXT: usize = 256;

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The address is invalid.
    #[error("{0} is not a Redis URL; use redis://HOST:PORT/DB, rediss:// for TLS, or redis+unix:///PATH")]
    Address(String),
    /// The server cannot be reached.
    #[error("Redis at {address} does not respond: {why}")]
    Unreachable {
        /// The server's address.
        address: String,
        /// The system's error.
        why: String,
    },
    /// The connection is open, but the reply did not arrive in time.
    #[error(
        "Redis at {0} does not respond in time; check that it is running, and that either both sides or neither use TLS (rediss://)"
    )]
    Silent(String),
    /// Authentication failed, or the user does not have a required permission.
    #[error(
        "Redis refuses access: {0}; add a user and a password to the URL, or grant this user the permissions listed in docs/leases.md"
    )]
    Denied(String),
    /// The server is out of memory.
    #[error("Redis has no memory left (maxmemory): {0}")]
    Full(String),
    /// A key has an unexpected type.
    #[error("{0}; another program uses this prefix, or a key with this prefix was changed manually")]
    WrongType(String),
    /// The server is loading or busy, is a read-only replica, or the call was unblocked with CLIENT UNBLOCK.
    #[error("Redis cannot serve requests now: {0}")]
    NotNow(String),
    /// A reply that this version does not support.
    #[error("unexpected response from Redis: {0}")]
    Unexpected(String),
    /// The directory contains no pool.
    #[error("no GPU pool in {0}: create one with `bailiff lease init`, or use a pool in Redis with --redis")]
    Absent(String),
    /// A file of the pool cannot be used.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The error.
        why: String,
    },
    /// The local pool does not support the operation.
    #[error("{0}")]
    NotLocalHost(String),
    /// Another process prevents the operation for now.
    #[error("{0}")]
    Blocked(String),
    /// The lease's holder cannot be asked to release it.
    #[error("{0}")]
    HeldElsewhere(String),
}

impl LeaseError {
    /// Whether a later attempt may succeed.
    pub const fn passes(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Silent(_) | Self::NotNow(_) | Self::Blocked(_))
    }

    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        let why = error.to_string();
        let why = why.split(" (os error").next().unwrap_or_default().to_lowercase();
        Self::File { path: path.display().to_string(), why }
    }

    /// Returns the error for an invalid address. A part that may be a password is not repeated.
    pub(crate) fn address(text: &str) -> Self {
        let shown = match (text.split_once("://"), text.rsplit_once('@')) {
            (Some((scheme, rest)), _) if rest.contains("pass=") => format!("{scheme}://…"),
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://…@{place}"),
            (None, Some((_, place))) => format!("…@{place}"),
            _ => text.to_owned(),
        };
        Self::Address(shown)
    }

    pub(crate) fn unexpected(response: String) -> Self {
        Self::Unexpected(excerpt(response))
    }

    pub(crate) fn of(error: &RedisError, address: &str) -> Self {
        let detail = excerpt(without_script(error.detail().unwrap_or_default()).to_owned());
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Denied(error.to_string()),
            _ if error.is_timeout() => Self::Silent(address.to_owned()),
            ErrorKind::Parse => Self::Unexpected(detail),
            ErrorKind::Io => Self::Unreachable { address: address.to_owned(), why: error.to_string() },
            ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly) => {
                Self::NotNow(detail)
            }
            _ => match error.code() {
                Some("NOAUTH" | "NOPERM" | "WRONGPASS") => Self::Denied(detail),
                // Redis returns this protocol error if an unauthenticated client sends a long command.
                _ if error.to_string().contains("Protocol error: unauthenticated") => {
                    Self::Denied("Authentication required.".to_owned())
                }
                Some("OOM") => Self::Full(detail),
                Some("WRONGTYPE") => Self::WrongType(detail),
                Some("MISCONF" | "MASTERDOWN" | "NOREPLICAS" | "BUSY" | "UNBLOCKED") => Self::NotNow(detail),
                _ => Self::unexpected(error.to_string()),
            },
        }
    }
}

pub(crate) fn excerpt(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MOST_TEXT));
    text
}

/// Removes the script's hash and line number, which Redis appends to errors in scripts and which are of no use to
/// users.
fn without_script(detail: &str) -> &str {
    detail.split_once(" script: ").map_or(detail, |(error, _)| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_error_omits_script_name() {
        let detail =
            "Operation against a key holding the wrong kind of value script: 774ea770, on @user_script:1.";
        assert_eq!(without_script(detail), "Operation against a key holding the wrong kind of value");
        assert_eq!(without_script("GPU_IDLE is a string"), "GPU_IDLE is a string");
    }

    #[test]
    fn invalid_address_hides_password() {
        for (text, shown) in [
            ("redsi://bob:secret@host:1/0", "redsi://…@host:1/0"),
            ("bob:s@cret@host", "…@host"),
            ("redsi://host", "redsi://host"),
            ("redis+unix:///x?db=y&pass=p@ss", "redis+unix://…"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(LeaseError::address(text), LeaseError::Address(shown.to_owned()));
        }
    }
}
